"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from attnprof.errors import RequestError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that it is whole or not there; :class:`RequestError` if it cannot be.

    Links are followed; a device or pipe (``/dev/null``) is written to, never replaced.
    """
    data = content if isinstance(content, bytes) else content.encode()
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise RequestError(
            f"cannot write {path}: {error.strerror or error}; give --output a path in a folder "
            "that exists and can be written"
        ) from error


def _replace(target: Path, data: bytes) -> None:
    """Write beside the target, then rename: readers see the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink()
        raise
