"""How far a long command is, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnprof.record.escaping import visible

#: Called with how much is done and what is in work.
Show = Callable[[int, str], None]


@contextmanager
def progress_bar(total: int, title: str) -> Iterator[Show | None]:
    """A bar on stderr if that is a terminal; None otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from attnprof.render.terminal import new_console

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=new_console(stderr=True), transient=True) as p:
        task = p.add_task(title, total=total)

        def show(done: int, text: str) -> None:
            p.update(task, completed=done, description=visible(text))

        yield show


@contextmanager
def working(text: str) -> Iterator[None]:
    """A line on stderr for as long as something takes, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from attnprof.render.terminal import new_console

    with new_console(stderr=True).status(visible(text)):
        yield
