"""Sums, maxima, norms, softmax: what takes many entries to fewer."""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.table import OTHER, A, Counts, D, M, per_entry, rule
from attnprof.trace.sizes import is_floating, numel


@rule("sum", "cumsum", "nansum")
def _summed(_out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    if not is_floating(a):
        return {}
    return {A: numel(a) * (2 if a.is_complex() else 1)}


@rule("scatter_add", "index_add")
def _scattered(_out: Any, _a: Any, _dim: Any, _index: Any, source: Any, **_named: Any) -> Counts:
    return {A: numel(source)} if is_floating(source) else {}


@rule("mean")
def _mean(out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    return {A: numel(a), D: numel(out)}


@rule("linalg_vector_norm")
def _norm(out: Any, a: Any, order: Any = 2, *_rest: Any, **_named: Any) -> Counts:
    return {M: numel(a), A: numel(a), OTHER: numel(out)} if order == 2 else {}


@rule("amax", "amin", "max", "min", "argmax", "argmin", "cummax", "cummin", "aminmax")
def _extreme(_out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    return {OTHER: numel(a)} if is_floating(a) else {}


per_entry("_softmax", other=1, additions=2, exponentials=1, divisions=1)
per_entry("_softmax_backward_data", multiplications=2, additions=2)
