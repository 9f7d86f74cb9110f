"""Write notes and the progress of long work to stderr.

A terminal shows one line, which is removed in the end; a log gets a line now and then. Quick work
writes nothing.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

from attnprof.record.escapes import visible

if TYPE_CHECKING:
    from attnprof.processes.progress import Progress

#: Seconds before anything is shown on a terminal.
SHOWN_AFTER_S = 1.5
#: Seconds before the first line in a log, and between two lines.
FIRST_LINE_S, EVERY_S = 10.0, 20.0


def note(text: str) -> None:
    """Write a line for the reader to stderr; on a terminal it folds between words."""
    if not sys.stderr.isatty():
        sys.stderr.write(visible(text) + "\n")
        return
    from attnprof.render.terminal import Hanging, new_console, render_text

    # by the stream itself, which writes above a bar where there is one
    width = new_console(stderr=True).width
    sys.stderr.write(render_text([Hanging(visible(text))], width))


def shown(work: "Progress") -> AbstractContextManager[Any]:
    """Show on stderr how far the work is while the body runs; nothing if it is quick."""
    return _progress_bar(work) if sys.stderr.isatty() else _write_lines(work)


@contextmanager
def _write_lines(work: "Progress") -> Iterator[None]:
    """Write a line now and then while the body runs, and one with the first forecast."""
    stream = sys.stderr

    def next_line(pause: float) -> str | None:
        try:
            return work.news.get(timeout=pause)
        except Empty:
            return work.sentence()

    def write() -> None:
        pause = FIRST_LINE_S
        with suppress(OSError, ValueError):  # stderr may have been closed
            while (line := next_line(pause)) is not None:
                stream.write(f"attnprof: {visible(line)}\n")
                stream.flush()
                pause = EVERY_S

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        work.news.put(None)
        thread.join()


def _progress_bar(work: "Progress") -> AbstractContextManager[Any]:
    """Show a line on the terminal while the body runs, with a bar if the work can be counted."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Display

    from attnprof.render.terminal import new_console

    class Bar(Display):
        def get_renderables(self) -> Iterator[Any]:
            if work.so_far_s() < SHOWN_AFTER_S:
                return
            for task in self.tasks:
                task.completed, task.total = work.count()
                task.description = visible(work.sentence())
            yield from super().get_renderables()

    columns = SpinnerColumn(), BarColumn(20), TextColumn("{task.description}", markup=False)
    console = new_console(stderr=True)
    # drawing seldom disturbs timing least
    bar = Bar(*columns, console=console, transient=True, refresh_per_second=2)
    bar.add_task("")
    return bar
