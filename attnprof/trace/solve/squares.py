"""Lengths that have to be squares, as of images: formulas are derived in the side of the square.

With N = S**2 they are then rewritten over N, as sqrt(N).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.trace.events import Trace
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import EVEN, Expression, Input, Sizes, Target
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import outcome

_LENGTH = "N"
#: Lengths that are squares, and others that numbers common in code divide.
_SQUARES, _OTHERS = (64, 144), (96, 128, 160, 140)
#: Operations of a run that only shows whether the code runs.
_SHORT = 3000


def side_of(target: Target, asked: Sizes) -> str:
    """Return a name for the side, "S", if the code runs at square lengths alone; else ""."""
    length = asked.get(_LENGTH)
    square = length is None or (length > 1 and isqrt(length) ** 2 == length)
    if _LENGTH not in target.symbols or target.real or not square:
        return ""
    small = {name: EVEN.get(name, 16) for name in target.symbols} | dict(asked)

    def runs(length: int) -> bool:
        shape = {**small, _LENGTH: length}
        ways = (outcome(target, shape, training=False, most=_SHORT, swift=x) for x in (True, False))
        return any(isinstance(result, Trace | TooLongError) for result in ways)

    if any(map(runs, _OTHERS)) or not all(map(runs, _SQUARES)):
        return ""
    return next(name for name in ("S", "side", "root") if name not in target.symbols)


def of_side(target: Target, side: str) -> Target:
    """Return the target with the side in place of the length, N = side**2."""

    def dims(item: Expression) -> Expression:
        return replace(item, text=re.sub(rf"\b{_LENGTH}\b", f"({side}**2)", item.text))

    def given(item: Input) -> Input:
        value = dims(item.value) if isinstance(item.value, Expression) else item.value
        return replace(item, dims=tuple(map(dims, item.dims)), value=value)

    def make(sizes: Mapping[str, Any]) -> Any:
        others = {name: size for name, size in sizes.items() if name != side}
        return target.make({**others, _LENGTH: sizes[side] ** 2})

    symbols = tuple(side if name == _LENGTH else name for name in target.symbols)
    return replace(
        target, make=make, inputs=tuple(map(given, target.inputs)), symbols=symbols, step=None
    )


def asked_of_side(asked: Sizes, side: str) -> dict[str, int]:
    """Return asked sizes with the side in place of the length: ``{"S": 8}`` of ``{"N": 64}``."""
    return {
        side if name == _LENGTH else name: isqrt(size) if name == _LENGTH else size
        for name, size in asked.items()
    }


def in_length(forms: PhaseForms, side: str) -> PhaseForms:
    """Return formulas over the side rewritten over the length."""
    import sympy

    root = {symbol(side): sympy.sqrt(symbol(_LENGTH))}

    def said(value: Any) -> Any:
        return value.xreplace(root) if hasattr(value, "xreplace") else value

    def told(text: str) -> str:
        return re.sub(rf"\b{side}\b", f"sqrt({_LENGTH})", text)

    trace = forms.trace
    return replace(
        forms,
        formulas={
            name: replace(one, expression=said(one.expression), withheld=told(one.withheld))
            for name, one in forms.formulas.items()
        },
        domain=(f"{_LENGTH} is a square", *map(told, forms.domain)),
        verified_at=tuple(_shape_of(shape, side) for shape in forms.verified_at),
        notes=tuple(map(told, forms.notes)),
        trace=replace(
            trace,
            calls=[call.mapped(said) for call in trace.calls],
            parameters=said(trace.parameters),
            modules={name: said(entries) for name, entries in trace.modules.items()},
            routes=[(said(rows), said(experts)) for rows, experts in trace.routes],
        ),
        holds=partial(_holds, forms.holds, side),
    )


def _shape_of(sizes: Sizes, side: str) -> dict[str, int]:
    """Return a shape with the length in place of the side."""
    return {
        _LENGTH if name == side else name: size**2 if name == side else size
        for name, size in sizes.items()
    }


def _holds(inside: Callable[[Sizes], bool], side: str, sizes: Sizes) -> bool:
    """Return whether a length is the square of a side that lies inside."""
    square = isqrt(sizes[_LENGTH]) ** 2 == sizes[_LENGTH]
    return square and inside(asked_of_side(sizes, side))
