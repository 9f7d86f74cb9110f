"""Bad requests: the contract's exit codes, one helpful message, never a traceback."""

import errno
import os
import subprocess
import sys

import pytest

from attnprof import registry
from attnprof.cli import app
from attnprof.cli.request import head_shape, parse_names, parse_sizes
from attnprof.errors import CannotRunError, CheckFailedError, RequestError


def raising(error):
    def work():
        raise error

    return work


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
def test_failures_end_with_the_codes_of_the_contract(capsys, error, code):
    assert app.exit_code(raising(error), debug=False) == code
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert ("bug" in message and "--debug" in message) is (code == 70)


def test_debug_shows_the_traceback_of_a_bug(attnprof, monkeypatch):
    import attnprof.cli.list as command

    monkeypatch.setattr(command, "list_", raising(ValueError("odd")))
    ended = attnprof("list")
    assert (ended.code, ended.err.count("\n"), "bug" in ended.err) == (70, 1, True)
    assert "Traceback" in attnprof("--debug", "list").err
    assert "Traceback" in attnprof("list", "--debug").err


def test_a_pipe_is_written_to_and_never_replaced(attnprof, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        assert attnprof(f"list --format csv --output {pipe}").code == 0
        assert pipe.is_fifo()
        assert reader.read(2**16).decode() == attnprof("list --format csv").out


def in_shell(line, folder):
    """The end of a line in which ``attnprof`` is a program of its own."""
    line = line.replace("attnprof", f"{sys.executable} -m attnprof")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        timeout=60, check=False, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["sweep --help", "cost --seq 8 --format csv"])
