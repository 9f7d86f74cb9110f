"""How far a long command is, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Called with how much is done and what is in work.
Show = Callable[[int, str], None]


@contextmanager
def progress_bar(total: int, title: str) -> Iterator[Show | None]:
    """A bar on stderr if that is a terminal; None otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as p:
        task = p.add_task(title, total=total)

        def show(done: int, text: str) -> None:
            p.update(task, completed=done, description=text)

        yield show


@contextmanager
def working(text: str) -> Iterator[None]:
    """A line on stderr for as long as something takes, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
