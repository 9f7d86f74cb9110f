"""What other calls of the same module cost, where that is not what the formulas say."""

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
    """Return sentences about what other calls do otherwise.

    They are run at the asked shape if that is among ``shapes``, or at the smallest of those.
    ``formulas`` is told whether they hold for later calls. A decoding step is one call of many by
    its nature, and modules of ours keep nothing.
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
