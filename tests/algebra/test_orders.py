"""Leading terms are those that no other term outgrows."""

import pytest
import sympy

from attnprof.algebra.orders import bounds, leading_terms, total
from attnprof.verify.printed import read_formula

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
    found = leading_terms(read_formula(text), growing.split())
    assert sympy.expand(total(found) - read_formula(leading)) == 0


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
