"""Bad requests: the contract's exit codes, one helpful message, never a traceback."""

import errno
import os
import subprocess
import sys

import pytest

from attnprof.cli.request import head_shape, parse_names, parse_size, parse_sizes
from attnprof.errors import CannotRunError, CheckFailedError, RequestError


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("no"), 2),
        (CannotRunError("no"), 3),
        (CheckFailedError("no"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("division by zero"), 70),
        (RecursionError(), 70),
        (RecursionError("maximum recursion depth exceeded"), 2),
        (MemoryError(), 3),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 4 bytes"), 3),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 3),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 3),
        (OSError(errno.ENOSPC, "No space left on device"), 2),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 3),
        (ModuleNotFoundError("No module named 'attnprof.x'", name="attnprof.x"), 70),
    ],
    ids=lambda value: str(value) or type(value).__name__,
)
def test_failures_end_with_the_codes_of_the_contract(attnprof, monkeypatch, error, code):
    import attnprof.cli.list as command

    monkeypatch.setattr(command, "list_", raising(error))
    ended = attnprof("list")
    assert ended.code == code
    assert ended.err.count("\n") == 1
    if code == 70:
        assert "bug" in ended.err
        assert "--debug" in ended.err


def test_debug_shows_the_traceback_of_a_bug(attnprof, monkeypatch):
    import attnprof.cli.list as command

    monkeypatch.setattr(command, "list_", raising(ValueError("odd")))
    assert "Traceback" in attnprof("--debug", "list").err
    assert "Traceback" in attnprof("list", "--debug").err


def test_an_unwritable_file_is_left_alone(attnprof, tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    assert attnprof("cost", "--output", str(path)).code == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_never_replaced(attnprof, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert attnprof(f"list --format csv --output {pipe}").code == 0
        assert pipe.is_fifo()
        assert os.read(reader, 2**16).decode() == attnprof("list --format csv").out
    finally:
        os.close(reader)


def test_a_link_is_followed(attnprof, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    assert attnprof(f"list --format csv --output {link}").code == 0
    assert link.is_symlink()
    assert target.read_text() == attnprof("list --format csv").out


@pytest.mark.parametrize("command", ["sweep --help", "cost --seq 8 --format csv"])
def test_a_reader_that_leaves_early_is_no_failure(command):
    line = f"{sys.executable} -m attnprof {command} | head -n 1"
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("cost --seq 0 2>&-", 2), ("cost --seq 8 -f csv >&-", 0), ("heads >&- 2>&- <&-", 0),
        ("cost --seq 8 -f csv -o out.csv >&- 2>&-", 0), ("baseline --suite my:x >&- 2>&-", 2),
        ("list -f json >/dev/full", 2),
    ],
)  # fmt: skip
def test_closed_and_full_streams_change_no_exit_code(command, code, tmp_path):
    line = f"{sys.executable} -m attnprof {command}"
    ended = subprocess.run(
        ["bash", "-c", line], timeout=60, check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    for path in tmp_path.iterdir():  # nothing that was printed is in a file of the command's
        assert path.read_text().startswith("mechanism,")


@pytest.mark.parametrize("command", ["tradeoff -a linear --seq 8", "derive torch.nn:Linear"])
def test_a_command_that_gets_no_memory_could_not_run(command):
    line = f"ulimit -v 400000; exec {sys.executable} -m attnprof {command}"
    ended = subprocess.run(
        ["bash", "-c", line], timeout=60, check=False, capture_output=True, text=True
    )
    assert (ended.returncode, "out of memory" in ended.stderr) == (3, True), ended.stderr


WIDTHS = ("0", "1", "2", "-5", "9" * 20, "9" * 5000, "²", "wide", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("COLUMNS", value) for value in WIDTHS), ("LINES", "0"), ("LINES", "wide"),
     ("TERMINAL_WIDTH", "1"), ("TERMINAL_WIDTH", "-5")],
)  # fmt: skip
def test_a_width_that_no_terminal_has_changes_no_answer(attnprof, monkeypatch, name, value):
    usual = attnprof("cost --seq 8").out.split()
    monkeypatch.setenv(name, value)
    ended = attnprof("cost --seq 8")
    assert (ended.code, "".join(ended.out.split()).count("bytes")) == (0, usual.count("bytes"))
    assert "Usage" in attnprof("cost --help").out


