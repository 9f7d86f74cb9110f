"""A maximum has the sums that are the largest somewhere, an order the terms that none outgrows."""

import itertools

import numpy as np
import pytest
import sympy

from attnprof.algebra.maxima import _overlaps, maximum_of
from attnprof.algebra.orders import bounds, leading_terms, total
from attnprof.verify.printed import read_formula

B, N, h, d = sympy.symbols("B N h d", positive=True)


def test_a_maximum_has_no_means_of_others():
    ends = [12 * N**2 + d, N**2 + 12 * d]
    between = [(12 - i) * N**2 + (i + 1) * d for i in range(1, 11)]
    assert set(maximum_of([*between, *ends]).args) == set(ends)
    assert len(maximum_of([ends[0], 8 * N**2 + 6 * d, ends[1]]).args) == 3


def test_a_maximum_among_others_is_part_of_one():
    inner = sympy.Max(4096 * B, 2048 * B + 3000, evaluate=False)
    assert set(maximum_of([4128 * B, inner]).args) == {4128 * B, 2048 * B + 3000}


@pytest.mark.parametrize(
    ("sides", "most"),
    [
        ([B * N * h, N * h, N], 1),  # sizes are at least 1
        ([B * N**2 + 8, N**2 + 8 * N], 2),
        ([4 * B * N * d + 2 * N + 1, 4 * N * d - 3 * N, 2 * B * N * d + 2 * d], 1),
        ([B * N - d * h, B * N + d * h - 1, B * h, 2 * d * h - B], 3),
        ([2 * N * sympy.floor(N / 4), N * sympy.floor(N / 4), N - 1], 2),
    ],
)
def test_sums_that_are_never_the_largest_are_left_out(sides, most):
    largest = maximum_of(sides)
    kept = largest.args if isinstance(largest, sympy.Max) else [largest]
    assert len(kept) <= most
    for point in itertools.product((1, 2, 3, 9), repeat=4):
        at = dict(zip((B, N, h, d), point, strict=True))
        assert max(x.subs(at) for x in sides) == max(x.subs(at) for x in kept)


# -- orders of growth ---------------------------------------------------------------------------
CASES = [
    ("4*N**2*d + 8*N*d**2 + 6*N**2 + N", "N d", "4*N**2*d + 8*N*d**2"),
    ("4*N**2*d + 8*N*d**2 + 6*N**2 + N", "N", "4*N**2*d + 6*N**2"),
    ("4*N**2*d + 8*N*d**2 + 6*N**2 + N", "d", "8*N*d**2"),
    ("N*log(N)*d + 100*N*d", "N d", "N*log(N)*d"),
    ("N*log(2*N) + N", "N", "N*log(N)"),
    ("N**2*sqrt(N) + N**2*log(N)", "N", "N**2*sqrt(N)"),
    ("ceiling(N/16)*16 + 7", "N", "N"),
    ("Max(N**2 + N, 3*N)", "N", "N**2"),
    ("Min(N**2 + N, 3*N)", "N", "3*N"),
    ("Max(4*N**2 + 20*N*d, 8*N**2 + 16*N*d)", "N", "8*N**2"),
    ("N**2*d**2/M + N*d", "N d", "N**2*d**2/M"),
    ("N**2 + N - N**2", "N", "N"),
    ("5", "N", "5"),
]


@pytest.mark.parametrize(("text", "growing", "leading"), CASES)
def test_leading_terms_are_those_of_the_limit(text, growing, leading):
    terms = leading_terms(read_formula(text), growing.split())
    assert sympy.expand(total(terms) - read_formula(leading)) == 0


@pytest.mark.parametrize("text", ["Max(N**2, N*d)", "1/(N + d)", "N**2 - Max(N, d)"])
def test_what_has_no_leading_terms_says_so(text):
    assert leading_terms(read_formula(text), ["N", "d"]) is None


@pytest.mark.parametrize(
    ("upper", "lower", "holds"),
    [("N**2", "N**2 + N", True), ("N**2", "N*d", False), ("N**2*d", "N*d + N**2", True)],
)
def test_a_bound_holds_where_every_term_stays_below(upper, lower, holds):
    sides = (leading_terms(read_formula(text), ["N", "d"]) for text in (upper, lower))
    assert bounds(*sides) is holds


@pytest.mark.parametrize(("count", "places"), [(0, 0), (1, 0), (3, 1), (8, 8), (20, 64), (30, 70)])
def test_overlaps_are_places_where_two_rows_are_true(count, places):
    by_columns = np.random.default_rng(0).random((places, count)) < 0.1
    rows = by_columns.T  # as a choice of a table's columns lies in memory
    expected = [[bool((one & other).any()) for other in rows] for one in rows]
    assert _overlaps(rows).tolist() == expected
