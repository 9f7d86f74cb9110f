"""Replays: a record a claim whatever happens, verdicts committed and compared, names found."""

import math
import tomllib

import pytest

from attnprof.errors import CannotRunError, RequestError
from attnprof.papers import documents
from attnprof.papers.checks import READING, Check, rounded
from attnprof.papers.documents import (
    DOCUMENTS,
    Document,
    claims,
    claims_of,
    find_claims,
    find_documents,
    find_part,
    fresh,
    measured,
    not_made,
    ship,
)
from attnprof.papers.regenerated import both_values, described, regenerate, table_rows, tables_of
from attnprof.papers.replay import (
    MOST,
    STATEMENT,
    accept,
    committed,
    distance,
    only,
    replay,
    severity,
    surprises,
)
from attnprof.record import Report, ReproduceRecord
from attnprof.render.plots.documents import drawings

IDS = ["002-TR-me-mult", "002-PPL", "002-T7-me", "002-T7-512"]


def broken():
    raise ZeroDivisionError("division by zero\nand more")


def unmeasured():
    return measured("002", "never")


CHECKS = {
    check.claim: check
    for check in (
        Check("002-TR-me-mult", 2, lambda: 3, how="by counting", why="three it is"),
        Check("002-PPL", 1, broken, how="by dividing"),
        Check("002-T7-me", 1, unmeasured, how="by measuring", basis="measured"),
        Check("002-T7-512", True, lambda: True, basis=READING, how="read in Sec 7"),
    )
}


@pytest.fixture
def own_checks(monkeypatch):
    monkeypatch.setattr(Document, "checks", lambda _: CHECKS)


@pytest.mark.usefixtures("own_checks")
def test_a_claim_is_a_record_whatever_happens_to_its_check():
    ids = [*IDS, "002-CRIT"]
    report = replay(ids)
    assert [record.claim for record in report.records] == ids
    wrong, crashed, missing, read, none = report.records
    numbers = wrong.published, wrong.ours
    assert (wrong.verdict, numbers, wrong.why) == ("erratum", (2, 3), "three it is")
    assert (crashed.verdict, crashed.why) == ("error", "ZeroDivisionError: division by zero")
    assert missing.verdict == "error"
    assert "--measure" in missing.why
    assert (read.verdict, read.basis) == ("match", "reading")
    assert (none.verdict, none.why) == ("error", "no check answers this claim")
    assert (none.place, none.says) == (claims()["002-CRIT"].place, claims()["002-CRIT"].says)


@pytest.mark.usefixtures("own_checks")
def test_the_summary_counts_by_document():
    report = replay(IDS)
    assert report.summary["documents"] == {
        "002": {
            "title": DOCUMENTS["002"].title, "claims": 4, "match": 1, "erratum": 1,
            "not-reproducible": 0, "error": 2, "readings": 1,
        }
    }  # fmt: skip
    assert report.summary["errors"] == ["002-PPL", "002-T7-me"]
    assert [record.claim for record in only(report, ["match"]).records] == ["002-T7-512"]


