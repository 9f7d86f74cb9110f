"""attnprof reproduce: claims in full, tables beside ours, reports, exit codes."""

import csv
import io
import re

import pytest

from attnprof.papers import replay as replaying
from attnprof.papers.checks import Check
from attnprof.papers.documents import Document, claims, measured
from attnprof.record import Report
from attnprof.render.plots import documents as drawn
from attnprof.render.plots.style import new_figure
from tests.cli.test_pages import Outline

KEYS = {
    "claim", "document", "place", "says", "published", "ours", "verdict", "basis", "why", "how",
    "committed",
}  # fmt: skip
WRONG = "002-INF-self_attention-add"
RIGHT = "002-INF-self_attention-mult"


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Committed verdicts as they come out; a function that sets others."""
    others = {}

    def committed(number):
        verdicts = {claim: "match" for claim, its in claims().items() if its.document == number}
        return {**verdicts, WRONG: "erratum", "002-TELESCOPE": "erratum", **others}

    monkeypatch.setattr(replaying, "committed", committed)
    return others.update


@pytest.fixture
def few(monkeypatch):
    """Documents with one quick check each, so that whole replays are quick."""

    def checks(self):
        first = next(claim for claim, its in claims().items() if its.document == self.number)
        return {first: Check(first, {"a": 1, "b": 2}, lambda: {"a": 1, "b": 3}, how="by counting",
                             why="b is three and not two, because it was counted")}  # fmt: skip

    monkeypatch.setattr(Document, "checks", checks)
    monkeypatch.setattr(Document, "part", lambda *_: {})


def test_a_claim_in_full_says_how_and_why(attnprof):
    ended = attnprof(f"reproduce --claim {WRONG},004-T2-d8")
    assert ended.code == 0
    for words in (WRONG, "erratum", "published", "2*t*d - t*n + t + 4*d**2 - 5*d - 1", "why",
                  "4*d**2 + 2*d*t - 5*d - n", "how", "N0: 73, N1: 47"):  # fmt: skip
        assert words in ended.out
    assert ended.err == ""


def test_records_have_the_fixed_keys_in_every_format(attnprof, tmp_path):
    words = f"reproduce --claim {WRONG},{RIGHT} --format"
    ended = attnprof(f"{words} json")
    data = ended.json
    (tmp_path / "saved.json").write_text(ended.out)
    assert Report.load(tmp_path / "saved.json").to_dict() == data
    rows = attnprof(f"{words} csv").csv
    page = attnprof(f"{words} markdown").out
    assert data["command"] == "reproduce"
    assert [set(record) for record in data["records"]] == [KEYS, KEYS]
    assert [list(row) for row in rows] == [list(record) for record in data["records"]]
    assert [row["verdict"] for row in rows] == ["erratum", "match"]
    assert data["summary"]["documents"]["002"]["erratum"] == 1
    for name in (WRONG, RIGHT):
        assert f"### {name}, Table 5: " in page


def test_a_table_stands_beside_ours_where_they_differ(attnprof):
    ended = attnprof("reproduce 002 --table 5")
    assert ended.code == 0
    assert ended.out.count("[ours ") == 1
    assert "of them different from the printed" in ended.out
    assert f"{WRONG}  Table 5  erratum" in ended.out
    assert RIGHT in ended.out
    data = attnprof("reproduce 002 --table 5 -f json").json
    table = data["summary"]["table"]
    assert table["columns"]
    assert all(set(row) == set(table["columns"]) for row in table["rows"])
    cells = [cell for row in table["rows"] for cell in row.values() if isinstance(cell, dict)]
    assert [cell["differs"] for cell in cells].count(True) == 1
    assert {record["claim"] for record in data["records"]} >= {WRONG, RIGHT}
    page = attnprof("reproduce extractors --table 05 -f markdown").out
    assert page.startswith(f"### Table 5: {table['title']}\n")
    assert '<span class="badge red">ours ' in attnprof("reproduce 002 --table 5 -f html").out
    formulas = attnprof("reproduce 002 --table 7 -f json").json
    assert formulas["summary"]["table"]["rows"]


@pytest.mark.usefixtures("few")
def test_whole_replays_count_and_list_errata(attnprof, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    ended = attnprof("reproduce")
    assert "261" in ended.out
    assert "b: 2" in ended.out
    assert "a: 1" not in ended.out  # what both share is not repeated
    assert max(map(len, ended.out.splitlines())) <= 100
    assert "without a check that works: 000-" in ended.err
    one = attnprof("reproduce 004")
    assert "b is three and not two" in one.out
    listed = attnprof("reproduce 004 --all")
    assert all(claim in listed.out for claim, its in claims().items() if its.document == "004")


@pytest.mark.usefixtures("few")
def test_verdicts_filter_what_is_shown_and_not_what_is_counted(attnprof):
    ended = attnprof("reproduce --verdict erratum -f json")
    assert len(ended.json["records"]) == 6
    assert {record["verdict"] for record in ended.json["records"]} == {"erratum"}
    assert ended.json["summary"]["documents"]["002"]["claims"] == 61


def test_another_verdict_than_the_committed_one_ends_with_1(attnprof, settled):
    settled({RIGHT: "erratum"})
    ended = attnprof(f"reproduce --claim {WRONG},{RIGHT}")
    assert ended.code == 1
    assert "1 of 2 verdicts" in ended.err
    assert RIGHT in ended.err
    assert "(the verdict that ships with attnprof)" in ended.out


def test_a_claim_without_a_committed_verdict_is_named_and_no_failure(attnprof, monkeypatch):
    monkeypatch.setattr(replaying, "committed", lambda _: {})
    ended = attnprof(f"reproduce --claim {WRONG}")
    assert ended.code == 0
    assert f"without a verdict that ships: {WRONG}" in ended.err


def test_accept_writes_what_came_out(attnprof, monkeypatch, settled):
    settled({WRONG: "match"})
    kept = []
    monkeypatch.setattr("attnprof.papers.replay.accept", lambda rows: kept.extend(rows) or [])
    assert attnprof(f"reproduce --claim {WRONG} --accept").code == 0
    assert [(row.claim, row.verdict) for row in kept] == [(WRONG, "erratum")]


def figure():
    rows = [{"x": 1, "y": 2}, {"x": 2, "y": 4}]
    said = [
        {"what": "the slope", "printed": "2", "ours": "2.0", "agrees": True},
        {"what": "the end", "printed": "5", "ours": "4", "agrees": False},
    ]
    return {"name": "1", "title": "A line", "measured": False, "rows": rows, "described": said,
            "facts": {"slope": 2.0}}  # fmt: skip


def draw(data):
    made = new_figure(2)
    made.subplots().plot([row["x"] for row in data["rows"]], [row["y"] for row in data["rows"]])
    return made


@pytest.fixture
def drawable(monkeypatch):
    """One figure and no table in every document."""
    parts = {"FIGURES": {"1": figure}}
    monkeypatch.setattr(Document, "part", lambda *asked: parts.get(asked[-1], {}))
    monkeypatch.setattr(drawn, "drawings", lambda _: {"1": draw})


@pytest.mark.usefixtures("few", "drawable")
def test_a_figure_is_compared_and_drawn(attnprof, tmp_path):
    path = tmp_path / "line.png"
    ended = attnprof(("reproduce", "002", "--figure", "1", "--plot", str(path)))
    assert "the slope" in ended.out
    assert "differs" in ended.out
    assert path.read_bytes().startswith(b"\x89PNG")
    data = attnprof("reproduce 002 --figure 1 -f json").json["summary"]["figure"]
    assert data["rows"] == figure()["rows"]
    assert data["described"][1]["agrees"] is False


@pytest.mark.usefixtures("few", "drawable")
def test_reports_have_a_folder_a_document_and_one_page(attnprof, tmp_path):
    folder = tmp_path / "new" / "reports"
    ended = attnprof(("reproduce", "000", "004", "--reports", str(folder)))
    assert "Traceback" not in ended.err
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    each = {"README.md", "claims.csv", "figure01.csv", "figure01.png"}
    assert names == {"reproduction.md", *(f"{n}/{name}" for n in ("000", "004") for name in each)}
    page = (folder / "reproduction.md").read_text()
    assert "| 004 TaylorShift | 70 | 0 | 1 | 0 | 69 | 0 |" in page
    assert "b is three and not two" in page
    readme = (folder / "004" / "README.md").read_text()
    assert "attnprof reproduce 004 --figure 1 --plot figure01.png" in readme
    rows = list(csv.DictReader(io.StringIO((folder / "004" / "figure01.csv").read_text())))
    assert rows == [{"x": "1", "y": "2"}, {"x": "2", "y": "4"}]
    assert len((folder / "004" / "claims.csv").read_text().splitlines()) > 70


@pytest.mark.usefixtures("few")
def test_a_figure_that_cannot_be_made_is_named_and_ends_with_3(attnprof, tmp_path, monkeypatch):
    monkeypatch.setattr(replaying, "committed", lambda _: {})
    parts = {"FIGURES": {"1": lambda: 1 / 0}}
    monkeypatch.setattr(Document, "part", lambda *asked: parts.get(asked[-1], {}))
    ended = attnprof(("reproduce", "004", "--reports", str(tmp_path)))
    assert ended.code == 3
    assert "004 figure 1 could not be made: ZeroDivisionError" in ended.err
    assert "ZeroDivisionError" in (tmp_path / "004" / "README.md").read_text()


@pytest.mark.usefixtures("few", "drawable")
def test_the_html_page_holds_all_it_needs(attnprof, tmp_path):
    path = tmp_path / "page.html"
    attnprof(("reproduce", "002", "--format", "html", "--output", str(path)))
    text = path.read_text()
    links = Outline(text).links
    assert links
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"url\((?!#)", text)
    for claim, its in claims().items():
        assert (f'id="{claim}"' in text) is (its.document == "002")
    assert "b: 2" in text
    assert "A line" in text


@pytest.mark.usefixtures("few")
def test_measure_measures_before_it_answers(attnprof, monkeypatch):
    claim = "004-EQ4"
    check = Check(claim, 7, lambda: measured("004", "seven"), how="a clock", basis="measured")
    monkeypatch.setattr(Document, "checks", lambda _: {claim: check})
    monkeypatch.setattr(Document, "part", lambda *_: {"seven": lambda: 7})
    without = attnprof(f"reproduce --claim {claim}")
    assert "--measure" in without.out
    ended = attnprof(f"reproduce --claim {claim} --measure")
    assert (ended.code, ended.err) == (0, "measuring 004: seven\n")
    assert "match (measured)" in ended.out
