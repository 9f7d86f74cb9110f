"""Concrete runs of a target: remembered, within a budget; formulas are held against them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from attnprof.errors import AttnprofError
from attnprof.trace.events import Trace, totals_by_phase, trains
from attnprof.trace.request.target import Target, sizes_text
from attnprof.trace.run.limits import Limit, TooLongError, is_patient, out_of_patience
from attnprof.trace.run.runs import outcome
from attnprof.trace.sizes import evaluate
from attnprof.user_code import error_text

if TYPE_CHECKING:
    from attnprof.trace.solve.contradictions import Found

#: Operations of one run outside of a search: at an asked shape, where a formula does not hold.
A_LONG_RUN = 25_000
#: What a run costs besides its operations, in operations.
_OVERHEAD = 40
#: Shapes at which a formula must give what a run gives: at least, and where runs are quick.
HELD_OUT, MOST = 3, 12
#: Operations after which no more are run than must be.
_OPERATIONS = 800

PhaseCounts = Mapping[str, Mapping[str, Any]]  # phase → quantity → number
Wrong = dict[tuple[str, str], str]  # (phase, quantity) → how it is contradicted


class NoFormulaError(Exception):
    """A way to formulas leads nowhere: the message says why.

    ``name`` is a size in which the cost is no polynomial, so that it has to be given.
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

    @property
    def only_peaks(self) -> bool:
        """Whether what is held alone was wrong."""
        return all(quantity == "peak_bytes" for _, quantity in self.wrong)


def check_patience() -> None:
    """Raise :class:`OutOfBudgetError` where no time is left."""
    if not is_patient():
        raise OutOfBudgetError(out_of_patience())


@dataclass
class Runs:
    """Runs of a target at shapes for phases of one kind, each made once.

    They are on fake tensors; from :meth:`settle` on, on meta tensors where those do the same, three
    times as fast and counted so (``swift``). ``once``: they have one of a loop's turns that are
    alike. One of more than ``longest`` operations raises
    :class:`TooLongError`, one beyond the ``budget`` of all :class:`OutOfBudgetError`.
    """

    target: Target
    phases: Sequence[str]
    longest: int = A_LONG_RUN
    budget: float = inf
    once: bool = False
    operations: int = 0
    swift: bool | None = None
    _made: int = 0
    _seen: dict[tuple[tuple[str, int], ...], Trace | Exception] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Operations that may still be run."""
        return self.budget - self.operations - _OVERHEAD * self._made

    def settle(self, sizes: Mapping[str, int]) -> None:
        """Use meta tensors from here on if a run there does what a run on fake tensors does."""
        try:
            fake = self.at(sizes)
        except (NoFormulaError, AttnprofError, TooLongError):
            raise
        except Exception as error:  # the user's code may raise anything
            told = f"it does not run at {sizes_text(sizes)}: {error_text(error)}"
            raise NoFormulaError(told) from error
        swift = self._ran(sizes, swift=True)
        self.swift = isinstance(swift, Trace) and (
            (swift.calls, swift.parameters) == (fake.calls, fake.parameters)
        )

    def at(self, sizes: Mapping[str, int]) -> Trace:
        """The run at a shape; what it raised, again, where it did."""
        key = tuple(sorted(sizes.items()))
        if key not in self._seen:
            self._seen[key] = self._ran(sizes, swift=bool(self.swift))
        found = self._seen[key]
        if isinstance(found, Exception):
            raise found
        return found

    def tried(self, sizes: Mapping[str, int]) -> Trace | None:
        """The run at a shape, or None where the code refuses the shape or does too much there."""
        try:
            return self.at(sizes)
        except OutOfBudgetError:
            raise
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return None

    def length(self, sizes: Mapping[str, int]) -> int:
        """Operations of a run at a shape, on meta tensors if it runs there; what it raised."""
        swift = self._ran(sizes, swift=True)
        if isinstance(swift, OutOfBudgetError | TooLongError | AttnprofError):
            raise swift
        return len((swift if isinstance(swift, Trace) else self.at(sizes)).calls)

    def seen(self) -> list[dict[str, int]]:
        """Shapes at which runs were made and went well."""
        return [dict(key) for key, found in self._seen.items() if isinstance(found, Trace)]

    def agreeing(
        self,
        found: "Found",
        shapes: Iterable[Mapping[str, int]],
        most: int = MOST,
        *,
        strict: bool = False,
    ) -> list[dict[str, int]]:
        """Shapes at which runs give what the formulas give: so many, fewer where runs are long.

        Those at which the code does not run are passed over. Formulas that one contradicts are
        withheld; :class:`ContradictedError` where no others are left, or ``strict``;
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
            if self.swift is None:
                self.settle(shape)
            if self.swift and differences(found.forms, totals_by_phase(trace, self.phases), shape):
                self.swift = False  # tensors of another kind may live longer
                self._seen.pop(tuple(sorted(shape.items())))
                trace = self.tried(shape) or trace
            found.hold(trace, shape, strict=strict)
            agreed.append(dict(shape))
            long = self.operations > _OPERATIONS and len(agreed) >= HELD_OUT
            if long or len(agreed) == most:
                break
        return agreed

    def _ran(self, sizes: Mapping[str, int], *, swift: bool) -> Trace | Exception:
        try:
            check_patience()
        except OutOfBudgetError as error:
            return error
        count, training = Limit(self.longest), trains(self.phases)
        how = {"before_each": count, "swift": swift, "once": self.once}
        found = outcome(self.target, sizes, training=training, **how)
        self.operations += count.done * (1 if swift else 3)
        self._made += 1
        return found if self.left > 0 else OutOfBudgetError("the runs it takes would be too long")


def differences(forms: PhaseCounts, counted: PhaseCounts, sizes: Mapping[str, int]) -> Wrong:
    """Quantities whose formula does not give what the run gave."""
    return {
        (phase, quantity): f"{phase} {quantity} are {counted[phase][quantity]} in a run, not "
        f"{evaluate(expression, sizes)}"
        for phase, quantities in forms.items()
        for quantity, expression in quantities.items()
        if evaluate(expression, sizes) != counted[phase][quantity]
    }
