"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from attnprof.errors import RequestError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that it is whole or not there; :class:`RequestError` if it cannot be."""
    target = Path(path)
    mode = "wb" if isinstance(content, bytes) else "w"
    try:
        handle, name = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, mode) as stream:
                stream.write(content)
            umask = os.umask(0)
            os.umask(umask)
            Path(name).chmod(0o666 & ~umask)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise RequestError(
            f"cannot write {path}: {error.strerror or error}; give --output a path in a folder "
            "that exists and can be written"
        ) from error
