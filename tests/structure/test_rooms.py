"""The house keeps its shape: imports go down, light commands stay light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "attnprof"
#: A room imports from rooms of a lower level only; level 1 has an order of its own.
LEVELS = {
    "cli": 9,
    "render": 8,
    "papers": 7,
    "gate": 6,
    "verify": 6,
    "device": 5,
    "measure": 4,
    "models": 3,
    "trace": 2,
    "closed_form": 2,
    "registry": 1.2,
    "mechanisms": 1.1,
    "blocks": 1.0,
    "mechanism": 0.5,
    "published": 0.4,
    "ops": 0.4,
    "workload": 0.3,
    "costs": 0.2,
    "record": 0.1,
    "units": 0.1,
    "parameters": 0.2,
    "arguments": 0.06,
    "algebra": 0.05,
    "processes": 0.05,
    "user_code": 0.05,
    "errors": 0.0,
}
#: The same between the rooms of ``attnprof/trace``; its plain files are below all of them.
TRACE_LEVELS = {"solve": 5, "report": 4, "request": 3, "run": 2, "rules": 1}
#: The outer door: it may lead anywhere, nothing inside goes through it.
DOORS = {"__init__", "__main__", "api"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    return {parts[1] for parts in imported_names(path)}


def imported_names(path: Path) -> list[list[str]]:
    """Names of our own modules that a file imports, split at the dots."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    ]
    skipped = {id(inner) for block in for_types for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == "attnprof":
                names = [f"attnprof.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found += [part for part in parts if part[0] == "attnprof" and len(part) > 1]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_and_never_sideways(path):
    room = room_of(path)
    if room in DOORS:
        return
    for other in imported_rooms(path) - {room}:
        assert other in LEVELS, f"{path} imports the unknown room {other}"
        assert LEVELS[other] < LEVELS[room], f"{path}: {room} may not import {other}"


@pytest.mark.parametrize(
    "path",
    sorted((PACKAGE / "trace").rglob("*.py")),
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_imports_inside_trace_go_down_and_never_sideways(path):
    def level(room):
        return TRACE_LEVELS.get(room.removesuffix(".py"), 0)

    room = path.relative_to(PACKAGE / "trace").parts[0]
    others = {parts[2] for parts in imported_names(path) if parts[1] == "trace" and len(parts) > 2}
    for other in others - {room, path.stem}:
        assert level(other) < level(room) or level(other) == level(room) == 0, f"{path}: {other}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno <= 60, node.name


def test_no_submodule_shares_a_name_with_a_public_function():
    public = {"build", "attend", "cost", "crossover", "derive", "profile", "compare"}
    top = {path.stem for path in PACKAGE.iterdir()}
    assert not public & top


def modules_imported(path: Path) -> set[str]:
    """The modules of a file's imports, wherever they stand."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return names | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda p: p.stem)
def test_the_command_line_draws_nothing(path):
    drawing = ("rich", "matplotlib", "attnprof.render.terminal")
    assert not [name for name in modules_imported(path) if name.startswith(drawing)]


#: What a renderer may ask: records, words of the gate, and what a document says of itself.
SAID = {"record", "units", "arguments", "errors", "gate", "papers", "render"}


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "render").rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_renderers_compute_nothing(path):
    assert imported_rooms(path) <= SAID
    modules = modules_imported(path)
    gate = {name.split(".")[2] for name in modules if name.startswith("attnprof.gate.")}
    assert gate <= {"rules", "sentences"}
    assert not [name for name in modules if name.split(".")[0] in ("sympy", "torch", "scipy")]


HEAVY = ("torch", "sympy", "matplotlib", "pandas", "fvcore", "numpy")


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint('@' + json.dumps(sorted(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(out.stdout.rpartition("@")[2])) & set(HEAVY)


def command(*arguments: str) -> str:
    return (
        "from typing import Any\n"
        "from attnprof.cli.app import main\nimport sys\n"
        f"sys.argv = ['attnprof', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )


def test_importing_the_package_imports_nothing_heavy():
    assert loaded_by("import attnprof") == set()


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], set()),
        (["list"], set()),
        (["cost", "--attention", "efficient", "--seq", "4096"], {"sympy"}),
        (["compare", "--attention", "standard,efficient", "--seq", "512"], {"sympy"}),
        (["crossover", "--d", "64"], {"sympy"}),
        (["heads", "--d-model", "64", "--seq", "128"], {"sympy"}),
        (["reproduce", "--claim", "004-T2-d8"], {"sympy"}),
        (["reproduce", "002", "--table", "5"], {"sympy"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_light_commands_leave_heavy_packages_alone(arguments, allowed):
    assert loaded_by(command(*arguments)) <= allowed
