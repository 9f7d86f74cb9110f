"""The house keeps its shape: imports go down, light commands stay light."""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "attnprof"
#: A room imports from rooms of earlier texts only: those of one text stand beside each other.
ORDER = (
    "errors", "algebra processes", "user_code", "arguments", "units", "record", "costs parameters",
    "workload", "ops", "mechanism", "blocks", "mechanisms", "registry", "trace closed_form",
    "models", "measure", "device", "crossovers", "gate verify", "papers", "render", "cli",
)  # fmt: skip
LEVELS = {room: level for level, rooms in enumerate(ORDER) for room in rooms.split()}
#: The same between the rooms of ``attnprof/trace``; its plain files are below all of them.
TRACE_LEVELS = {"solve": 5, "report": 4, "request": 3, "run": 2, "rules": 1}
#: The outer door: it may lead anywhere, nothing inside goes through it.
DOORS = {"__init__", "__main__", "api"}
SOURCES = sorted(PACKAGE.rglob("*.py"))
CLI = sorted((PACKAGE / "cli").glob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    return {parts[1] for parts in source(path).own}


@dataclass
class Source:
    """What a file says of itself, read once: its lines, its functions' lengths, its imports."""

    lines: int
    functions: list[tuple[str, int]]
    modules: set[str]
    own: list[list[str]]
    "Names of our own modules, split at the dots, less those that only types need."


@cache
def source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    functions = [
        (node.name, node.end_lineno - node.lineno)
        for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]  # fmt: skip
    blocks = [node for node in nodes if isinstance(node, ast.If)]
    for_types = [block for block in blocks if "TYPE_CHECKING" in ast.dump(block.test)]
    skipped = {id(inner) for block in for_types for inner in ast.walk(block)}
    modules: set[str] = set()
    imports: list[list[str]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            modules |= set(names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= set(inside)
            if node.module == "attnprof":
                names = inside
            if node.level:
                continue
        else:
            continue
        if id(node) not in skipped:
            parts = [name.split(".") for name in names]
            imports += [part for part in parts if part[0] == "attnprof" and len(part) > 1]
    return Source(text.count("\n"), functions, modules, imports)


def test_imports_go_down_and_never_sideways():
    wrong = [
        f"{path}: {room_of(path)} may not import {other}"
        for path in SOURCES
        if room_of(path) not in DOORS
        for other in imported_rooms(path) - {room_of(path)}
        if other not in LEVELS or LEVELS[other] >= LEVELS[room_of(path)]
    ]
    assert not wrong


def test_imports_inside_trace_go_down_and_never_sideways():
    def level(room):
        return TRACE_LEVELS.get(room.removesuffix(".py"), 0)

    wrong = []
    for path in (PACKAGE / "trace").rglob("*.py"):
        room = path.relative_to(PACKAGE / "trace").parts[0]
        others = {parts[2] for parts in source(path).own if parts[1] == "trace" and len(parts) > 2}
        wrong += [
            f"{path}: {other}"
            for other in others - {room, path.stem}
            if level(other) > level(room) or level(other) == level(room) != 0
        ]
    assert not wrong


def test_files_and_functions_stay_small():
    assert not [(str(path), source(path).lines) for path in SOURCES if source(path).lines > 400]
    functions = [(str(path), *function) for path in SOURCES for function in source(path).functions]
    assert not [function for function in functions if function[-1] > 60]


def test_no_submodule_shares_a_name_with_a_public_function():
    public = {"build", "attend", "cost", "crossover", "derive", "profile", "compare"}
    top = {path.stem for path in PACKAGE.iterdir()}
    assert not public & top


def test_the_command_line_draws_nothing():
    drawing = ("rich", "matplotlib", "attnprof.render.terminal")
    imported = [(str(path), name) for path in CLI for name in source(path).modules]
    assert imported
    assert not [name for _, name in imported if name.startswith(drawing)]


#: What a renderer may ask: records, words of the gate, and what a document says of itself.
SAID = {"record", "units", "arguments", "errors", "gate", "papers", "render"}


def test_renderers_compute_nothing():
    wrong = {}
    for path in sorted((PACKAGE / "render").rglob("*.py")):
        modules = source(path).modules
        gate = {name.split(".")[2] for name in modules if name.startswith("attnprof.gate.")}
        rooms = (imported_rooms(path) - SAID) | (gate - {"rules"})
        wrong[path] = rooms | {name.split(".")[0] for name in modules} & {"sympy", "torch", "scipy"}
    assert wrong
    assert not {str(path): rooms for path, rooms in wrong.items() if rooms}


HEAVY = ("torch", "sympy", "matplotlib", "pandas", "fvcore", "numpy")


#: Command lines, and what they may load, in the order in which one process runs them; none of them
#: starts another process.
LIGHT = [
    (["--help"], set()),
    (["list"], set()),
    # what is not there is refused at once
    (["check", "--suite", "nothing.toml", "--against", "HEAD"], set()),
    (["check", "--baseline", "nothing.json"], set()),
    (["baseline", "--suite", "nothing.toml"], set()),
    (["sweep", "--grid", "nothing.toml", "-o", "nothing.jsonl"], set()),
    (["derive", "nothing.py:Mine"], set()),
    (["derive", "nothing"], set()),
    (["verify-formula", "N", "nothing.py:Mine"], set()),
    (["model", "nothing.json"], set()),
    (["model", "nothing.json", "--mfu"], set()),
    (["model", "llama-3.1-8b", "--compare", "nothing.toml"], set()),
    (["crossover", "--model", "nothing.json", "linear"], set()),
    (["explore", "--model", "nothing.json"], set()),
    (["fit", "nothing.json", "--memory", "8GB"], set()),
    (["fit", "llama-3.1-8b", "--memory", "nothing"], set()),
    (["fit", "llama-3.1-8b", "--on", "nothing"], set()),
    (["fit", "llama-3.1-8b", "--memory", "8GB", "--dtype", "nothing"], set()),
    (["recommend", "--seq", "8", "--memory", "nothing"], set()),
    (["recommend", "--seq", "8", "--attention", "nothing"], set()),
    (["predict", "-a", "linear", "--seq", "8", "--calibration", "nothing.json"], set()),
    (["crossover", "--kind", "predicted", "--calibration", "nothing.json"], set()),
    (["verify-formula", "--model", "nothing.json", "6*P"], {"sympy"}),
    (["cost", "--phase", "train", "--dtype", "bfloat16", "--seq", "4096"], {"sympy"}),
    (["compare", "--attention", "standard,efficient", "--seq", "512"], {"sympy"}),
    (["crossover", "standard", "efficient"], {"sympy"}),
    (["heads", "--d-model", "64", "--seq", "128"], {"sympy"}),
    (["reproduce", "--claim", "004-T2-d8"], {"sympy"}),
    (["reproduce", "002", "--table", "5"], {"sympy"}),
]
PROGRAM = """
import json, os, sys
import attnprof
print("@" + json.dumps([0, sorted(sys.modules)]))
from typing import Any
from attnprof.cli.app import main
os.fork = None
for words in json.loads(sys.argv.pop()):
    try:
        if "nothing" in " ".join(words):
            main(words)  # here: as a program it would run some of them in a fork
        sys.argv[1:] = words
        main()
    except SystemExit as end:
        print("\\n@" + json.dumps([end.code or 0, sorted(sys.modules)]), flush=True)
"""


@pytest.fixture(scope="module")
def loaded():
    """The exit code and heavy packages loaded so far: after the import, and after each command."""
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([words for words, _ in LIGHT])],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    loads = [json.loads(line[1:]) for line in out.stdout.splitlines() if line.startswith("@")]
    return [(code, set(modules) & set(HEAVY)) for code, modules in loads]


def test_importing_the_package_imports_nothing_heavy(loaded):
    assert loaded[0] == (0, set())
    assert len(loaded) == len(LIGHT) + 1


def test_light_commands_leave_heavy_packages_alone_and_start_no_process(loaded):
    for (words, may), (code, heavy) in zip(LIGHT, loaded[1:], strict=True):
        assert (words, code) == (words, 2 if "nothing" in " ".join(words) else 0)
        assert heavy <= may, words
