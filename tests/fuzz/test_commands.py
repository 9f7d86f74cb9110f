"""Random command lines keep the contract: exit codes, messages, numbers, no hang, no lost file.

``ATTNPROF_FUZZ_MINUTES=10 pytest -n 0 tests/fuzz --hypothesis-seed 7`` goes on for ten minutes of
processor time.
"""

import gc
import os
import subprocess
import sys
import tempfile
from functools import cache
from itertools import cycle

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from typer.main import get_command

from attnprof.cli.program import program_for
from tests.fuzz import contract, files, pools

MINUTES = float(os.environ.get("ATTNPROF_FUZZ_MINUTES", "0"))
#: Command lines of one round; the suite plays one round with the same lines every time.
ROUND = 60
#: How often each command is tried: those that run code or measure take longer.
WEIGHTS = {
    "cost": 6, "compare": 4, "crossover": 5, "heads": 4, "heatmap": 3, "list": 2, "derive": 2,
    "verify-formula": 6, "plot": 4, "history": 3, "reproduce": 2, "profile": 1, "sweep": 1,
    "check": 1, "baseline": 1, "calibrate": 1, "predict": 3, "recommend": 1, "model": 2,
    "tradeoff": 1, "doctor": 1, "fit": 5, "explore": 2,
}  # fmt: skip
#: What runs for long by its nature is asked for little.
SHORT = {
    "profile": "--samples 1 --min-time 0 --max-time 0.01 --no-check",
    "sweep": "--samples 1 --min-time 0 --max-time 0.01 --in-process --no-check",
    "calibrate": "--contended --seconds 0.01 --file device.json",
    "baseline": "--no-time",
    "check": "--no-time",
    "predict": "--attention standard --seq 8 --on H9",
    "model": "--limit 0 --phase forward",
    "tradeoff": "--attention linear --seq 8 --d-model 8 --heads 2 --no-time",
}
#: These need more than one command line to say anything, or write where they are not told to.
SKIPPED = {
    "reproduce": ("--accept", "--measure", "--all"),
    "check": ("--self-test",),
    "sweep": ("--isolate", "--workers", "--scheduler", "--compile"),
    "profile": ("--isolate", "--compile"),
    "tradeoff": ("--distill", "--norms", "--over", "--time"),
    "list": ("--verify",) * (not MINUTES),  # every mechanism's real code: ten seconds each time
}


@cache
def flags_of(command: str) -> list[tuple[str, bool]]:
    """A command's flags, and whether each takes a value."""
    program = program_for(command, lambda work: work(), is_main=False)
    parameters = get_command(program).commands[command].params
    return [
        (name, not option.is_flag)
        for option in parameters
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--") and name not in SKIPPED.get(command, ())
    ]


#: What this process keeps while it lives: torch's cache, the folder of our children.
KEPT = ("torchinductor_", "attnprof-run-")
FILES = [*files.TEXTS, *files.PATHS]
HOSTILE = st.sampled_from(pools.HOSTILE)


def formulas() -> st.SearchStrategy[str]:
    """Formula text from the grammar; some of it spoiled."""
    leaves = st.sampled_from(["N", "d", "h", "B", "n", "2", "0", "0.5", "16", "1e300", "ℓ", "D"])
    grown = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "**", "^"]), inner).map(
                lambda x: f"({x[0]}){x[1]}({x[2]})"
            ),
            st.tuples(
                st.sampled_from(["sqrt", "log", "log2", "ceil", "floor", "max", "min", "exp", "O"]),
                inner,
            ).map(lambda x: f"{x[0]}({x[1]})"),
        ),
        max_leaves=8,
    )
    spoiled = st.tuples(grown, st.integers(0, 40), st.sampled_from(list("()+*,.=^²'\\é%<"))).map(
        lambda x: x[0][: x[1]] + x[2] + x[0][x[1] :]
    )
    return st.one_of(grown, grown.map(lambda x: f"O({x})"), spoiled, HOSTILE)


def values(flag: str) -> st.SearchStrategy[str]:
    usual = st.sampled_from(pools.BY_FLAG.get(flag, [*pools.WORDS, *FILES]))
    if flag == "--where":
        usual = st.one_of(usual, st.tuples(st.sampled_from("NhdD"), formulas()).map("=".join))
    if flag == "--arg":
        usual = st.one_of(usual, formulas().map(lambda text: f"d_model={text}"))
    return st.one_of(usual, usual, usual, HOSTILE)


