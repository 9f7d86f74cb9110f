"""Runs at small shapes, which show whether random numbers decide what a target does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.trace.events import Call, Trace, trains
from attnprof.trace.request.target import EVEN, Sizes, Target, sizes_text
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import outcome
from attnprof.trace.run.values import HIGH, LOW, Draws, generator_states
from attnprof.trace.run.worlds import UnsupportedTensorError
from attnprof.trace.solve.verification import NoFormulaError, OutOfBudgetError, Runs
from attnprof.user_code import error_text, line_of

#: Small sizes, and lengths, at which a run on real tensors is short.
_SMALL = {"B": 2, "h": 2, "d": 8}
_SMALL_LENGTHS = (6, 9, 16, 37, 64, 128, 130, 256, 320, 512)
#: Operations of a run that is made again to see whether chance changes it.
_MOST = 4000
#: Operations of a short run; the share of operations below which smaller sizes are taken instead.
_MANY, _SHORTER = 250, 0.8


class ChanceError(CannotRunError):
    """Random numbers decide what runs; ``in_training``: in training alone."""

    in_training = False


@contextmanager
def refusing_chance(target: Target, phases: Sequence[str], before: Draws) -> Iterator[None]:
    """Raise :class:`ChanceError` if random numbers decide what runs in the derivation inside.

    ``before`` are the generators' states before the target first ran. An exception of torch's
    becomes a :class:`CannotRunError` that says which values decide.
    """
    training = trains(phases)
    if has_drawn := generator_states() != before:
        check_chance(target, training=training)
    try:
        yield
    except Exception as error:
        cause = error.cause if isinstance(error, NotRunningError) else error
        if isinstance(cause, UnsupportedTensorError):
            raise CannotRunError(f"{target.name} cannot be derived: {cause}") from cause
        if isinstance(error, CannotRunError) and not (has_drawn or isinstance(error, ChanceError)):
            check_chance(target, training=training)  # there are generators that nobody sees
        if cause is error and not type(error).__module__.startswith("torch."):
            raise
        raise CannotRunError(f"{target.name} cannot be derived: {value_reason(cause)}") from cause
    if not has_drawn and generator_states() != before:
        check_chance(target, training=training)


def small_shapes(target: Target) -> Iterator[dict[str, int]]:
    """Yield shapes at which a run on real tensors is short."""
    for length in _SMALL_LENGTHS:
        small = {**_SMALL, "N": length}
        yield {name: small.get(name, 8) for name in target.symbols}


def row_of(call: Call) -> tuple[Any, ...]:
    """Return the parts of an operation's record that must be equal in two runs at one shape."""
    storages = call.takes, call.gives, call.born, call.died
    return call.op, call.part, call.dtype, call.shape, storages, call.bytes_moved, call.counts


def check_chance(target: Target, *, training: bool) -> None:
    """Raise :class:`ChanceError` if runs at one shape differ with the random numbers they draw.

    Training is blamed only if runs in evaluation do not differ.
    """
    if training:
        check_chance(target, training=False)
    for sizes in small_shapes(target):
        how = {"training": training, "most": _MOST}
        first = outcome(target, sizes, **how)
        if isinstance(first, TooLongError):
            return
        if not isinstance(first, Trace):
            continue
        for word in (LOW, HIGH, None):
            other = outcome(target, sizes, draws=word, **how)
            if isinstance(other, Trace):
                _compare(target, first, other, training=training)
        return


def _compare(target: Target, first: Trace, other: Trace, *, training: bool) -> None:
    for one, two in zip_longest(first.calls, other.calls):
        if one is None or two is None or row_of(one) != row_of(two):
            phase = "training" if training else "evaluation"
            line = next((call.line for call in (one, two) if call and call.line), "")
            refusal = ChanceError(
                f"{target.name} cannot be derived: chance decides what runs in {phase}: two runs "
                f"at one shape part{place_of(line)}; give 0 or 1 for the probability with --arg"
            )
            refusal.in_training = training
            raise refusal


def short_sizes(runs: Runs, hints: Sizes, asked_sizes: Sizes) -> dict[str, int]:
    """Return the hints if a run there is short; else even or smaller sizes at which it is shorter.

    A length stays in its class modulo 256, or 64. Raises :class:`NotRunningError` if the code runs
    at none of these, :class:`NoFormulaError` if all runs are too long.
    """
    few = {name: min(size, 2) if name not in ("N", "d") else size for name, size in hints.items()}
    even = {name: asked_sizes.get(name) or EVEN.get(name, 16) for name in hints}
    lengths = [few["N"] % unit + unit for unit in (256, 64) if few.get("N", 0) >= 2 * unit]
    shortest, best, failure = float("inf"), dict[str, int](), None
    for sizes in (dict(hints), even, few, *({**few, "N": length} for length in lengths)):
        try:
            operations = len(runs.at(sizes).calls)
        except (CannotRunError, OutOfBudgetError):
            raise
        except Exception as error:  # noqa: BLE001 - user code's; or inputs ask for whole parts
            failure = error if isinstance(error, TooLongError) else failure or error
            continue
        if operations < _SHORTER * shortest:
            shortest, best = operations, sizes
        if operations <= _MANY:
            break
    if failure and not best:
        long = isinstance(failure, TooLongError)
        raise NoFormulaError(str(failure)) if long else NotRunningError(failure) from failure
    return best


# -- why code does not run, in words -----------------------------------------------------
SHAPED = "the size of a result depends on the values of a tensor"


class NotRunningError(Exception):
    """The code raises at every shape that was tried: ``cause`` at the first one."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"it does not run: {error_text(cause)}")
        self.cause = cause


def value_reason(error: Exception) -> str:
    """Return in words what cannot run without real values, and at which line."""
    if type(error).__name__.startswith(("DataDependentOutput", "GuardOnData")):
        return by_value(line_of(error))
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"{SHAPED}: {error_text(error)}"
    if type(error).__name__ == "UnsupportedOperatorException":
        return f"an operation says nothing of its result on fake tensors: {error_text(error)}"
    return error_text(error)


def by_value(line: str) -> str:
    """Return the reason that values of a tensor decide what runs, at a line."""
    return (
        f"its path depends on the value of a tensor, as by .item() or an if on one{place_of(line)}"
    )


def place_of(line: str) -> str:
    """Return a line in brackets, or an empty string if it is not known."""
    return f" ({line})" if line else ""


def failure_of(target: Target, sizes: Sizes, error: Exception) -> AttnprofError:
    """Return the error for the user, of a target that raises one at these sizes."""
    why = str(error) if isinstance(error, UnsupportedTensorError) else ""
    if ".numpy() is not supported" in str(error):
        why = "it hands a tensor to numpy, whose work cannot be counted"
        why += f"{place_of(line_of(error))}; write that in torch"
    if why:
        return CannotRunError(f"{target.name} cannot be derived: {why}")
    where = f" at {sizes_text(sizes)}" if sizes else ""
    inputs = "; ".join(target.spelled_inputs) or "no input"
    refusal = RequestError(
        f"{target.name} does not run{where} with {inputs}: {error_text(error)}; {target.advice}"
    )
    refusal.__cause__ = error
    return refusal
