"""A name is text wherever it is shown: no terminal, page, table, program or figure obeys it."""

import csv
import io
import re
import warnings
from dataclasses import asdict

import pytest
from junitparser import JUnitXml

from attnprof.cli.options import deliver, note
from attnprof.gate.changes import causes
from attnprof.record import CheckRecord, DeriveRecord, HistoryRecord, MechanismRecord, Report
from attnprof.record.escapes import csv_cell, markdown_code, markdown_text, visible
from attnprof.render.formats import render_csv, render_markdown
from attnprof.render.gate import render_annotations, render_junit
from attnprof.render.plots.curves import draw_history
from attnprof.render.plots.results import draw_results
from attnprof.render.plots.style import figure_bytes, styled
from attnprof.render.tables.check import check_page, check_tables
from attnprof.render.tables.derive import derive_page
from attnprof.render.terminal import FittedTable, record_table, render_text
from tests.render.test_results import record

NAMES = {
    "colours": "\x1b[31mred\x1b[0m",
    "a title": "\x1b]0;owned\x07",
    "one byte escapes": "a\x9b31mb\x90c",
    "a bell and backspaces": "a\x07\x08\x08\x7fb",
    "another line": "a\n::error file=x::owned",
    "a carriage return": "good\rbad",
    "reversed": "a\u202ecod.exe\u2066",
    "half a character": "a\ud800b",
    "markup": "[red]x[/] [/nothing] [link=file:///x]y[/link] :boom:",
    "a tag": "<script>alert(1)</script>&lt;",
    "a table cell": "a|b|c",
    "code": "`x``y`",
    "a link": "[x](javascript:alert(1)) ![y](z)",
    "emphasis": "*a* **b** __c__ ~~d~~",
    "a formula of a spreadsheet": "=HYPERLINK(1)",
    "a formula of TeX": "$\\frac{$ a_b^^ $x$",
    "hidden": "_nolegend_",
    "per cent": "100%0A%0D%25::,:",
    "XML": "]]><x>\x00\x0b\ufffe&",
}  # fmt: skip
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

hostile = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


def checked(name):
    rows = [
        CheckRecord(case=f"{name}.py:{name}", metric=name, baseline=1, current=2, ratio=2.0,
                    verdict=verdict, why=name, place=f"{name}.py:12", unit=name)
        for verdict in ("regressed", "error", "ok")
    ]  # fmt: skip
    summary = {"base": name, "head": name, "counts": {"regressed": 1}, "verdict": "regressed",
               "notes": [name], "power": [name], "not_comparable": name, "rule": name,
               "causes": [*map(asdict, causes(rows, {}, {}))]}  # fmt: skip
    return Report("check", rows, summary)


@hostile
def test_the_terminal_shows_what_it_would_obey(name, capsys):
    text = render_text(check_tables(checked(name), verbose=True), 200)
    listed = record_table([MechanismRecord(mechanism=name, title=name)], ("mechanism", "title"))
    table = FittedTable(name, title=name, caption=name)
    table.add_row(name)
    text += render_text([listed, table, name], 200)
    note(name)
    said = capsys.readouterr().err
    assert not OBEYED.search(text)
    assert not OBEYED.search(said)
    assert said.count("\n") == 1


@hostile
def test_what_a_command_writes_is_not_obeyed(name, capsys):
    rows = [MechanismRecord(mechanism=name, title=name, params={name: name}, skipped=name)]
    for fmt in ("table", "markdown", "csv"):
        deliver(Report("list", rows, {"note": name}), fmt, None)
        out = capsys.readouterr().out
        assert not OBEYED.search(out)
        lines = out.splitlines() if fmt != "csv" else []
        assert not [line for line in lines if line.strip().startswith("::")]


def unescaped(sign, text):
    """How often a sign stands where Markdown obeys it: not escaped, in no code."""
    bare = re.sub(r"\\[^\w\s]", "", text)
    return re.sub(r"(?<!`)(`+)(?!`)(.*?[^`])\1(?!`)", "", bare).count(sign)


@hostile
def test_a_markdown_table_keeps_its_cells(name):
    report = Report("list", [MechanismRecord(mechanism=name, title="x", family="y")])
    page = render_markdown(report)
    head, _, *rows = page.splitlines()
    assert len(rows) == 1
    assert unescaped("|", rows[0]) == unescaped("|", head)
    for sign in "<>`[":
        assert not unescaped(sign, rows[0])


@hostile
def test_pages_of_a_check_and_a_derivation_keep_their_form(name):
    page = check_page(checked(name))
    fields = {
        "answer": name, "domain": [name], "verified_at": [{"B": 1}], "method": name,
        "uncounted": [name], "notes": [name],
        "peak": {"bytes": 1, "line": name, "operation": name, "regimes": [
            {"expression": name, "value": 1}, {"expression": name, "value": 2}]},
        "lines": [{"line": name, "calls": 1, "flops": name, "bytes_moved": "0"}],
        "steps": [{"line": name, "part": name, "operation": name, "flops": name, "uncounted": False,
                   "bytes_moved": "0", "calls": 1, "allocates": "0", "frees_before": "0"}],
    }  # fmt: skip
    row = DeriveRecord(name=name, phase="forward", quantity="flops", expression=name, method="x")
    summary = {"name": name, "inputs": [name], "symbols": [name], "dtype": "float32", "at": {},
               "notes": [name], "phases": {"forward": fields}}  # fmt: skip
    derived = derive_page(Report("derive", [row], summary))
    for text in (page, derived):
        assert not OBEYED.search(text)
        assert not unescaped("<script", text)
        assert not unescaped("](", text)
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in block.splitlines()}
            assert len(bars) == 1