def positionals(command: str) -> st.SearchStrategy[list[str]]:
    """What stands without a flag."""
    mechanism, place, file = map(st.sampled_from, (pools.MECHANISMS, files.PLACES, FILES))
    if command == "verify-formula":
        return st.tuples(formulas(), st.one_of(mechanism, mechanism, place)).map(list)
    if command in ("crossover", "heads", "heatmap", "explore"):
        return st.lists(mechanism, min_size=0, max_size=2)
    if command in ("derive", "model", "fit"):
        names = [*pools.MODELS, *FILES, *(pools.RELEASED if command == "fit" else ())]
        other = mechanism if command == "derive" else st.sampled_from(names)
        return st.one_of(place, place, other, HOSTILE).map(lambda x: [x])
    if command in ("plot", "history"):
        return st.lists(file, min_size=0, max_size=2)
    if command == "reproduce":
        return st.lists(st.sampled_from(["000", "002", "004", "999", "x"]), min_size=1, max_size=1)
    return st.just([])


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(
        st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)])
    )
    words = [command, *draw(positionals(command)), *SHORT.get(command, "").split()]
    chosen = draw(st.lists(st.sampled_from(flags_of(command)), max_size=5))
    for flag, takes_value in chosen:
        words += [flag, draw(values(flag))] if takes_value else [flag]
    if command in ("profile", "sweep", "baseline", "check") and "--seq" not in words:
        words += ["--attention", "standard", "--seq", "8", "--d-model", "8", "--heads", "2"]
    return words if draw(st.integers(0, 5)) else [*words, draw(HOSTILE)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An own place to work in, with hostile files, and one for whatever is temporary."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("HOME", str(work))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    files.write(work)
    return tmp_path


#: What may have happened to a process before it starts, in the shell's words.
CONDITIONS = [
    "exec >&-", "exec 2>&-", "exec <&- >&- 2>&-", "ulimit -v 3000000", "ulimit -v 700000",
    "ulimit -v 300000", "export PATH=/nowhere", "export COLUMNS=1 LINES=0", "exec >/dev/full",
]  # fmt: skip


def check_alone(words: list[str], condition: str) -> None:
    """In a process of its own that was started under a condition, the exit code is one of ours."""
    line = [sys.executable, "-m", "attnprof", *words]
    ended = subprocess.run(
        ["/bin/bash", "-c", f'{condition}; exec "$@"', "fuzz", *line], check=False,
        capture_output=True, timeout=4 * contract.HANGS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ended.returncode in contract.CODES, (ended.returncode, condition, words, ended.stderr)
    assert b"Traceback" not in ended.stderr, (condition, words, ended.stderr)


def check(words: list[str], folder) -> None:
    before = files.kept(folder / "work")
    contract.hold(contract.run(words), words)
    if lost := {name for name, data in files.kept(folder / "work").items() if data != before[name]}:
        files.write(folder / "work")
        assert "--force" in words or lost <= files.OWN.get(words[0], set()), (lost, words)
    assert {path.name for path in folder.iterdir()} == {"work", "temporary"}, words
    left = [path.name for path in (folder / "temporary").iterdir()]
    assert [name for name in left if not name.startswith(KEPT)] == [], words


def processor_s() -> float:
    """Seconds of processor time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def rounds(request) -> None:
    """Seeds of the rounds: one, always the same, or as many as the minutes hold."""
    first = int(request.config.getoption("--hypothesis-seed", None) or 0)
    until = processor_s() + 60 * MINUTES
    yield first
    while processor_s() < until:
        first += 1
        sys.stderr.write(f"--hypothesis-seed {first}\n")
        yield first


def test_any_command_line_keeps_the_contract(request, folder, monkeypatch):
    seen: list[list[str]] = []
    for command in WEIGHTS:  # imported now: what imports draws from random would spoil a round
        flags_of(command)
    for number in rounds(request):

        @seed(number)
        @settings(
            max_examples=ROUND, deadline=None, database=None, derandomize=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )  # fmt: skip
        @given(command_lines(), st.sampled_from(pools.WIDTHS))
        def one(words: list[str], width: str) -> None:
            monkeypatch.setenv("COLUMNS", width)
            check(words, folder)
            seen.append([word for word in words if "\0" not in word])

        seen.clear()
        one()
        gc.collect()
        for place, condition in enumerate(CONDITIONS if MINUTES else ()):
            check_alone(seen[place * len(seen) // len(CONDITIONS)], condition)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", [["cost", "--seq", "9" * 5000], ["derive", "nothing.py:Mine"]])
def test_a_process_of_its_own_keeps_the_contract(words):
    ended = subprocess.run(
        [sys.executable, "-m", "attnprof", *words], capture_output=True, text=True, check=False,
        timeout=2 * contract.HANGS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    contract.hold(contract.Ended(ended.returncode, ended.stdout, ended.stderr), words)


GIVEN = [(flag, value) for flag in ("--arg", "--input") for value in pools.BY_FLAG[flag]]
#: A third of the texts that mean nothing; random lines have the others.
GIVEN += [(flag, value) for flag, value in zip(cycle(["--arg", "--input"]), pools.HOSTILE[::3])]


@pytest.mark.parametrize(("flag", "value"), GIVEN)
def test_whatever_a_module_is_given_keeps_the_contract(folder, flag, value):
    given = [] if value.startswith("d_model") else ["--arg", "d_model=h*d"]
    check(["derive", "plain.py:Mine", "--phase", "forward", *given, flag, value], folder)
