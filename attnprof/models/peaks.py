"""What a phase holds when it holds most: the tensors, and the formula's branch."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from attnprof.models.forms import ModelForms
from attnprof.trace.events import Call, Trace, peak, unnumbered
from attnprof.trace.report.records import text
from attnprof.trace.sizes import chosen

#: Kinds of tensors that are named.
_MOST_NAMED = 3
#: The least share of a peak of a kind of tensors that is named.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class HeldTensors:
    """Results of one operation of alike modules that are alive together: how many, and bytes."""

    module: str
    op: str
    part: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int


def peak_fields(
    trace: Trace, phase: str, forms: ModelForms | None, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the peak's ``formula`` at these sizes, its other branches left out, and ``tensors``.

    ``tensors`` are the largest held then, each a table of :class:`HeldTensors`; without formulas,
    ``formula`` is None.
    """
    whole = None if forms is None else forms.whole.get("peak_bytes")
    at = {**sizes, **(forms.layers if forms else {})}
    branch = chosen(whole, at) if hasattr(whole, "free_symbols") else whole
    held = [vars(one) for one in largest_at_peak(trace, phase)]
    return {"formula": text(branch), "tensors": held}


def largest_at_peak(trace: Trace, phase: str) -> list[HeldTensors]:
    """Return the kinds of tensors that take most of a phase's peak, the largest first.

    Empty for a phase that replaces what was there before, as a cache by a longer copy.
    """
    counts: Counter[Any] = Counter()
    for call, size, count in _live_at_peak(trace.calls, phase):
        module = unnumbered(call.module.removeprefix("module").removeprefix("."))
        counts[module, call.op, call.part, call.dtype, tuple(call.shape), size] += count
    held = [
        HeldTensors(module, op, part, dtype, shape, count, count * size)
        for (module, op, part, dtype, shape, size), count in counts.items()
    ]
    held.sort(key=lambda one: -one.bytes)
    whole = sum(one.bytes for one in held)
    if whole > peak(trace, phase):  # of a cache that was there before
        return []
    least = _LEAST_SHARE * whole
    return [one for one in held[:_MOST_NAMED] if one.bytes >= least]


def _live_at_peak(calls: Sequence[Call], phase: str) -> Iterator[tuple[Call, int, int]]:
    """Yield the calls of which results are alive at the peak, with bytes of one and how many.

    A run that stands for all layers by its first few has several storages of one number.
    """
    counted = [call for call in calls if phase != "forward" or call.part == "forward"]
    held = list(accumulate(call.takes - call.gives for call in counted))
    most = [
        now + call.workspace if phase != "backward" or call.part == phase else 0
        for call, now in zip(counted, held, strict=True)
    ]
    last = max(range(len(most)), key=most.__getitem__, default=-1)
    live: dict[int, list[Any]] = {}
    for call in counted[: last + 1]:
        for number in call.died:
            live[number][2] -= 1
        for number, size in call.born:
            live[number] = [call, size, 1 + (live[number][2] if number in live else 0)]
    return ((call, size, count) for call, size, count in live.values() if count)
