"""Formulas as people type them are read; anything else is refused, nothing is run."""

import pytest
import sympy

from attnprof.errors import RequestError
from attnprof.verify.printed import check_names, read_formula, without_bound

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


@pytest.mark.parametrize(
    "text",
    [
        "", "4N", "N(N+1)", "N*(1+d", "a=1", "True", "'a'", "[1, 2]", "N.real", "N[0]",
        "lambda: 1", "N if d else 1", "N < d", "N % 2", "sqrt", "sqrt(N, d)", "foo(N)",
        "__import__('os').system('true')", "().__class__", "f'{N}'", "(N := 3)", "sqrt(x=N)",
        "1/0", "N/(N-N)", "log(0)", "sqrt(-1)", "1e400*N", "9**9**9", "(N+d)**1000",
        "((N+1)**16)**16", "N**N", "exp(9**16)", "(N+d+h+B+1)**16*(N+d)**16", "1" * 5000,
    ],
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
