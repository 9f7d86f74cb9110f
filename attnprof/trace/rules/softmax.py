"""Softmax and what it is made of, forward and backward."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.table import OTHER, Counts, entries, per_entry, rule, summed
from attnprof.trace.sizes import numel, size_of


def rows_of(tensor: Any, dim: int) -> Size:
    """Entries over those along one dimension."""
    total: Size = 1
    last = dim % max(tensor.dim(), 1)
    for place, size in enumerate(tensor.shape):
        total = total if place == last else total * size_of(size)
    return total


@rule("_log_softmax", "log_softmax")
def _log_softmax(out: Any, x: Any, dim: int, *_rest: Any) -> Counts:
    """As softmax, with the row's logarithm subtracted in place of a division."""
    counts = entries(numel(out), other=1, additions=3, exponentials=1)
    return summed(counts, {OTHER: rows_of(x, dim)})


per_entry("_softmax softmax", other=1, additions=2, exponentials=1, divisions=1)
per_entry("_softmax_backward_data", multiplications=2, additions=2)
# the row's sum of gradients, times the softmax, subtracted
per_entry("_log_softmax_backward_data", additions=2, exponentials=1, multiplications=1)
per_entry("_masked_softmax", other=1, additions=2, exponentials=1, divisions=1)
per_entry("_masked_softmax_backward", multiplications=2, additions=2)
