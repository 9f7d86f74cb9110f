"""Reading a formula that somebody typed: arithmetic over names, nothing else is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import comb, prod
from typing import Any

from attnprof.errors import RequestError, closest

FUNCTIONS = ("sqrt", "log", "log2", "exp", "ceiling", "floor", "Max", "Min")
_SAME = {"ceil": "ceiling", "max": "Max", "min": "Min", "ln": "log"}
_HOW = (
    "type numbers and names with + - * / ** (or ^), brackets, and "
    f"{', '.join(FUNCTIONS)}, like 4*N**2*d + 6*N**2"
)
#: Beyond these no cost formula goes, and expanding one would take for ever.
LONGEST = 4000
HIGHEST = 16
MOST_TERMS = 2000
_SIGNS = str.maketrans({"^": "**", "·": "*", "×": "*", "−": "-", "²": "**2", "³": "**3"})
_BOUND = re.compile(r"\s*(?P<kind>[OΘΩ])\s*\((?P<inside>.*)\)\s*", re.DOTALL)


def without_bound(text: str) -> tuple[str, str]:
    """What stands inside ``O(…)``, ``Θ(…)`` or ``Ω(…)``, and that letter; none without a bound."""
    found = _BOUND.fullmatch(text)
    return (found["inside"], found["kind"]) if found else (text, "")


def read_formula(text: str) -> Any:
    """A formula as a sympy expression, every name a positive symbol.

    Raises :class:`RequestError` that says what cannot be read and what can.
    """
    if len(text) > LONGEST:
        raise RequestError(f"formula '{_short(text)}' is longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip().translate(_SIGNS), mode="eval")
        found = _checked(_read(tree.body))
    except SyntaxError as error:
        raise RequestError(
            f"formula '{_short(text)}' cannot be read{_hint(text)}: {_HOW}"
        ) from error
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise RequestError(f"formula '{_short(text)}' cannot be read: {error}; {_HOW}") from error
    return found


def names_in(expression: Any) -> set[str]:
    """The names it uses."""
    return {str(symbol.name) for symbol in expression.free_symbols}


def check_names(expression: Any, known: Sequence[str], text: str) -> None:
    """Refuse names that stand for nothing; RequestError lists those that do."""
    for name in sorted(names_in(expression) - set(known)):
        near = closest(name, list(known)) if known else "there are none here"
        raise RequestError(
            f"formula '{_short(text)}': nothing here is called {name}: {near}; say what it stands "
            f"for with --where {name}=…, in {', '.join(known) or 'numbers'}"
        )


def _short(text: str) -> str:
    return text if len(text) < 80 else text[:77] + "..."


def _hint(text: str) -> str:
    if found := re.search(r"(\d)\s*([A-Za-z_(])", text):
        return f" (between {found[1]} and {found[2]} a * may be missing)"
    return ""


def _read(node: ast.expr) -> Any:
    import sympy

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return sympy.Rational(Fraction(str(value)))
        case ast.Name(id=name):
            if name in FUNCTIONS or name in _SAME:
                raise ValueError(f"{name} is a function: {name}(…)")
            return sympy.Symbol(name, positive=True)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
            return -_read(inner) if isinstance(sign, ast.USub) else _read(inner)
        case ast.BinOp(left=left, op=sign, right=right):
            return _joined(sign, _read(left), _read(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args:
            return _called(_SAME.get(name, name), [_read(arg) for arg in args])
        case _:
            raise ValueError(f"'{ast.unparse(node)}' is no arithmetic")


def _joined(sign: ast.operator, left: Any, right: Any) -> Any:
    import sympy

    match sign:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() | ast.FloorDiv() if right == 0:
            raise ValueError("it divides by 0")
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return sympy.floor(left / right)
        case ast.Pow():
            return _power(left, right)
        case _:
            raise ValueError(f"there is no {type(sign).__name__} in formulas")


def _power(base: Any, exponent: Any) -> Any:
    """A power, bounded: 9**9**9 or the hundredth power of a sum would never end."""
    if not exponent.is_Rational or abs(exponent) > HIGHEST:
        raise ValueError(f"powers are numbers up to {HIGHEST}")
    result = base**exponent
    if result.is_Pow and abs(result.exp) > HIGHEST:
        raise ValueError(f"powers are numbers up to {HIGHEST}")
    return result


def _terms(expression: Any) -> int:
    """How many terms it may have once it is written as a sum."""
    counts = [_terms(part) for part in expression.args]
    if expression.is_Add:
        return sum(counts)
    if expression.is_Pow and expression.exp.is_Integer:
        power = int(abs(expression.exp))
        return comb(counts[0] + power - 1, power)
    return prod(counts)


def _checked(expression: Any) -> Any:
    import sympy

    if expression.has(sympy.zoo, sympy.nan, sympy.oo, sympy.I):
        raise ValueError("it has no real value")
    if _terms(expression) > MOST_TERMS:
        raise ValueError(f"written as a sum it has more than {MOST_TERMS} terms")
    return expression


def _called(name: str, args: list[Any]) -> Any:
    import sympy

    single: Mapping[str, Callable[[Any], Any]] = {
        "sqrt": sympy.sqrt, "log": sympy.log, "exp": sympy.exp,
        "log2": lambda x: sympy.log(x) / sympy.log(2),
        "ceiling": sympy.ceiling, "floor": sympy.floor,
    }  # fmt: skip
    if name in ("Max", "Min"):
        return getattr(sympy, name)(*args)
    if name == "log" and len(args) == 2:
        return sympy.log(args[0]) / sympy.log(args[1])
    if name not in single:
        raise ValueError(f"{name}(…) is no function here; for a product type {name}*(…)")
    if len(args) != 1:
        raise ValueError(f"{name} takes one argument")
    if name == "exp" and args[0].is_number:
        raise ValueError("exp takes sizes, not numbers")
    return single[name](args[0])
