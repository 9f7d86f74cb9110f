"""Files that are whole or not there."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from pathlib import Path

from attnprof.errors import RequestError
from attnprof.record.destinations import check_unlost, is_stream
from attnprof.record.reading import kind_of_file, why_of

#: Seconds that a pipe may take until somebody reads it.
PATIENCE_S = 5.0


def write_whole(path: str | Path, content: str | bytes, *, known: bool = False) -> None:
    """Write a file so that it is whole or not there; :class:`RequestError` if it cannot be.

    Links are followed, and a file keeps its mode; a device or pipe (``/dev/null``) is written to,
    never replaced. Within a command nothing is overwritten that attnprof did not write, unless
    ``known`` says that the file is one of the package's own.
    """
    data = content if isinstance(content, bytes) else content.encode(errors="replace")
    try:
        if is_stream(Path(path)):
            _pour(Path(path), data)
            return
        target = Path(os.path.realpath(path))
        if not known:
            check_unlost(target)
        if target.exists() and (kind := kind_of_file(target.stat().st_mode)):
            raise OSError(errno.EINVAL, f"it is {kind}")  # noqa: TRY301 - told like the others
        _replace(target, data)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"cannot write {path}: {why_of(error)}; give --output a path in a folder "
            "that exists and can be written"
        ) from error


def _pour(target: Path, data: bytes) -> None:
    """Write to a device or a pipe; one that nobody reads is an error, not a wait for ever."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            handle = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > until:
                raise
            time.sleep(0.05)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)


def _replace(target: Path, data: bytes) -> None:
    """Write beside the target, then rename: readers see the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".attnprof-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink()
        raise


def _mode(target: Path) -> int:
    """A file's own mode; a new one's by the umask."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
