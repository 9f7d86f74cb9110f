"""Run a target at concrete shapes, within a budget, and verify formulas against these runs."""

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

#: Most operations of a run outside of a search, as at an asked shape.
A_LONG_RUN = 25_000
#: The cost of starting a run, in operations.
_OVERHEAD = 40
#: Shapes at which formulas are verified: at least, and where runs are quick.
HELD_OUT, MOST = 3, 12
#: Operations after which no more shapes are run than the least.
_OPERATIONS = 800

PhaseCounts = Mapping[str, Mapping[str, Any]]  # phase → quantity → number
Wrong = dict[tuple[str, str], str]  # (phase, quantity) → how it is contradicted


class NoFormulaError(Exception):
    """A strategy finds no formula: the message says why.

    ``name`` is a size in which the cost is no polynomial, so that it has to be a number.
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
    """Runs of a target for phases that one run shows; a shape is run once.

    Runs use fake tensors; after :meth:`settle`, meta tensors if these do the same (``swift``),
    which is three times as fast. ``once``: of a loop's turns that are alike one is run. A run of
    more than ``longest`` operations raises :class:`TooLongError`, one beyond the ``budget`` of all
    runs :class:`OutOfBudgetError`.
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
        """Switch to meta tensors if a run at these sizes does on them what it does on fake ones."""
        try:
            fake = self.at(sizes)
        except (NoFormulaError, AttnprofError, TooLongError):
            raise
        except Exception as error:  # the user's code may raise anything
            message = f"it does not run at {sizes_text(sizes)}: {error_text(error)}"
            raise NoFormulaError(message) from error
        swift = self._ran(sizes, swift=True)
        self.swift = isinstance(swift, Trace) and (
            (swift.calls, swift.parameters) == (fake.calls, fake.parameters)
        )

    def at(self, sizes: Mapping[str, int]) -> Trace:
        """Return the run at a shape; raise again what it raised."""
        key = tuple(sorted(sizes.items()))
        if key not in self._seen:
            self._seen[key] = self._ran(sizes, swift=bool(self.swift))
        result = self._seen[key]
        if isinstance(result, Exception):
            raise result
        return result

    def tried(self, sizes: Mapping[str, int]) -> Trace | None:
        """Return the run at a shape, or None if the code fails there or does too much."""
        try:
            return self.at(sizes)
        except OutOfBudgetError:
            raise
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return None

    def verify(
        self,
        formulas: "Found",
        shapes: Iterable[Mapping[str, int]],
        most: int = MOST,
        *,
        strict: bool = False,
    ) -> list[dict[str, int]]:
        """Return shapes at which runs give what the formulas give: ``most``, fewer of long runs.

        Shapes at which the code does not run are passed over. A formula that a run contradicts is
        withheld; raises :class:`ContradictedError` if no others are left or if ``strict``,
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
            if self.swift and differences(
                formulas.forms, totals_by_phase(trace, self.phases), shape
            ):
                self.swift = False  # tensors of another kind may live longer
                self._seen.pop(tuple(sorted(shape.items())))
                trace = self.tried(shape) or trace
            formulas.hold(trace, shape, strict=strict)
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
        result = outcome(self.target, sizes, training=training, **how)
        self.operations += count.done * (1 if swift else 3)
        self._made += 1
        return result if self.left > 0 else OutOfBudgetError("the runs it takes would be too long")


def differences(forms: PhaseCounts, counted: PhaseCounts, sizes: Mapping[str, int]) -> Wrong:
    """Return a sentence for each quantity whose formula does not give what a run counted."""
    return {
        (phase, quantity): f"{phase} {quantity} are {counted[phase][quantity]} in a run, not "
        f"{evaluate(expression, sizes)}"
        for phase, quantities in forms.items()
        for quantity, expression in quantities.items()
        if evaluate(expression, sizes) != counted[phase][quantity]
    }
