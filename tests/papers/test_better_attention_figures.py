"""The data of 000's figures, held against loops over its equation."""

from __future__ import annotations

import pytest

from attnprof.papers.better_attention.figures import EQ24, EXACT, FIGURES, SIZES

DATA = {name: figure.data() for name, figure in FIGURES.items()}
CONSTANTS = {"standard": 15, "optimised": 12, "super": 12, "efficient": 9}


@pytest.mark.parametrize("name", ["2", "4"])
def test_printed_counts_are_the_equation(name):
    rows = [row for row in DATA[name].rows if row["counted"] == EQ24]
    assert rows
    for row in rows:
        for mechanism, constant in CONSTANTS.items():
            assert row[mechanism] == constant * row["l"] * row["d_m"] + 15 * row["l"] ** 2


@pytest.mark.parametrize("name", ["2", "4"])
def test_exact_counts_are_two_operations_a_term_of_each_product(name):
    for row in (row for row in DATA[name].rows if row["counted"] == EXACT):
        n, d = row["l"], row["d_m"]
        maps, scores, mixing = 2 * n * d * d, 2 * 2 * n * n * d, 2 * n * n * d
        forward = {
            "standard": 4 * maps + scores,
            "optimised": 3 * maps + scores,
            "efficient": 2 * maps + scores,
            "super": 2 * maps + scores + mixing,
        }
        assert {name: row[name] for name in forward} == {k: 3 * v for k, v in forward.items()}


def test_figure_4_covers_every_pair_of_sizes_once_a_count():
    for count in (EQ24, EXACT):
        cells = [(row["l"], row["d_m"]) for row in DATA["4"].rows if row["counted"] == count]
        assert sorted(cells) == [(n, d) for n in SIZES for d in SIZES]


def test_figure_3_shows_the_ratio_of_the_equation_and_of_the_definitions():
    assert len(DATA["3"].rows) == 4 * 11 * 11
    for row in DATA["3"].rows:
        n, d, heads = row["l"], row["d_m"], row["h"]
        assert row["ratio"] == pytest.approx(5 * (d + heads * n) / (3 * d + 5 * heads * n))
        assert row["ratio_of_multiply_adds"] == pytest.approx((2 * d + n) / (d + n))


@pytest.mark.parametrize(
    ("name", "disagreeing"),
    [
        ("1", ["proposed modifications"]),
        ("2", ["other lengths"]),
        ("3", ["mean excess by heads, caption", "largest excess, Sec B.2",
               "counted from the definitions"]),
        ("4", ["the order, counted from the definitions"]),
    ],
)  # fmt: skip
def test_what_the_document_describes_is_what_we_see_but_for_known_slips(name, disagreeing):
    assert [its.what for its in DATA[name].described if not its.agrees] == disagreeing


def test_super_is_dearer_than_standard_beyond_twice_the_width():
    rows = [row for row in DATA["4"].rows if row["counted"] == EXACT]
    assert all((row["super"] > row["standard"]) == (row["l"] > 2 * row["d_m"]) for row in rows)


def test_figure_1_has_the_maps_of_the_definitions():
    maps = {}
    for row in DATA["1"].rows:
        if row["map"]:
            maps.setdefault(row["mechanism"], []).append((row["block"], row["on"]))
    query, key, value, out = (("Linear", on) for on in ("Q", "K", "V", "heads"))
    assert maps == {
        "standard": [query, key, value, out],
        "optimised": [query, key, out],
        "efficient": [query, out],
        "super": [query, ("Linear*", "V"), out],
    }
