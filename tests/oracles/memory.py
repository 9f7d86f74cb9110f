"""The CPU allocator's own account of a call, from torch's profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

#: Their library takes scratch and copies operands for some formats on some processors (oneDNN's
#: bfloat16): a matter of the machine, which no count of tensors can know.
PRODUCTS = frozenset({"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"})
#: Marks the call among the profiler's events.
_MARK = "the call"


def allocator_peak(run: Callable[..., Any], prompt: Callable[[], Any] | None = None) -> int:
    """Return the largest number of bytes held at once, above what was held before the call.

    What a product takes and gives back before it ends is left out. ``run`` takes what ``prompt``
    returns: the profiler sees both, and so what of the prompt is freed.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        given = () if prompt is None else (prompt(),)
        with record_function(_MARK):
            kept = run(*given)
    events = recorded.profiler.kineto_results.events()
    start = next(event.start_ns() for event in events if event.name() == _MARK)
    held = peak = 0
    for size in _tensors(event for event in events if event.start_ns() >= start):
        held += size
        peak = max(peak, held)
    del kept
    return peak


def _tensors(events: Any) -> Iterator[int]:
    """Bytes taken and given back in order, a product's own left out."""
    ordered = sorted(events, key=lambda e: (e.start_ns(), -e.duration_ns()))
    ends, inside = 0, []
    for event in ordered:
        if event.start_ns() > ends:
            yield from _lasting(inside)
            inside = []
        if event.name() in PRODUCTS:
            ends = max(ends, event.start_ns() + event.duration_ns())
        if event.name() == "[memory]":
            inside.append(event.nbytes())
    yield from _lasting(inside)


def _lasting(sizes: list[int]) -> list[int]:
    """A product's allocations without those it gives back itself, nor their release."""
    given_back = Counter(-size for size in sizes if size < 0)
    kept = []
    for size in reversed(sizes):  # a result is taken first: of equal sizes it is the one to stay
        if size > 0 and given_back[size]:
            given_back[size] -= 1
        elif size > 0:
            kept.append(size)
    return kept[::-1] + [-size for size, times in given_back.items() for _ in range(times)]
