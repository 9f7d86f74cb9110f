"""Temporary folders that are gone when their process is, at the latest at the next start.

Every process that needs one has a folder of its own in the system's temporary folder, locked for
as long as it or a fork of it lives; whatever nobody locks is left over, and is removed.
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
    """A folder, the handle of its lock (-1: there are no locks), and the process that made it."""

    path: Path
    lock: int
    owner: int


_RUN: list[_Run] = []


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder, removed at the end; or with this process, should there be no end."""
    place = Path(tempfile.mkdtemp(dir=run_folder()))
    try:
        yield place
    finally:
        remove(place)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Inside, no other process is that locks the same folder; no file is made for it.

    Where the system has no locks, nobody waits.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run_folder() -> Path:
    """This process's folder, which it shares with the process it was forked from."""
    if not _RUN or not _RUN[0].path.is_dir():
        remove_left_over()
        for _ in range(3):
            place = Path(tempfile.mkdtemp(prefix=PREFIX))
            handle = _lock(place)
            if handle is not None and place.is_dir():  # nobody took it for left over meanwhile
                break
        _RUN[:] = [_Run(place, -1 if handle is None else handle, os.getpid())]
        atexit.register(close_run)
    return _RUN[0].path


def close_run() -> None:
    """Remove the folder, in the process that made it."""
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
    """Remove a folder and all in it, also what was made unreadable."""

    def again(_remove: Any, path: str, _error: Any) -> None:
        with contextlib.suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).chmod(0o700)
            shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()

    shutil.rmtree(place, onerror=again)


def _lock(place: Path) -> int | None:
    """Lock a folder of this user's; None where somebody has."""
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