#: What is not UTF-8, as a system gives it to Python.
FOREIGN = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(
    "line",
    [
        "derive {}.py:Mine --phase forward", "cost --seq 8 -f csv -o {}", "cost --attention {}",
        "profile --attention {}.py:Mine --seq 8 --d-model 8 --heads 2 --predict-only",
        "crossover standard {}.py:Mine --kind derived", "model {}.json", "model {}.py:Mine",
        "heatmap --seq 8,16 --d-model 8,16 --plot {}.png", "derive {}.py:Mine --config {}.json",
        "plot {}.json -o {}.png", "history {}", "check --suite {}.toml --against {}",
    ],
)  # fmt: skip
def test_a_name_that_is_not_utf_8_is_a_name(attnprof, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{FOREIGN}.py").write_text(
        "import torch\nclass Mine(torch.nn.Linear):\n    def __init__(self, d_model):\n"
        "        super().__init__(d_model, d_model)\n"
    )
    (tmp_path / f"{FOREIGN}.json").write_text('{"d_model": 8}')
    ended = attnprof(tuple(line.replace("{}", FOREIGN).split()))
    assert ended.code in (0, 2, 3), ended.err
    assert "UnicodeEncodeError" not in ended.err
    (ended.out + ended.err).encode()


# -- sizes ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("128", [128]),
        ("128,256,512", [128, 256, 512]),
        ("512, 128,512", [512, 128]),
        ("128:16384:x2", [128 * 2**i for i in range(8)]),
        ("100:1000:+100", list(range(100, 1001, 100))),
        ("1:10:x3", [1, 3, 9]),
        ("5:5:x2", [5]),
        ("1,10:30:+10,7", [1, 10, 20, 30, 7]),
        ("1_000", [1000]),
    ],
)
def test_sizes_are_read(text, sizes):
    assert parse_sizes(text, "--seq") == sizes


@pytest.mark.parametrize("text", ["", ",", "1,,2", "0", "-1", "+-3", "1e3", "2**3", "³", "10:1:x2"])
def test_what_is_no_size_is_refused_with_the_flag(text):
    with pytest.raises(RequestError, match="--seq"):
        parse_sizes(text, "--seq")


def test_the_largest_size_is_taken_and_one_more_is_not():
    assert parse_size(str(2**40), "--seq") == 2**40
    with pytest.raises(RequestError):
        parse_size(str(2**40 + 1), "--seq")


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((None, None, None), (8, 64)),
        (("128", None, None), (8, 16)),
        (("128", "32", None), (32, 4)),
        ((None, None, "64"), (8, 64)),
        ((None, "3", "5"), (3, 5)),
        (("96", None, "32"), (3, 32)),
        (("96", "3", "32"), (3, 32)),
    ],
)
def test_two_of_width_heads_and_head_width_give_the_third(given, shape):
    assert head_shape(*given) == shape


def test_names_are_kept_in_order_and_once():
    assert parse_names("b, a,b") == ["b", "a"]


@pytest.mark.parametrize(
    ("model", "why"), [("003-standard", "--limit"), ("000-mnist-standard", "one size")]
)
def test_numbers_are_told_where_there_is_no_figure_of_them(attnprof, tmp_path, model, why):
    figure = tmp_path / "shares.png"
    command = ("model", model, "--phase", "forward", "--limit", "0", "--format", "csv")
    ended = attnprof(command, ("--plot", str(figure)))
    assert ended.code == 2
    assert any(row["quantity"] == "flops" for row in ended.csv)
    assert why in ended.err
    assert not figure.exists()
