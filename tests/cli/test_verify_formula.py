"""``attnprof verify-formula``: printed formulas and tables of them against the code."""

import pytest

DIRECT = ("verify-formula", "4*B*N**2*d*h + 4*B*N**2*h + 8*B*N*d*h + 9*B*N*h", "taylor-direct")
CORE = ("--scope", "core")
TABLE = """quantity,phase,formula,target,scope,where,set,place,comment
flops,forward,4*N**2*d + 6*N**2,taylor-direct,core,h=1,,Eq 4,as printed
parameters,forward,4*D^2,standard,,D=h*d,bias=false,,
multiplications,decode,2*t*D + 5*D**2,standard,,t=N; D=h*d,,,
flops,forward,O(N^2),,core,,,,
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return str(path)


def test_a_formula_that_is_right_ends_with_0_and_fits_a_narrow_terminal(attnprof, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = attnprof(DIRECT, CORE)
    assert ended.code == 0, ended.err
    assert "match" in ended.out
    assert "leading terms: the same" in ended.out
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert "…" not in ended.out


def test_one_that_differs_ends_with_1_and_tells_the_difference(attnprof):
    ended = attnprof(
        ("verify-formula", "4*N^2*d + 6*N^2", "taylor-direct", *CORE, "--where", "h=1")
    )
    assert ended.code == 1
    title, sentence, *_ = ended.out.splitlines()
    assert title == "taylor-direct core, FLOPs, forward: erratum"
    assert sentence.strip() == "The printed formula omits 8*N*d + 9*N and overcounts by 2*N**2."
    assert "the printed formula differs from the code's" in ended.err


def test_up_to_leading_compares_only_the_leading_terms(attnprof):
    ended = attnprof(("verify-formula", "4*N**2*d*h", "taylor-direct", *CORE, "--up-to", "leading"))
    assert ended.code == 0
    assert "match (leading)" in ended.out


def test_a_table_is_answered_row_by_row(attnprof, table):
    words = ("verify-formula", "--table", table, "taylor-direct")
    ended = attnprof((*words, "--format", "json"))
    assert ended.code == 1
    assert "comment" in ended.err
    records = ended.json["records"]
    assert [r["verdict"] for r in records] == ["erratum", "match", "erratum", "match"]
    assert [r["place"] for r in records] == ["Eq 4", "", "", ""]
    assert [r["up_to"] for r in records] == ["exact"] * 3 + ["order"]
    answer = "2 of 4 printed formulas match the code's; rows 1, 3 do not"
    assert ended.json["summary"] == {"match": 2, "erratum": 2, "not compared": 0, "answer": answer}
    assert answer in ended.err
    out = attnprof(words).out  # an overview stands before what does not match
    assert "1. Eq 4: taylor-direct core, FLOPs, forward" in out
    assert "3. standard" in out
    assert "2. standard" not in out


def test_names_that_only_some_rows_use_are_no_error(attnprof, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("formula,up_to\nn*n,order\nw*N**2,order\n")
    words = ("verify-formula", "--table", str(path), "taylor-direct", *CORE, "--in", "N")
    assert attnprof((*words, "--where", "n=N", "--where", "w=d")).code == 0
    assert "no formula here has z" in attnprof((*DIRECT, "--where", "z=N")).err


def test_a_row_that_is_wrong_is_named(attnprof, tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_text("formula,phase\nN,forward\nN,sideways\n")
    ended = attnprof(("verify-formula", "--table", str(path), "standard"))
    assert ended.code == 2
    assert "row 2: phase 'sideways'" in ended.err
    path.write_text("quantity\nflops\n")
    assert "column formula" in attnprof(("verify-formula", "--table", str(path), "standard")).err


def test_a_letter_is_one_name_in_a_formula_and_in_what_it_stands_for(attnprof):
    words = ("verify-formula", "4*ℓ**2*d + 6*ℓ**2", "taylor-direct", "--where", "ℓ=N")
    one, other = (
        attnprof(typed, "--scope core --where h=1 --format json")
        for typed in (words, tuple(word.replace("ℓ", "l") for word in words))
    )
    assert one.json["records"][0]["where"] == other.json["records"][0]["where"]
    assert one.json["records"][0]["verdict"] == other.json["records"][0]["verdict"]
    assert one.code == other.code < 2