@hostile
def test_programs_read_it_as_text(name):
    """An annotation is one command a line, JUnit's is XML, and CSV has no formula."""
    (line,) = render_annotations(checked(name)).splitlines()
    command, properties, _ = re.fullmatch(r"::(\w+) (.*?)::(.*)", line).groups()
    assert command == "error"
    assert [part.split("=")[0] for part in properties.split(",")] == ["file", "line", "title"]
    text = render_junit(checked(name))
    suites = JUnitXml.fromstring(text.encode())
    assert (suites.tests, suites.failures, suites.errors) == (3, 1, 1)
    assert not OBEYED.search(line + text)
    rows = list(csv.reader(io.StringIO(render_csv(checked(name)))))
    assert len(rows) == 4
    for cell in (cell for row in rows for cell in row):
        assert not cell.startswith(("=", "+", "-", "@", "\t"))


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-N*d", "@SUM(A1)", "\t=1", "\r=1", "-", "＝1"])
def test_a_text_that_begins_like_a_formula_gets_an_apostrophe(text):
    assert csv_cell(text) == f"'{visible(text, lines=True)}" or csv_cell(text)[0] == "␍"


@pytest.mark.parametrize("value", [-5, -0.5, "-5", "+3.5e2", "-inf", "a=b", "2-1", ""])
def test_numbers_and_other_texts_stay(value):
    record = CheckRecord(case="c", metric="m", baseline=value, verdict="ok")
    rows = list(csv.DictReader(io.StringIO(render_csv(Report("check", [record])))))
    assert rows[0]["baseline"] == str(value)


@pytest.fixture
def drawing():
    """The house style; the letters that its font lacks are no failure."""
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


@pytest.mark.usefixtures("drawing")
@pytest.mark.parametrize(
    ("kind", "names"),
    [(kind, [*NAMES.values()][i::3]) for i, kind in enumerate(("growth", "roofline", "pareto"))],
)
def test_figures_draw_names_as_they_are(kind, names):
    reports = [Report("sweep", [record("standard", 8)])] + [
        Report("sweep", [
            record(name, n, params={name: name, "list": [1]}, error=0.1, skipped=skipped)
            for n, skipped in ((8, None), (16, name))
        ], {}, {"device_name": name})
        for name in names
    ]  # fmt: skip
    calibrations = [
        {"device": name, "flops_per_s": {"float32": 1e11}, "bytes_per_s": 1e10, "source": name}
        for name in names
    ]
    more = {"ceilings": calibrations} if kind == "roofline" else {}
    assert figure_bytes(draw_results(reports, kind, **more), ".svg")


@pytest.mark.usefixtures("drawing")
def test_a_history_draws_names_as_they_are():
    runs = [
        HistoryRecord(case=name, metric=name, machine=name, at="2026-01-01", commit=name, file=name,
                      run=run, value=run, level=run, change_point=run > 1, ratio=2.0)
        for name in NAMES.values() for run in (1, 2)
    ]  # fmt: skip
    assert figure_bytes(draw_history(Report("history", runs)), ".png")


def test_a_name_with_dollars_is_in_the_figure():
    with styled():
        image = figure_bytes(draw_results([Report("sweep", [record("a$b$c", 8)])]), ".svg")
    assert b"a$b$c" in image


def test_a_mapping_of_signs_is_one_to_one_and_markup_and_emoji_stay_text():
    assert NAMES["markup"] in render_text([FittedTable("x" * 100, title=NAMES["markup"])], 200)
    assert visible("a\x1b[1m\x7f\x85\u202e") == "a␛[1m␡\ufffd\ufffd"
    assert visible("é ü 漢 🙂 x\u200dy") == "é ü 漢 🙂 x\u200dy"
    assert visible("a\tb\nc", lines=True) == "a\tb\nc"


@pytest.mark.parametrize(("text", "shown"), [
    ("_softmax", "_softmax"), ("a_b_c", "a_b_c"), ("__init__", r"\_\_init\_\_"), ("2*x", "2*x"),
    ("4*N*d", r"4\*N\*d"), ("a\\b", r"a\\b"), ("A&B &amp;", r"A&B \&amp;"), ("a\n\nb", "a b"),
])  # fmt: skip
def test_markdown_is_escaped_only_where_it_means_something(text, shown):
    assert markdown_text(text) == shown


def test_a_code_span_s_fence_is_longer_than_any_inside():
    assert markdown_code("a``b|c") == "``` a``b\\|c ```"
