"""How far errata are off: by hand for numbers, formulas, statements, and what holds them."""

import math

import pytest

from attnprof.papers.severity import MOST, STATEMENT, distance, severity, surprises
from attnprof.record import ReproduceRecord


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


def record(name, published, ours, verdict="erratum"):
    return ReproduceRecord(claim=name, published=published, ours=ours, verdict=verdict)


@pytest.mark.parametrize(("ours", "word"), [
    (111, "major"), (89, "major"), (109, "moderate"), (101.1, "moderate"), (100.9, "minor"),
])  # fmt: skip
def test_a_tenth_is_major_and_a_hundredth_moderate(ours, word):
    assert severity(record("a", 100, ours)) == word
    assert severity(record("a", 100, ours, "not-reproducible")) == ""


def test_the_furthest_come_first_and_equal_ones_in_their_order():
    near = [record(f"near{n}", 100, 101) for n in range(MOST)]
    far, right = record("far", 1, 9), record("right", 1, 1, "match")
    shown = [r.claim for r in surprises([right, *near, far])]
    assert shown == ["far", *(f"near{n}" for n in range(MOST - 1))]
