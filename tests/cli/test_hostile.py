"""Code that ends its process does not end the answer: from the command line, nothing is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnprof.measure.journal import read
from tests.cli.forked import Forking
from tests.hostile import copied, marked

ROOT = Path(__file__).parents[2]
SMALL = ("--seq", "8", "--d-model", "16", "--heads", "2")
SUITE = """
[[case]]
attention = {names}
input = ["x: B, N, h*d"]
seq = 8
d_model = 16
heads = 2
formula = false
"""


@pytest.fixture(scope="module")
def forking(tmp_path_factory):
    """A process that forks for each command; it is marked, and so is what it forks."""
    mark = str(tmp_path_factory.mktemp("mark"))
    process = Forking(PYTHONPATH=str(ROOT), ATTNPROF_MARK=mark)
    yield process, f"ATTNPROF_MARK={mark}"
    process.stop()


@pytest.fixture
def attnprof(tmp_path, tmp_path_factory, request):
    """A function that runs a command; afterwards no process, file or folder of it is left.

    With ``fresh`` it is run as users do, else as a fork of a process that has imported torch.
    """
    mark, temporary = f"ATTNPROF_MARK={tmp_path}", tmp_path / "temporary"
    temporary.mkdir()

    def run(*arguments, fresh=False):
        if fresh:
            done = subprocess.run(
                [sys.executable, "-m", "attnprof", *arguments],
                cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary),
                     "ATTNPROF_MARK": str(tmp_path)},
            )  # fmt: skip
            assert marked(mark) == []
        else:
            process, folder = request.getfixturevalue("forking")
            outputs = tmp_path_factory.mktemp("outputs")
            done = process.run(arguments, tmp_path, outputs, TMPDIR=str(temporary))
            assert marked(folder) == [process.pid]
        left = {path.name for path in temporary.iterdir()}
        assert not {name for name in left if not name.startswith("torchinductor")}  # torch's own
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.mark.parametrize(("line", "said", "fresh"), [
    ("import os; os._exit(0)", "ended with exit status 0 before it answered", True),
    ("raise KeyboardInterrupt", "KeyboardInterrupt in `raise KeyboardInterrupt` (mine.", False),
])  # fmt: skip
def test_a_command_whose_code_ends_it_could_not_run_and_says_so(
    attnprof, tmp_path, line, said, fresh
):
    (tmp_path / "mine.py").write_text(f"{line}\n")
    done = attnprof("cost", "--attention", "mine.py:Mine", "--seq", "64", fresh=fresh)
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr
    assert "mine.py:Mine" in done.stderr or "mine.py:1" in done.stderr


@pytest.mark.parametrize("command", [
    ("derive", "talking.py:Talk", "--phase", "forward", "--format", "json"),
    ("profile", "--attention", "talking.py:Talk", *SMALL, "--format", "json"),
])  # fmt: skip
def test_what_code_prints_is_no_part_of_the_answer(attnprof, tmp_path, command):
    (tmp_path / "talking.py").write_text("""
import os, torch
print("imported")
class Talk(torch.nn.Linear):
    def __init__(self, d_model):
        print("built")
        super().__init__(d_model, d_model)
    def forward(self, x):
        print("run", flush=True); os.write(1, b"bare\\n"); os.system("echo by a shell")
        return super().forward(x)
""")
    done = attnprof(*command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"]
    if command[0] == "derive":
        assert all(word in done.stderr for word in ("imported", "built", "run", "bare", "a shell"))


def test_a_forward_that_ends_the_program_is_no_derivation(attnprof, tmp_path):
    (place,) = copied(tmp_path, ["vanishes"])
    done = attnprof("derive", place, "--input", "x: B, N, h*d")
    assert (done.returncode, done.stdout) == (3, "")


def test_a_sweep_over_hostile_modules_has_a_row_for_each(attnprof, tmp_path):
    places = copied(tmp_path, [
        "vanishes_in_import", "exits_in_import", "vanishes", "exits", "crashes", "hangs_in_c",
        "kills_parent", "raises_more", "stops", "daemons", "closes_descriptors", "floods",
    ])  # fmt: skip
    quick = ("--samples", "3", "--min-time", "0", "--max-time", "0.05", "--limit", "6")
    names = ",".join([*places, "linear"])
    done = attnprof("sweep", "--attention", names, *SMALL, *quick, "-o", "s.jsonl")
    assert done.returncode == 0, done.stderr
    reasons = {e["record"]["mechanism"]: e["record"]["skipped"] for e in read(tmp_path / "s.jsonl")}
    assert list(reasons) == [*places, "linear"]
    for name, said in {
        "vanishes_in_import": "exit status 0", "exits_in_import": "SystemExit: 0",
        "exits": "SystemExit: 5", "crashes": "killed by SIGSEGV", "stops": "stopped itself",
        "hangs_in_c": "no result after 6 s", "kills_parent": "vanished",
    }.items():  # fmt: skip
        assert said in reasons[f"{name}.py:Att"]
    assert all(reasons[name] is None for name in (*places[-3:], "linear"))


@pytest.mark.parametrize(("how", "names"), [
    ("--against", ("closes_descriptors", "forks")),
    ("--baseline", ("vanishes", "kills_parent")),
])  # fmt: skip
def test_a_check_of_what_vanishes_is_an_error_and_never_passes(attnprof, tmp_path, how, names):
    places = copied(tmp_path, names)
    (tmp_path / "bench.toml").write_text(SUITE.format(names=json.dumps(places)))
    suite, other = ("--suite", "bench.toml", "--limit", "60", "--no-time"), "."
    if how == "--baseline":
        other = "b.json"
        assert attnprof("baseline", *suite, "-o", other).returncode == 3
    done = attnprof("check", how, other, *suite, "--format", "json")
    assert done.returncode == 3, done.stderr
    rows = {}
    for row in json.loads(done.stdout)["records"]:
        rows.setdefault(row["case"].partition(".")[0], []).append((row["verdict"], row["why"]))
    assert list(rows) == list(names)
    if "forks" in names:
        assert {verdict for verdict, _ in rows.pop("forks")} == {"ok"}
    for name, ((verdict, why),) in rows.items():
        assert verdict == "error"
        assert SAID[name] in why


SAID = {
    "vanishes": "gave no answer", "kills_parent": "signal 9 (SIGKILL",
    "closes_descriptors": "closed what it answers by",
}  # fmt: skip
