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

#: What tells a file from others: its place with all links followed, and its number on the disk.
Identity = tuple[int, int] | str


@dataclass
class Destinations:
    """Inputs and outputs of a command by what they are on the disk, whatever they are called."""

    force: bool = False
    inputs: dict[Identity, str] = field(default_factory=dict)
    outputs: dict[Identity, str] = field(default_factory=dict)

    def read(self, path: str | Path) -> None:
        """Take a file as an input; :class:`RequestError` where it is to be written, too."""
        own = identities(path)
        self.inputs |= dict.fromkeys(own, str(path))
        for one in own & self.outputs.keys():
            raise _is_input(self.outputs[one])

    def claim(self, path: Path, flag: str, *, extended: bool = False) -> None:
        """Take a file as an output; :class:`RequestError` where that would lose something.

        What is ``extended`` is kept, and added to by one who knows what it must be.
        """
        if is_stream(path):
            return
        own, told = identities(path), f"{flag} {path}"
        for one in own & self.outputs.keys():
            if self.outputs[one] != told:
                raise RequestError(f"{told} is the file of {self.outputs[one]}, too: name two")
        self.outputs |= dict.fromkeys(own, told)
        self.check(path, told, only_inputs=extended)

    def check(self, path: Path, told: str, *, only_inputs: bool = False) -> None:
        """:class:`RequestError` for an input, and for a file that is not ours without force."""
        if not self.inputs.keys().isdisjoint(identities(path)):
            raise _is_input(told)
        if only_inputs or self.force or is_ours(path):
            return
        why = (
            "it holds a sweep's results"
            if is_journal(path)
            else "nothing in it says that attnprof wrote it"
        )
        raise RequestError(f"cannot overwrite {told}: {why}; type --force, or give another name")


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


@contextmanager
def reading_back() -> Iterator[None]:
    """Inside, what is read is what the running command itself extends: no input."""
    before = _COMMAND.set(None)
    try:
        yield
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
            if name.endswith(".py") and stat.S_ISREG(_mode(Path(name))):
                taken_as_input(name)


def claimed(path: Path, flag: str, *, force: bool, extended: bool = False) -> None:
    """Take a file as an output of the running command; see :meth:`Destinations.claim`."""
    command = _COMMAND.get() or Destinations()
    command.force = force
    command.claim(path, flag, extended=extended)


def check_unlost(path: Path, *, only_inputs: bool = False) -> None:
    """Look again just before a file is written: it may have come since."""
    if (command := _COMMAND.get()) and not is_stream(path):
        told = next((command.outputs[one] for one in identities(path) & command.outputs.keys()), "")
        command.check(path, told or str(path), only_inputs=only_inputs)


def identities(path: str | Path) -> set[Identity]:
    """What a name leads to, links followed: its place, and its number where it is there."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return {os.path.realpath(path)} if "\0" not in str(path) else {str(path)}
    return {os.path.realpath(path), (found.st_dev, found.st_ino)}


def is_stream(path: Path) -> bool:
    """Whether a pipe, a terminal or another device is there, which is written to as it is."""
    mode = _mode(path)
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _mode(path: Path) -> int:
    """What is there, as ``stat`` has it; 0 for nothing, and for a name that no file can have."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0
