"""Temporary folders that vanish with their process, at the latest when attnprof next starts.

A process has one folder in the system's temporary folder, locked while it or a fork of it lives.
A folder that nobody locks is left over from a killed process, and is removed.
"""

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "attnprof-run-"


class _Run(NamedTuple):
    """A process's folder, its lock's handle (-1: the system has no locks), and the process's id."""

    path: Path
    lock: int
    owner: int


_RUN: list[_Run] = []


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder; remove it afterwards, at the latest with this process."""
    place = Path(tempfile.mkdtemp(dir=run_folder()))
    try:
        yield place
    finally:
        remove(place)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Run the body while no other process is inside for the same folder, where locks exist."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run_folder() -> Path:
    """Return this process's folder, which its forks share."""
    if not _RUN or not _RUN[0].path.is_dir():
        remove_left_over()
        for _ in range(3):
            place = Path(tempfile.mkdtemp(prefix=PREFIX))
            handle = _lock(place)
            if handle is not None and place.is_dir():  # no other process removed it meanwhile
                break
        _RUN[:] = [_Run(place, -1 if handle is None else handle, os.getpid())]
        atexit.register(close_run)
    return _RUN[0].path


def close_run() -> None:
    """Remove the folder, if this process made it."""
    if _RUN and _RUN[0].owner == os.getpid():
        run = _RUN.pop()
        remove(run.path)
        with contextlib.suppress(OSError):
            os.close(run.lock)


def remove_left_over() -> None:
    """Remove folders whose processes are gone."""
    with contextlib.suppress(OSError):
        for place in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            handle = _lock(place)
            if handle is not None:
                remove(place)
                os.close(handle)


def remove(place: Path) -> None:
    """Remove a folder and all in it, also files without permissions."""

    def remove_locked(_remove: Any, path: str, _error: Any) -> None:
        with contextlib.suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).chmod(0o700)
            shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()

    shutil.rmtree(place, onerror=remove_locked)


def _lock(place: Path) -> int | None:
    """Lock a folder of this user and return the handle; None where another process holds it."""
    try:
        import fcntl

        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_uid == os.getuid():
            return handle
    except OSError:
        pass
    os.close(handle)
    return None
