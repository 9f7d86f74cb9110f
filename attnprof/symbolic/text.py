"""Expressions as text: expanded, readable by ``sympy.sympify``, and as LaTeX."""

from __future__ import annotations

from typing import Any


def expanded(expression: Any) -> Any:
    """The expression as a sum of monomials; a maximum keeps its branches as they are.

    Expanding a Max makes sympy compare its branches pairwise, which takes seconds.
    """
    import sympy

    expression = sympy.sympify(expression)
    return expression if expression.has(sympy.Max) else sympy.expand(expression)


def expression_text(expression: Any) -> str:
    """``4*B*N**2*d*h + 2*B*N*d*h``: what ``sympy.sympify`` reads, given the symbols."""
    return str(expanded(expression))


def expression_latex(expression: Any) -> str:
    """The same in LaTeX."""
    import sympy

    return str(sympy.latex(expanded(expression)))
