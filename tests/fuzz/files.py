"""A folder of files that nobody should hand to a program, and modules that misbehave."""

# ruff: noqa: E501 - the lists are texts
import json
import os
from pathlib import Path
from typing import Any

_REPORT = {
    "schema": "attnprof/1", "command": "cost", "environment": {}, "summary": {}, "records": [],
}  # fmt: skip


def _calibrated(**more: Any) -> dict[str, Any]:
    """The calibration of a device that is not here, with next to no tables."""
    entry = {
        "name": "H9", "device": "cpu", "threads": 1, "flops_per_s": {"float32": 1e9},
        "bytes_per_s": 1e9, "source": "made up", "version": 4, "fault_s": 0.0,
        "repeatability": 0.1, "cpu_share": 1.0, "unsteadiness": None, "reference_s": None,
        "processors": None, "tables": {"float32": {"sum": [[1, 1, 1e-6]]}},
    }  # fmt: skip
    return {"schema": "attnprof/1", "ceilings": [{**entry, **more}]}


TEXTS = {
    "empty": "",
    "blank": "\n\n",
    "bom.json": "\ufeff" + json.dumps(_REPORT),
    "report.json": json.dumps(_REPORT),
    "unknown.json": json.dumps({**_REPORT, "command": "dance"}),
    "types.json": json.dumps({**_REPORT, "records": {"a": 1}, "summary": 3, "command": []}),
    "rows.json": json.dumps({**_REPORT, "records": [None, 1, "x", [], {"value": "x"}]}),
    "nan.json": '{"schema": "attnprof/1", "records": [NaN]}',
    "list.json": "[1, 2, 3]",
    "deep.json": "[" * 20_000 + "]" * 20_000,
    "deepest.json": "[" * 200_000,
    "deep.toml": "a = " + "[" * 20_000,
    "infinite.json": '{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "x": Infinity}',
    "config.json": '{"d_model": 8, "num_heads": 2}',
    "baseline.json": json.dumps({**_REPORT, "command": "baseline"}),
    "caf\udce9.json": "{}",
    "cut.json": '{"schema": "attnprof/1", "ceilings": [{"name": "H9", "dev',
    "bare.json": json.dumps(_calibrated()),
    "wild.json": json.dumps(_calibrated(repeatability=1e30)),
    "wrong.json": json.dumps(_calibrated(tables={"float32": {"sum": [[1.5, "x"]]}})),
    "cut.jsonl": '{"schema": "attnprof-sweep/1"}\n{"key": "a", "rec',
    "grid.toml": '[[grid]]\nattention = ["standard"]\nseq = "8"\n',
    "grid_types.toml": "[[grid]]\nattention = 3\nseq = [[1]]\ncausal = {a = 1}\nset = 4\n",
    "suite.toml": '[[case]]\nattention = "standard"\nseq = "8"\n',
    "table.csv": "formula,target,where\nN**2,standard,h=1\n",
    "table_types.csv": "formula\n9**9**9**9\n'x'\n\"a\nb\"\n",
    "nul.csv": "formula,target\nN\0,standard\n",
    "binary.png": "\x89PNG\r\n\x1a\n",
}
MODULES = {
    "plain.py": "layer = torch.nn.Linear\nclass Mine(torch.nn.Module):\n    def __init__(self, d_model, "
    "num_heads=1):\n        super().__init__()\n        self.map = torch.nn.Linear(d_model, d_model)\n"
    "    def forward(self, x):\n        return self.map(x)\n",
    "raises.py": "raise ValueError('\\x1b[31mred')\n",
    "syntax.py": "class Mine(:\n",
    "forward.py": "class Mine(torch.nn.Module):\n    def forward(self, x):\n        raise KeyError(x)\n",
    "width.py": "class Mine(torch.nn.Module):\n    def forward(self, x):\n        return x.missing\n",
    "nothing.py": "Mine = None\n",
    "text.py": "Mine = 'text'\n",
    "latin.py": "Mine = '\udce9'\n",
    "caf\udce9.py": "Mine = torch.nn.Linear\n",
    "recurses.py": "class Mine(torch.nn.Module):\n    def forward(self, x):\n        return self.forward(x)\n",
    "no_memory.py": "class Mine(torch.nn.Module):\n    def forward(self, x):\n        raise MemoryError\n",
}


#: What is no plain file, or not there.
PATHS = [
    "folder.json", "loop.json", "pipe.json", "/dev/null", "/dev/full", "no/such/file.json", "n" * 300,
    ".", "\x1b[31mred.json",
]  # fmt: skip


#: What no command may change without --force, and what is a command's own to change.
_KEPT = [
    "blank", "list.json", "grid.toml", "suite.toml", "table_types.csv", "baseline.json", "cut.json",
    "bare.json", "wild.json", "config.json", "binary.png", *MODULES,
]  # fmt: skip
OWN = {"baseline": {"baseline.json"}, "check": {"baseline.json"}, "calibrate": {"bare.json"}}


def kept(folder: Path) -> dict[str, bytes]:
    """What is in the files that stay as they are."""
    return {name: (folder / name).read_bytes() for name in _KEPT}


def write(folder: Path) -> None:
    """Put them all into a folder, also where they were before."""
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    for name, text in MODULES.items():
        source = f"import torch\n{text}"
        (folder / name).write_text(source, encoding="utf-8", errors="surrogateescape")
    (folder / "folder.json").mkdir(exist_ok=True)
    if not (folder / "pipe.json").is_fifo():
        os.mkfifo(folder / "pipe.json")
        (folder / "loop.json").symlink_to("loop.json")


PLACES = [f"{name}:Mine" for name in MODULES]
PLACES += ["plain.py", "plain.py:Nothing", "no.py:Mine", "torch.nn:Linear"]
