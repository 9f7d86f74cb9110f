"""Softmax attention over scores that are written out, on a tape."""

from __future__ import annotations

from attnprof.costs import Cost, Number, is_plain, more_than_one
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape


def causal_mask(tape: Tape, n: Number, group: Number = 1) -> Tensor:
    """(group·n, n) booleans, a byte each; filled, cut to a triangle, repeated for grouped heads."""
    mask = tape.emit("causal mask", (n, n), Cost(bytes_moved=2 * n * n), item_size=1)
    if is_plain(group) and group == 1:
        return mask
    many, size = more_than_one(group), group * n * n
    moved, shape = Cost(bytes_moved=many * (n * n + size)), (group * n, n)
    tape.record("mask a group", shape, moved, many * size, frees=many * n * n)
    mask.shape, mask.storage.size = shape, size
    return mask


def weighted_values(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    columns: bool = False,
) -> Tensor:
    """Rows of softmax((q / sqrt d) kᵀ) v; ``columns``: v comes as (batch, d, m)."""
    scaled = tape.scale("scaling", q, divide=True)
    scores = tape.bmm("scores", scaled, k, tb=True)
    tape.free(scaled)
    if mask is not None:
        scores = tape.masked_fill("masking", scores, mask)
    weights = tape.softmax("softmax", scores)
    tape.free(scores)
    out = tape.bmm("weighted values", weights, v, tb=columns)
    tape.free(weights)
    return out
