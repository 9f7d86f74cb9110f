"""Operations entry by entry and along axes, with the backward pass that torch runs for them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attnprof.costs import Cost, Number, more_than_one, same_size
from attnprof.ops.base import Base
from attnprof.ops.layout import Shape, product
from attnprof.ops.shaped import Shaped
from attnprof.ops.shapes import empty, reshape, stretched, summed_to

T = TypeVar("T", bound=Shaped)

ADD, TIMES, OVER = Cost(additions=1), Cost(multiplications=1), Cost(divisions=1)
EXP, OTHER = Cost(exponentials=1), Cost(other=1)
LERP = Cost(additions=2, multiplications=1)  #: x + weight · (end - x)
SIGMOID = Cost(exponentials=1, additions=1, divisions=1)
#: grad · y · (1 - y), or grad · (1 - y²), of a result y
SQUASHED = Cost(additions=1, multiplications=2)
SILU_BACKWARD = Cost(exponentials=1, additions=3, divisions=1, multiplications=3)
#: log(1 + exp(x)) and grad · z / (z + 1) of z = exp(x), each with its threshold and factor.
SOFTPLUS = Cost(multiplications=1, exponentials=1, divisions=1, other=2)
SOFTPLUS_BACKWARD = Cost(multiplications=2, exponentials=1, divisions=1, additions=1, other=1)
#: Max, shift, exponential, sum, division an entry.
SOFTMAX = Cost(additions=2, exponentials=1, divisions=1, other=1)
#: (grad - sum(grad * p)) * p, an entry.
SOFTMAX_BACKWARD = Cost(multiplications=2, additions=2)
#: Bytes of a number that autograd keeps as a tensor of its own.
NUMBER = 8


def entrywise(
    name: str,
    per_entry: Cost,
    *operands: T,
    into: T | None = None,
    item_size: int = 0,
    whole: bool | None = None,
    backward: Callable[[Any], Sequence[Base | None]] | None = None,
    keeps: Number = 0,
) -> T:
    """One operation an entry of operands that broadcast; laid out as the first of full shape.

    In place, operands of fewer digits are copied to the format of ``into`` inside the kernel.
    Whole numbers with others give others.
    """
    lead = next((x for x in operands if not x.whole), operands[0])
    shape = stretched(*[x.shape for x in operands])
    full = (x for x in operands if x.dim() == len(shape) and all(map(same_size, x.shape, shape)))
    layout = next((x.layout.dense(shape) for x in full), None)
    to = into or lead
    fewer = [x for x in operands if 1 < x.item_size < to.item_size] if into else []
    copies = sum([x.count * to.item_size for x in fewer])
    return lead.result(
        name, shape, per_entry * product(shape), operands, backward=backward, layout=layout,
        into=into, item_size=item_size, whole=whole, keeps=keeps, workspace=copies,
    )  # fmt: skip


def scaled(name: str, x: T, per_entry: Cost, into: T | None = None) -> T:
    """Times or divided by a number; so is the gradient. A mask becomes whole numbers."""
    number = x.counter.bytes_of(NUMBER)
    size = number if x.whole and x.item_size == 1 else 0
    keeps: Number = NUMBER if x.item_size > 1 else 1

    def backward(grad: T) -> list[T]:
        return [scaled(f"{name}: grad", grad, per_entry)]

    return entrywise(name, per_entry, x, backward=backward, into=into, item_size=size, keeps=keeps)


def added(
    name: str,
    x: T,
    other: T | float,
    *,
    into: T | None = None,
    alpha: float = 1,
    minus: bool = False,
) -> T:
    """The sum or difference of what broadcasts, or with a number; gradients are summed back."""
    if not isinstance(other, Base):
        return entrywise(name, ADD, x, backward=lambda grad: [grad], into=into)
    shapes = x.shape, other.shape
    factor = TIMES if alpha != 1 else Cost()

    def backward(grad: T) -> list[T]:
        second = grad
        if minus or alpha != 1:
            second = entrywise(f"{name}: grad", TIMES if alpha != 1 else OTHER, grad)
        to_x = summed_to(f"{name}: grad", grad, shapes[0])
        return [to_x, summed_to(f"{name}: grad", second, shapes[1])]

    return entrywise(name, ADD + factor, x, other, backward=backward, into=into)


def row_added(name: str, x: T, row: T) -> T:
    """Plus one row (b, 1, d) for all of (b, n, d), in place.

    The row's gradient has memory of its own for one row, too: torch shares it then, and for
    that adds to it elsewhere.
    """
    shape = row.shape
    several = more_than_one(x.shape[1])

    def backward(grad: T) -> list[T]:
        outputs = product(shape)
        moved = (grad.count + outputs) * grad.item_size
        cost = Cost(additions=grad.count, reduction_outputs=outputs, bytes_moved=moved) * several
        return [grad, empty(f"{name}: grad", grad, shape, cost=cost)]

    return entrywise(name, ADD, x, row, backward=backward, into=x)


def multiplied(name: str, x: T, other: T | float, *, into: T | None = None) -> T:
    """The product of what broadcasts, or with a number; operands are saved for gradients."""
    if not isinstance(other, Base):
        return scaled(name, x, TIMES, into)
    shapes = x.shape, other.shape
    saved = x if other.requires_grad else None, other if x.requires_grad else None

    def backward(grad: T) -> list[T | None]:
        factors = saved[1], saved[0]
        grads = [f and entrywise(f"{name}: grad", TIMES, grad, f) for f in factors]
        return [
            to and summed_to(f"{name}: grad", to, shape)
            for to, shape in zip(grads, shapes, strict=True)
        ]

    return entrywise(name, TIMES, x, other, backward=backward, into=into)


def divided(name: str, x: T, other: T | float, *, into: T | None = None) -> T:
    """The quotient of what broadcasts, or by a number.

    The divisor's gradient is -grad · ((x / other) / other).
    """
    if not isinstance(other, Base):
        return scaled(name, x, OVER, into)
    shapes = x.shape, other.shape
    saved, divisor = x if other.requires_grad else None, other

    def backward(grad: T) -> list[T | None]:
        to_x = to_other = None
        if saved is not None:
            # all three live until the product is there, as they do in torch
            once = entrywise(f"{name}: grad", OVER, saved, divisor)
            twice = entrywise(f"{name}: grad", OVER, once, divisor)
            minus = entrywise(f"{name}: grad", OTHER, grad)
            to_other = entrywise(f"{name}: grad", TIMES, minus, twice)
            del once, twice, minus
            to_other = summed_to(f"{name}: grad", to_other, shapes[1])
        to_x = entrywise(f"{name}: grad", OVER, grad, divisor)
        return [summed_to(f"{name}: grad", to_x, shapes[0]), to_other]

    return entrywise(name, OVER, x, other, backward=backward, into=into)


def softplus(name: str, x: T) -> T:
    """log(1 + exp(x)); its gradient is made from x."""

    def backward(grad: T) -> list[T]:
        return [entrywise(f"{name}: grad", SOFTPLUS_BACKWARD, grad, x)]

    return entrywise(name, SOFTPLUS, x, backward=backward)


def masked(name: str, x: T, mask: T, _value: float = 0, *, into: T | None = None) -> T:
    """Overwritten where a mask is set: no FLOPs; the gradient is masked into a new tensor."""

    def backward(grad: T) -> list[T | None]:
        return [masked(f"{name}: grad", grad, mask), None]

    return entrywise(name, Cost(), x, mask, backward=backward, into=into)


def softmax(name: str, x: T, dim: int = -1, *, into: T | None = None) -> T:  # noqa: ARG001
    """Softmax along an axis; autograd keeps its result."""
    kept: list[T] = []

    def backward(grad: T) -> list[T]:
        cost = SOFTMAX_BACKWARD * grad.count
        return [grad.result(f"{name}: grad", grad.shape, cost, [grad, kept[0]])]

    out = x.result(name, x.shape, SOFTMAX * x.count, [x], backward=backward, into=into)
    if out.requires_grad:
        kept.append(out.detach())
    return out


def cast(name: str, x: T, item_size: int) -> T:
    """In a format of so many bytes a number: a copy where that is another one; else itself."""
    if x.item_size == item_size:
        return x
    before = x.item_size
    return x.result(
        name, x.shape, Cost(), [x], backward=lambda grad: [cast(name, grad, before)],
        layout=x.layout, item_size=item_size,
    )  # fmt: skip


def triangle(name: str, x: T, diagonal: int = 0, *, into: T | None = None) -> T:  # noqa: ARG001
    """Without what lies on one side of a diagonal; the gradient is cut the same way."""

    def backward(grad: T) -> list[T]:
        return [triangle(f"{name}: grad", grad)]

    return x.result(name, x.shape, Cost(), [x], backward=backward, into=into)


# -- along axes ------------------------------------------------------------------------------
def without(shape: Shape, dims: int | Sequence[int], keepdim: bool) -> Shape:
    """The shape without one dimension, or some, or with one entry there."""
    gone = {dim % len(shape) for dim in ([dims] if isinstance(dims, int) else dims)}
    kept = (1 if place in gone else size for place, size in enumerate(shape))
    return tuple(s for place, s in enumerate(kept) if keepdim or place not in gone)


def summed(name: str, x: T, dims: int | Sequence[int], keepdim: bool, *, mean: bool = False) -> T:
    """The sum, or the mean, over some axes; its gradient is stretched, and divided for a mean."""
    old, kept = x.shape, without(x.shape, dims, keepdim=True)
    shape = without(old, dims, keepdim)
    outputs = product(shape)
    cost = Cost(additions=x.count, reduction_outputs=outputs)

    def backward(grad: T) -> list[T]:
        full = reshape("unsqueeze", grad, kept).expand(old)
        return [entrywise(f"{name}: grad", OVER, full) if mean else full]

    cost = cost + Cost(divisions=outputs if mean else 0)
    return x.result(name, shape, cost, [x], backward=backward)
