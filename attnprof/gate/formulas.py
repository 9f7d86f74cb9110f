"""Formulas that were written down, read without running anything."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from attnprof.trace.symbols import symbol

#: Longer texts and higher powers are no formulas of a cost; reading them takes time.
_LONGEST, _HIGHEST, _LARGEST = 20_000, 64, 2**40


@cache
def formula(text: str) -> Any:
    """The sympy expression of a text over sizes; ValueError for anything but arithmetic.

    What is read may come from anywhere: nothing of it is evaluated as Python.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a formula of {len(text)} signs is not read")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text[:60]}' is no formula") from error


def _value(node: ast.expr) -> Any:
    import sympy

    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return sympy.sympify(node.value)
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _RELATIONS:
        relation = getattr(sympy, _RELATIONS[type(node.ops[0])])
        return relation(_value(node.left), _value(node.comparators[0]))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _called(node.func.id, node.args)
    raise ValueError(f"'{ast.unparse(node)[:60]}' is no part of a formula")


def _power(base: Any, exponent: Any) -> Any:
    import sympy

    inside = max(
        (abs(power.exp) for power in base.atoms(sympy.Pow) if power.exp.is_number), default=1
    )
    if not exponent.is_Rational or abs(exponent) * inside > _HIGHEST:
        raise ValueError(f"a power of {exponent} is not read")
    if base.is_number and abs(base) > _LARGEST and abs(exponent) > 1:
        raise ValueError(f"a power of {base} is not read")
    return base**exponent


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_RELATIONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "StrictLessThan",
    ast.LtE: "LessThan",
    ast.Gt: "StrictGreaterThan",
    ast.GtE: "GreaterThan",
}
_PLAIN = frozenset({"floor", "ceiling", "Mod", "log", "sqrt", "Abs", "Eq", "Ne"})


def _called(name: str, args: list[ast.expr]) -> Any:
    """A function that formulas have; largest and smallest stay as they are written."""
    import sympy

    if name in ("Max", "Min"):
        return getattr(sympy, name)(*map(_value, args), evaluate=False)
    if name == "Piecewise":
        pairs = [item.elts for item in args if isinstance(item, ast.Tuple) and len(item.elts) == 2]
        if len(pairs) == len(args):
            return sympy.Piecewise(*[tuple(map(_value, pair)) for pair in pairs], evaluate=False)
    elif name in _PLAIN:
        return getattr(sympy, name)(*map(_value, args))
    raise ValueError(f"'{name}' is no function of a formula")


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
