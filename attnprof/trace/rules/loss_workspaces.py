"""Memory that losses, medians and batch norms take inside themselves on CPU."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import copied, is_contiguous, layout, same
from attnprof.trace.rules.workspaces import workspace
from attnprof.trace.sizes import nbytes, size_of

#: torch's number for no reduction.
_NONE = 0


@workspace("binary_cross_entropy_with_logits")
def _entropy_of_logits(
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
