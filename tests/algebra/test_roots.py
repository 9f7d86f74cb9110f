"""Roots, pieces and closed forms against sympy and against every integer tried."""

import math

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.algebra.polynomials import (
    Branches,
    NotPiecewisePolynomialError,
    square_split,
    text,
    times,
)
from attnprof.algebra.roots import closed_form, exactly, positive_roots
from attnprof.crossovers.solve import crossings_of, pieces

coefficients = st.lists(st.integers(-60, 60), min_size=1, max_size=5).map(tuple)


def solved(polynomial):
    return crossings_of(pieces(lambda n, _: polynomial(n), 1), polynomial)


@given(coefficients)
@settings(max_examples=50)
def test_positive_roots_are_those_sympy_finds(values):
    x = sympy.Symbol("x")
    polynomial = sympy.Poly(list(reversed(values)), x)
    roots = positive_roots(values)
    if polynomial.is_zero:
        assert roots == ()
        return
    wanted = sorted({root for root in sympy.real_roots(polynomial) if root > 0}, key=sympy.N)
    assert len(roots) == len(wanted)
    for ours, theirs in zip(roots, wanted, strict=True):
        assert float(ours.at) == pytest.approx(float(theirs), rel=1e-12)
        assert ours.ceiling == sympy.ceiling(theirs)
        assert (ours.at.denominator == 1) == (theirs == sympy.floor(theirs))
        turns = polynomial.as_expr()
        assert ours.crosses == bool(sympy.roots(turns, multiple=False).get(theirs, 1) % 2)


@given(st.lists(st.integers(2, 400), min_size=1, max_size=3, unique=True), st.booleans())
@settings(max_examples=60)
def test_signs_over_integers_give_the_same_first_length(places, flip):
    def polynomial(n):
        value = -1 if flip else 1
        for place in places:
            value = value * (2 * n - 2 * place + 1)
        return value

    crossings = solved(polynomial)
    signs = [polynomial(n) > 0 for n in range(1, 500)]
    changes = [n + 2 for n in range(len(signs) - 1) if signs[n] != signs[n + 1]]
    assert [root.ceiling for root in crossings.roots] == changes
    assert crossings.first == changes[-1]
    assert crossings.verdict == ("crosses" if len(changes) == 1 else "several")


def test_a_root_at_an_integer_counts_that_integer():
    crossings = solved(lambda n: n - 10)
    assert (crossings.first_seq_len, crossings.roots) == (10, [exactly(10)])


def test_touching_zero_is_no_crossing():
    crossings = solved(lambda n: (n - 5) * (n - 5))
    assert (crossings.verdict, crossings.first_seq_len) == ("always", 1)


def test_equal_everywhere_is_never():
    crossings = solved(lambda n: n - n)
    assert (crossings.verdict, crossings.first_seq_len, crossings.runs[0].sign) == (
        "never",
        None,
        0,
    )


def test_two_roots_between_neighbouring_integers_are_seen():
    crossings = solved(lambda n: (4 * n - 41) * (4 * n - 43))
    assert [float(root.at) for root in crossings.roots] == [10.25, 10.75]
    assert crossings.first_seq_len == 11


def test_a_maximum_changes_its_branch_where_it_must():
    def difference(n):
        return max(n * n, 40 * n) - max(30 * n, 1000)

    crossings = solved(difference)
    assert [float(root.at) for root in crossings.roots] == [25.0]
    signs = [(difference(n) > 0) - (difference(n) < 0) for n in range(1, 200)]
    assert signs.index(0) + 1 == crossings.first_seq_len


def test_a_switch_that_makes_costs_equal_is_a_crossing():
    def difference(n):
        return min(n * n, 30 * n + 7) - (30 * n + 7)

    crossings = solved(difference)
    assert [run.sign for run in crossings.runs] == [-1, 0]
    assert crossings.first_seq_len == math.ceil((30 + math.sqrt(928)) / 2)


@pytest.mark.parametrize("cost", [lambda n: n // 3, lambda n: 1.5 * n, lambda n: sum(range(n))])
def test_what_is_no_polynomial_says_so(cost):
    with pytest.raises(NotPiecewisePolynomialError):
        pieces(lambda n, _: cost(n), 1)


def test_triangular_numbers_are_polynomials():
    n = Branches((3, 1)).size(0)
    assert (n * (n + 1) // 2 - n * (n - 1) // 2 == n, (n * n + n) % 2) == (True, 0)


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=9).filter(any))
@settings(max_examples=150)
def test_closed_forms_are_roots_at_every_width(values):
    """(a·d+b)·N² + (c·d²+e)·N + …: the text, read by sympy, solves the equation."""
    powers = [(2, 0), (2, 1), (1, 0), (1, 1), (1, 2), (0, 0), (0, 1), (0, 2), (0, 3)]
    terms = {power: value for power, value in zip(powers, values, strict=False) if value}
    width = 7
    polynomial = [sum(c * width**j for (i, j), c in terms.items() if i == k) for k in range(3)]
    for root in positive_roots(tuple(polynomial)):
        form = closed_form(terms, width, root)
        if form is None:
            continue
        value = sympy.sympify(form).subs(sympy.Symbol("d"), width)
        assert float(value) == pytest.approx(float(root.at), rel=1e-9)


@given(coefficients.filter(any), coefficients.filter(any))
@settings(max_examples=100)
def test_squares_leave_a_root(a, b):
    whole = times(times(a, a), b)
    outside, inside = square_split(whole)
    assert times(times(outside, outside), inside) == whole
    d = sympy.Symbol("d")
    assert all(power == 1 for _, power in sympy.Poly(list(reversed(inside)), d).sqf_list()[1])


@given(coefficients.filter(any))
def test_polynomials_are_written_as_sympy_reads_them(values):
    d = sympy.Symbol("d")
    assert sympy.sympify(text(values)) == sympy.Poly(list(reversed(values)), d).as_expr()


def test_a_polynomial_is_written_from_its_highest_power_as_sympy_does():
    assert text((1, 2, 3)) == str(3 * sympy.Symbol("d") ** 2 + 2 * sympy.Symbol("d") + 1)
