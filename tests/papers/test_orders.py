"""Orders of growth: bounds that hold, bounds that do not, and what is left undecided."""

import pytest

from attnprof.verify.comparison import LEADING, compared, ordered
from attnprof.verify.own_formulas import Source
from attnprof.verify.printed import Printed, read_formula
from attnprof.verify.verification import verified

SHAPE = {"N": 1024, "d": 64, "h": 8}


def holds(printed, ours, growing="N", kind="O", within=lambda _: True):
    sides = (read_formula(printed), read_formula(ours))
    return ordered(*sides, kind, growing.split(), [SHAPE], within).agrees


PADDED = "ceiling(N/16)*16*ceiling(log2(N))"
CASES = [
    ("N", "6*N*d**2*h**2 + 15*N*d*h*log(N)", "N", False),
    ("N*log(N)", "6*N*d**2*h**2 + 15*N*d*h*log(N)", "N", True),
    ("N", "1000000*N + N*log(N)/1000", "N", False),
    ("N", "1000000*N + ceiling(log2(N))*N/1000", "N", False),
    ("N", PADDED, "N", False),
    ("N*log(N)", PADDED, "N", True),
    ("N**1.5", "N*ceiling(sqrt(N)) + N*log(N)**3", "N", True),
    ("N*log(N)", "N*ceiling(sqrt(N))", "N", False),
    ("N", "N - 512*floor(N/512)", "N", True),
    ("1", "N - 512*floor(N/512)", "N", True),
    ("1", "N - ceiling(sqrt(N))*floor(N/ceiling(sqrt(N)))", "N", False),
    ("sqrt(N)", "N - ceiling(sqrt(N))*floor(N/ceiling(sqrt(N)))", "N", True),
    ("1", "7*d", "N", True),
    ("1", "log(N)", "N", False),
    ("log(N)", "3*log(N) + d", "N", True),
    ("log(N)", "log(N)**2", "N", False),
    ("exp(N)", "4*N**2*d", "N", True),
    ("exp(N)", "exp(N)*N", "N", False),
    ("N", "Min(N*N, 64*N)", "N", True),
    ("N", "Max(N*N, 64*N)", "N", False),
    ("N*d + N**2", "4*N**2 + N*d", "N d", True),
    ("N*d + N**2", "N**2*d", "N d", False),
    ("N**2 + d**2", "N*d", "N d", True),
    ("N + d", "sqrt(N*d)", "N d", True),
    ("N + d", "N*d", "N d", False),
    ("N*d", "N*d*log(d)", "N d", False),
    ("d", "N**2*d", "N", False),
    ("d", "N**2*d", "d", True),
    ("N*d", "N*ceiling(d*log(d))", "N d", False),
    ("N*d**2", "N*ceiling(d*log(d))", "N d", True),
]


@pytest.mark.parametrize(("printed", "ours", "growing", "expected"), CASES)
def test_a_bound_is_told_by_what_leads_in_the_end(printed, ours, growing, expected):
    assert holds(printed, ours, growing) is expected


@pytest.mark.parametrize(
    ("kind", "printed", "expected"),
    [
        ("Θ", "N**2", True),
        ("Θ", "N**3", False),
        ("Θ", "N", False),
        ("Θ", "N**2 + N*ceiling(log(N))", True),
        ("Ω", "N", True),
        ("Ω", "N**3", False),
        ("Ω", "N*ceiling(log(N))", True),
        ("O", "N**3", True),
    ],
)
def test_bounds_from_below_and_tight_ones_are_judged_as_such(kind, printed, expected):
    assert holds(printed, "4*N**2*d + N", kind=kind) is expected


@pytest.mark.parametrize(("printed", "ours"), [("N/log(log(N))", "N"), ("N", "N*log(log(N))")])
def test_what_neither_terms_nor_values_tell_is_undecided(printed, ours):
    assert holds(printed, ours) is None


def test_a_formula_for_short_lengths_has_no_growth():
    assert holds("N", "ceiling(N/3)*ceiling(log2(N))", within=lambda at: at["N"] <= 512) is None


def test_leading_terms_that_rounding_hides_are_told_by_values():
    def leads(printed, ours):
        sides = (read_formula(printed), read_formula(ours))
        return compared(*sides, LEADING, ["N"], [SHAPE]).agrees

    assert leads("4*N*N", "4*N*16*ceiling(N/16)") is True
    assert leads("3*N*N", "4*N*16*ceiling(N/16)") is False
    assert leads("N*2**ceiling(1)", "2*N + ceiling(sqrt(N))") is True


def test_no_shape_is_needed_to_tell_how_formulas_grow():
    ours = read_formula("d*N*ceiling(log2(N))")
    assert ordered(read_formula("N*d"), ours, "O", ["N"], []).agrees is False


@pytest.mark.parametrize(
    ("formula", "verdict"),
    [
        ("O(N)", "erratum"), ("O(N*log(N))", "match"), ("Θ(N*log(N))", "match"),
        ("O(N*d**2*h**2)", "erratum"), ("O(exp(N))", "match"),
    ],
)  # fmt: skip
def test_a_mechanism_by_fourier_transform_is_not_linear(formula, verdict):
    (answer,) = verified([Printed(formula, Source("he"))])
    assert answer.verdict == verdict


def test_an_undecided_order_is_no_verdict():
    (answer,) = verified([Printed("O(N**2/log(log(N)))", Source("standard", scope="core"))])
    assert answer.verdict is None
    assert "undecided" in answer.skipped
