"""Runs at small shapes, which show whether random numbers decide what a target does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.trace.events import Call, Trace, trains
from attnprof.trace.request.target import Target
from attnprof.trace.run.chance import HIGH, LOW, Draws, draws_seen
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import outcome
from attnprof.trace.run.unsupported import UnsupportedTensorError
from attnprof.trace.solve.reasons import NotRunningError, place_of, value_reason

#: Small sizes, and lengths, at which a run on real tensors is short.
_SMALL = {"B": 2, "h": 2, "d": 8}
_SMALL_LENGTHS = (6, 9, 16, 37, 64, 128, 130, 256, 320, 512)
#: Operations of a run that is made again to see whether chance changes it.
_MOST = 4000


class ChanceError(CannotRunError):
    """Random numbers decide what runs; ``in_training``: in training alone."""

    in_training = False


@contextmanager
def explained(target: Target, phases: Sequence[str], before: Draws) -> Iterator[None]:
    """Raise :class:`ChanceError` if random numbers decide what runs inside, while deriving.

    ``before`` are the generators' states before the target first ran. An exception of torch's
    becomes a :class:`CannotRunError` that says which values decide.
    """
    training = trains(phases)
    if has_drawn := draws_seen() != before:
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
    if not has_drawn and draws_seen() != before:
        check_chance(target, training=training)


def small_shapes(target: Target) -> Iterator[dict[str, int]]:
    """Yield shapes at which a run on real tensors is short."""
    for length in _SMALL_LENGTHS:
        small = {**_SMALL, "N": length}
        yield {name: small.get(name, 8) for name in target.symbols}


def row_of(call: Call) -> tuple[Any, ...]:
    """Return what has to be equal of an operation in two runs at one shape."""
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
