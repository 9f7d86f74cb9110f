"""From an operation that ran to its cost: find the rule, and what was read and written."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from attnprof.trace.events import Size
from attnprof.trace.rules.moves import MOVES, OVERWRITES, UNCOUNTED, VIEWS
from attnprof.trace.rules.table import RULES, Found
from attnprof.trace.rules.workspaces import workspace_of
from attnprof.trace.sizes import nbytes

#: Arguments that say how, not on what.
_SETTINGS = frozenset(
    {"dtype", "out", "layout", "device", "pin_memory", "memory_format", "non_blocking"}
)


def cost_of(func: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
    """The cost of one dispatched operation."""
    full: str = func._schema.name
    name = full.removeprefix("aten::")
    base = name.removesuffix("_") if not name.startswith("__") else name.strip("_")
    if name in VIEWS:
        return Found()
    moved = _moved(name, base, out, args, kwargs)
    rule = RULES.get(base)
    if rule is None and base in MOVES:
        return Found(bytes_moved=moved, workspace=workspace_of(base, out, args))
    if rule is None:
        return Found(bytes_moved=moved, uncounted=_said(full), touched=moved)
    scalars = {key: value for key, value in kwargs.items() if key not in _SETTINGS}
    counts = rule(out, *args, **scalars)
    return Found(
        counts,
        moved,
        workspace_of(base, out, args),
        _said(full) if base in UNCOUNTED else "",
        moved if base in UNCOUNTED else 0,
    )


def _said(full: str) -> str:
    return full.replace("::", ".")


def _moved(name: str, base: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Size:
    """Every operand read once, every result written once; rows left alone are not."""
    read = _operands(name, args, kwargs)
    total = sum((nbytes(t) for t in read), start=sum(nbytes(t) for t in _tensors(out)))
    if base == "index_select":
        return total - nbytes(args[0]) + nbytes(out)
    if base == "index_copy":  # the source is read, and written
        return total - 2 * nbytes(args[0]) + nbytes(args[3])
    return total


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _operands(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    if name.endswith("_like") or name.startswith("new_"):
        return []
    read = {key: value for key, value in kwargs.items() if key != "out"}
    return _tensors((args[1:] if name in OVERWRITES else args, read))
