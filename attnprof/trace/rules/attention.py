"""Fused attention kernels."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.table import OTHER, A, Counts, D, E, M, product_counts, rule, summed
from attnprof.trace.sizes import half, numel, product, size_of


def pairs(q: Any, k: Any, causal: bool) -> Size:
    """Query-key pairs that a kernel computes: a triangle where it is causal."""
    heads, n, m = product(q.shape[:-2]), size_of(q.shape[-2]), size_of(k.shape[-2])
    return heads * (half(n * (n + 1)) if causal else n * m)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _flash(_out: Any, q: Any, k: Any, v: Any, _dropout: float = 0.0, is_causal: bool = False,
           **_rest: Any) -> Counts:  # fmt: skip
    seen = pairs(q, k, is_causal)
    softmax = {M: seen, OTHER: seen, A: 2 * seen, E: seen, D: seen}
    return summed(softmax, product_counts(seen * size_of(q.shape[-1] + v.shape[-1])))


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_backward(_out: Any, grad: Any, q: Any, k: Any, v: Any, _y: Any, _lse: Any, _p: float,
                    is_causal: bool, **_rest: Any) -> Counts:  # fmt: skip
    seen = pairs(q, k, is_causal)
    # scale, shift by logsumexp, exp; subtract the row's sum, times weights, times scale
    entry = {M: 3 * seen, A: 2 * seen, E: seen}
    row_sums = {M: numel(grad), A: numel(grad)}
    five = product_counts(seen * size_of(3 * q.shape[-1] + 2 * v.shape[-1]))
    return summed(entry, row_sums, five)
