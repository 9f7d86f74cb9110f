"""An end for runs that would take too long."""

from __future__ import annotations

from collections.abc import Callable


class TooLongError(Exception):
    """A run does more operations than one run may."""


def limit(most: float) -> Callable[[], None]:
    """What to call before each operation of a run: it raises TooLongError after so many."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done > most:
            raise TooLongError(f"more than {most} operations")

    return count
