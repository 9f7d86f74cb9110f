"""Progress of long work: reported by the code that does it, shown by the command that waits.

Code of any room calls :func:`tell`. The command line enters :func:`waiting` and shows the last
step. Where nobody waits (from Python, in a child process) nothing is kept or written. Loading torch
takes seconds, in which silence looks like a hang: :func:`announce` has a line printed.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from queue import SimpleQueue
from typing import Any

#: Seconds without an answer after which progress says so; seconds left worth showing at once.
SILENT_S, WORTH_S = 5.0, 10.0


@dataclass(frozen=True)
class Step:
    """A piece of work: ``done`` of ``total``.

    ``start`` and ``first`` (time, pieces done) are where it and its count began, ``left_s`` the
    forecast made at ``since``; an answer asked for at ``asked_at`` is given up after ``limit_s``.
    """

    text: str
    since: float = 0.0
    done: int | None = None
    total: int | None = None
    first: tuple[float, int] = (0.0, 0)
    left_s: float | None = None
    asked_at: float = 0.0
    limit_s: float | None = None


@dataclass
class Progress:
    """The work that a command waits for, by a clock in seconds."""

    step: Step
    clock: Callable[[], float] = time.monotonic
    start: float = field(init=False)
    #: sentences to be shown at once, the first forecast among them; None at the end
    news: SimpleQueue[str | None] = field(default_factory=SimpleQueue)
    _forecast: bool = False

    def __post_init__(self) -> None:
        self.start = self.clock()
        self.step = replace(self.step, since=self.start, first=(self.start, self.step.done or 0))

    def tell(
        self, text: str, done: int | None = None, total: int | None = None,
        left_s: float | None = None, *, at_once: bool = False,
    ) -> None:  # fmt: skip
        """Set the current step; a smaller ``done`` or another ``total`` begins a new count."""
        now, last = self.clock(), self.step
        goes_on = total == last.total and (done or 0) >= (last.done or 0)
        first = last.first if goes_on else (now, done or 0)
        self.step = Step(text, now, done, total, first, left_s)
        forecast = not self._forecast and (left_s or 0.0) > WORTH_S
        if at_once or forecast:
            self.news.put(self.sentence())
        self._forecast |= forecast

    @contextmanager
    def saying(self, text: str) -> Iterator[None]:
        """Show ``text`` as the step while the body runs, then the step before it."""
        before = self.step
        self.tell(text)
        try:
            yield
        finally:
            self.step = before

    def so_far_s(self) -> float:
        """Return the seconds since the work began."""
        return self.clock() - self.start

    def count(self) -> tuple[int, int | None]:
        """Return how many pieces are done, and of how many if that is known."""
        return self.step.done or 0, self.step.total

    def sentence(self) -> str:
        """Return ``timing standard: 3 of 12, 25 s so far, about 75 s left``."""
        now, step = self.clock(), self.step
        parts = [f"{step.done or 0:,} of {step.total:,} done"] if step.total else []
        parts.append(f"{seconds_text(self.so_far_s())} so far")
        if left := self._left_s(now):  # a forecast that has run out says nothing
            parts.append(f"about {seconds_text(left)} left")
        if step.limit_s is not None and (silent := now - step.asked_at) > SILENT_S:
            more = seconds_text(max(0.0, step.limit_s - silent))
            parts.append(f"no answer for {seconds_text(silent)}, given up after {more} more")
        return f"{step.text}: {', '.join(parts)}"

    def _left_s(self, now: float) -> float | None:
        """Return the seconds left: as forecast, or at the pace since the count began."""
        step = self.step
        if step.left_s is not None:
            return max(0.0, step.left_s - (now - step.since))
        began, before = step.first
        if not step.total or (step.done or 0) <= before:
            return None
        each = (step.since - began) / ((step.done or 0) - before)
        return max(0.0, each * (step.total - (step.done or 0)) - (now - step.since))


def seconds_text(value: float) -> str:
    """Return ``45 s``, ``12 min`` or ``3 h``: as exact as a forecast is."""
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


_WAITED_FOR: list[Progress] = []


def waited_for() -> Progress | None:
    """Return the progress that a command shows now, if any."""
    return _WAITED_FOR[-1] if _WAITED_FOR else None


def tell(
    text: str, done: int | None = None, total: int | None = None, left_s: float | None = None, *,
    at_once: bool = False,
) -> None:  # fmt: skip
    """Tell the waiting command, if any, the current work, how much is done and the seconds left."""
    if (progress := waited_for()) is not None:
        progress.tell(text, done, total, left_s, at_once=at_once)


def asking(limit_s: float | None) -> None:
    """Tell that another process was asked for an answer, and when it is given up."""
    if (progress := waited_for()) is not None:
        progress.step = replace(progress.step, asked_at=progress.clock(), limit_s=limit_s)


@contextmanager
def waiting(progress: Progress) -> Iterator[None]:
    """Send every :func:`tell` of the body to ``progress``."""
    _WAITED_FOR.append(progress)
    try:
        yield
    finally:
        _WAITED_FOR.remove(progress)


#: The notice that is printed while torch is loaded.
TEXT = "attnprof: loading torch …"
#: Least bytes of addresses that torch takes when it is loaded: with fewer its code ends the process
#: without a reason.
LEAST_BYTES = 600 << 20


class _Announcing:
    """An import hook that finds torch as Python does, and announces it when its code runs."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "torch" else None
        loader: Any = spec and spec.loader
        if loader is not None:
            run = loader.exec_module

            def announced(module: Any) -> None:
                del loader.exec_module
                with contextlib.suppress(ImportError):  # no limits on this system
                    import resource

                    if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < LEAST_BYTES:
                        raise MemoryError
                with loading():
                    run(module)

            loader.exec_module = announced
        return spec


_FINDER: Any = _Announcing()


def announce() -> None:
    """Print a notice, once, when this process or one it waits for loads torch."""
    sys.meta_path.insert(0, _FINDER)


@contextmanager
def loading() -> Iterator[None]:
    """Run the body under a notice, a terminal's line or a step of the progress, if any."""
    stream: Any = sys.stderr
    brief, progress = False, waited_for()
    if progress is not None and stream is not None and not stream.closed and stream.isatty():
        with progress.saying("loading torch"):
            yield
        return
    wrapped = sys.stderr is not sys.__stderr__
    if _FINDER in sys.meta_path and stream is not None and not wrapped:
        sys.meta_path.remove(_FINDER)
        brief = not stream.closed and stream.isatty()
        _write(stream, TEXT if brief else f"{TEXT}\n")
    try:
        yield
    finally:
        if brief:
            _write(stream, f"\r{' ' * len(TEXT)}\r")


def _write(stream: Any, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()
