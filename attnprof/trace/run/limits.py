"""Limits of runs, in operations and processor seconds: of a single run, and of a whole search."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from time import process_time

#: Operations between two looks at the clock, which take time themselves.
EVERY = 16
#: Seconds in which the formulas of most models are derived.
_PLENTY_S = 180
#: Processor seconds that may be used, and the processor time at which they end.
_patience: ContextVar[tuple[float, float]] = ContextVar("_patience", default=(inf, inf))


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """End the derivation of formulas inside after so much processor time."""
    token = _patience.set((seconds, process_time() + seconds))
    try:
        yield
    finally:
        _patience.reset(token)


def is_patient() -> bool:
    """Return whether processor time is left."""
    seconds, end = _patience.get()
    return seconds == inf or process_time() < end


def out_of_patience() -> str:
    """Return a sentence that says how much time there was."""
    return f"it takes more than {_patience.get()[0]:g} s of processor time"


@dataclass
class Shares:
    """Processor seconds that tasks share, counted from now on, work between tasks included.

    Each task gets an equal share of the time that is left.
    """

    whole: float
    tasks: int = 1
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = process_time() + self.whole

    @contextmanager
    def next(self) -> Iterator[float]:
        """Limit the derivation inside to the share of the next task, which is yielded."""
        share = max(0.0, self._end - process_time()) / max(1, self.tasks)
        with patience(share):
            yield share
        self.tasks -= 1

    def late(self, share: float) -> str:
        """Return why a task that had this share has no formulas, and what to type for some."""
        if not self.whole:
            return "--limit 0 asks for none"
        more = f"type --limit {max(_PLENTY_S, 4 * self.whole):g}"
        if not share:
            return f"no processor time is left of --limit {self.whole:g}: {more}"
        most = f", its share of --limit {self.whole:g}" if self.whole > share else ""
        return f"that takes more than {share:.2g} s of processor time{most}: {more}"


class TooLongError(Exception):
    """A run does more operations than one run may."""


class TooSlowError(TooLongError):
    """A run takes more processor time than one run may."""


class Limit:
    """A check before each operation of a run: TooLongError after ``most`` of them or ``seconds``.

    Processor seconds of :func:`patience` end the run, too.
    """

    def __init__(self, most: float = inf, seconds: float = inf) -> None:
        self.most = most
        self.seconds = seconds
        self.done = 0
        self._start = process_time()

    def __call__(self) -> None:
        """Count one operation more."""
        self.done += 1
        if self.done > self.most:
            raise TooLongError(f"more than {self.most} operations")
        if self.done % EVERY:
            return
        if self.seconds < inf and process_time() - self._start > self.seconds:
            raise TooSlowError(f"it takes more than {self.seconds} seconds")
        if not is_patient():
            raise TooSlowError(out_of_patience())
