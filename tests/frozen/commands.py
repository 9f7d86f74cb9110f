"""README's commands, run as JSON and as text on a terminal of 80 columns."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attnprof
from tests.cli.forked import Forking

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A command: a line of a block, behind ``&&``, in a row of the table of commands, or in a sentence.
WRITTEN = re.compile(r"(?:^|&& \.venv/bin/|`)(attnprof [^`\n#]+)", re.MULTILINE)
#: Further commands, of the first pages of docs/, that take no measurements.
MORE = (
    "attnprof cost -a standard --seq 1024 --phase train --causal",
    "attnprof compare --attention standard,sdpa,linear --seq 1024 --phase decode",
    "attnprof derive my.py:MyAttention --by module --phase decode",
    "attnprof derive my.py:MyAttention --by line --arg d_model=h*d --arg num_heads=h --at B=2,N=99",
    "attnprof derive attnprof.models:build --arg config.num_layers=L --phase forward",
    "attnprof crossover taylor-direct taylor-efficient --over heads --d-model 512 --seq 1024",
    "attnprof crossover standard longformer --over window --seq 4096 --metric memory",
    "attnprof verify-formula O(n) reformer --scope core --where n=N --set num_buckets=64",
    "attnprof predict -a linear --seq 16384 --on H200 --calibration h200.json",
)
#: Left out: a comparison with a commit takes a minute and needs this repository's history.
LEFT_OUT = ("attnprof check --against", "attnprof --")
#: These measure, or take what was measured, and run only if asked to.
MEASURING = ("profile", "sweep", "plot", "tradeoff", "calibrate", "history")
#: Of these keys and types of the JSON are kept, and neither numbers nor text.
SHAPES_ALONE = (*MEASURING, "doctor")
#: A calibration stands in for one of this machine.
CALIBRATED = ("predict", "recommend")
#: Fields that change by themselves.
BY_ITSELF = {"environment", "version", "attnprof_version", "date", "created", "time", "seconds"}
CONFIGURATION = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}  # fmt: skip


def files(only: str, *, measure: bool) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for every command: its exit code, its JSON and its text.

    Commands that measure are left out unless they are to ``measure``.
    """
    commands = dict.fromkeys(" ".join(line.split()) for line in WRITTEN.findall(README))
    with tempfile.TemporaryDirectory() as made:
        folder, outputs = Path(made, "work"), Path(made, "out")
        folder.mkdir()
        outputs.mkdir()
        prepare(folder)
        forking = Forking(
            COLUMNS="80", NO_COLOR="1", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT),
            XDG_CACHE_HOME=str(Path(made, "cache")), HF_HUB_OFFLINE="1",
        )  # fmt: skip
        try:
            for command in (*commands, *MORE):
                name = re.sub(r"[^\w.=,+-]+", "_", command.removeprefix("attnprof "))[:90]
                asked = only in name and (measure or command.split()[1] not in MEASURING)
                if asked and not command.startswith(LEFT_OUT):
                    yield f"{name}.txt", answer(command, forking, folder, outputs)
        finally:
            forking.stop()


def prepare(folder: Path) -> None:
    """Write the files that README's commands name."""
    mine, _, gated = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (folder / "my.py").write_text(mine, encoding="utf-8")
    (folder / "gated.py").write_text(gated, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIGURATION), encoding="utf-8")
    shutil.copy(ROOT / "reports/times/devices/cpu.json", folder / "cpu.json")
    shutil.copy(ROOT / "reports/times/h200/device_1.json", folder / "h200.json")


def answer(command: str, forking: Forking, folder: Path, outputs: Path) -> str:
    """Return what a command says, without what changes by itself."""
    words = shlex.split(command)[1:]
    if words[0] in CALIBRATED and "--calibration" not in words:
        words += ["--calibration", "cpu.json", "--on", "AMD EPYC"]
    shape_alone = words[0] in SHAPES_ALONE
    ended = forking.run([*words, "--format", "json", *forced(words)], folder, outputs)
    try:
        output: Any = json.loads(ended.stdout)
    except ValueError:
        output = ended.stdout
    output = shape(output) if shape_alone else without_what_changes(output)
    lines = [command, f"exit code {ended.returncode}", json.dumps(output, indent=1, sort_keys=True)]
    if ended.returncode not in (0, 1):
        lines += [line for line in ended.stderr.splitlines() if " done, " not in line]
    if not shape_alone:
        ended = forking.run([*words, *forced(words)], folder, outputs)
        lines += [f"exit code {ended.returncode}", ended.stdout]
    return plain("\n".join(lines), folder)


def forced(words: list[str]) -> list[str]:
    """Return ``--force`` for a command that writes a file a second time."""
    return ["--force"] if {"-o", "--output", "--plot"} & {*words} else []


def shape(value: Any) -> Any:
    """Return keys and types of a value; of a list those of its first entry."""
    if isinstance(value, dict):
        return {name: shape(x) for name, x in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if number or value is None else type(value).__name__


def without_what_changes(value: Any) -> Any:
    """Return a value whose fields that change by themselves are names of types."""
    if isinstance(value, list):
        return [without_what_changes(x) for x in value]
    if not isinstance(value, dict):
        return value
    return {
        name: type(x).__name__ if name in BY_ITSELF else without_what_changes(x)
        for name, x in value.items()
    }


def plain(text: str, folder: Path) -> str:
    """Return a text without this run's folder, this version and times."""
    for path, named in ((str(folder), "FOLDER"), (str(ROOT), "ROOT"), (attnprof.__version__, "V")):
        text = text.replace(path, named)
    text = re.sub(r"\b\d+(\.\d+)? (s|ms|µs|min)\b", "TIME", text)
    return re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[\d:.+Z]*", "DATE", text)
