"""Sums, extremes, moments, cumulative operations: what takes many entries to fewer; distances."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.products import macs_sums, scaled
from attnprof.trace.rules.table import (
    OTHER,
    A,
    Counts,
    D,
    M,
    entries,
    first_of,
    per_entry,
    rule,
    summed,
)
from attnprof.trace.sizes import is_floating, numel, size_of, smaller


@rule("sum", "cumsum", "nansum", "sum_to_size", "_grad_sum_to_size")
def _summed(_out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    return macs_sums(a, numel(a))


@rule("trace")
def _trace(out: Any, a: Any) -> Counts:
    """The diagonal: min(rows, columns) entries."""
    return macs_sums(out, smaller(size_of(a.shape[0]), size_of(a.shape[1])))


@rule("mean")
def _mean(out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    """A sum, and a division a result (two of a complex one)."""
    return summed(macs_sums(a, numel(a)), {D: numel(out) * (2 if out.is_complex() else 1)})


@rule("prod", "cumprod")
def _multiplied(_out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    return scaled(a, numel(a))


def moments(count: Size, rows: Size) -> Counts:
    """Mean and variance by definition: a mean of the entries, one of squared deviations."""
    return {A: 3 * count, M: count, D: 2 * rows}


@rule("var", "var_mean")
def _variance(out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts | None:
    return None if a.is_complex() else moments(numel(a), numel(first_of(out)))


@rule("std", "std_mean")
def _deviation(out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts | None:
    """The variance, and its root."""
    if a.is_complex():
        return None
    rows = numel(first_of(out))
    return {**moments(numel(a), rows), OTHER: rows}


@rule("linalg_vector_norm", "norm")
def _norm(out: Any, a: Any, order: Any = 2, *_rest: Any, **_named: Any) -> Counts | None:
    return None if a.is_complex() else p_norm(numel(a), numel(out), 2 if order is None else order)


@rule("dist")
def _distance(_out: Any, a: Any, b: Any, order: Any = 2) -> Counts | None:
    if a.shape != b.shape:
        return None
    return summed({A: numel(a)}, p_norm(numel(a), 1, order))


def p_norm(count: Size, rows: Size, order: float) -> Counts:
    """Norms of ``rows`` groups of entries, ``count`` entries in all."""
    if order == 2:
        return {M: count, A: count, OTHER: rows}
    if order == 1:
        return {A: count, OTHER: count}
    if order == 0:  # entries that are not zero
        return {A: count, OTHER: count}
    if abs(order) == float("inf"):
        return {OTHER: 2 * count}
    return {A: count, OTHER: 2 * count + rows}


@rule("amax", "amin", "max", "min", "argmax", "argmin", "cummax", "cummin", "_cummax_helper",
      "_cummin_helper")  # fmt: skip
def _extreme(out: Any, a: Any, *rest: Any, **_named: Any) -> Counts:
    """A comparison an entry; of two tensors, one a result."""
    if rest and hasattr(rest[0], "shape"):
        return entries(numel(out), real=is_floating(a), other=1)
    return entries(numel(a), real=is_floating(a), other=1)


@rule("aminmax", "_aminmax")
def _extremes(_out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    return entries(numel(a), real=is_floating(a), other=2)


# maximum, minimum, log1p; their difference, its exponential, the sum
per_entry("logcumsumexp _logcumsumexp", other=3, additions=2, exponentials=1)


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
