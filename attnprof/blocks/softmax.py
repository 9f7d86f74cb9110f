"""Softmax attention over scores that are written out, one text for torch and for the counter."""

from __future__ import annotations

from typing import Any

from attnprof.ops.functional import square_root


def causal_mask(n: Any, like: Any) -> Any:
    """(n, n) booleans, True above the diagonal: what a row must not see."""
    return like.new_ones(n, n, dtype=bool).triu_(1)


def weighted_values(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Rows of softmax((q / sqrt d) kᵀ) v; q (b, r·n, d), k (b, m, d), v (b, m, dv).

    ``mask`` (r·n, m) is True where a row must not look. Queries are scaled and not scores: d
    entries a row, forward and backward, where scores would be m.
    """
    scaling = q / square_root(q.shape[-1])
    scores = scaling.bmm(k.transpose(1, 2))
    del scaling
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    softmax = scores.softmax(-1)
    del scores
    return softmax.bmm(v)
