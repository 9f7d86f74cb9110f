"""Rules for fused attention kernels on CPU and CUDA, and for FlexAttention with a block mask.

A causal kernel counts the triangle of pairs that its rows see, whatever blocks it computes. Scratch
memory is that of torch's ``FlashAttentionKernel.cpp``: each thread has a block of scores in the
format of sums; for half-precision inputs also a block in that format.

FlexAttention counts all pairs of the blocks that its mask keeps (of tokens that exist). If the mask
is a band around the diagonal, as a causal one or a window is, the blocks are a formula; else they
are read from the mask's own numbers, if those have values.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import get_num_threads as threads
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof.costs import exact_div, minimum
from attnprof.trace.events import Size
from attnprof.trace.rules.table import HIGHER, OperationRule, cost_of, rules, tensors_in
from attnprof.trace.rules.units import MAC, OTHER, A, Counts, D, E, M
from attnprof.trace.rules.workspaces import copied, layout, same, sum_width, workspaces
from attnprof.trace.sizes import is_floating, nbytes, numel, product, size_of

#: Where the diagonal of a rectangular causal mask starts: torch's ``is_causal`` says top left;
#: the FlashAttention kernels on CUDA align the last query with the last key.
TOP_LEFT, BOTTOM_RIGHT = "top left", "bottom right"


def triangle(n: Size, m: Size, corner: str = TOP_LEFT) -> Size:
    """Return the number of pairs of n queries and m keys on and below the diagonal.

    A square has N(N+1)/2.
    """
    if n == m:
        return exact_div(n * (n + 1), 2)
    side = minimum(n, m)
    inside = exact_div(side * (side + 1), 2)
    if corner == TOP_LEFT:  # rows after the m-th see every key
        return inside + (n - side) * m
    return inside + n * (m - side)  # every row sees the keys before the square


def pairs(q: Any, k: Any, causal: bool, corner: str = TOP_LEFT) -> Size:
    """Return the number of query-key pairs of (…, heads, tokens, width) tensors."""
    n, m = size_of(q.shape[-2]), size_of(k.shape[-2])
    return product(q.shape[:-2]) * (triangle(n, m, corner) if causal else n * m)


def forward_counts(pair_count: Size, q: Any, v: Any, call: Any) -> Counts:
    """Count a forward pass on ``pair_count`` pairs: scaled scores, softmax, and two products.

    A pair's score is scaled, compared, shifted, exponentiated, summed and divided; a mask of
    numbers and dropout add to that.
    """
    each = M + OTHER + 2 * A + E + D + _extras(call, 1)
    return each * pair_count + MAC * (pair_count * size_of(q.shape[-1] + v.shape[-1]))


def backward_counts(pair_count: Size, q: Any, v: Any, call: Any) -> Counts:
    """Count a backward pass on ``pair_count`` pairs: weights computed again, and five products.

    Of each row the output's gradient times the output is summed.
    """
    grad = call.grad_out if hasattr(call, "grad_out") else call.grad_out_
    each = 3 * M + 2 * A + E + _extras(call, 2)
    five = MAC * (pair_count * size_of(3 * q.shape[-1] + 2 * v.shape[-1]))
    return each * pair_count + five + (M + A) * numel(grad)


def _extras(call: Any, dropped: int) -> Counts:
    """Count an addition a pair for a mask of numbers, a multiplication for each use of dropout."""
    masks = (getattr(call, name, None) for name in ("attn_mask", "attn_bias", "bias"))
    masked = any(mask is not None and is_floating(mask) for mask in masks)
    return A * masked + M * (dropped if call.dropout_p else 0)


def _kernel(count: Callable[..., Counts], corner: str = TOP_LEFT) -> OperationRule:
    """Return a rule for kernels on (batch, heads, tokens, width)."""

    def counts(_out: Any, call: Any) -> Counts:
        pair_count = pairs(call.query, call.key, call.is_causal, corner)
        return count(pair_count, call.query, call.value, call)

    return counts


def _tokens_first(count: Callable[..., Counts]) -> OperationRule:
    """Return a rule for kernels on (batch, tokens, heads, width), which others of torch's call.

    Calls with a window, or with lengths in a tensor (``unknown``), stay uncounted.
    """
    unknown = ("cum_seq_q", "cu_seqlens_q", "seqused_k", "seqlen_k", "block_table", "window_size",
               "window_size_left", "window_size_right")  # fmt: skip

    def counts(_out: Any, call: Any) -> Counts | None:
        if any(getattr(call, name, None) is not None for name in unknown):
            return None
        q, k, v = (x.transpose(1, 2) for x in (call.query, call.key, call.value))
        kind = call.custom_mask_type if hasattr(call, "custom_mask_type") else 2 * call.is_causal
        return count(pairs(q, k, kind != 0, TOP_LEFT if kind == 1 else BOTTOM_RIGHT), q, v, call)

    return counts


_SDPA = "_scaled_dot_product_"
rules(
    {
        f"{_SDPA}flash_attention_for_cpu {_SDPA}efficient_attention {_SDPA}cudnn_attention "
        f"{_SDPA}fused_attention_overrideable": _kernel(forward_counts),
        f"{_SDPA}flash_attention": _kernel(forward_counts, BOTTOM_RIGHT),
        "_flash_attention_forward _efficient_attention_forward": _tokens_first(forward_counts),
        f"{_SDPA}flash_attention_for_cpu_backward {_SDPA}efficient_attention_backward "
        f"{_SDPA}cudnn_attention_backward {_SDPA}fused_attention_overrideable_backward": (
            _kernel(backward_counts)
        ),
        f"{_SDPA}flash_attention_backward": _kernel(backward_counts, BOTTOM_RIGHT),
        "_flash_attention_backward _efficient_attention_backward": _tokens_first(backward_counts),
        # biases added to queries, keys and values; queries scaled
        "_transform_bias_rescale_qkv": lambda _, c: (
            A * numel(c.qkv) + M * exact_div(numel(c.qkv), 3)
        ),
    }
)

#: Keys of a block; and for a number of queries at least, the queries of a block.
_KEYS = 512
_QUERIES = ((768, 256), (192, 64), (0, 32))


def _forward_scratch(_out: Any, call: Any) -> Size:
    """Return bytes of scores, row maxima, row sums and results of a block for each thread."""
    q, width = call.query, size_of(call.query.shape[3])
    rows, keys, half = _block(q), minimum(size_of(call.key.shape[2]), _KEYS), q.element_size() == 2
    blocks = threads() * rows * (sum_width(q) * (keys + 2 + width) + (2 * keys if half else 0))
    return blocks + _copied_mask(call)


def _copied_mask(call: Any) -> Size:
    """Return bytes of a mask that is copied, row by row: its keys lie neither together nor once."""
    mask = call.attn_mask
    if mask is None:
        return 0
    keys, step = layout(mask)[-1]
    if keys == 1 or same(step, 1) or same(step, 0):
        return 0
    rows = product((*mask.shape[:-2], call.query.shape[2]))
    return rows * keys * mask.element_size()


def _backward_scratch(_out: Any, call: Any) -> Size:
    """Return bytes of a block's weights and their gradients for each thread, and row sums.

    A thread works on a head; the gradient is copied unless heads lie inside tokens.
    """
    q = call.query
    rows, keys, half = _block(q), minimum(size_of(call.key.shape[2]), _KEYS), q.element_size() == 2
    blocks = threads() * rows * keys * 2 * (sum_width(q) + (2 if half else 0))
    busy = minimum(size_of(q.shape[0]) * size_of(q.shape[1]), threads())
    sums = busy * rows * sum_width(q)
    return blocks + sums + copied(call.grad_out.transpose(1, 2)) + _copied_mask(call)


def _block(q: Any) -> Size:
    """Return the number of queries of a block, by :data:`_QUERIES`; all if they are fewer."""
    n = size_of(q.shape[2])
    if isinstance(n, int):
        return min(n, next(rows for start, rows in _QUERIES if n >= start))
    import sympy

    steps = ((minimum(n, rows), n >= start if start else True) for start, rows in _QUERIES)
    return sympy.Piecewise(*steps)


workspaces(
    {
        f"{_SDPA}flash_attention_for_cpu": _forward_scratch,
        f"{_SDPA}flash_attention_for_cpu_backward": _backward_scratch,
    }
)


def _latent(_out: Any, call: Any) -> Counts:
    """Count absorbed latent attention: two products and a scaled softmax on each pair.

    A pair is a head's query and a row of the cache, which is read once for all heads.
    """
    pairs_met = product(call.query.shape[:3]) * size_of(call.latents.shape[2])
    masked = call.attn_mask is not None and is_floating(call.attn_mask)
    each = M + OTHER + 2 * A + E + D + A * masked
    widths = size_of(call.query.shape[-1] + call.latents.shape[-1])
    return each * pairs_met + MAC * (pairs_met * widths)


rules({"attnprof::latent_attention": _latent})
workspaces({"attnprof::latent_attention": lambda _out, _call: 0})


# -- FlexAttention -----------------------------------------------------------------------
#: A block at least as large means that there is no mask.
_NO_MASK = 2**30
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
    return args[4][-2] < _NO_MASK and _mask_pairs(args) is not None


def _mask_pairs(args: Sequence[Any]) -> Size | None:
    """Return the entries of computed blocks in all heads; None if the blocks are unknown."""
    query, key, mask = args[0], args[1], args[4]
    rows, columns, block = query.shape[-2], key.shape[-2], mask[-2]
    numbers = [x for x in (mask[2], mask[4]) if x is not None]
    blank = any(isinstance(x, FakeTensor) or x.is_meta for x in numbers)
    heads = product(query.shape[:-2])
    with unset_fake_temporarily():
        blocks = None if blank else sum(int(x.sum()) for x in numbers)
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


def _band(mask_mod: Any, size: int) -> Band | None:
    """Return the band of blocks that a mask keeps; None for another shape or if it needs values."""
    bands = _BANDS.setdefault(mask_mod, {})
    if size not in bands:
        try:
            bands[size] = _measured_band(mask_mod, size)
        except Exception:  # noqa: BLE001 - somebody's code, which may look up what has no values
            bands[size] = None
    return bands[size]


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


def _flex_cost(args: Sequence[Any], out: Any) -> tuple[Counts | None, Size]:
    """Return the kernel's counts (None if ``score_mod`` needs values) and the bytes it moves."""
    query, _, value, score_mod = args[:4]
    pair_count = _mask_pairs(args)
    moved = sum((nbytes(x) for x in [*tensors_in(args[:3]), out[0], out[1]]), start=0)
    try:
        counts = _score_mod_counts(score_mod) * pair_count
    except Exception:  # noqa: BLE001 - somebody's code, which may look up what has no values
        return None, moved
    return counts + forward_counts(pair_count, query, value, SimpleNamespace(dropout_p=0)), moved


HIGHER["higher_order.flex_attention"] = _flex_cost
