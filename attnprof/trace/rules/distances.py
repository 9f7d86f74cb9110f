"""Distances between rows, and cross products."""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.reductions import p_norm
from attnprof.trace.rules.table import OTHER, A, Counts, D, M, rule, summed
from attnprof.trace.sizes import numel, size_of


@rule("_cdist_forward")
def _distances(out: Any, a: Any, _b: Any, order: float, _mode: Any = None) -> Counts:
    """A difference for each pair and dimension, then its norm."""
    n = numel(out) * size_of(a.shape[-1])
    return summed({A: n}, p_norm(n, numel(out), order))


@rule("_cdist_backward")
def _distances_backward(
    _out: Any, grad: Any, a: Any, _b: Any, order: float, _dist: Any
) -> Counts | None:
    """(a - b)·gradient/distance, or the gradient with the difference's sign, added up."""
    n = numel(grad) * size_of(a.shape[-1])
    if order == 2:
        return {A: 2 * n, M: n, D: n}
    return {A: 2 * n, M: n, OTHER: n} if order == 1 else None


@rule("linalg_cross")
def _crossed(out: Any, *_args: Any, **_named: Any) -> Counts | None:
    return None if out.is_complex() else {M: 2 * numel(out), A: numel(out)}
