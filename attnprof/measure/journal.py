"""Append records to a results file that may be cut off at any moment without harm.

Every line is one JSON object with the ``key`` of its point. A line is written at once and synced
to the disk before the next point starts; a torn last line (a kill, a full disk) is moved to a file
beside it when the journal is opened again, and its point is measured again. One process writes at a
time.
"""

import errno
import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Self

from attnprof.errors import CannotRunError, RequestError
from attnprof.record.files import JOURNAL_LIMIT, json_of, kind_of_file, read_bytes, text_of, why_of
from attnprof.record.recognition import SCHEMA

_HOW = "move it away, or give another --output"
#: How the first line begins, and how much of it tells a journal that was cut inside of it.
_BEGIN, _LEAST = b'{"schema": "attnprof/1", "key": "', len(b'{"schema":')


class Journal:
    """An append-only JSON Lines file, locked while it is open.

    ``done`` are the keys it holds, ``cut`` the file that a torn last line was moved to.
    Raises :class:`RequestError` for a file that is not a journal or that another process has open,
    :class:`CannotRunError` when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut: Path | None = None
        self.done: set[str] = set()
        self._handle = -1

    def __enter__(self) -> Self:
        check_journal(self.path)
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

    def __exit__(self, *error: object) -> None:
        os.close(self._handle)

    def append(self, key: str, entry: Mapping[str, Any]) -> None:
        """Add one line, unless the journal has the point."""
        if key in self.done:
            return
        line = {"schema": SCHEMA, "key": key, **entry}
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        end = os.lseek(self._handle, 0, os.SEEK_END)
        try:
            if os.write(self._handle, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as a disk that is full says it
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, end)
            raise CannotRunError(
                f"cannot write {self.path}: {error.strerror}; the {len(self.done)} records before "
                "are kept: make room and run the same command again"
            ) from error
        self.done.add(key)

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
        """Read the keys; move a torn last line to a file beside this one."""
        size = os.fstat(self._handle).st_size
        data = os.pread(self._handle, size, 0)
        whole = data.rfind(b"\n") + 1
        for entry in parsed(data[:whole], self.path, f"; {_HOW}"):
            self.done.add(entry["key"])
        if whole != size:
            if not begins_as_journal(data):
                raise RequestError(f"{self.path} is no results file of a sweep; {_HOW}")
            self._save_torn_line(data[whole:])
            os.ftruncate(self._handle, whole)

    def _save_torn_line(self, torn: bytes) -> None:
        """Save a torn line beside the journal, under a free name."""
        for number in count(1):
            self.cut = self.path.with_name(f"{self.path.name}.torn{number}")
            try:
                handle = os.open(self.cut, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            except OSError as error:
                raise CannotRunError(
                    f"{self.path} ends in a torn line, which cannot be kept as {self.cut}: "
                    f"{error.strerror}"
                ) from error
            with os.fdopen(handle, "wb") as stream:
                stream.write(torn)
                os.fsync(handle)
            return


def check_journal(path: Path) -> None:
    """Raise RequestError if a path exists and is no journal, by kind, size and beginning."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {why_of(error)}; {_HOW}") from error
    kind = kind_of_file(state.st_mode)
    if kind or state.st_size > JOURNAL_LIMIT:
        what = kind or f"{state.st_size:,} bytes large, {JOURNAL_LIMIT:,} are read at most"
        raise RequestError(f"{path} is {what}, no results file of a sweep; {_HOW}")
    with path.open("rb") as stream:
        begin = stream.read(len(_BEGIN) + len(BOM_UTF8))
    if begin and not begins_as_journal(begin):
        raise RequestError(f"{path} is no results file of a sweep; {_HOW}")


def begins_as_journal(data: bytes) -> bool:
    """Return whether a first line is a journal's, or was when it was cut off."""
    begin = data.removeprefix(BOM_UTF8)[: len(_BEGIN)]
    return begin == _BEGIN or (len(begin) >= _LEAST and _BEGIN.startswith(begin))


def parsed(data: bytes, path: Path, how: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries of whole lines; RequestError, ending with ``how``, for another line."""
    for number, line in enumerate(data.removeprefix(BOM_UTF8).split(b"\n")[:-1], 1):
        try:
            entry = json_of(text_of(line))
        except ValueError as error:
            message = f"{path} line {number} is no record of a sweep ({error}){how}"
            raise RequestError(message) from error
        ours = isinstance(entry, dict) and entry.get("schema") == SCHEMA
        if not ours or not isinstance(entry.get("key"), str):
            raise RequestError(f"{path} line {number} is no record of a sweep{how}")
        yield entry


def read(path: Path) -> list[dict[str, Any]]:
    """Return all whole entries of a results file, without a torn last line."""
    data = read_bytes(path, JOURNAL_LIMIT)
    if data and not begins_as_journal(data):
        raise RequestError(f"{path} is no results file of a sweep")
    return list(parsed(data[: data.rfind(b"\n") + 1], path))
