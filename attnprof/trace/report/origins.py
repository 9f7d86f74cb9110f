"""Where costs arise: by operation, by line of the user's code, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attnprof.trace.evaluation import evaluate
from attnprof.trace.events import KINDS, Call, Size, Trace
from attnprof.trace.request.expressions import LARGE
from attnprof.trace.totals import added, by_line

Sizes = Mapping[str, int]


def operations(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Totals by ATen operation, most FLOPs first; those without cost last."""
    groups: dict[str, list[Call]] = {}
    for call in trace.part(phase):
        groups.setdefault(call.op, []).append(call)
    found = [
        {"operation": name, "calls": times_of(calls, at), **_costs(calls, at)}
        for name, calls in groups.items()
    ]
    return sorted(found, key=_weight(groups), reverse=True)


def subtotals(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Totals by line of the user's code, in the order it ran."""
    return [
        {"line": line, "calls": times_of(calls, at), **_costs(calls, at)}
        for line, calls in by_line(trace, phase).items()
    ]


def steps(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Every operation in the order it ran; ``calls`` are several where a row stands for them."""
    return [
        {
            "operation": call.op,
            "calls": times_of([call], at),
            "part": call.part,
            "line": call.line,
            **{kind: str(call.counts.get(kind, 0)) for kind in KINDS},
            "allocates": str(added([call.takes])),
            "frees_before": str(added([call.gives])),
            "uncounted": call.uncounted,
            **_costs([call], at),
        }
        for call in trace.part(phase)
    ]


def flops_of(calls: Iterable[Call]) -> Size:
    """Operations of some calls, as an int or an expression."""
    return added([count for call in calls for kind, count in call.counts.items() if kind in _FLOPS])


def times_of(calls: Iterable[Call], at: Sizes) -> int | str | None:
    """How many operations calls stand for: a number, at no shape maybe an expression's text."""
    times = [call.times for call in calls]
    if None in times:
        return None
    total = added(times)
    if getattr(total, "free_symbols", ()):
        return int(evaluate(total, at)) if at else str(total)
    return int(total)


_FLOPS = frozenset(KINDS) - {"matmul_flops"}


def _costs(calls: list[Call], at: Sizes) -> dict[str, Any]:
    flops, moved = flops_of(calls), added([call.bytes_moved for call in calls])
    return {
        "flops": str(flops),
        "bytes_moved": str(moved),
        "flops_value": evaluate(flops, at) if at else None,
        "bytes_value": evaluate(moved, at) if at else None,
    }


def _weight(groups: Mapping[str, list[Call]]) -> Any:
    """A sort key: FLOPs, then bytes, at a long sequence."""

    def key(row: Mapping[str, Any]) -> tuple[Any, Any]:
        calls = groups[row["operation"]]
        return _long(flops_of(calls)), _long(added([call.bytes_moved for call in calls]))

    return key


def _long(expression: Size) -> Any:
    names = {symbol.name for symbol in getattr(expression, "free_symbols", ())}
    return evaluate(expression, {name: LARGE.get(name, 100) for name in names})


def peak_moment(trace: Trace, phase: str, at: Sizes) -> dict[str, Any]:
    """During which operation the most is held, at a shape."""
    held, most, during = 0, -1, None
    for call in trace.calls:
        held += evaluate(call.takes, at) - evaluate(call.gives, at)
        counted = phase != "backward" or call.part == "backward"
        now = held + evaluate(call.workspace, at)
        if counted and now > most:
            most, during = now, call
    if during is None:
        return {}
    return {"operation": during.op, "part": during.part, "line": during.line, "bytes": most}
