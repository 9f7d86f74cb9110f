"""Extend a symbolic run's domain by a size that it excludes, as a tensor has a single entry there.

A dimension of 1 is another case for torch: a run with ``d/64`` blocks holds for ``d != 64`` alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from attnprof.trace.events import Call, Trace, totals_by_phase
from attnprof.trace.request.target import Sizes
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.shapes import shapes_in
from attnprof.trace.solve.symbolic import SymbolicRun
from attnprof.trace.solve.turns import differs
from attnprof.trace.solve.verification import Runs

#: Operations of a run above which nothing is tried; the largest size that may be excluded.
_LONG, _LARGEST = 400, 600
#: Shapes at which an excluded size is run; shapes of other sizes that must be inside the domain.
_TRIED, _NEIGHBOURS = 4, 120


def include_single_sizes(symbolic: SymbolicRun, runs: Runs, hints: Sizes) -> SymbolicRun:
    """Return the run with a domain that has the sizes excluded for a single entry.

    Only if runs at these sizes do the same operations, and hold the same bytes during each.
    """
    if len(symbolic.trace.calls) > _LONG:
        return symbolic
    unequal = [x for x in symbolic.guards.relations if type(x).__name__ == "Unequality"]
    for condition in [x for x in unequal if len(x.free_symbols) == 1]:
        (name,) = (size.name for size in condition.free_symbols)
        for size in range(2, _LARGEST):
            if evaluate(condition, {name: size}):
                continue
            kept = [x for x in symbolic.guards.relations if evaluate(x, {**hints, name: size})]
            wider = replace(symbolic, guards=SizeConditions(kept))
            inside = ({**shape, name: size} for shape in shapes_in(hints, symbolic.holds))
            tried = list(islice(filter(wider.holds, inside), _TRIED))
            near = ({**hints, name: other} for other in range(2, 4 * size))
            neighbours = chain(near, islice(shapes_in(hints, wider.holds), _NEIGHBOURS))
            only = all(symbolic.holds(x) for x in neighbours if x[name] != size and wider.holds(x))
            same = (_does_the_same(symbolic, runs.run_or_none(x), x, runs.phases) for x in tried)
            alone = len(tried) == _TRIED and only
            if alone and all(same):
                symbolic = wider
                break
    return symbolic


def _does_the_same(
    symbolic: SymbolicRun, trace: Trace | None, sizes: Sizes, phases: Sequence[str]
) -> bool:
    if trace is None or len(trace.calls) != len(symbolic.trace.calls):
        return False

    def counts(call: Call) -> tuple[Any, ...]:
        return call.op, *(evaluate(x, sizes) for x in (call.takes, call.gives, call.workspace))

    pairs = zip(trace.calls, symbolic.trace.calls, strict=True)
    return all(counts(a) == counts(b) for a, b in pairs) and not differs(
        symbolic, totals_by_phase(trace, phases), sizes
    )
