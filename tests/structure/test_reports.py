"""Every page of reports/ stands in its index with figures of the page, every script on a page."""

import ast
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace

import pytest

import attnprof

REPORTS = Path(__file__).parents[2] / "reports"
INDEX = (REPORTS / "README.md").read_text(encoding="utf-8")
#: Cells of the index: question, answer, command, minutes, page.
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in INDEX.splitlines()
    if line.startswith("| ") and not line.startswith("| question")
]


@pytest.fixture(scope="module")
def runner():
    """The script that runs the others."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("reports_run", REPORTS / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def links(text):
    """The local files that a page links to."""
    return re.findall(r"\]\((?!http)([^)#]+)\)", text)


def test_the_index_has_every_page_and_only_pages_that_are_there():
    pages = {str(path.relative_to(REPORTS)) for path in REPORTS.rglob("*.md")} - {"README.md"}
    assert pages == set(links(INDEX))


def test_every_row_of_the_index_has_an_answer_a_command_and_minutes():
    assert len(ROWS) > 25
    for question, answer, command, minutes, _ in ROWS:
        assert question.endswith("?")
        assert answer
        assert re.search(r"`(python reports/|attnprof )\w", command)
        assert int(minutes) > 0


def test_the_figures_of_an_answer_stand_on_its_page():
    for question, answer, _, _, cell in ROWS:
        text = "\n".join((REPORTS / page).read_text(encoding="utf-8") for page in links(cell))
        text = text.replace(",", "")
        for figure in re.findall(r"(?<![\w=.])\d[\d,]*(?:\.\d+)?(?![\w.])", answer):
            written = rf"(?<![\d.]){re.escape(figure.replace(',', ''))}(?![\d])"
            assert re.search(written, text), (question, figure)


def test_every_script_is_run_by_a_command_of_the_index_or_a_page(runner):
    for name in runner.names():
        folder = (REPORTS / name).parent
        texts = [INDEX, *(page.read_text(encoding="utf-8") for page in folder.glob("*.md"))]
        assert any(f"reports/run.py {name}" in text for text in texts), name


def test_every_command_of_the_index_names_a_script_that_is_there(runner):
    for _, _, command, _, _ in ROWS:
        for name in re.findall(r"reports/run\.py ([\w/]+)", command):
            assert name in runner.names()
        for name in re.findall(r"python (reports/[\w/]+\.py)", command):
            assert (REPORTS.parent / name).is_file()


@dataclass(frozen=True)
class Square:
    name: str
    value: int
    run: str


@pytest.fixture
def squares(runner, monkeypatch, tmp_path):
    """A small report in a folder of its own, and what runs it with words of the command line."""
    monkeypatch.setattr(runner, "HERE", tmp_path)
    report = SimpleNamespace(
        Row=Square, RUN="first", cases=lambda: {"two": 2, "three": 3, "three times": 9},
        rows=lambda name, n: [Square(name, n * n, report.RUN)], name_of=lambda row: row.name,
        page=lambda rows: ["# Squares", *(f"{row.name} {row.value} {row.run}" for row in rows)],
    )  # fmt: skip

    def run(*words):
        runner.fill(report, "squares", runner.options(list(words)))
        return (tmp_path / "squares.md").read_text(encoding="utf-8")

    return run


def test_the_runner_measures_what_is_missing_and_keeps_the_rest(squares, tmp_path):
    squares("two")
    page = squares("--set", "RUN='second'")
    assert page.endswith("two 4 first\nthree 9 second\nthree times 81 second\n")
    assert squares("three", "--set", "RUN='third'").endswith(
        "three 9 third\nthree times 81 second\n"
    )
    assert "three,9,third" in (tmp_path / "squares.csv").read_text(encoding="utf-8")
    assert squares("--all").count("third") == 3
    with pytest.raises(SystemExit, match="no case five: possible: two, three"):
        squares("five")


def test_a_page_that_is_written_again_says_on_which_machine_its_rows_were_made(squares, tmp_path):
    page = squares()
    assert "`python reports/run.py squares`; all rows are in [squares.csv](squares.csv)" in page
    made = re.search(r"^Measured with .*torch \d.*, \d{4}-\d\d-\d\d\.$", page, re.MULTILINE)
    text = page.replace(made[0], "Measured with an abacus.")
    (tmp_path / "squares.md").write_text(text, encoding="utf-8")
    assert "Measured with an abacus." in squares("--page")
    heading = r"^Measured with an abacus; some rows later with .*torch.*\.$"
    some = re.search(heading, squares("two"), re.MULTILINE)
    assert some[0] in squares("--page")
    assert some[0].count("torch") == squares("three").count("torch") == 1
    assert "abacus" not in squares("--all")


def imported(path):
    """The names that a script takes from modules of the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "attnprof":
            yield from ((node.module, alias.name) for alias in node.names)


def test_scripts_import_what_the_package_has():
    """Other tests run few of the scripts, which take minutes."""
    modules = {module.name for module in walk_packages(attnprof.__path__, "attnprof.")}
    missing = [
        (path.name, module, name)
        for path in [*REPORTS.rglob("*.py"), *(REPORTS.parent / "docs").rglob("*.py")]
        for module, name in imported(path)
        if not hasattr(importlib.import_module(module), name) and f"{module}.{name}" not in modules
    ]
    assert not missing
