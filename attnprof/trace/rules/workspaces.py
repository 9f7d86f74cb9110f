"""Memory that a kernel takes inside itself and gives back before it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnprof.trace.events import Size

Workspace = Callable[..., Size]

#: By operation: bytes, from the result and the operation's arguments.
WORKSPACES: dict[str, Workspace] = {}


def workspace_of(base: str, out: Any, args: tuple[Any, ...]) -> Size:
    """Bytes an operation holds only while it runs."""
    found = WORKSPACES.get(base)
    return found(out, *args) if found else 0
