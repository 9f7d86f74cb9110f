"""Shorten closed forms for sizes of at least 2, or 1 where the request has 1.

Entry points: :func:`in_domain` and :func:`domain_text`, which says for which sizes they hold.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from attnprof.algebra.expressions import expression_of, rules_of, symbol
from attnprof.algebra.maxima import maximum_of
from attnprof.algebra.parser import parse
from attnprof.record import CostRecord
from attnprof.workload import SYMBOLS

#: Functions and operators of closed forms besides arithmetic, maxima and rounding.
_CALLS = {**{name: name for name in ("Mod", "Eq", "Ne", "Piecewise")}, "&": "And", "|": "Or"}
_SIGNS = ("<", "<=", ">", ">=")


def in_domain(records: Sequence[CostRecord]) -> list[CostRecord]:
    """Return the records with expressions shortened for sizes of at least 2."""
    return [
        replace(record, expression=_shortened(record.expression, sizes_of(record)))
        if record.expression and "Min(" in record.expression else record
        for record in records
    ]  # fmt: skip


def sizes_of(record: CostRecord) -> dict[str, int]:
    """Return the asked sizes by symbol: ``{"B": 1, "N": 1024, …}``."""
    return {name: getattr(record, field) for name, field in SYMBOLS.items()}


def domain_text(record: CostRecord) -> str:
    """Return ``N, h, d >= 2 and B = 1``."""
    sizes = sizes_of(record)
    above = ", ".join(name for name, size in sizes.items() if size > 1)
    ones = [f"{name} = 1" for name, size in sizes.items() if size == 1]
    return " and ".join([*([f"{above} >= 2"] if above else []), *ones])


def _shortened(text: str, sizes: Mapping[str, int]) -> str:
    """Return the text of an expression without the minima that are decided on the domain.

    Other calls, like Max(N, M), become names ``z_0``, ``z_1``, … while sympy adds up the rest.
    """
    import sympy

    ones = frozenset(name for name, size in sizes.items() if size == 1)
    calls: dict[str, Any] = {}

    def named(call: str) -> Any:
        return calls.setdefault(call, sympy.Symbol(f"z_{len(calls)}", real=True))

    def least(*sides: Any) -> Any:
        short = _minimum(sides, ones)
        return named(f"Min{_bracketed(sides)}") if short is None else short

    def most(*sides: Any) -> Any:
        short = maximum_of(sides)
        return named(f"Max{_bracketed(short.args)}") if isinstance(short, sympy.Max) else short

    def rounded(rule: Any, value: Any) -> Any:
        return rule(value) if value.is_number else named(f"{rule}({value})")

    rules: dict[str, Any] = {
        **rules_of(), "min": least, "max": most, "tuple": lambda *parts: named(_bracketed(parts)),
        "ceil": partial(rounded, sympy.ceiling), "floor": partial(rounded, sympy.floor),
        **{sign: lambda *parts, name=name: named(f"{name}{_bracketed(parts)}")
           for sign, name in _CALLS.items()},
        **{sign: lambda *parts, sign=sign: named(f" {sign} ".join(map(str, parts)))
           for sign in _SIGNS},
    }  # fmt: skip
    short = str(expression_of(parse(text, longest=len(text), stored=True), rules=rules))
    texts = {str(name): call for call, name in calls.items()}
    while "z_" in short:
        short = re.sub(r"z_\d+", lambda match: texts[match[0]], short)
    return short


def _bracketed(parts: Iterable[Any]) -> str:
    return f"({', '.join(map(str, parts))})"


@cache
def _minimum(sides: tuple[Any, ...], ones: frozenset[str]) -> Any:
    """Return the side that is least for all sizes from 2 on; None if that depends on the sizes."""
    import sympy

    above = {
        symbol(name): sympy.Integer(1) if name in ones else sympy.Dummy(nonnegative=True) + 2
        for name in SYMBOLS
    }  # fmt: skip
    moved = [sympy.expand(side.subs(above)) for side in sides]
    for side, candidate in zip(sides, moved, strict=True):
        if all(sympy.expand(other - candidate).is_nonnegative for other in moved):
            return side if candidate.free_symbols else candidate
    return None
