"""Matrix products in every spelling."""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.table import A, Counts, M, product_counts, rule, summed
from attnprof.trace.sizes import numel, size_of


@rule("mm", "bmm")
def _product(_out: Any, a: Any, b: Any, **_named: Any) -> Counts:
    return product_counts(numel(a) * size_of(b.shape[-1]))


@rule("mv", "dot", "vdot")
def _vector_product(_out: Any, a: Any, _b: Any) -> Counts:
    return product_counts(numel(a))


@rule("addmm", "baddbmm")
def _added_product(
    out: Any, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
) -> Counts:
    return summed(product_counts(numel(a) * size_of(b.shape[-1])), _sums(out, bias, beta, alpha))


@rule("addmv")
def _added_vector(
    out: Any, bias: Any, a: Any, _b: Any, *, beta: float = 1, alpha: float = 1
) -> Counts:
    return summed(product_counts(numel(a)), _sums(out, bias, beta, alpha))


@rule("addbmm")
def _added_batch(
    out: Any, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
) -> Counts:
    return summed(product_counts(numel(a) * size_of(b.shape[-1])), _sums(out, bias, beta, alpha))


def _sums(out: Any, bias: Any, beta: float, alpha: float) -> Counts:
    """One addition a result where something is added; a multiplication for each factor not 1."""
    factors = int(beta not in (0, 1)) * numel(bias) + int(alpha != 1) * numel(out)
    return {A: numel(out) if beta else 0, M: factors}
