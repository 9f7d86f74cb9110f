"""Rule for FlexAttention with a block mask, whose kernel computes the blocks that the mask keeps.

Its pairs are all entries of those blocks (of tokens that exist), each as in other fused kernels. If
the mask is a band around the diagonal, as a causal one or a window is, blocks are a formula; else
they are read from the mask's own numbers, if those have values.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof.costs import exact_div
from attnprof.trace.events import Size
from attnprof.trace.rules.attention import forward_counts
from attnprof.trace.rules.table import HIGHER, cost_of, tensors_in
from attnprof.trace.rules.units import Counts
from attnprof.trace.sizes import nbytes, product, size_of

#: A block at least as large means that there is no mask.
_WHOLE = 2**30
#: Blocks in a side of the matrix on which a mask is tried.
_BLOCKS = 64
#: A token so far away that a mask that keeps it has no end.
_FAR = 2**40

#: Blocks computed left and right of the diagonal one in each row; None: all there are.
Band = tuple[int | None, int | None]
#: Bands of masks, by size of blocks.
_BANDS: WeakKeyDictionary[Any, dict[int, Band | None]] = WeakKeyDictionary()


def is_sparse(args: Sequence[Any]) -> bool:
    """Return whether a call has a block mask whose computed blocks are known."""
    return args[4][-2] < _WHOLE and pairs(args) is not None


def pairs(args: Sequence[Any]) -> Size | None:
    """Return the entries of computed blocks in all heads; None if the blocks are unknown."""
    query, key, mask = args[0], args[1], args[4]
    rows, columns, block = query.shape[-2], key.shape[-2], mask[-2]
    numbers = [x for x in (mask[2], mask[4]) if x is not None]
    heads, known = product(query.shape[:-2]), not any(_is_blank(x) for x in numbers)
    with unset_fake_temporarily():
        blocks = sum(int(x.sum()) for x in numbers) if known else None
    alike = product(mask[2].shape[:2])
    square = rows == columns and alike == 1 and mask[-3] == block
    band = _band(mask[-1], block) if square else None
    if band is not None:
        of_band, entries = _blocks_in_band(band, rows, block)
        if blocks in (None, of_band):
            return heads * entries
    if blocks is None:
        return None
    return exact_div(heads, alike) * blocks * mask[-3] * block


def _is_blank(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta


def _band(mask_mod: Any, size: int) -> Band | None:
    """Return the band of blocks that a mask keeps; None if it keeps others, or needs values."""
    known = _BANDS.setdefault(mask_mod, {})
    if size not in known:
        try:
            known[size] = _measured_band(mask_mod, size)
        except Exception:  # noqa: BLE001 - somebody's code, which may look up what has no values
            known[size] = None
    return known[size]


def _measured_band(mask_mod: Any, size: int) -> Band | None:
    """Return the band that a mask keeps in six of 64 rows of blocks and far away, or None."""
    last, middle = _BLOCKS - 1, _BLOCKS // 2
    kept = {row: _blocks_of(mask_mod, row, size) for row in (0, 1, 2, middle, last - 1, last)}
    if not kept[last] or not kept[0]:
        return None
    left = None if kept[last][0] == 0 else last - kept[last][0]
    right = None if kept[0][-1] == last else kept[0][-1]
    with unset_fake_temporarily():
        near, far = torch.zeros((), dtype=torch.int64), torch.full((), _FAR)
        ends = [bool(mask_mod(near, near, *pair)) for pair in ((far, near), (near, far))]
    if [x is None for x in (left, right)] != ends:
        return None  # wider than was looked at
    for row, blocks in kept.items():
        first = 0 if left is None else max(0, row - left)
        end = last if right is None else min(last, row + right)
        if blocks != list(range(first, end + 1)):
            return None
    return left, right


def _blocks_of(mask_mod: Any, row: int, size: int) -> list[int]:
    """Return the blocks in a row of blocks of which the mask keeps any entry."""
    with unset_fake_temporarily(), torch.no_grad():
        none = torch.zeros((), dtype=torch.int64)
        queries = torch.arange(row * size, (row + 1) * size).unsqueeze(1)
        left = mask_mod(none, none, queries, torch.arange(_BLOCKS * size))
        whole = torch.broadcast_to(left, (size, _BLOCKS * size))
        some = whole.view(size, _BLOCKS, size).any(2).any(0)
        return [place for place, kept in enumerate(some.tolist()) if kept]


def _blocks_in_band(band: Band, rows: Any, size: int) -> tuple[Size, Size]:
    """Return the blocks of a band in a square of ``rows`` tokens, and the entries in them."""
    count = (rows + size - 1) // size
    n, missing = size_of(count), size_of(count * size - rows)
    # a width that does not fit is all there is: a condition on symbolic sizes
    left, right = (n - 1 if x is None or x >= count - 1 else x for x in band)
    blocks = (
        n * (1 + left + right) - exact_div(left * (left + 1), 2) - exact_div(right * (right + 1), 2)
    )
    edges = size * missing * (left + right + 2)  # of the last row and column of blocks
    return blocks, size * size * blocks - edges + missing * missing


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that adds up the counts of operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counts()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.counts += cost_of(func, out, args, kwargs or {}).counts
        return out


def _score_mod_counts(score_mod: Any) -> Counts:
    """Count the operations by which ``score_mod`` changes one score."""
    with unset_fake_temporarily(), torch.no_grad():
        score, place = torch.zeros(()), torch.ones((), dtype=torch.int64)
        counting = _Counting()
        with counting:
            score_mod(score, place, place, place, place)
        return counting.counts


def cost(args: Sequence[Any], out: Any) -> tuple[Counts | None, Size]:
    """Return the kernel's counts (None if ``score_mod`` needs values) and the bytes it moves."""
    query, _, value, score_mod = args[:4]
    seen = pairs(args)
    moved = sum((nbytes(x) for x in [*tensors_in(args[:3]), out[0], out[1]]), start=0)
    try:
        counts = _score_mod_counts(score_mod) * seen
    except Exception:  # noqa: BLE001 - somebody's code, which may look up what has no values
        return None, moved
    return counts + forward_counts(seen, query, value, SimpleNamespace(dropout_p=0)), moved


HIGHER["higher_order.flex_attention"] = cost
