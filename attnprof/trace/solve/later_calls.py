"""Compare other calls of the same module with its formulas: caches and counters change the cost."""

from collections.abc import Sequence
from math import prod

from attnprof.trace.events import Trace, trains
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.run.runs import outcome
from attnprof.trace.solve.budget import A_LONG_RUN

#: Calls that are compared where each changes a counter or a list: every second to sixteenth shows.
_CALLS = 18


def compare_calls(
    target: Target, phases: Sequence[str], formulas: Trace, shapes: Sequence[Sizes], asked: Sizes
) -> list[str]:
    """Return sentences about what the first or a later call costs otherwise.

    Calls are made at the asked shape if that is among ``shapes``, or at the smallest of these. Sets
    ``formulas.is_steady``: whether formulas hold for later calls. Decoding steps are not compared,
    since each is one call of many, nor modules of ours, which keep nothing.
    """
    if target.own or not shapes or "decode" in phases:
        return []
    smallest = min(shapes, key=lambda sizes: prod(sizes.values()))
    shape = asked if asked in shapes else smallest
    how = {"training": trains(phases), "most": A_LONG_RUN, "calls": _CALLS}
    trace = outcome(target, shape, **how)
    if not isinstance(trace, Trace):
        return []
    formulas.is_steady = trace.is_steady
    return [f"at {sizes_text(shape)} {told}" for told in trace.other_calls]
