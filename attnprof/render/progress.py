"""Lines on stderr: notes, and on a terminal how far a long command is."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attnprof.record.escapes import visible


def note(text: str) -> None:
    """A line for the reader, on stderr; on a terminal its words stay whole."""
    if not sys.stderr.isatty():
        sys.stderr.write(visible(text) + "\n")
        return
    from attnprof.render.fitted import Hanging
    from attnprof.render.terminal import new_console

    new_console(stderr=True).print(Hanging(visible(text)))


@contextmanager
def progress_bar(total: int, title: str) -> Iterator[Callable[..., None] | None]:
    """A bar, to be told how many points are done, of how many, and which is next; or None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress

    from attnprof.render.terminal import new_console

    columns = (
        progress.TextColumn("{task.description}", markup=False), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=new_console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def show(done: int, *next_one: Any) -> None:
            # a text, or a point by its mechanism and length
            now = getattr(next_one[-1], "point", next_one[-1])
            name = now if isinstance(now, str) else f"{now.mechanism}, {now.seq_len} tokens"
            bar.update(task, completed=done, description=visible(name))

        yield show


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """A line for as long as something takes, to be told what is in work."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from attnprof.render.terminal import new_console

    with new_console(stderr=True).status(visible(text)) as status:
        yield lambda now: status.update(visible(now))
