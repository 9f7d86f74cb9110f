"""Verify formulas by runs at concrete shapes, within a budget; withhold those a run contradicts.

:meth:`Runs.verify` compares a :class:`Solution` with runs; ``first_difference`` names the operation
and line at which the two differ first; ``compare_calls`` compares calls of one module.
"""

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from math import inf, prod
from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError
from attnprof.trace.events import KINDS, Call, Trace, flops_of, totals_by_phase, trains
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.run.limits import Limit, TooLongError, is_patient, out_of_patience
from attnprof.trace.run.runs import outcome
from attnprof.trace.sizes import live_bytes
from attnprof.user_code import error_text

#: Most operations of a run, such as one at the asked shape, unless a search sets another limit.
A_LONG_RUN = 25_000
#: The cost of starting a run, in operations.
_OVERHEAD = 40
#: Shapes at which formulas are verified: at least, and where runs are short.
HELD_OUT, MOST = 3, 12
#: Operations of all runs after which ``HELD_OUT`` shapes are enough.
_ENOUGH_OPERATIONS = 800
#: Calls of a module that are compared: enough for what happens at every 16th call.
_CALLS = 18
#: Least bytes of a large array outside of torch.
_LARGE_ARRAY = 2**21

PhaseCounts = Mapping[str, Mapping[str, Any]]  # phase → quantity → number
Wrong = dict[tuple[str, str], str]  # (phase, quantity) → how it is contradicted
Row = tuple[Call, int]  # a call, and how much of a quantity it is


