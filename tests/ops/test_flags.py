"""Sums of products of flags, written with as few terms as say the same."""

from itertools import product

import pytest
import sympy

from attnprof.ops.flags import as_flag

a, b, c = sympy.symbols("a b c")


@pytest.mark.parametrize(
    ("value", "terms"),
    [
        ((1 - a) ** 2 * (1 - a * b), 2),
        (1 - (1 - a) * (1 - b), 3),
        ((a + b) ** 2, 3),
        ((a + b) ** 3 * c - a**2, 4),
    ],
)
def test_a_sum_of_products_of_flags_keeps_its_value_with_fewer_terms(value, terms):
    flag = as_flag(value)
    assert len(sympy.Add.make_args(flag)) == terms
    for numbers in product((0, 1), repeat=3):
        at = dict(zip((a, b, c), numbers, strict=True))
        assert flag.subs(at) == value.subs(at)
