"""Operations entry by entry and along an axis, with the backward pass that torch runs for them."""

from __future__ import annotations

from typing import TypeVar

from attnprof.costs import Cost, Number
from attnprof.ops.base import Base
from attnprof.ops.shapes import summed_to

T = TypeVar("T", bound=Base)

#: Max, shift, exponential, sum, division an entry.
SOFTMAX = Cost(additions=2, exponentials=1, divisions=1, other=1)
#: (grad - sum(grad * p)) * p, an entry.
SOFTMAX_BACKWARD = Cost(multiplications=2, additions=2)
#: Bytes of a number that autograd keeps as a tensor of its own.
NUMBER = 8


def scaled(name: str, x: T, per_entry: Cost, into: T | None = None) -> T:
    """Times or divided by a number; so is the gradient."""
    cost = per_entry * x.count

    def backward(grad: T) -> list[T]:
        return [grad.result(f"{name}: grad", grad.shape, cost, [grad], layout=grad.layout)]

    keeps: Number = NUMBER if x.item_size > 1 else 1
    return x.result(
        name, x.shape, cost, [x], backward=backward, layout=x.layout, into=into, keeps=keeps
    )


def added(name: str, x: T, other: T, into: T | None = None) -> T:
    """The sum, with the second stretched where it must be; its gradient is summed back."""
    shape = other.shape

    def backward(grad: T) -> list[T]:
        return [grad.detach(), summed_to(f"{name}: grad", grad, shape)]

    cost = Cost(additions=x.count)
    reads = [x, other]
    return x.result(name, x.shape, cost, reads, backward=backward, layout=x.layout, into=into)


def masked(name: str, x: T, mask: T) -> T:
    """Overwritten where a mask is set: no FLOPs; the gradient is masked into a new tensor."""

    def backward(grad: T) -> list[T | None]:
        reads = [grad, mask]
        to_x = grad.result(f"{name}: grad", grad.shape, Cost(), reads, layout=grad.layout)
        return [to_x, None]

    return x.result(name, x.shape, Cost(), [x, mask], backward=backward, into=x)


def softmax(name: str, x: T, into: T | None = None) -> T:
    """Softmax along an axis; autograd keeps its result."""
    kept: list[T] = []

    def backward(grad: T) -> list[T]:
        cost = SOFTMAX_BACKWARD * grad.count
        return [grad.result(f"{name}: grad", grad.shape, cost, [grad, kept[0]])]

    out = x.result(name, x.shape, SOFTMAX * x.count, [x], backward=backward, into=into)
    if out.requires_grad:
        kept.append(out.detach())
    return out


def copied(name: str, x: T) -> T:
    """A copy laid out row by row; the gradient passes as it is."""
    return x.result(name, x.shape, Cost(), [x], backward=lambda grad: [grad.detach()])


def triangle(name: str, x: T) -> T:
    """Without what lies above the diagonal; the gradient is cut the same way."""

    def backward(grad: T) -> list[T]:
        return [grad.result(f"{name}: grad", grad.shape, Cost(), [grad])]

    return x.result(name, x.shape, Cost(), [x], backward=backward)
