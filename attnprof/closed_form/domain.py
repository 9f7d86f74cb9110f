"""Closed forms for the usual sizes: above one, or exactly one where that was asked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.algebra.expressions import expression_text, symbol
from attnprof.algebra.maxima import maximum_of
from attnprof.record import CostRecord
from attnprof.workload import SYMBOLS


def in_domain(records: Sequence[CostRecord]) -> list[CostRecord]:
    """The records with shorter expressions: what is decided by sizes of at least 2 is left out."""
    return [
        replace(record, expression=_shorter(record.expression, sizes_of(record)))
        if record.expression and "Min(" in record.expression else record
        for record in records
    ]  # fmt: skip


def sizes_of(record: CostRecord) -> dict[str, int]:
    """The symbols of closed forms and the sizes asked for."""
    return {name: getattr(record, field) for name, field in SYMBOLS.items()}


def domain_text(record: CostRecord) -> str:
    """``N, h, d >= 2 and B = 1``."""
    sizes = sizes_of(record)
    above = ", ".join(name for name, size in sizes.items() if size > 1)
    ones = [f"{name} = 1" for name, size in sizes.items() if size == 1]
    return " and ".join([*([f"{above} >= 2"] if above else []), *ones])


def _shorter(text: str, sizes: Mapping[str, int]) -> str:
    import sympy

    names = {name: symbol(name) for name in (*sizes, "g", "M")}
    form: Any = sympy.sympify(text, locals=names)
    above = {
        names[name]: sympy.Dummy(nonnegative=True) + 2 if size > 1 else sympy.Integer(1)
        for name, size in sizes.items()
    }

    def least(*sides: Any) -> Any:
        moved = [sympy.expand(side.subs(above)) for side in sides]
        for side, its in zip(sides, moved, strict=True):
            if all(sympy.expand(other - its).is_nonnegative for other in moved):
                return side if its.free_symbols else its
        return sympy.Min(*sides)

    return expression_text(form.replace(sympy.Min, least).replace(sympy.Max, _most))


def _most(*sides: Any) -> Any:
    import sympy

    return maximum_of([sympy.expand(side) for side in sides])
