"""Show long work of a command on stderr: what is done, how much of it and how long it takes."""

from collections.abc import Iterator
from contextlib import contextmanager

from attnprof.processes.progress import Progress, Step, waited_for, waiting
from attnprof.render.progress import shown


@contextmanager
def working(text: str) -> Iterator[Progress]:
    """Show ``text`` on stderr while the body runs, or what its code tells of its progress.

    Inside another one it is a step of that.
    """
    if (outer := waited_for()) is not None:
        with outer.saying(text):
            yield outer
        return
    progress = Progress(Step(text))
    with waiting(progress), shown(progress):
        yield progress
