"""A trace summed up: every quantity of a phase, as an int or an expression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attnprof.algebra.maxima import running_maximum
from attnprof.trace.events import KINDS, Call, Size, Trace

PHASES = ("forward", "backward", "train", "decode")


def trains(phases: Iterable[str]) -> bool:
    """Whether these phases are seen in a run with a backward pass."""
    return not {"backward", "train"}.isdisjoint(phases)


def totals(trace: Trace, phase: str) -> dict[str, Size]:
    """Counts by kind, ``flops``, ``bytes_moved``, ``peak_bytes`` and ``parameters`` of a phase."""
    calls = list(trace.part(phase))
    found: dict[str, Size] = {}
    for kind in KINDS:
        found[kind] = added([call.counts[kind] for call in calls if kind in call.counts])
    found["flops"] = added([found[kind] for kind in KINDS if kind != "matmul_flops"])
    found["bytes_moved"] = added([call.bytes_moved for call in calls])
    found["peak_bytes"] = peak(trace, phase)
    found["parameters"] = trace.parameters
    return found


def added(values: list[Size]) -> Size:
    """The sum, expanded where it is symbolic."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    import sympy

    return sympy.expand(sympy.Add(*values))


def peak(trace: Trace, phase: str) -> Size:
    """Most bytes held at once; a backward pass starts with what its forward pass left alive."""
    held: list[Size] = []
    steps: list[tuple[Size, Size, Size]] = []
    for call in trace.calls:
        if phase == "backward" and call.part == "forward":
            held += [call.takes, -call.gives]
            continue
        steps.append((-call.gives, 0, 0))
        steps.append((call.takes, call.workspace, 0))
    start = added(held)
    if all(isinstance(x, int) for step in steps for x in step) and isinstance(start, int):
        return _largest(start, steps)
    return running_maximum(start, steps)


def _largest(start: int, steps: list[tuple[int, int, int]]) -> int:
    held, most = start, 0 if steps else start  # the first step frees what died before it
    for takes, workspace, _ in steps:
        held += takes
        most = max(most, held + workspace)
    return most


def uncounted(trace: Trace, phase: str) -> Mapping[str, tuple[Size, Size]]:
    """What the counts leave out: calls (``several`` if not known) and bytes, by operation."""
    found: dict[str, list[Call]] = {}
    for call in trace.part(phase):
        if call.uncounted:
            found.setdefault(call.uncounted, []).append(call)
    return {
        name: (_times(calls), added([c.touched for c in calls])) for name, calls in found.items()
    }


def _times(calls: list[Call]) -> Size:
    times = [call.times for call in calls]
    return "several" if None in times else added(times)


def at_least(trace: Trace, phase: str) -> tuple[str, ...]:
    """A sentence where kernels take memory of their own that the peak does not contain."""
    names = sorted({call.scratch for call in trace.part(phase) if call.scratch})
    if not names:
        return ()
    return (f"peak_bytes is at least: what {', '.join(names)} takes inside itself is not known",)
