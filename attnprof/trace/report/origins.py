"""Where costs arise: by operation, by line of the user's code, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnprof.trace.evaluation import evaluate
from attnprof.trace.events import KINDS, Call, Size, Trace
from attnprof.trace.request.expressions import LARGE
from attnprof.trace.totals import added

Sizes = Mapping[str, int]
_FLOPS = frozenset(KINDS) - {"matmul_flops"}


def operations(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Totals by ATen operation, most FLOPs first (then bytes), at a long sequence."""
    groups = _grouped(trace, phase, lambda call: call.op)
    order = sorted(groups, key=lambda op: [*map(_long, _costs(groups[op]))], reverse=True)
    return [{"operation": op, **_row(groups[op], at)} for op in order]


def subtotals(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Totals by line of the user's code, in the order it ran."""
    groups = _grouped(trace, phase, lambda call: call.line)
    return [{"line": line, **_row(calls, at)} for line, calls in groups.items()]


def steps(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Every operation in the order it ran; ``calls`` are several where a row stands for them."""
    return [
        {
            "operation": call.op,
            "part": call.part,
            "line": call.line,
            **{kind: str(call.counts.get(kind, 0)) for kind in KINDS},
            "allocates": str(added([call.takes])),
            "frees_before": str(added([call.gives])),
            "uncounted": call.uncounted,
            **_row([call], at),
        }
        for call in trace.part(phase)
    ]


def flops_of(calls: Iterable[Call]) -> Size:
    """Operations of some calls, as an int or an expression."""
    return added([count for call in calls for kind, count in call.counts.items() if kind in _FLOPS])


def _grouped(trace: Trace, phase: str, key: Callable[[Call], str]) -> dict[str, list[Call]]:
    """The calls of a phase by what they have in common, in order."""
    groups: dict[str, list[Call]] = {}
    for call in trace.part(phase):
        groups.setdefault(key(call), []).append(call)
    return groups


def _times(calls: list[Call], at: Sizes) -> int | str | None:
    """How many operations calls stand for: a number, at no shape maybe an expression's text."""
    times = [call.times for call in calls]
    if None in times:
        return None
    total = added(times)
    if getattr(total, "free_symbols", ()):
        return int(evaluate(total, at)) if at else str(total)
    return int(total)


def _costs(calls: list[Call]) -> tuple[Size, Size]:
    return flops_of(calls), added([call.bytes_moved for call in calls])


def _row(calls: list[Call], at: Sizes) -> dict[str, Any]:
    flops, moved = _costs(calls)
    return {
        "calls": _times(calls, at),
        "flops": str(flops),
        "bytes_moved": str(moved),
        "flops_value": evaluate(flops, at) if at else None,
        "bytes_value": evaluate(moved, at) if at else None,
    }


def _long(expression: Size) -> Any:
    names = {symbol.name for symbol in getattr(expression, "free_symbols", ())}
    return evaluate(expression, {name: LARGE.get(name, 100) for name in names})


def peak_moment(trace: Trace, phase: str, at: Sizes) -> dict[str, Any]:
    """During which operation the most is held, at a shape."""
    held, most, during = 0, -1, None
    for call in trace.calls:
        held += evaluate(call.takes, at) - evaluate(call.gives, at)
        now = held + evaluate(call.workspace, at)
        if now > most and (phase != "backward" or call.part == "backward"):
            most, during = now, call
    if during is None:
        return {}
    return {"operation": during.op, "part": during.part, "line": during.line, "bytes": most}
