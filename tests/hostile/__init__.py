"""Modules that do what modules of attention should not; each file has one, named ``Att``."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

HERE = Path(__file__).parent
#: All of them, by the names of their files.
NAMES = sorted(path.stem for path in HERE.glob("[a-z]*.py"))


def copied(folder: Path, names: list[str] = NAMES) -> list[str]:
    """Copies in a folder, as arguments of a command that is run there."""
    for name in names:
        shutil.copy(HERE / f"{name}.py", folder)
    return [f"{name}.py:Att" for name in names]


def marked(mark: str, wait_s: float = 0.0) -> list[int]:
    """Processes that were started with this text in their environment, after some patience."""
    end = time.monotonic() + wait_s
    while (found := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def _marked(mark: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            held = mark.encode() in (place / "environ").read_bytes()
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if held and state != "Z" and int(place.name) != os.getpid():
            found.append(int(place.name))
    return found
