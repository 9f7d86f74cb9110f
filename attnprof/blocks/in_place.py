"""Products and softmax written where their results belong, strided places included.

A compiler that traces them takes the same values by a copy: it refuses strided places, and
removes the copy itself. In-place methods would do too, but torch's own counter of operations
overlooks those.
"""

from __future__ import annotations

import torch
from torch import Tensor


def put_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    """The products of (batch, m, k) and (batch, k, n)."""
    if torch.compiler.is_compiling():
        to.copy_(torch.bmm(a, b))
    else:
        torch.bmm(a, b, out=to)


def add_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    """The same, added to what is there."""
    if torch.compiler.is_compiling():
        to.copy_(torch.baddbmm(to, a, b))
    else:
        torch.baddbmm(to, a, b, out=to)


def add_scaled_product(to: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> None:
    """``beta`` times what is there, plus ``alpha`` times the products."""
    if torch.compiler.is_compiling():
        to.copy_(torch.baddbmm(to, a, b, beta=beta, alpha=alpha))
    else:
        torch.baddbmm(to, a, b, beta=beta, alpha=alpha, out=to)


def put_entries(to: Tensor, a: Tensor, b: Tensor | float) -> None:
    """A times b, entry by entry."""
    if torch.compiler.is_compiling():
        to.copy_(a * b)
    else:
        torch.mul(a, b, out=to)


def softmax_(scores: Tensor) -> None:
    """Softmax over the last axis of contiguous scores, in their own memory."""
    torch.ops.aten._softmax.out(scores, -1, False, out=scores)  # noqa: SLF001 - an operation


def softmax_grad_(grad: Tensor, weights: Tensor) -> None:
    """Gradient of the scores from that of the weights, in the memory of the latter."""
    run = torch.ops.aten._softmax_backward_data.out  # noqa: SLF001 - an operation
    run(grad, weights, -1, grad.dtype, grad_input=grad)
