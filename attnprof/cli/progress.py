"""Long work of a command, told on stderr: what is done, how much of it and how long it takes."""

from collections.abc import Iterator
from contextlib import contextmanager

from attnprof.processes.progress import Progress, Step, waited_for, waiting
from attnprof.render.progress import shown


@contextmanager
def working(text: str) -> Iterator[Progress]:
    """Inside, stderr says what is done: ``text``, until the code that works tells more.

    Inside of another one it is a step of that.
    """
    if (outer := waited_for()) is not None:
        with outer.saying(text):
            yield outer
        return
    progress = Progress(Step(text))
    with waiting(progress), shown(progress):
        yield progress
