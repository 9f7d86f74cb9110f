"""Fused attention kernels on CPU and CUDA, forward and backward, and what those of the CPU take.

They differ in the order of their arguments; the schema's names are the same. A causal kernel
counts the triangle of pairs that its rows see, whatever blocks it computes. Memory is that of
torch's ``FlashAttentionKernel.cpp``: each thread has a block of scores, in the format sums are kept
in; a half-precision kernel has it in its own format too.
"""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import is_contiguous
from attnprof.trace.rules.table import (
    OTHER,
    A,
    Counts,
    D,
    E,
    M,
    product_counts,
    rule_by_name,
    summed,
)
from attnprof.trace.rules.workspaces import threads, workspace
from attnprof.trace.sizes import half, is_floating, nbytes, numel, product, size_of, smaller

#: Where the diagonal of a rectangular causal mask starts: torch's ``is_causal`` says top left;
#: the FlashAttention kernels on CUDA align the last query with the last key.
TOP_LEFT, BOTTOM_RIGHT = "top left", "bottom right"


def triangle(n: Size, m: Size, corner: str = TOP_LEFT) -> Size:
    """Pairs of n queries and m keys below the diagonal, with it: N(N+1)/2 of a square."""
    if n == m:
        return half(n * (n + 1))
    side = smaller(n, m)
    inside = half(side * (side + 1))
    if corner == TOP_LEFT:  # rows after the m-th see every key
        return inside + (n - side) * m
    return inside + n * (m - side)  # every row sees the keys before the square


def pairs(q: Any, k: Any, causal: bool, corner: str = TOP_LEFT) -> Size:
    """Query-key pairs of (…, heads, tokens, width) tensors."""
    n, m = size_of(q.shape[-2]), size_of(k.shape[-2])
    return product(q.shape[:-2]) * (triangle(n, m, corner) if causal else n * m)


def fused_forward(seen: Size, q: Any, v: Any, call: Any) -> Counts:
    """Scores scaled (and a mask added), softmax, dropout's factor, two products."""
    softmax = {M: seen, OTHER: seen, A: 2 * seen, E: seen, D: seen}
    products = product_counts(seen * size_of(q.shape[-1] + v.shape[-1]))
    return summed(softmax, products, _extras(seen, call, 1))


def fused_backward(seen: Size, q: Any, v: Any, call: Any) -> Counts:
    """Weights again; five products; the sums of gradient times output a row.

    An entry: scaling, the shift by logsumexp, exp; minus the row's sum, times weights and scale.
    """
    entry = {M: 3 * seen, A: 2 * seen, E: seen}
    grad = getattr(call, "grad_out", None)
    grad = call.grad_out_ if grad is None else grad
    row_sums = {M: numel(grad), A: numel(grad)}
    five = product_counts(seen * size_of(3 * q.shape[-1] + 2 * v.shape[-1]))
    return summed(entry, row_sums, five, _extras(seen, call, 2))


def _extras(seen: Size, call: Any, dropped: int) -> Counts:
    """An addition a pair for a mask of numbers, a multiplication for each use of dropout."""
    masks = [getattr(call, name, None) for name in ("attn_mask", "attn_bias", "bias")]
    masked = any(mask is not None and is_floating(mask) for mask in masks)
    return {A: seen if masked else 0, M: dropped * seen if call.dropout_p else 0}


_SDPA = "_scaled_dot_product_"


@rule_by_name(f"{_SDPA}flash_attention_for_cpu", f"{_SDPA}efficient_attention",
              f"{_SDPA}cudnn_attention", f"{_SDPA}fused_attention_overrideable")  # fmt: skip
def _forward(_out: Any, call: Any) -> Counts:
    return fused_forward(pairs(call.query, call.key, call.is_causal), call.query, call.value, call)


@rule_by_name(f"{_SDPA}flash_attention")
def _flash(_out: Any, call: Any) -> Counts:
    seen = pairs(call.query, call.key, call.is_causal, BOTTOM_RIGHT)
    return fused_forward(seen, call.query, call.value, call)


@rule_by_name(f"{_SDPA}flash_attention_for_cpu_backward", f"{_SDPA}efficient_attention_backward",
              f"{_SDPA}cudnn_attention_backward",
              f"{_SDPA}fused_attention_overrideable_backward")  # fmt: skip
def _backward(_out: Any, call: Any) -> Counts:
    return fused_backward(pairs(call.query, call.key, call.is_causal), call.query, call.value, call)


