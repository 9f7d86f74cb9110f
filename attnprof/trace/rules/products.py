"""Matrix products in every spelling; integer ones count nothing."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.table import OTHER, A, Counts, M, product_counts, rule, summed
from attnprof.trace.sizes import is_floating, numel, product, size_of


def macs_counts(out: Any, macs: Size) -> Counts:
    """So many multiply-adds of the result's kind of number."""
    if not is_floating(out):
        return {}
    return product_counts(macs, of_complex=out.is_complex())


@rule("mm", "bmm", "mv", "dot", "vdot")
def _product(out: Any, a: Any, b: Any, **_named: Any) -> Counts:
    columns = size_of(b.shape[-1]) if b.dim() > 1 else 1
    return macs_counts(out, numel(a) * columns)


@rule("addmm", "baddbmm", "addbmm", "addmv")
def _added_product(
    out: Any, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
) -> Counts:
    return summed(_product(out, a, b), _sums(out, bias, beta, alpha))


@rule("_addmm_activation")
def _activated_product(
    out: Any, bias: Any, a: Any, b: Any, *, use_gelu: bool = False, **factors: float
) -> Counts:
    """The activation is ReLU, or GELU by erf as on a CPU."""
    n = numel(out)
    activation = {M: 3 * n, A: n, OTHER: n} if use_gelu else {OTHER: n}
    return summed(_added_product(out, bias, a, b, **factors), activation)


@rule("addr")
def _added_outer(
    out: Any, bias: Any, _a: Any, _b: Any, *, beta: float = 1, alpha: float = 1
) -> Counts:
    """An outer product is entry by entry: no sums of products."""
    return summed(scaled(out, numel(out)), _sums(out, bias, beta, alpha))


@rule("linear", "mkldnn_linear")
def _linear(out: Any, x: Any, weight: Any, bias: Any = None) -> Counts:
    macs = macs_counts(out, numel(x) * (size_of(weight.shape[0]) if weight.dim() > 1 else 1))
    return macs if bias is None else summed(macs, _sums(out, bias, 1, 1))


@rule("linear_backward")
def _linear_backward(_out: Any, x: Any, grad: Any, weight: Any, mask: Any) -> Counts:
    one = numel(x) * size_of(weight.shape[0])
    return summed(
        *(macs_counts(grad, one) for asked in mask[:2] if asked),
        {A: numel(grad)} if mask[2] else {},
    )


@rule("_trilinear")
def _trilinear(
    out: Any, i1: Any, i2: Any, i3: Any, e1: Any, e2: Any, e3: Any, sumdim: Any, unroll: int = 1
) -> Counts:
    """Two products: the first with the second, summed over what the third does not have."""
    one, two, three = (_spread(*pair) for pair in ((i1, e1), (i2, e2), (i3, e3)))
    both = [b if a is None else a for a, b in zip(one, two, strict=True)]
    first = product(1 if size is None else size for size in both)
    kept = [
        c if place in sumdim and c is None else (c if a is None else a)
        for place, (a, c) in enumerate(zip(both, three, strict=True))
    ]
    second = product(1 if size is None else size for size in kept)
    counts = summed(macs_counts(out, first), macs_counts(out, second))
    return (
        summed(counts, macs_sums(out, numel(out) * size_of(both[unroll])))
        if (unroll in sumdim)
        else counts
    )


def _spread(tensor: Any, expanded: Any) -> list[Any]:
    """Sizes by dimension, None where the tensor is expanded."""
    sizes = list(tensor.shape)
    for place in sorted(expanded):
        sizes.insert(place, None)
    return sizes


def is_factor(value: Any) -> bool:
    """Whether a scalar costs a multiplication: 1 changes nothing, -1 only a sign.

    One that is computed from symbolic sizes is a factor; comparing it would fix the sizes.
    """
    return hasattr(value, "node") or bool(abs(value) != 1)


def scaled(out: Any, count: Size) -> Counts:
    """So many products of two numbers of the result's kind."""
    if out.is_complex():
        return {M: 4 * count, A: 2 * count}
    return {M: count} if out.is_floating_point() else {}


def macs_sums(out: Any, count: Size) -> Counts:
    """So many sums of two numbers of the result's kind."""
    if not is_floating(out):
        return {}
    return {A: count * (2 if out.is_complex() else 1)}


def _sums(out: Any, bias: Any, beta: float, alpha: float) -> Counts:
    """One addition a result where something is added; a multiplication for each factor not 1."""
    added = macs_sums(out, numel(out)) if beta != 0 else {}
    weighted = scaled(out, numel(bias)) if beta != 0 and is_factor(beta) else {}
    return summed(added, weighted, scaled(out, numel(out)) if is_factor(alpha) else {})
