"""A row-stochastic matrix's pseudo-inverse times a thin matrix, without the inverse itself.

With Y = AZ the cubic iteration Z <- Z (13 I - Y (15 I - Y (7 I - Y))) / 4 needs no Z on the way:

    Y <- (13 Y - 15 Y² + Y² (7 Y - Y²)) / 4,

and Y stays symmetric, as it starts: A Aᵀ / c. The inverse times C is Z₀ = Aᵀ / c times the
polynomials of all Y times C, in any order, for they commute: two full products an iteration and
thin ones for C. The backward pass uses the symmetry too: three full products an iteration.

Errors of Y are not undone as they are where AZ is multiplied anew: in float32 the result is good
to about 1e-5 of its norm, not 1e-6. Formats of fewer digits are widened to float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnprof.blocks.autocast import apply
from attnprof.blocks.in_place import add_product, add_scaled_product


@dataclass
class _Kept:
    """What a backward pass needs: Y and Y² of every step, and its thin matrices."""

    products: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)
    thin: list[Tensor] = field(default_factory=list)

    def keep(self, y: Tensor, square: Tensor | None, *thin: Tensor) -> None:
        """One step."""
        self.products.append(y)
        self.squares += [] if square is None else [square]
        self.thin += thin


def _next(x: Tensor, yx: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """(13 x - 15 yx - Y² (yx - 7 x)) / 4, and yx - 7 x; x thin or Y itself."""
    inner = torch.sub(yx, x, alpha=7.0)
    out = torch.lerp(x, yx, 7.5)  # (15 yx - 13 x) / 2
    add_scaled_product(out, square, inner, -0.5, -0.25)
    return out, inner


def _run(a: Tensor, x: Tensor, scale: Tensor, iterations: int, kept: _Kept | None) -> Tensor:
    """All polynomials times x."""
    y = torch.bmm(a, a.transpose(1, 2)).mul_(scale)
    for _ in range(iterations - 1):
        square = torch.bmm(y, y)
        out, inner = _next(x, torch.bmm(y, x), square)
        if kept is not None:
            kept.keep(y, square, x, inner)
        x = out
        del out, inner
        y = _next(y, square, square)[0]
        del square
    yx = torch.bmm(y, x)
    inner = torch.sub(yx, x, alpha=7.0)
    outer = torch.bmm(y, inner)
    out = torch.lerp(x, yx, 7.5)
    add_scaled_product(out, y, outer, -0.5, -0.25)
    if kept is not None:
        kept.keep(y, None, x, inner, outer)
    return out


def _wide(x: Tensor) -> Tensor:
    """In float32 at least: the iteration needs its digits."""
    return x.float() if x.element_size() < 4 else x


class _InverseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor, iterations: int, keep: bool) -> Tensor:
        given, a, x = a.dtype, _wide(a), _wide(x)
        # over the largest column sum; the largest row sum is one
        scale = a.sum(1).amax(1).view(-1, 1, 1).reciprocal()
        kept = _Kept() if keep else None
        last = _run(a, x, scale, iterations, kept)
        out = torch.bmm(a.transpose(1, 2), last).mul_(scale)
        if kept is not None:
            ctx.save_for_backward(a, scale, out, last, *kept.products, *kept.squares, *kept.thin)
            ctx.iterations = iterations
        return out.to(given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, scale, out, last, *rest = ctx.saved_tensors
        given, grad = grad.dtype, _wide(grad)
        steps = ctx.iterations
        kept = _Kept(rest[:steps], rest[steps : 2 * steps - 1], rest[2 * steps - 1 :])
        to_scale = (grad * out).sum((1, 2), keepdim=True).div_(scale)
        above = grad * scale
        to_a = torch.bmm(last, above.transpose(1, 2))
        to_y, to_x = _last_step(kept, torch.bmm(a, above))
        del above
        for step in reversed(range(steps - 1)):
            to_y, to_x = _step(kept, step, to_y, to_x)
        both = torch.bmm(to_y + to_y.transpose(1, 2), a)
        del to_y
        to_scale.add_((both * a).sum((1, 2), keepdim=True), alpha=0.5)
        to_a.add_(both.mul_(scale))
        del both
        to_a.add_(_columns(a, scale, to_scale))
        return to_a.to(given), to_x.to(given), None, None


def _last_step(kept: _Kept, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of Y and x through (13 x - 15 Yx - Y (Y (Yx - 7 x))) / 4."""
    y, (x, inner, outer) = kept.products[-1], kept.thin[-3:]
    quarter = grad * -0.25
    to_outer = torch.bmm(y, quarter)
    to_inner = torch.bmm(y, to_outer)
    to_y = torch.bmm(quarter, outer.transpose(1, 2))
    add_product(to_y, to_outer, inner.transpose(1, 2))
    return _through(y, x, (quarter, to_inner), to_y)


def _through(
    y: Tensor, x: Tensor, grads: tuple[Tensor, Tensor], to_y: Tensor
) -> tuple[Tensor, Tensor]:
    """What is left of a step: Yx, with grad = -4 quarter of 13 x - 15 Yx, that of Yx - 7 x."""
    quarter, to_inner = grads
    to_yx = torch.add(to_inner, quarter, alpha=15.0)
    add_product(to_y, to_yx, x.transpose(1, 2))
    to_x = quarter.mul_(-13.0).sub_(to_inner, alpha=7.0)
    add_product(to_x, y, to_yx)
    return to_y, to_x


def _step(kept: _Kept, step: int, to_next: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of Y and x through the step's new Y and new x.

    Products with symmetric matrices: their gradients are made symmetric instead of added twice.
    """
    y, square = kept.products[step], kept.squares[step]
    x, inner = kept.thin[2 * step : 2 * step + 2]
    quarter = grad * -0.25
    to_next = to_next + to_next.transpose(1, 2)
    to_square = torch.bmm(quarter, inner.transpose(1, 2))
    mixed = torch.sub(square, y, alpha=3.5)
    mixed.diagonal(dim1=1, dim2=2).add_(7.5)
    add_scaled_product(to_square, to_next, mixed, 1.0, -0.25)
    del mixed
    to_square = to_square + to_square.transpose(1, 2)
    to_y = torch.bmm(to_square, y)
    del to_square
    add_scaled_product(to_y, to_next, square, 1.0, 0.875)
    to_y.add_(to_next, alpha=1.625)
    return _through(y, x, (quarter, torch.bmm(square, quarter)), to_y)


def _columns(a: Tensor, scale: Tensor, to_scale: Tensor) -> Tensor:
    """(b, 1, m): gradient of the largest column sum's entries, shared where several are largest."""
    sums = a.sum(1, keepdim=True)
    largest = sums == sums.amax(2, keepdim=True)
    share = to_scale.mul_(scale).mul_(scale).neg_().div_(largest.sum(2, keepdim=True))
    return share * largest


def inverse_product(a: Tensor, x: Tensor, iterations: int) -> Tensor:
    """Pseudo-inverse of row-stochastic (b, m, m) times (b, m, d), each of the batch by itself."""
    keep = torch.is_grad_enabled() and (a.requires_grad or x.requires_grad)
    out: Tensor = apply(_InverseProduct, a, x, iterations, keep)
    return out
