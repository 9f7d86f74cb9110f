"""Compare formulas with a run: which quantities differ, and at which operation and line first."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import zip_longest
from math import inf, prod
from typing import Any

from attnprof.trace.events import KINDS, Call, Trace, flops_of, totals_by_phase, trains
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.run.runs import outcome
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.budget import A_LONG_RUN, ContradictedError, differences

Row = tuple[Call, int]  # a call, and how much of a quantity it is


class Found:
    """The result of a strategy: ``forms`` by phase and quantity, and the ``trace`` they sum up.

    ``withheld`` says, by phase and quantity, why a quantity has no formula although others do.
    """

    forms: dict[str, dict[str, Any]]
    trace: Trace
    withheld: dict[str, dict[str, str]]

    def numbers(self, sizes: Sizes) -> dict[str, dict[str, Any]]:
        """Return what the formulas give at a shape: ``{"forward": {"flops": 4096}}``."""
        return {
            p: {q: evaluate(x, sizes) for q, x in quantities.items()}
            for p, quantities in self.forms.items()
        }

    def operations(self, sizes: Sizes) -> float:
        """Return about how many operations a run at a shape has; infinity where there is no run."""
        try:
            return float(sum(many * evaluate(times, sizes) for times, many in self.repeats.items()))
        except ZeroDivisionError:
            return inf

    @cached_property
    def repeats(self) -> Counter[Any]:
        """How many calls are repeated how often: ``{1: 40, N/64: 12}``."""
        return Counter(call.times for call in self.trace.calls if call.times is not None)

    def hold(self, run: Trace, shape: Sizes, *, strict: bool = False) -> None:
        """Withhold the formulas that a run at a shape contradicts.

        Raises :class:`ContradictedError` if too few are left, or if any differs and ``strict``.
        """
        wrong = differences(self.forms, totals_by_phase(run, self.forms), shape)
        for (phase, quantity), sentence in wrong.items():
            wrong[phase, quantity] = sentence + parting(self.trace, run, phase, quantity, shape)
        if wrong and strict:
            raise ContradictedError(shape, wrong)
        if wrong:
            self.withhold(ContradictedError(shape, wrong))

    def withhold(self, error: ContradictedError) -> None:
        """Remove the contradicted formulas; raise the error if a phase keeps none of a count."""
        for (phase, quantity), sentence in error.wrong.items():
            forms, gone = self.forms[phase], self.withheld.setdefault(phase, {})
            del forms[quantity]
            gone[quantity] = f"at {sizes_text(error.shape)} {sentence}"
        for phase, gone in self.withheld.items():
            left = [kind for kind in KINDS if self.forms[phase].get(kind, 0) != 0]
            if not left and not gone.keys().isdisjoint(KINDS):
                raise error


def parting(formulas: Trace, run: Trace, phase: str, quantity: str, sizes: Sizes) -> str:
    """Return where a formula and a run differ first, or an empty string if that is not known.

    Such as ``; they part at aten.clone (my.py:16): 96, not 48``. Operations that add nothing, as
    most views, are passed over. Where a call of the formulas stands for several operations, the
    operations of one name at one line are summed before they are compared.
    """
    expected = list(_rows(formulas, phase, quantity, sizes))
    rows = list(_rows(run, phase, quantity, {}))
    pairs: Iterable[tuple[Row | None, Row | None]] = zip_longest(expected, rows)
    if any(call.times != 1 for call in formulas.calls):
        at, there = _summed_by_line(expected), _summed_by_line(rows)
        pairs = ((at.get(key), there.get(key)) for key in {**at, **there})
    for wanted, got in pairs:
        if wanted is None or got is None:
            what = "the run has not" if wanted else "the formula has not"
            return f"; they part at {_named(wanted or got)}, which {what}"
        if wanted[0].op != got[0].op:
            return f"; they part at {_named(got)}, where the formula has {_named(wanted)}"
        if wanted[1] != got[1]:
            return f"; they part at {_named(got)}: {got[1]}, not {wanted[1]}"
    return ""


def _rows(trace: Trace, phase: str, quantity: str, sizes: Sizes) -> Iterator[Row]:
    """Yield calls and what they add to a quantity; of a peak, allocations and bytes held then."""
    held = 0
    for call in trace.calls:
        takes, workspace = evaluate(call.takes, sizes), evaluate(call.workspace, sizes)
        held += takes - evaluate(call.gives, sizes)
        if quantity == "peak_bytes":
            if takes or workspace:
                yield call, held + workspace
        elif phase in {"train", "decode", call.part}:
            added = flops_of([call]) if quantity == "flops" else call.counts.get(quantity, 0)
            if value := evaluate(call.bytes_moved if quantity == "bytes_moved" else added, sizes):
                yield call, value


def _summed_by_line(rows: list[Row]) -> dict[tuple[str, str, str], Row]:
    sums: dict[tuple[str, str, str], Row] = {}
    for call, value in rows:
        key = call.op, call.part, call.line
        sums[key] = call, value + sums.get(key, (call, 0))[1]
    return sums


def _named(row: Any) -> str:
    call, _ = row
    place = f" ({call.line})" if call.line else ""
    return f"{call.op if '::' in call.op else f'aten.{call.op}'}{place}"


# -- other calls of the same module, which caches and counters change --------------------
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
    return [f"at {sizes_text(shape)} {sentence}" for sentence in trace.other_calls]
