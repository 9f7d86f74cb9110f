"""Formula text: read by one parser, evaluated exactly, bounded on any input."""

# ruff: noqa: E501 - the tables of cases are texts
import time
from fractions import Fraction

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from attnprof.algebra.expressions import check_size, constant_ratio, expression_of, is_zero
from attnprof.algebra.parser import (
    EXACT,
    FormulaError,
    evaluate,
    name_of,
    names_in,
    parse,
    parts_of,
)

SIZES = {"N": 6, "h": 2, "d": 4, "l": 3}


def value(text):
    return evaluate(parse(text), SIZES.__getitem__, EXACT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h*d", 8), ("N//4", 1), ("N/2", 3), ("N/4", Fraction(3, 2)), ("-N**2", -36), ("--N", 6),
        ("2**3**2", 512), ("N % 4", 2), ("N²", 36), ("N·d", 24), ("N^2", 36), ("2**-1", Fraction(1, 2)),
        ("max(N, d, 1) - min(N, d)", 2), ("ceil(N/4)", 2), ("floor(N/4)", 1), ("sqrt(d)", 2),
        ("2**ceil(log2(N))", 8), ("floor(sqrt(N))", 2), ("1_000", 1000), ("1e3", 1000),
        ("0.5*d", 2), ("ℓ + l", 6), ("𝑁", 6), ("(N + d)*(h)", 20), ("7/1/1*2", 14),
    ],
)  # fmt: skip
def test_sizes_have_their_exact_value(text, expected):
    assert value(text) == expected
    assert type(value(text)) is type(expected)


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_whole_numbers_agree_with_python(a, b):
    for text in ("a+b*2-a", "a*b", "a//b", "a%b", "(a+b)**3", "-a*-b", "a*b/b"):
        value = evaluate(parse(text), {"a": a, "b": b}.__getitem__, EXACT)
        assert value == Fraction(eval(text.replace("/b", "//b") if text == "a*b/b" else text))


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9", "h**99999999", "'a'*10**10", "(((9**16)**16)**16)*N", "1/0", "N//0", "N%0",
        "log(0)", "sqrt(-1)", "0**-1", "(0-2)**0.5", "1e400", "9" * 400, "1e-999999999", "x" * 200,
        "None", "True", "'x'", "[1]", "N.real", "N[0]", "f(N)", "lambda: 1", "N if d else 1", "a=1",
        "", " ", "(", ")", "((((N)", "N N", "4N", "N(d)", "max()", "sqrt(N, d)", "*N", "N***2",
        "(N, d)", "N,d", "N<d", "sqrt", "(" * 5000, "-" * 30000, "1/" * 3000 + "1", "2**" * 3000 + "1",
        "exp(exp(exp(N)))", "N" + "\0", "٣", "N!", "exp(10**6)", "sqrt(x=N)", "(N := 3)", "f'{N}'",
        "().__class__", "__import__('os').system('true')",
    ],
)  # fmt: skip
def test_anything_else_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(FormulaError, match=r"\w"):
        value(text)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "text",
    [
        "(N+d+h+1)**16", "((N+1)**16)**16", "N**N", "N**17", "exp(9)", "exp(exp(N))", "N/(N-N)",
        "(N+d)**-16*(N+h)**-16*(d+h)**-2", "N**16*N**16*N**16*N**16*N", "(9**300*N)**16", "0**-1", "log(0)",
    ],
)  # fmt: skip
def test_what_algebra_would_not_end_with_is_refused_before_it_begins(text):
    start = time.process_time()
    with pytest.raises(FormulaError, match=r"\w"):
        check_size(expression_of(parse(text)))
    assert time.process_time() - start < 2


def test_a_name_has_one_spelling_everywhere():
    assert name_of("ℓ") == "l" == name_of(" l ")
    assert names_in(parse("ℓ*N + l")) == ("l", "N")
    assert [name_of(text) for text in ("1a", "", "a b", "None", "for", "a.b", "x" * 101)] == [
        ""
    ] * 7


def test_stored_closed_forms_are_read_as_sympy_writes_them():
    N, d = sympy.symbols("N d", positive=True)
    for form in (N**2 / 3 + 2, sympy.floor(N / 2) * d, sympy.Max(N, d), sympy.sqrt(N), N ** (-2)):
        assert expression_of(parse(str(form), stored=True)) == form


def test_lists_are_cut_at_the_commas_outside_of_brackets():
    assert parts_of("B, max(N, 2), h*d") == ["B", "max(N, 2)", "h*d"]


def test_what_is_zero_everywhere_is_told_by_values():
    N, d = sympy.symbols("N d", positive=True)
    u = sympy.Dummy("u", nonnegative=True)
    assert is_zero((N + d) ** 8 - sympy.expand((N + d) ** 8))
    assert is_zero(1 / (N + d) ** 3 - (N + d) ** -3)
    assert is_zero(sympy.log(N**2) - 2 * sympy.log(N))
    assert not is_zero((N + d) ** 16 - (N + d) ** 15)
    assert not is_zero(sympy.floor(N / 2) - N / 2)
    assert not is_zero(N * u)
    assert constant_ratio(3 * N**2 * (N + 1), 2 * N**3 + 2 * N**2) == sympy.Rational(3, 2)
    assert constant_ratio(2 * sympy.log(N), sympy.log(N)) == 2
    assert constant_ratio(N, N + 1) is None
    floors = sympy.Add(*(sympy.floor(N / k) for k in range(2, 200)))  # too long to be simplified
    assert constant_ratio(floors, sympy.Integer(7)) is None
