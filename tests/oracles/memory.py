"""The CPU allocator's own account of a call, from torch's profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
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
    held = peak = 0
    for size in _tensors(recorded.profiler.kineto_results.events()):
        held += size
        peak = max(peak, held)
    del kept
    return peak


def held(module: Any, x: torch.Tensor, phase: str = "forward", **options: Any) -> int:
    """Return the allocator's peak of a phase of a module, which has run before.

    ``train`` is a forward and a backward pass, from ones, into gradients that are not there yet.
    """
    trains = phase == "train"
    x, ones = x.detach().requires_grad_(trains), None

    def run() -> torch.Tensor:
        nonlocal ones
        with torch.set_grad_enabled(trains):
            y = module(x, **options)
        if trains:
            ones = torch.ones_like(y) if ones is None else ones
            y.backward(ones)
        return y

    run()
    x.grad = None
    module.zero_grad(set_to_none=True)
    return allocator_peak(run)


def _tensors(events: Any) -> Iterator[int]:
    """Bytes taken and given back in order from the mark on, a product's own left out."""
    begin, rows = 0, list[tuple[int, int, int | None]]()
    for event in events:  # most are of no interest, and each question to them takes its time
        if (name := event.name()) == "[memory]":
            rows.append((event.start_ns(), 0, event.nbytes()))
        elif name in PRODUCTS:
            rows.append((event.start_ns(), -event.duration_ns(), None))
        elif name == _MARK:
            begin = event.start_ns()
    ends, inside = 0, list[int]()
    for start, minus, size in sorted(rows, key=lambda row: row[:2]):
        if start < begin:
            continue
        if inside and start > ends:
            yield from _lasting(inside)
            inside = []
        if size is None:
            ends = max(ends, start - minus)
        elif start > ends:
            yield size
        else:
            inside.append(size)
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
