"""Losses on the way to a gradient."""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.table import OTHER, A, Counts, D, M, entries, rule, summed
from attnprof.trace.sizes import numel

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
