"""Bytes of lookups and of indexed writes: only entries that are picked are read or written.

An embedding reads the rows of its tokens, not its table; a cache is written where the new token
stands. The table counts as often as entries of it are picked: a row that is picked twice is read
twice. ``gather`` and ``scatter``, whose index is about as large as their table, read and write all
of it.
"""

from collections.abc import Callable
from typing import Any

import torch

from attnprof.trace.events import Size
from attnprof.trace.rules.workspaces import is_mask, words
from attnprof.trace.sizes import nbytes, numel, product, size_of

#: Operations that read some entries of a table, and return these.
LOOKUPS = words("""
    embedding index_select index _unsafe_index _unsafe_masked_index take masked_select
""")
#: Operations that, in place, write only some entries.
WRITES = words("""
    index_copy index_add index_reduce index_fill scatter_add scatter_reduce
    index_put _index_put_impl put
""")
#: Further operations that read some entries alone: the bytes left alone, from the call.
UNREAD: dict[str, Callable[[Any], Size]] = {}
#: In-place operations that always read what they add to.
_ADDS = words("index_add index_reduce scatter_add scatter_reduce")


def unpicked_bytes(name: str, base: str, out: Any, call: Any) -> Size:
    """Return the bytes of operands and results that a lookup or indexed write leaves alone.

    They are subtracted from the bytes of all operands, read once, and of all results, written once.
    ``name`` ends with ``_`` if the operation works in place; one that makes a new result copies
    all.
    """
    if base in UNREAD:
        return UNREAD[base](call)
    if base in LOOKUPS:
        table = call.weight if base == "embedding" else call.self
        return nbytes(table) - nbytes(out)
    if base in ("_embedding_bag", "_embedding_bag_forward_only"):
        row = size_of(call.weight.shape[1]) * call.weight.element_size()
        return nbytes(call.weight) - numel(call.indices) * row
    if base not in WRITES or not name.endswith("_"):
        return 0
    written = _places(base, call) * call.self.element_size()
    reads = base in _ADDS or bool(getattr(call, "accumulate", False) or getattr(call, "reduce", ""))
    return 2 * nbytes(call.self) - (1 + reads) * written


def _places(base: str, call: Any) -> Size:
    """Return how many entries an operation writes; all, where a mask does not say."""
    if base == "index_fill":
        dim = call.dim % max(1, call.self.dim())
        others = [size for place, size in enumerate(call.self.shape) if place != dim]
        return numel(call.index) * product(others)
    if not hasattr(call, "indices"):
        return numel(call.source if base.startswith("index") else call.index)
    masks = [x for x in call.indices if x is not None and is_mask(x)]
    picked = call.self.dim() - sum(x.dim() - 1 for x in masks)
    return addressed(call) if not masks or call.values.dim() == picked else numel(call.self)


def addressed(call: Any) -> Size:
    """Return how many entries indices address; for a mask as index, the entries of the values."""
    used = [x for x in call.indices if x is not None]
    if any(is_mask(x) for x in used):
        return numel(call.values)
    entries = product(torch.broadcast_shapes(*(x.shape for x in used)))  # type: ignore[no-untyped-call]
    left = [size for place, size in enumerate(call.self.shape)
            if place >= len(call.indices) or call.indices[place] is None]  # fmt: skip
    return entries * product(left)