class NoFormulaError(Exception):
    """A strategy finds no formula: the message says why.

    ``name`` is a size in which the cost is no polynomial: it has to be a number in runs.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class OutOfBudgetError(NoFormulaError):
    """All runs together would take too many operations."""


class ContradictedError(NoFormulaError):
    """A run at ``shape`` gave other numbers: ``wrong`` says which, by phase and quantity."""

    def __init__(self, shape: Mapping[str, int], wrong: Wrong) -> None:
        super().__init__(f"at {sizes_text(shape)} {next(iter(wrong.values()))}")
        self.shape = dict(shape)
        self.wrong = wrong


def check_patience() -> None:
    """Raise :class:`OutOfBudgetError` if no time is left."""
    if not is_patient():
        raise OutOfBudgetError(out_of_patience())


@dataclass
class Runs:
    """The runs of a target, one a shape, for phases that one run shows: forward, or training.

    Runs use fake tensors; after :meth:`use_meta_if_same` perhaps meta tensors (``on_meta``), which
    are three times as fast. ``once``: equal turns of a loop are run once. A run of more than
    ``longest`` operations raises :class:`TooLongError`, one beyond the ``budget`` of all runs
    :class:`OutOfBudgetError`. ``operations`` sums up all runs, those on fake tensors three times.
    """

    target: Target
    phases: Sequence[str]
    longest: int = A_LONG_RUN
    budget: float = inf
    once: bool = False
    operations: int = 0
    on_meta: bool | None = None
    _run_count: int = 0
    _results: dict[tuple[tuple[str, int], ...], Trace | Exception] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Operations that are left of the budget."""
        return self.budget - self.operations - _OVERHEAD * self._run_count

    def use_meta_if_same(self, sizes: Mapping[str, int]) -> None:
        """Switch to meta tensors if a run on them at these sizes equals the run on fake ones."""
        try:
            fake = self.at(sizes)
        except (NoFormulaError, AttnprofError, TooLongError):
            raise
        except Exception as error:  # the user's code may raise anything
            message = f"it does not run at {sizes_text(sizes)}: {error_text(error)}"
            raise NoFormulaError(message) from error
        meta = self._run(sizes, on_meta=True)
        self.on_meta = isinstance(meta, Trace) and (
            (meta.calls, meta.parameters) == (fake.calls, fake.parameters)
        )

    def at(self, sizes: Mapping[str, int]) -> Trace:
        """Return the run at a shape, or raise its error."""
        key = tuple(sorted(sizes.items()))
        if key not in self._results:
            self._results[key] = self._run(sizes, on_meta=bool(self.on_meta))
        result = self._results[key]
        if isinstance(result, Exception):
            raise result
        return result

    def run_or_none(self, sizes: Mapping[str, int]) -> Trace | None:
        """Return the run at a shape, or None if the code fails there or does too much."""
        try:
            return self.at(sizes)
        except OutOfBudgetError:
            raise
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return None

    def makes_arrays(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the code makes large arrays outside of torch at a shape, as by numpy."""
        tracemalloc.start()
        try:
            runs = self.run_or_none(sizes) is not None
            return runs and tracemalloc.get_traced_memory()[1] > _LARGE_ARRAY
        finally:
            tracemalloc.stop()

    def verify(
        self, formulas: "Solution", shapes: Iterable[Mapping[str, int]], most: int = MOST, *,
        strict: bool = False,
    ) -> list[dict[str, int]]:  # fmt: skip
        """Return shapes at which runs confirm the formulas: up to ``most``, fewer if runs are long.

        Shapes at which the code fails are skipped. A formula that a run contradicts is withheld.
        Raises :class:`ContradictedError` as :meth:`Solution.check_against` does, and
        :class:`TooLongError` at a shape that takes too long.
        """
        agreed: list[dict[str, int]] = []
        for shape in shapes:
            try:
                trace = self.at(shape)
            except (TooLongError, OutOfBudgetError):
                raise
            except Exception:  # noqa: BLE001, S112 - the user's code may raise anything
                continue
            if self.on_meta is None:
                self.use_meta_if_same(shape)
            if self.on_meta and differences(
                formulas.forms, totals_by_phase(trace, self.phases), shape
            ):
                self.on_meta = False  # tensors of another kind may live longer
                self._results.pop(tuple(sorted(shape.items())))
                trace = self.run_or_none(shape) or trace
            formulas.check_against(trace, shape, strict=strict)
            agreed.append(dict(shape))
            long = self.operations > _ENOUGH_OPERATIONS and len(agreed) >= HELD_OUT
            if long or len(agreed) == most:
                break
        return agreed

    def _run(self, sizes: Mapping[str, int], *, on_meta: bool) -> Trace | Exception:
        try:
            check_patience()
        except OutOfBudgetError as error:
            return error
        count, training = Limit(self.longest), trains(self.phases)
        how = {"before_each": count, "on_meta": on_meta, "once": self.once}
        result = outcome(self.target, sizes, training=training, **how)
        self.operations += count.done * (1 if on_meta else 3)
        self._run_count += 1
        return result if self.left > 0 else OutOfBudgetError("the runs it takes would be too long")


def differences(forms: PhaseCounts, counted: PhaseCounts, sizes: Mapping[str, int]) -> Wrong:
    """Return a sentence for each quantity whose formula differs from the count of a run."""
    return {
        (phase, quantity): f"{phase} {quantity} are {counted[phase][quantity]} in a run, not "
        f"{evaluate(expression, sizes)}"
        for phase, quantities in forms.items()
        for quantity, expression in quantities.items()
        if evaluate(expression, sizes) != counted[phase][quantity]
    }


# -- formulas, and where they and a run differ --------------------------------------------
class Solution:
    """The result of a strategy: ``forms`` by phase and quantity, and the ``trace`` they sum up.

    ``withheld`` says, by phase and quantity, why a quantity has no formula although others do.
    """

    forms: dict[str, dict[str, Any]]
    trace: Trace
    withheld: dict[str, dict[str, str]]

    def numbers(self, sizes: Sizes) -> dict[str, dict[str, Any]]:
        """Return the values of the formulas at a shape: ``{"forward": {"flops": 4096}}``."""
        return {
            p: {q: evaluate(x, sizes) for q, x in quantities.items()}
            for p, quantities in self.forms.items()
        }

    def operations(self, sizes: Sizes) -> float:
        """Estimate the operations of a run at a shape; infinity where a block has no tokens."""
        try:
            return float(sum(many * evaluate(times, sizes) for times, many in self.repeats.items()))
        except ZeroDivisionError:
            return inf

    @cached_property
    def repeats(self) -> Counter[Any]:
        """Numbers of calls by how often each is repeated: ``{1: 40, N/64: 12}``."""
        return Counter(call.times for call in self.trace.calls if call.times is not None)

    def check_against(self, run: Trace, shape: Sizes, *, strict: bool = False) -> None:
        """Withhold the formulas that a run at a shape contradicts.

        Raises :class:`ContradictedError` if a phase keeps no count, or if ``strict``.
        """
        wrong = differences(self.forms, totals_by_phase(run, self.forms), shape)
        for key in wrong:
            wrong[key] += first_difference(self.trace, run, *key, shape)
        if wrong and strict:
            raise ContradictedError(shape, wrong)
        for (phase, quantity), sentence in wrong.items():
            del self.forms[phase][quantity]
            withheld = self.withheld.setdefault(phase, {})
            withheld[quantity] = f"at {sizes_text(shape)} {sentence}"
        for phase, withheld in self.withheld.items() if wrong else ():
            left = [kind for kind in KINDS if self.forms[phase].get(kind, 0) != 0]
            if not left and not withheld.keys().isdisjoint(KINDS):
                raise ContradictedError(shape, wrong)


def first_difference(formulas: Trace, run: Trace, phase: str, quantity: str, sizes: Sizes) -> str:
    """Return where a formula and a run differ first, or an empty string if that is not known.

    For example ``; they part at aten.clone (my.py:16): 96, not 48``. Operations that add nothing
    are skipped. If a call of ``formulas`` stands for several operations, the operations of one name
    at one line are summed first.
    """
    expected = list(_rows(formulas, phase, quantity, sizes))
    rows = list(_rows(run, phase, quantity, {}))
    pairs: Iterable[tuple[Row | None, Row | None]] = zip_longest(expected, rows)
    if any(call.times != 1 for call in formulas.calls):
        ours, theirs = _summed_by_line(expected), _summed_by_line(rows)
        pairs = ((ours.get(key), theirs.get(key)) for key in {**ours, **theirs})
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
    """Yield calls and what each adds to a quantity; for ``peak_bytes`` the bytes that live then."""
    if quantity == "peak_bytes":
        for place, size in live_bytes(trace, "train", sizes):
            call = trace.calls[place]
            if evaluate(call.takes, sizes) or evaluate(call.workspace, sizes):
                yield call, size
        return
    for call in trace.part(phase):
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
def compare_calls(
    target: Target, phases: Sequence[str], formulas: Trace, shapes: Sequence[Sizes],
    asked_sizes: Sizes,
) -> list[str]:  # fmt: skip
    """Return sentences on how costs of the first and of later calls of a module differ.

    They are called at the asked shape if it is among ``shapes``, else at the smallest. Sets
    ``formulas.is_steady``: whether the formulas hold for later calls. Decoding steps and modules of
    ours are not compared: the first change with each call, the others keep nothing.
    """
    if target.mode.trusted or not shapes or "decode" in phases:
        return []
    smallest = min(shapes, key=lambda sizes: prod(sizes.values()))
    shape = asked_sizes if asked_sizes in shapes else smallest
    how = {"training": trains(phases), "most": A_LONG_RUN, "calls": _CALLS}
    trace = outcome(target, shape, **how)
    if not isinstance(trace, Trace):
        return []
    formulas.is_steady = trace.is_steady
    return [f"at {sizes_text(shape)} {sentence}" for sentence in trace.other_calls]
