"""Formulas as people type them are read, anything else is refused; how formulas grow is told."""

import pytest
import sympy

from attnprof.errors import RequestError
from attnprof.verify.comparison import LEADING, compared, ordered
from attnprof.verify.own_formulas import Source
from attnprof.verify.printed import Printed, check_names, read_formula, without_bound
from attnprof.verify.verification import verified

N, d = sympy.symbols("N d", positive=True)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4*N**2*d + 6*N**2", 4 * N**2 * d + 6 * N**2),
        ("4*N^2·d", 4 * N**2 * d),
        ("N²*d³", N**2 * d**3),
        ("-N + 2.5*d", sympy.Rational(5, 2) * d - N),
        ("0.1*N", N / 10),
        ("N*(N+1)/2", N * (N + 1) / 2),
        ("N//2", sympy.floor(N / 2)),
        ("sqrt(d)*log(N)", sympy.sqrt(d) * sympy.log(N)),
        ("N*log2(N)", N * sympy.log(N) / sympy.log(2)),
        ("log(N, 2)", sympy.log(N) / sympy.log(2)),
        ("ceil(N/16) + floor(d/2)", sympy.ceiling(N / 16) + sympy.floor(d / 2)),
        ("max(N, d) + Min(N, d)", sympy.Max(N, d) + sympy.Min(N, d)),
        ("exp(N)", sympy.exp(N)),
    ],
)
def test_a_formula_means_what_it_says(text, meant):
    assert sympy.expand(read_formula(text) - meant) == 0


# all ways to be no formula are in tests/algebra/test_formula_text.py
@pytest.mark.parametrize(
    "text",
    ["", "4N", "a=1", "N[0]", "lambda: 1", "sqrt(N, d)", "f'{N}'", "1/0", "9**9**9", "N**N",
     "__import__('os').system('true')", "(N+d+h+B+1)**16*(N+d)**16", "1" * 5000],
)  # fmt: skip
def test_anything_else_is_refused_with_what_can_be_typed(text):
    with pytest.raises(RequestError, match="formula"):
        read_formula(text)


def test_a_missing_product_sign_is_named():
    with pytest.raises(RequestError, match=r"between 4 and N a \* may be missing"):
        read_formula("4N**2")
    with pytest.raises(RequestError, match=r"type N\*"):
        read_formula("N(N+1)")


def test_an_order_of_growth_is_told_from_a_formula():
    assert without_bound("O(N**2 * d)") == ("N**2 * d", "O")
    assert without_bound("4*N") == ("4*N", "")


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(RequestError, match=r"called n: .*--where n=…, in B, N, h, d"):
        check_names(read_formula("n**2"), ["B", "N", "h", "d"], "n**2")


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


def test_a_mechanism_by_fourier_transform_is_not_linear():
    verdicts = {
        "O(N)": "erratum",
        "O(N*log(N))": "match",
        "Θ(N*log(N))": "match",
        "O(N*d**2*h**2)": "erratum",
        "O(exp(N))": "match",
    }
    answers = verified([Printed(formula, Source("he")) for formula in verdicts])
    assert [answer.verdict for answer in answers] == [*verdicts.values()]


def test_an_undecided_order_is_no_verdict():
    (answer,) = verified([Printed("O(N**2/log(log(N)))", Source("standard", scope="core"))])
    assert answer.verdict is None
    assert "undecided" in answer.skipped
