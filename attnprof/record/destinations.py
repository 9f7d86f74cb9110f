"""What one command reads and writes: nobody's file is overwritten, and no input at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from attnprof.errors import RequestError
from attnprof.record.recognition import is_journal, is_ours

Identity = tuple[int, int] | str


@dataclass
class Destinations:
    """Inputs and outputs of a command by what they are on the disk, whatever they are called."""

    force: bool = False
    inputs: dict[Identity, str] = field(default_factory=dict)
    outputs: dict[Identity, str] = field(default_factory=dict)

    def read(self, path: str | Path) -> None:
        """Take a file as an input; :class:`RequestError` where it is to be written, too."""
        own = identity(path)
        self.inputs.setdefault(own, str(path))
        if own in self.outputs:
            raise _is_input(self.outputs[own])

    def claim(self, path: Path, flag: str) -> None:
        """Take a file as an output; :class:`RequestError` where that would lose something."""
        if is_stream(path):
            return
        own, told = identity(path), f"{flag} {path}"
        if self.outputs.setdefault(own, told) != told:
            raise RequestError(f"{told} is the same file as {self.outputs[own]}: name two")
        self.check(path, told)

    def check(self, path: Path, told: str) -> None:
        """:class:`RequestError` for an input, and for a file that is not ours without force."""
        if identity(path) in self.inputs:
            raise _is_input(told)
        if self.force or is_ours(path):
            return
        what = (
            "it holds a sweep's results" if is_journal(path) else "attnprof did not write this file"
        )
        raise RequestError(f"cannot overwrite {told}: {what}; type --force, or give another name")


def _is_input(told: str) -> RequestError:
    return RequestError(f"cannot overwrite {told}: this command reads it; give another name")


_COMMAND: ContextVar[Destinations | None] = ContextVar("attnprof_command", default=None)


@contextmanager
def one_command(modules: Iterable[str] = ()) -> Iterator[Destinations]:
    """Inside, files are inputs and outputs of one command; ``modules`` are texts that name code."""
    found = Destinations()
    before = _COMMAND.set(found)
    try:
        take_modules(modules)
        yield found
    finally:
        _COMMAND.reset(before)


def taken_as_input(path: str | Path) -> None:
    """Say that the running command reads a file."""
    if command := _COMMAND.get():
        command.read(path)


def take_modules(texts: Iterable[str]) -> None:
    """Say so of the files that ``my.py:MyAttention`` and ``package.module:Name`` name."""
    for text in texts:
        place = text if text.endswith(".py") else text.rpartition(":")[0]
        inside = place.replace(".", "/")
        for name in (place, f"{inside}.py", f"{inside}/__init__.py"):
            if name.endswith(".py") and is_plain(Path(name)):
                taken_as_input(name)


def claimed(path: Path, flag: str, *, force: bool) -> None:
    """Take a file as an output of the running command; see :meth:`Destinations.claim`."""
    command = _COMMAND.get() or Destinations()
    command.force = force
    command.claim(path, flag)


def check_unlost(path: Path) -> None:
    """Look again just before a file is written: it may have come since."""
    if (command := _COMMAND.get()) and not is_stream(path):
        command.check(path, command.outputs.get(identity(path), str(path)))


def identity(path: str | Path) -> Identity:
    """What a name leads to, links followed; the name in full where there is nothing yet."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def is_plain(path: Path) -> bool:
    """Whether a plain file is there; False for a name that cannot be one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_stream(path: Path) -> bool:
    """Whether a pipe, a terminal or another device is there, which is written to as it is."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
