"""Expressions as text: expanded, readable by ``sympy.sympify``, and as LaTeX."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attnprof.algebra.maxima import maximum_of


def expanded(expression: Any) -> Any:
    """The expression as a sum of monomials, branch by branch where a mechanism switches.

    The branches of a maximum stay as they are: expanding them makes sympy compare them
    pairwise, which takes seconds.
    """
    import sympy

    expression = sympy.sympify(expression)
    switches = expression.atoms(sympy.Piecewise)
    if len(switches) == 1:
        switch = switches.pop()
        forms = [_monomials(expression, switch, value) for value, _ in switch.args]
        if len(set(forms)) == 1:
            return forms[0]
        where = [_condition(holds) for _, holds in switch.args]
        return sympy.Piecewise(*zip(forms, where, strict=True), evaluate=False)
    return expression if expression.has(sympy.Max) else sympy.expand(expression)


def _monomials(expression: Any, switch: Any, value: Any) -> Any:
    """The expression where the switch has this value."""
    import sympy

    if isinstance(expression, sympy.Max):
        return maximum_of([branch.xreplace({switch: value}) for branch in expression.args])
    return sympy.expand(expression.xreplace({switch: value}))


def _condition(holds: Any) -> Any:
    """A comparison with both sides expanded; ``True`` as it is."""
    import sympy

    if not isinstance(holds, sympy.LessThan):
        return holds
    return sympy.LessThan(sympy.expand(holds.lhs), sympy.expand(holds.rhs), evaluate=False)


@lru_cache(maxsize=1024, typed=True)
def expression_text(expression: Any) -> str:
    """``4*B*N**2*d*h + 2*B*N*d*h``: what ``sympy.sympify`` reads, given the symbols."""
    return str(expanded(expression))


def expression_latex(expression: Any) -> str:
    """The same in LaTeX."""
    import sympy

    return str(sympy.latex(expanded(expression)))
