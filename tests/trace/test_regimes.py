"""The branch of a formula at a shape."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from attnprof.trace.evaluating import evaluate
from attnprof.trace.regimes import regime

N, d = sympy.symbols("N d", positive=True)
PEAK = sympy.Max(4 * N * d + 16 * d**2, 8 * N**2 + 4 * N * d, 20 * N * d, evaluate=False)
NESTED = 4 * N + sympy.Max(
    d * sympy.Piecewise((sympy.Min(256, N), N >= 768), (sympy.Min(32, N), True)), 8 * d * d,
    evaluate=False,
)  # fmt: skip
sizes = st.fixed_dictionaries({"N": st.integers(1, 4000), "d": st.integers(1, 256)})


@pytest.mark.parametrize(
    ("expression", "at", "expected"),
    [
        (PEAK, (1000, 64), 8 * N**2 + 4 * N * d),
        (PEAK, (100, 64), 20 * N * d),
        (PEAK, (10, 64), 4 * N * d + 16 * d**2),
        (NESTED, (1000, 4), 4 * N + 256 * d),
        (NESTED, (100, 2), 4 * N + 32 * d),
        (NESTED, (20, 2), 4 * N + N * d),
        (NESTED, (20, 16), 4 * N + 8 * d**2),
        (7, (1, 1), 7),
        (sympy.Integer(7), (1, 1), 7),
    ],
)
def test_the_polynomial_that_wins(expression, at, expected):
    assert regime(expression, {"N": at[0], "d": at[1]}) == expected


@given(sizes)
def test_its_value_is_the_formulas(at):
    for expression in (PEAK, NESTED):
        found = regime(expression, at)
        assert evaluate(found, at) == evaluate(expression, at)
        assert not found.has(sympy.Max, sympy.Min, sympy.Piecewise)
