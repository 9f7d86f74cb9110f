"""Rules for fused attention kernels on CPU and CUDA, and the scratch memory of those on the CPU.

A causal kernel counts the triangle of pairs that its rows see, whatever blocks it computes. Scratch
memory is that of torch's ``FlashAttentionKernel.cpp``: each thread has a block of scores in the
format of sums; for half-precision inputs also a block in that format.
"""

from collections.abc import Callable
from typing import Any

from torch import get_num_threads as threads

from attnprof.costs import exact_div, minimum
from attnprof.trace.events import Size
from attnprof.trace.rules.table import OperationRule, rules
from attnprof.trace.rules.units import MAC, OTHER, A, Counts, D, E, M
from attnprof.trace.rules.workspaces import copied, sum_width, workspaces
from attnprof.trace.sizes import is_floating, numel, product, size_of

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


def forward_counts(seen: Size, q: Any, v: Any, call: Any) -> Counts:
    """Count a forward pass on ``seen`` pairs: scaled scores, softmax, and two products.

    A pair's score is scaled, compared, shifted, exponentiated, summed and divided; a mask of
    numbers and dropout add to that.
    """
    each = M + OTHER + 2 * A + E + D + _extras(call, 1)
    return each * seen + MAC * (seen * size_of(q.shape[-1] + v.shape[-1]))


def backward_counts(seen: Size, q: Any, v: Any, call: Any) -> Counts:
    """Count a backward pass on ``seen`` pairs: weights computed again, and five products.

    Of each row the output's gradient times the output is summed.
    """
    grad = call.grad_out if hasattr(call, "grad_out") else call.grad_out_
    each = 3 * M + 2 * A + E + _extras(call, 2)
    five = MAC * (seen * size_of(3 * q.shape[-1] + 2 * v.shape[-1]))
    return each * seen + five + (M + A) * numel(grad)


def _extras(call: Any, dropped: int) -> Counts:
    """Count an addition a pair for a mask of numbers, a multiplication for each use of dropout."""
    masks = (getattr(call, name, None) for name in ("attn_mask", "attn_bias", "bias"))
    masked = any(mask is not None and is_floating(mask) for mask in masks)
    return A * masked + M * (dropped if call.dropout_p else 0)


def _kernel(count: Callable[..., Counts], corner: str = TOP_LEFT) -> OperationRule:
    """Return a rule for kernels on (batch, heads, tokens, width)."""

    def counts(_out: Any, call: Any) -> Counts:
        seen = pairs(call.query, call.key, call.is_causal, corner)
        return count(seen, call.query, call.value, call)

    return counts


def _tokens_first(count: Callable[..., Counts]) -> OperationRule:
    """Return a rule for kernels on (batch, tokens, heads, width), inside torch's others.

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
    return threads() * rows * (sum_width(q) * (keys + 2 + width) + (2 * keys if half else 0))


def _backward_scratch(_out: Any, call: Any) -> Size:
    """Return bytes of a block's weights and their gradients for each thread, and row sums.

    A thread works on a head; the gradient is copied unless heads lie inside tokens.
    """
    q = call.query
    rows, keys, half = _block(q), minimum(size_of(call.key.shape[2]), _KEYS), q.element_size() == 2
    blocks = threads() * rows * keys * 2 * (sum_width(q) + (2 if half else 0))
    busy = minimum(size_of(q.shape[0]) * size_of(q.shape[1]), threads())
    return blocks + busy * rows * sum_width(q) + copied(call.grad_out.transpose(1, 2))


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
