"""Reading a formula that somebody typed: arithmetic over names, nothing else is run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.algebra.expressions import check_sides, check_size, expression_of
from attnprof.algebra.parser import FormulaError, parse, short
from attnprof.errors import RequestError, closest

FUNCTIONS = ("sqrt", "log", "log2", "exp", "ceiling", "floor", "Max", "Min")
_HOW = (
    "type numbers and names with + - * / ** (or ^), brackets, and "
    f"{', '.join(FUNCTIONS)}, like 4*N**2*d + 6*N**2"
)
#: Longer formulas stand in no table.
LONGEST = 4000
_BOUND = re.compile(r"\s*(?P<kind>[OΘΩ])\s*\((?P<inside>.*)\)\s*", re.DOTALL)


def without_bound(text: str) -> tuple[str, str]:
    """What stands inside ``O(…)``, ``Θ(…)`` or ``Ω(…)``, and that letter; none without a bound."""
    found = _BOUND.fullmatch(text)
    return (found["inside"], found["kind"]) if found else (text, "")


def read_formula(text: str, meanings: Mapping[str, Any] | None = None) -> Any:
    """A formula as a sympy expression, every name a positive symbol or what it stands for.

    Raises :class:`RequestError` that says what cannot be read and what can.
    """
    try:
        tree = parse(text, longest=LONGEST)
        check_sides(tree)
        found = expression_of(tree, meanings=meanings)
        check_size(found)
    except FormulaError as error:
        beside = re.search(r"(\d)\s*([A-Za-z_(])", text)
        hint = f" (between {beside[1]} and {beside[2]} a * may be missing)" if beside else ""
        raise RequestError(
            f"formula '{short(text)}' cannot be read: {error}{hint}; {_HOW}"
        ) from error
    return found


def names_in(expression: Any) -> set[str]:
    """The names it uses."""
    return {str(symbol.name) for symbol in expression.free_symbols}


def check_names(expression: Any, known: Sequence[str], text: str) -> None:
    """Refuse names that stand for nothing; RequestError lists those that do."""
    for name in sorted(names_in(expression) - set(known)):
        near = closest(name, list(known)) if known else "there are none here"
        raise RequestError(
            f"formula '{short(text)}': nothing here is called {name}: {near}; say what it stands "
            f"for with --where {name}=…, in {', '.join(known) or 'numbers'}"
        )