@rule_by_name(f"{_SDPA}flash_attention_backward")
def _flash_backward(_out: Any, call: Any) -> Counts:
    seen = pairs(call.query, call.key, call.is_causal, BOTTOM_RIGHT)
    return fused_backward(seen, call.query, call.value, call)


def _by_token(call: Any) -> tuple[Any, Any, Any] | None:
    """Queries, keys, values of (batch, tokens, heads, width) as (batch, heads, tokens, width)."""
    lengths = ("cum_seq_q", "cu_seqlens_q", "seqused_k", "seqlen_k", "block_table")
    windows = ("window_size", "window_size_left", "window_size_right")
    if any(getattr(call, name, None) is not None for name in (*lengths, *windows)):
        return None
    return tuple(x.transpose(1, 2) for x in (call.query, call.key, call.value))


def _corner(call: Any) -> tuple[bool, str]:
    """Whether a kernel below ``scaled_dot_product_attention`` is causal, and how."""
    if hasattr(call, "custom_mask_type"):
        return call.custom_mask_type != 0, TOP_LEFT if call.custom_mask_type == 1 else BOTTOM_RIGHT
    return call.is_causal, BOTTOM_RIGHT


@rule_by_name("_flash_attention_forward", "_efficient_attention_forward")
def _inner_forward(_out: Any, call: Any) -> Counts | None:
    """Lengths in a tensor, and windows, are not known here."""
    seen = _by_token(call)
    if seen is None:
        return None
    q, k, v = seen
    return fused_forward(pairs(q, k, *_corner(call)), q, v, call)


@rule_by_name("_flash_attention_backward", "_efficient_attention_backward")
def _inner_backward(_out: Any, call: Any) -> Counts | None:
    seen = _by_token(call)
    if seen is None:
        return None
    q, k, v = seen
    return fused_backward(pairs(q, k, *_corner(call)), q, v, call)


@rule_by_name("_transform_bias_rescale_qkv")
def _transform(_out: Any, call: Any) -> Counts:
    """Biases added to queries, keys and values; queries scaled."""
    n = numel(call.qkv)
    return {A: n, M: n // 3 if isinstance(n, int) else n / 3}


#: Keys of a block; queries of a block, from so many queries on.
_KEYS = 512
_QUERIES = ((768, 256), (192, 64), (0, 32))


@workspace("_scaled_dot_product_flash_attention_for_cpu")
def _forward_inside(_out: Any, q: Any, k: Any, *_rest: Any) -> Size:
    """Scores, row maxima, row sums and results of a block of queries for each thread."""
    rows, keys = _block(q), _at_most(size_of(k.shape[2]), _KEYS)
    width, half = size_of(q.shape[3]), q.element_size() == 2
    sums = max(4, q.element_size())
    return threads() * rows * (sums * (keys + 2 + width) + (2 * keys if half else 0))


@workspace("_scaled_dot_product_flash_attention_for_cpu_backward")
def _backward_inside(_out: Any, grad: Any, q: Any, k: Any, *_rest: Any) -> Size:
    """Weights and their gradients of a block for each thread, a sum for each of its rows.

    The gradient is laid out anew unless heads lie inside tokens.
    """
    rows, keys = _block(q), _at_most(size_of(k.shape[2]), _KEYS)
    sums, half = max(4, q.element_size()), q.element_size() == 2
    own = threads() * rows * keys * 2 * (sums + (2 if half else 0))
    anew = 0 if is_contiguous(grad.transpose(1, 2)) else nbytes(grad)
    return own + _at_most_threads(q) * rows * sums + anew


def _block(q: Any) -> Size:
    """Queries of a block: fewer than a step's where there are not so many."""
    n = size_of(q.shape[2])
    if isinstance(n, int):
        return min(n, next(rows for start, rows in _QUERIES if n >= start))
    import sympy

    steps = [(_at_most(n, rows), n >= start) for start, rows in _QUERIES[:-1]]
    return sympy.Piecewise(*steps, (_at_most(n, _QUERIES[-1][1]), True))


def _at_most_threads(q: Any) -> Size:
    """Threads that have a head to work on."""
    return _at_most(size_of(q.shape[0]) * size_of(q.shape[1]), threads())


def _at_most(value: Size, limit: int) -> Size:
    if isinstance(value, int):
        return min(value, limit)
    import sympy

    return sympy.Min(value, limit)
