"""Losses on the way to a gradient; what their kernels, medians and batch norms take inside."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import copied, is_contiguous, layout, same
from attnprof.trace.rules.table import OTHER, A, Counts, D, M, entries, rule, summed
from attnprof.trace.rules.workspaces import workspace
from attnprof.trace.sizes import nbytes, numel, size_of

#: torch's numbers for a reduction: none, mean, sum.
_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(count: Any, reduction: int) -> Counts:
    return summed({A: count} if reduction != _NONE else {}, {D: 1} if reduction == _MEAN else {})


@rule("mse_loss")
def _squares(_out: Any, x: Any, _target: Any, reduction: int = _MEAN) -> Counts:
    return summed({A: numel(x), M: numel(x)}, _reduced(numel(x), reduction))


@rule("mse_loss_backward")
def _squares_backward(out: Any, *_args: Any) -> Counts:
    """2/n·(x - target)·gradient."""
    return {A: numel(out), M: 2 * numel(out)}


@rule("nll_loss_forward", "nll_loss2d_forward")
def _likelihood(
    _out: Any, _x: Any, target: Any, weight: Any, reduction: int, _ignored: Any
) -> Counts:
    """The target's entry with its sign changed, weighted, averaged."""
    n = numel(target)
    weighted = {M: n} if weight is not None else {}
    return summed({OTHER: n} if reduction == _NONE else {}, weighted, _reduced(n, reduction))


@rule("nll_loss_backward", "nll_loss2d_backward")
def _likelihood_backward(
    _out: Any, grad: Any, _x: Any, target: Any, weight: Any, reduction: int, *_rest: Any
) -> Counts:
    """One value for all targets: the gradient over their number, its sign changed."""
    weighted = {M: numel(target)} if weight is not None else {}
    return summed({OTHER: numel(grad), D: numel(grad) if reduction == _MEAN else 0}, weighted)


@rule("binary_cross_entropy")
def _entropy(_out: Any, x: Any, _target: Any, weight: Any = None, reduction: int = _MEAN) -> Counts:
    """(t - 1)·max(log(1 - x), -100) - t·max(log x, -100)."""
    each = entries(numel(x), additions=2, multiplications=2, other=4)
    weighted = {M: numel(x)} if weight is not None else {}
    return summed(each, weighted, _reduced(numel(x), reduction))


@rule("binary_cross_entropy_backward")
def _entropy_backward(
    out: Any, _grad: Any, _x: Any, _target: Any, weight: Any = None, reduction: int = _MEAN
) -> Counts:
    """gradient·(x - t)/max((1 - x)·x, ε), over the number of entries."""
    each = entries(numel(out), additions=2, multiplications=2, divisions=1, other=1)
    weighted = {M: numel(out)} if weight is not None else {}
    return summed(each, weighted, {D: numel(out)} if reduction == _MEAN else {})


@rule("binary_cross_entropy_with_logits")
def _entropy_of_logits(
    _out: Any, x: Any, _target: Any, weight: Any = None, positive: Any = None,
    reduction: int = _MEAN,
) -> Counts | None:  # fmt: skip
    """(1 - t)·x - log sigmoid(x); weights of positive entries are not known here."""
    if positive is not None:
        return None
    each = entries(numel(x), additions=3, multiplications=1, exponentials=1, other=3)
    weighted = {M: numel(x)} if weight is not None else {}
    return summed(each, weighted, _reduced(numel(x), reduction))


@workspace("binary_cross_entropy_with_logits")
def _entropy_of_logits_inside(
    _out: Any, x: Any, _target: Any, _weight: Any, positive: Any, reduction: int
) -> Size:
    """The sigmoid's logarithms and what they are made of, of a copy, or the weights less one.

    The losses are in it if they are added up.
    """
    weights = 0 if positive is None else nbytes(positive)
    return (copied(x) or weights) + nbytes(x) * (1 if reduction == _NONE else 2)


@workspace("mse_loss smooth_l1_loss huber_loss")
def _distances(_out: Any, x: Any, _target: Any, reduction: int, *_rest: Any) -> Size:
    """The losses, if those are added up."""
    return 0 if reduction == _NONE else nbytes(x)


@workspace("soft_margin_loss_backward")
def _margin_backward(_out: Any, _grad: Any, x: Any, *_rest: Any) -> Size:
    """Exponentials, and those plus one."""
    return 2 * nbytes(x)


@workspace("median nanmedian")
def _middle(_out: Any, a: Any, dim: int | None = None, *_rest: Any) -> Size:
    """A copy that is partitioned; along a dimension that lies in order it is a result."""
    if dim is None:
        return nbytes(a)
    ordered = not a.dim() or same(layout(a)[dim][1], 1)
    return 0 if ordered else nbytes(a)


@workspace("native_batch_norm_backward")
def _batch_norm_backward(_out: Any, grad: Any, a: Any, *rest: Any) -> Size:
    """Tensors in order: a gradient of that layout; others: a sum for each channel."""
    if not (is_contiguous(grad) and is_contiguous(a)):
        return size_of(a.shape[1]) * max(4, a.element_size())
    return nbytes(a) if rest[-1][0] else 0
