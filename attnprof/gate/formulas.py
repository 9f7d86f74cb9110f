"""Formulas that were written down, read without running anything."""

from __future__ import annotations

from functools import cache
from typing import Any

from attnprof.algebra.evaluation import Rules
from attnprof.algebra.expressions import expression_of, rules_of, symbol
from attnprof.algebra.parser import FormulaError, parse

#: Powers that closed forms go up to.
_HIGHEST = 64


@cache
def formula(text: str) -> Any:
    """The sympy expression of a text over sizes; ValueError for anything but arithmetic.

    What is read may come from anywhere: nothing of it is evaluated as Python.
    """
    try:
        return expression_of(parse(text, stored=True), rules=_rules())
    except (FormulaError, TypeError, RecursionError) as error:
        raise ValueError(f"'{text[:60]}' is no formula: {error}") from error


@cache
def _rules() -> Rules:
    """What closed forms have: cases and conditions; largest and smallest stay as written."""
    import sympy

    return {
        **rules_of(_HIGHEST),
        "max": lambda *sides: sympy.Max(*sides, evaluate=False),
        "min": lambda *sides: sympy.Min(*sides, evaluate=False),
        "Piecewise": lambda *pairs: sympy.Piecewise(*pairs, evaluate=False),
        "tuple": lambda *pair: pair,
        "Mod": sympy.Mod, "Eq": sympy.Eq, "Ne": sympy.Ne,
        "<": sympy.StrictLessThan, "<=": sympy.LessThan,
        ">": sympy.StrictGreaterThan, ">=": sympy.GreaterThan,
        "&": sympy.And, "|": sympy.Or,
    }  # fmt: skip


#: Exponents as one reads them.
_HIGH = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def spelled(expression: Any) -> str:
    """``+ 2·B·N²·h − 3·N``: a sum with its signs, what grows fastest with N first."""
    import sympy

    terms = sympy.Add.make_args(sympy.expand(expression))
    return " ".join(_term(term) for term in sorted(terms, key=_rank))


def _rank(term: Any) -> tuple[Any, ...]:
    degree = term.as_powers_dict().get(symbol("N"), 0)
    return (-degree, -sum(term.as_powers_dict().values()), str(term))


def _term(term: Any) -> str:
    factor, rest = term.as_coeff_Mul()
    sign = "−" if factor.is_negative else "+"
    powers = sorted(rest.as_powers_dict().items(), key=lambda pair: str(pair[0]))
    shown = [_powered(base, exponent) for base, exponent in powers if base != 1]
    if abs(factor) != 1 or not shown:
        shown.insert(0, _number(abs(factor)))
    return f"{sign} {'·'.join(shown)}"


def _number(value: Any) -> str:
    if value.is_Integer:
        return f"{int(value):,}"
    return f"({value})" if value.is_Rational else str(value)


def _powered(base: Any, exponent: Any) -> str:
    text = f"({base})" if base.is_Add else str(base)
    if exponent == 1:
        return text
    if exponent.is_Integer and exponent > 0:
        return text + str(exponent).translate(_HIGH)
    return f"{text}^({exponent})"