def test_checks_that_cannot_be_loaded_are_rows_too(monkeypatch):
    monkeypatch.setattr(Document, "checks", lambda _: broken())
    assert {record.verdict for record in replay(IDS).records} == {"error"}


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Folders of the documents with nothing in them."""
    for its in DOCUMENTS.values():
        (tmp_path / its.folder).mkdir()
    claims()  # read before they are out of sight
    monkeypatch.setattr(documents, "HERE", tmp_path)
    return tmp_path


def record(claim, verdict, published=1, ours=1):
    return ReproduceRecord(
        claim=claim, document=claim[:3], place="", says="", published=published, ours=ours,
        verdict=verdict, basis="computed", committed=None,
    )  # fmt: skip


def test_accepted_verdicts_are_the_committed_ones_and_errors_are_none(elsewhere):
    assert committed("002") == {}
    accept([record("002-PPL", "erratum"), record("002-TR-me-mult", "match")])
    accept([record("002-PPL", "not-reproducible"), record("002-TR-me-mult", "error")])
    assert committed("002") == {"002-TR-me-mult": "match", "002-PPL": "not-reproducible"}
    lines = (elsewhere / "extractors" / "verdicts.csv").read_text().splitlines()
    assert lines == ["claim,verdict", "002-TR-me-mult,match", "002-PPL,not-reproducible"]
    assert [path.name for path in elsewhere.glob("*/*")] == ["verdicts.csv"]


@pytest.mark.usefixtures("elsewhere", "own_checks")
def test_a_verdict_that_is_not_the_committed_one_is_named():
    accept([record("002-TR-me-mult", "match"), record("002-PPL", "match")])
    summary = replay(IDS).summary
    assert summary["changed"] == ["002-TR-me-mult", "002-PPL"]
    assert summary["not_committed"] == ["002-T7-me", "002-T7-512"]


def test_verdicts_in_another_form_are_refused(elsewhere):
    (elsewhere / "extractors" / "verdicts.csv").write_text("claim;verdict\n")
    with pytest.raises(RequestError, match="claim,verdict"):
        committed("002")


@pytest.mark.usefixtures("elsewhere")
def test_shipped_measurements_are_read_and_fresh_ones_stand_before_them(monkeypatch):
    with pytest.raises(CannotRunError, match="--measure"):
        measured("002", "times")
    ship("002", {"times": [1, 2]}, {"device": "cpu"})
    assert measured("002", "times") == [1, 2]
    made = {"times": lambda: (3, 4)}
    monkeypatch.setattr(Document, "part", lambda *_: made)
    heard = []
    with fresh("002", heard.append) as values:
        assert (values, heard) == ({}, [])
        assert measured("002", "times") == measured("002", "times") == [3, 4]
        assert (values, heard) == ({"times": [3, 4]}, ["measuring 002: times"])
        with pytest.raises(CannotRunError):
            measured("002", "others")
    assert measured("002", "times") == [1, 2]


# -- names -------------------------------------------------------------------------------------
def test_documents_go_by_number_and_by_folder():
    assert [its.number for its in find_documents(["TaylorShift", "0"])] == ["000", "004"]
    assert len(find_documents([])) == len(DOCUMENTS)
    with pytest.raises(RequestError, match="taylorshift"):
        find_documents(["taylorshft"])


def test_claims_are_found_in_any_case_and_the_closest_told():
    assert find_claims(["004-eq6", "004-EQ6"]) == ["004-EQ6"]
    with pytest.raises(RequestError, match="004-T2-d16"):
        find_claims(["004-T2-d17"])
    with pytest.raises(RequestError, match="--all"):
        find_claims(["everything"])


def test_tables_are_found_and_listed():
    assert find_part("002", "table", "05")[0] == "5"
    with pytest.raises(RequestError, match="1, 2, 3, 4, 5, 6, 7"):
        find_part("002", "table", "9")


def test_a_figure_that_nobody_can_make_says_why():
    with pytest.raises(CannotRunError, match="children's books"):
        find_part("002", "figure", "7")
    with pytest.raises(RequestError, match="its figures: 2"):
        find_part("002", "figure", "12")


def test_claims_of_a_figure_name_it():
    assert "000-FIG3-grid" in claims_of("000", "figure", "3")
    assert claims_of("000", "figure", "30") == []


# -- tables and figures --------------------------------------------------------------------------
ROWS = [
    {"name": "a", "value": both_values(1.23, 1.2345, rounded(2)), "note": "x"},
    {"name": "b", "value": both_values(2, 3), "note": "y"},
    {"name": "c", "value": both_values(7, None), "note": ""},
]
TABLE = {"name": "1", "title": "Sizes", "columns": [*ROWS[0]], "rows": ROWS, "notes": []}


def test_a_table_has_both_values_where_it_was_recomputed():
    assert [row["value"] for row in ROWS] == [
        {"printed": 1.23, "ours": 1.2345, "differs": False},
        {"printed": 2, "ours": 3, "differs": True},
        7,
    ]
    assert table_rows(TABLE) == [
        {"name": "a", "value": 1.23, "value (ours)": 1.2345, "note": "x"},
        {"name": "b", "value": 2, "value (ours)": 3, "note": "y"},
        {"name": "c", "value": 7, "value (ours)": "", "note": ""},
    ]


@pytest.mark.parametrize("number", [n for n, its in DOCUMENTS.items() if its.part("FIGURES")])
def test_every_text_of_a_figure_is_said_and_every_note_is_under_a_table(number):
    folder = DOCUMENTS[number].path
    texts = tomllib.loads((folder / "figures.toml").read_text(encoding="utf-8"))
    code = (folder / "figures.py").read_text(encoding="utf-8")
    assert [name for name in texts if f'"{name}"' not in code] == []
    tables = tomllib.loads((folder / "tables.toml").read_text(encoding="utf-8"))
    used = {note for name, table in tables.items() for note in table.get("notes", ())}
    assert set(tables.get("notes", ())) <= used


def test_a_statement_with_a_gap_that_nobody_fills_is_named():
    with pytest.raises(KeyError, match="slopes"):
        described("000", [("slopes", True, {})])


def test_a_table_is_made_of_its_columns_and_what_is_ours(monkeypatch, tmp_path):
    folder = tmp_path / DOCUMENTS["002"].folder
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "sizes.csv").write_text("name,count,share\na,3,0.52\nb,4,1\n")
    (folder / "tables.toml").write_text(
        '[notes]\nrule = """counted\n by {who}"""\n[9]\ntitle = "Sizes"\nrows = "sizes"\n'
        'notes = ["rule"]\n[9.columns]\nwho = { from = "name", words = { a = "A", b = "B" } }\n'
        'n = { from = "count", as = "int" }\n'
        's = { from = "share", as = "float", agree = { rounded = 2 } }\n'
    )
    monkeypatch.setattr(documents, "HERE", tmp_path)
    Document.texts.cache_clear()
    ours = {"9": {"n": lambda _: 3, "s": lambda row: float(row["share"]) + 0.004}}
    table = tables_of("002", ours, {}, {"9": lambda: {"who": "hand"}})["9"]()
    Document.texts.cache_clear()
    assert (table["title"], table["notes"]) == ("Sizes", ["counted by hand"])
    first, second = table["rows"]
    assert (first["who"], first["n"]["printed"], first["n"]["differs"]) == ("A", 3, False)
    assert (second["who"], second["n"]["differs"], second["s"]["differs"]) == ("B", True, False)


def test_what_breaks_is_named_and_the_rest_is_made(monkeypatch):
    parts = {
        "TABLES": {"1": lambda: TABLE, "2": broken},
        "FIGURES": {
            "1": lambda: {"rows": [{"x": 1}]},
            "2": unmeasured,
        },
    }
    monkeypatch.setattr(Document, "part", lambda *asked: parts.get(asked[-1]))
    made = regenerate("000")
    assert (list(made.tables), list(made.figures)) == (["1"], ["1"])
    assert made.failed["table 2"] == "ZeroDivisionError: division by zero"
    assert "--measure" in made.failed["figure 2"]


PANELS = {"001": {"1": 2, "3": 4, "8": 1}, "003": {"B": 1, "C": 2, "D": 3, "G": 3, "Z": 3}}


@pytest.mark.parametrize("number", DOCUMENTS)
def test_every_table_and_figure_can_be_made_and_drawn(number):
    made = regenerate(number)
    assert made.failed == {}
    assert set(made.figures) == set(drawings(number))
    assert set(made.figures).isdisjoint(not_made(number))
    for name, table in made.tables.items():
        assert table["name"] == name
        assert table["rows"]
        assert all([*row] == table["columns"] for row in table["rows"])
        assert Report("reproduce", [], {"table": table}).to_json()
    for name, data in made.figures.items():
        assert data["name"] == name
        assert data["described"]
        assert Report("reproduce", [], {"figure": data}).to_json()
        if panels := PANELS.get(number, {}).get(name):
            assert len(drawings(number)[name](data).axes) == panels


# -- severity ------------------------------------------------------------------------------
@pytest.mark.parametrize(("printed", "ours", "apart"), [
    (2, 8, math.log(4)),
    (8, 2, math.log(4)),
    (5.0, 5, 0.0),
    ("1/4", "127/512", math.log(128 / 127)),
    ("2*N*d", "3*N*d", math.log(1.5)),
    ("N + d", "2*N + 2*d", math.log(2)),
    ("d**2", "N*d", math.log(2)),  # N is 64, d is 128
    (True, False, STATEMENT),
    ("rows", "columns", math.log(2)),
    ("a row", "a column", STATEMENT),
    (1, -1, STATEMENT),
    (0, 3, STATEMENT),
    ([1, 2], [1, 6], math.log(3)),
    ([1, 2], [1], STATEMENT),
    ({"a": 1, "b": 2}, {"a": 1, "b": 4}, math.log(2)),
    ({"a": 1}, {}, STATEMENT),
    (None, 3, STATEMENT),
])  # fmt: skip
def test_the_distance_is_the_logarithm_of_the_ratio_that_is_furthest_from_1(printed, ours, apart):
    assert distance(printed, ours) == pytest.approx(apart)


@pytest.mark.parametrize(("ours", "word"), [
    (111, "major"), (89, "major"), (109, "moderate"), (101.1, "moderate"), (100.9, "minor"),
])  # fmt: skip
def test_a_tenth_is_major_and_a_hundredth_moderate(ours, word):
    assert severity(record("a", "erratum", 100, ours)) == word
    assert severity(record("a", "not-reproducible", 100, ours)) == ""


def test_the_furthest_come_first_and_equal_ones_in_their_order():
    near = [record(f"near{n}", "erratum", 100, 101) for n in range(MOST)]
    far, right = record("far", "erratum", 1, 9), record("right", "match")
    shown = [r.claim for r in surprises([right, *near, far])]
    assert shown == ["far", *(f"near{n}" for n in range(MOST - 1))]
