"""Float arithmetic inside formulas has values that sympy can order."""

import math

import sympy

from attnprof.algebra.expressions import is_zero
from attnprof.trace.doubles import DoubleProduct, called

d, n = sympy.symbols("d n", positive=True)


def test_a_maximum_of_roundings_of_floats_has_its_value():
    rounded = sympy.floor(DoubleProduct(d, called("DoubleLog", "log")(d)))
    largest = sympy.Max(2 * n * rounded + n, 3 * n)
    sizes = {d: sympy.Integer(403960), n: sympy.Integer(2)}
    assert largest.xreplace(sizes) == 4 * math.floor(403960 * math.log(403960)) + 2
    assert not is_zero(largest)