def test_a_reader_that_leaves_early_is_no_failure(command, tmp_path):
    ended = in_shell(f"attnprof {command} | head -n 1", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("command", "code"), [
    ("verify-formula N standard", 1), ("compare -a linear --seq 8 --plot one.png", 2),
])  # fmt: skip
def test_a_reader_that_leaves_early_changes_no_verdict(command, code, tmp_path):
    ended = in_shell(f"attnprof {command} | true", tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (code, 1), ended.stderr


@pytest.mark.parametrize("command", ["derive linear", "heatmap"])
def test_a_working_folder_that_was_removed_is_named(command, tmp_path):
    ended = in_shell(f"mkdir gone; cd gone; rmdir ../gone; attnprof {command}", tmp_path)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "cd to one that exists" in ended.stderr


@pytest.mark.parametrize(("command", "code"), [
    ("cost --seq 0 2>&-", 2), ("heads >&- 2>&- <&-", 0), ("list -f json >/dev/full", 2),
    ("cost --seq 8 -f csv -o out.csv >&- 2>&-", 0), ("baseline --suite my:x >&- 2>&-", 2),
])  # fmt: skip
def test_closed_and_full_streams_change_no_exit_code(command, code, tmp_path):
    ended = in_shell(f"attnprof {command}", tmp_path)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    for path in tmp_path.iterdir():  # nothing that was printed is in a file of the command's
        assert path.read_text().startswith("mechanism,")


@pytest.mark.parametrize("command", ["tradeoff -a linear --seq 8", "derive torch.nn:Linear"])
def test_a_command_that_gets_no_memory_could_not_run(command, tmp_path):
    ended = in_shell(f"ulimit -v 400000; exec attnprof {command}", tmp_path)
    assert (ended.returncode, "out of memory" in ended.stderr) == (3, True), ended.stderr


#: Sizes that environments have, and those that are kept of them.
WIDTHS = {
    "80": "80", "1": "20", "2": "20", "9" * 20: "1000", "9" * 5000: "1000", "0": None, "-5": None,
    "²": None, "wide": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize("name", ["COLUMNS", "LINES", "TERMINAL_WIDTH"])
def test_a_width_that_no_terminal_has_is_left_out_or_one_that_can_be_drawn(monkeypatch, name):
    for text, kept in WIDTHS.items():
        monkeypatch.setenv(name, text)
        app.usable_widths()
        assert os.environ.get(name) == kept, text


@pytest.mark.parametrize("width", ["1", "9" * 5000])
def test_answers_and_help_are_whole_at_any_width(attnprof, monkeypatch, width):
    usual = attnprof("cost --seq 8").out.split()
    monkeypatch.setenv("COLUMNS", width)
    ended = attnprof("cost --seq 8")
    assert (ended.code, "".join(ended.out.split()).count("bytes")) == (0, usual.count("bytes"))
    assert "Usage" in attnprof("cost --help").out


#: What is not UTF-8, as a system gives it to Python.
FOREIGN = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("line", [
    "cost --seq 8 -f csv -o {}", "cost --attention {}", "model {}.json",
    "profile --attention {}.py:Mine --seq 8 --d-model 8 --heads 2 --predict-only",
    "heatmap --seq 8,16 --d-model 8,16 --plot {}.png", "derive {}.py:Mine --config {}.json",
    "plot {}.json -o {}.png", "history {}", "check --suite {}.toml --against {}",
])  # fmt: skip
def test_a_name_that_is_not_utf_8_is_a_name(attnprof, tmp_path, line):
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
@pytest.mark.parametrize(("text", "sizes"), [
    ("128", [128]),
    ("128,256,512", [128, 256, 512]),
    ("512, 128,512", [512, 128]),
    ("128:16384:x2", [128 * 2**i for i in range(8)]),
    ("100:1000:+100", list(range(100, 1001, 100))),
    ("1:10:x3", [1, 3, 9]),
    ("5:5:x2", [5]),
    ("1,10:30:+10,7", [1, 10, 20, 30, 7]),
    ("1_000", [1000]),
    (str(2**40), [2**40]),
])  # fmt: skip
def test_sizes_are_read(text, sizes):
    assert parse_sizes(text, "--seq") == sizes


@pytest.mark.parametrize(("text", "said"), [
    ("", "whole number"), (",", "whole number"), ("1,,2", "whole number"),
    ("+-3", "whole number"), ("1e3", "whole number"), ("2**3", "whole number"),
    ("³", "whole number"), ("1.5", "whole number"), ("0", "at least 1"), ("-5", "at least 1"),
    ("128:64:x2", "ends before"), ("1:64:x1", "never reaches"), ("1:64", "not a range"),
    ("1:1000000:+1", "larger step"), (str(2**40 + 1), "2\\*\\*40"),
])  # fmt: skip
def test_what_is_no_size_is_refused_with_the_flag_and_why(text, said):
    with pytest.raises(RequestError, match=f"--seq.*{said}"):
        parse_sizes(text, "--seq")


@pytest.mark.parametrize(("given", "shape"), [
    ((None, None, None), (8, 64)), (("128", None, None), (8, 16)),
    (("128", "32", None), (32, 4)), ((None, None, "64"), (8, 64)), ((None, "3", "5"), (3, 5)),
    (("96", None, "32"), (3, 32)), (("96", "3", "32"), (3, 32)),
])  # fmt: skip
def test_two_of_width_heads_and_head_width_give_the_third(given, shape):
    assert head_shape(*given) == shape


@pytest.mark.parametrize(
    ("given", "said"),
    [(("512", "8", "32"), "heads times d"), (("0", None, None), "--d-model"),
     ((None, "x", None), "--heads"), (("7", "9", None), "do not divide")],
)  # fmt: skip
def test_widths_and_heads_that_are_none_together_are_refused(given, said):
    with pytest.raises(RequestError, match=said):
        head_shape(*given)


def test_names_are_kept_in_order_and_once():
    assert parse_names("b, a,b") == ["b", "a"]
    with pytest.raises(RequestError, match="empty name"):
        parse_names("standard,,efficient")


@pytest.mark.parametrize(("name", "said"), [
    ("taylor", "taylor-direct"), ("efficient-taylorshift", "taylor-efficient"),
    ("standrad", "did you mean standard"), ("gqa@2@3", "a number of layers"),
    ("mla@absorbed", "type a parameter, like mla@impl=absorbed"),
    ("mla@impl=absorb", "absorbed"),
])  # fmt: skip
def test_a_name_that_no_mechanism_has_is_answered_with_one_to_type(name, said):
    with pytest.raises(RequestError, match=said):
        registry.get(name)


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
