"""A results file that grows a line at a time and can be cut off at any moment.

Every line is one JSON object with the ``key`` of its point. A line is written in one go and pushed
to the disk before the next point starts; a torn last line (a kill, a full disk) is dropped when the
file is opened again, and its point is measured again. One process writes at a time.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attnprof.errors import CannotRunError, RequestError

SCHEMA = "attnprof/1"
_HOW = "move it away, or give another --output"


class Journal:
    """An append-only JSON Lines file, locked while it is open.

    ``done`` are the keys it holds. Raises :class:`RequestError` for a file that is not a journal
    or that another process has open, :class:`CannotRunError` when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str] = set()
        self._handle = -1

    def __enter__(self) -> Self:
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RequestError(
                f"cannot write {self.path}: {error.strerror}; give --output a path in a folder "
                "that exists and can be written"
            ) from error
        try:
            self._lock()
            self._repair()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)

    def append(self, key: str, entry: Mapping[str, Any]) -> None:
        """Add one line; a point that is there already is not added twice."""
        if key in self.done:
            return
        line = {"schema": SCHEMA, "key": key, **entry}
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        end = os.lseek(self._handle, 0, os.SEEK_END)
        try:
            self._write(data)
        except OSError as error:
            os.ftruncate(self._handle, end)
            raise CannotRunError(
                f"cannot write {self.path}: {error.strerror}; the {len(self.done)} records before "
                "are kept: make room and run the same command again"
            ) from error
        self.done.add(key)

    def _write(self, data: bytes) -> None:
        if os.write(self._handle, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._handle)

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # no such lock on this system: one writer is the user's word
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RequestError(
                f"{self.path} is being written by another process; wait for it, or give another "
                "--output"
            ) from error

    def _repair(self) -> None:
        """Read the keys; cut a torn last line off."""
        size = os.fstat(self._handle).st_size
        data = b"".join(self._blocks(size))
        whole = data.rfind(b"\n") + 1
        for entry in parsed(data[:whole], self.path):
            self.done.add(entry["key"])
        if whole != size:
            torn = data[whole:]
            if not whole and not torn.startswith(b"{"):
                raise RequestError(f"{self.path} is no results file of a sweep; {_HOW}")
            os.ftruncate(self._handle, whole)
        os.lseek(self._handle, 0, os.SEEK_END)

    def _blocks(self, size: int) -> Iterator[bytes]:
        os.lseek(self._handle, 0, os.SEEK_SET)
        while size > 0 and (block := os.read(self._handle, 1 << 20)):
            size -= len(block)
            yield block


def parsed(data: bytes, path: Path) -> Iterator[dict[str, Any]]:
    """The entries of whole lines; :class:`RequestError` where a line is none."""
    for number, line in enumerate(data.splitlines(), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA or "key" not in entry:
            raise RequestError(f"{path} line {number} is no record of a sweep; {_HOW}")
        yield entry


def read(path: Path) -> list[dict[str, Any]]:
    """All whole entries of a results file; a torn last line is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    return list(parsed(data[: data.rfind(b"\n") + 1], path))
