"""Rows that code looks up by counting: ``table[torch.arange(N)]`` runs as far as the table reaches.

Tensors without numbers look nothing up. Here the smallest and the largest index are followed from
where they were counted, so that a lookup outside of a table fails as it does on real tensors, and
the length of the table is a condition of a symbolic run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnprof.trace.rules import name_of
from attnprof.trace.rules.layouts import same
from attnprof.trace.sizes import numel

Ends = tuple[Any, Any]  # the smallest and the largest of whole numbers
EndsOf = Callable[[Any], Ends | None]  # of a tensor, where they are known


@dataclass(frozen=True)
class Counted:
    """Whole numbers in a storage of ``entries``: one more each from ``first``, or to ``last``."""

    first: Any
    last: Any = None
    entries: Any = None

    def ends(self, tensor: Any) -> Ends | None:
        """Those of a tensor in this storage."""
        if self.last is None:
            first = self.first + tensor.storage_offset()
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            return first, first + sum((n - 1) * step for n, step in steps)
        return (self.first, self.last) if same(numel(tensor), self.entries) else None


def counted_off(func: Any, out: Any, args: tuple[Any, ...], ends: EndsOf) -> Counted | None:
    """What an operation's result holds, if that was counted."""
    name = name_of(func).removeprefix("aten.")
    if name == "arange":
        first, step = args[0] if len(args) > 1 else 0, args[2] if len(args) > 2 else 1
        whole = _is_whole(first) and isinstance(step, int) and step == 1
        return Counted(first) if whole else None
    if name not in (*_KEEP, "add", "sub"):
        return None
    found = ends(args[0])
    other = (0, 0) if name in _KEEP else _ends_of_operand(args[1], ends)
    if found is None or other is None:
        return None
    low, high = other if name != "sub" else (-other[1], -other[0])
    return Counted(found[0] + low, found[1] + high, numel(out))


def refuse_outside(func: Any, args: tuple[Any, ...], ends: EndsOf) -> None:
    """Raises :class:`IndexError` where a lookup goes beyond the table; else that is a condition."""
    name = name_of(func).removeprefix("aten.")
    for table, dim, index in _lookups(name, args):
        found, rows = ends(index), table.shape[dim]
        if found and (found[1] >= rows or found[0] < (-rows if name == "index" else 0)):
            raise IndexError("index out of range in self")  # torch's words


def _lookups(name: str, args: tuple[Any, ...]) -> list[tuple[Any, int, Any]]:
    if name == "embedding":
        return [(args[0], 0, args[1])]
    if name in ("index_select", "gather"):
        return [(args[0], args[1], args[2])]
    if name == "index":
        return [(args[0], dim, index) for dim, index in enumerate(args[1]) if index is not None]
    return []


def _ends_of_operand(value: Any, ends: EndsOf) -> Ends | None:
    if isinstance(value, torch.Tensor):
        return ends(value)
    return (value, value) if _is_whole(value) else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt)


#: What leaves the numbers what they are.
_KEEP = ("clone", "_to_copy", "repeat", "flip", "roll")
