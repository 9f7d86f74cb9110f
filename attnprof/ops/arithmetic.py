"""Count entry-by-entry operations, reductions and products, each with torch's backward pass."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attnprof.costs import Cost, Number, exact_div, more_than_one, same_size
from attnprof.errors import RequestError
from attnprof.ops.base import Base
from attnprof.ops.layout import Layout, Shape, product
from attnprof.ops.shaped import Shaped
from attnprof.ops.shapes import broadcast, empty, reshape, summed_to

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
    """Count one operation per entry of operands that broadcast, laid out as the first full one.

    In place, operands of fewer digits are copied to the format of ``into`` inside the kernel.
    A result has whole numbers only if all operands have.
    """
    lead = next((x for x in operands if not x.whole), operands[0])
    shape = broadcast(*[x.shape for x in operands])
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
    """Multiply or divide by a number, the gradient too. A mask becomes whole numbers."""
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
    """Return sum or difference with a number or a tensor that broadcasts; gradients sum back."""
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
    """Add one row (b, 1, d) to all of (b, n, d), in place.

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
    """Return the product with a tensor that broadcasts or a number; gradients need both."""
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
    """Return the quotient by a tensor that broadcasts, or by a number.

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
    """Return log(1 + exp(x)); its gradient is made from x."""

    def backward(grad: T) -> list[T]:
        return [entrywise(f"{name}: grad", SOFTPLUS_BACKWARD, grad, x)]

    return entrywise(name, SOFTPLUS, x, backward=backward)


def masked(name: str, x: T, mask: T, _value: float = 0, *, into: T | None = None) -> T:
    """Overwrite entries where a mask is set: no FLOPs; the gradient is masked into a new tensor."""

    def backward(grad: T) -> list[T | None]:
        return [masked(f"{name}: grad", grad, mask), None]

    return entrywise(name, Cost(), x, mask, backward=backward, into=into)


def softmax(name: str, x: T, dim: int = -1, *, into: T | None = None) -> T:  # noqa: ARG001
    """Return softmax along an axis; autograd keeps its result."""
    kept: list[T] = []

    def backward(grad: T) -> list[T]:
        cost = SOFTMAX_BACKWARD * grad.count
        return [grad.result(f"{name}: grad", grad.shape, cost, [grad, kept[0]])]

    out = x.result(name, x.shape, SOFTMAX * x.count, [x], backward=backward, into=into)
    if out.requires_grad:
        kept.append(out.detach())
    return out


def cast(name: str, x: T, item_size: int) -> T:
    """Return x with entries of ``item_size`` bytes: a copy, or x itself if it has them already."""
    if x.item_size == item_size:
        return x
    before = x.item_size
    return x.result(
        name, x.shape, Cost(), [x], backward=lambda grad: [cast(name, grad, before)],
        layout=x.layout.dense(x.shape), item_size=item_size,
    )  # fmt: skip


def triangle(name: str, x: T, diagonal: int = 0, *, into: T | None = None) -> T:  # noqa: ARG001
    """Return x with zeros on one side of a diagonal; the gradient is cut the same way."""

    def backward(grad: T) -> list[T]:
        return [triangle(f"{name}: grad", grad)]

    return x.result(name, x.shape, Cost(), [x], backward=backward, into=into)


# -- along axes ------------------------------------------------------------------------------
def without(shape: Shape, dims: int | Sequence[int], keepdim: bool) -> Shape:
    """Return the shape without one dimension, or some, or with one entry there."""
    gone = {dim % len(shape) for dim in ([dims] if isinstance(dims, int) else dims)}
    kept = (1 if place in gone else size for place, size in enumerate(shape))
    return tuple(s for place, s in enumerate(kept) if keepdim or place not in gone)


def summed(name: str, x: T, dims: int | Sequence[int], keepdim: bool, *, mean: bool = False) -> T:
    """Return the sum, or the mean, over axes; its gradient is expanded, for a mean also divided."""
    old, kept = x.shape, without(x.shape, dims, keepdim=True)
    shape = without(old, dims, keepdim)
    outputs = product(shape)
    cost = Cost(additions=x.count, reduction_outputs=outputs)

    def backward(grad: T) -> list[T]:
        full = reshape("unsqueeze", grad, kept).expand(old)
        return [entrywise(f"{name}: grad", OVER, full) if mean else full]

    cost = cost + Cost(divisions=outputs if mean else 0)
    # torch takes a mean of few digits from copies in float32
    copies = 4 * (x.count + outputs) if mean and x.item_size == 2 else 0
    return x.result(name, shape, cost, [x], backward=backward, workspace=copies)


# -- products of matrices --------------------------------------------------------------------
def dots(outputs: Number, count: Number) -> Cost:
    """Return the cost of ``outputs`` sums of ``count`` products altogether."""
    return Cost(multiplications=count, additions=count, matmul_flops=2 * count, dot_outputs=outputs)


def product_cost(a: Shape, b: Shape) -> tuple[Shape, Cost]:
    """Return shape and cost of products of (…, m, k) and (…, k, n)."""
    shape = (*a[:-1], b[-1])
    outputs = product(shape)
    return shape, dots(outputs, outputs * a[-1])


def product_of(name: str, a: T, b: T) -> T:
    """Return products of (batch, m, k) and (batch, k, n), or the product of (m, k) and (k, n)."""
    first = a if b.requires_grad else None  # what autograd saves
    second = b if a.requires_grad else None

    def backward(grad: T) -> list[T | None]:
        to_a, to_b = f"{name}: grad of the first", f"{name}: grad of the second"
        return [
            second and product_of(to_a, grad, second.mT),
            first and product_of(to_b, first.mT, grad),
        ]

    shape, cost = product_cost(a.shape, b.shape)
    return a.result(name, shape, cost, [a, b], backward=backward)


def matmul(name: str, a: T, b: T) -> T:
    """Return products of the last two dimensions; earlier ones broadcast, by copies if needed.

    A matrix on the right takes the rows of all of the left at once, as torch does, where they lie
    one after the other or it needs a gradient.
    """
    if a.dim() == b.dim() == 2:
        return product_of(name, a, b)
    if a.dim() == 1 or b.dim() == 1:
        raise RequestError(f"{name}: the counter multiplies matrices, not vectors; unsqueeze them")
    needs_grad = b.counter.grad and b.requires_grad
    if b.dim() == 2 and (needs_grad or a.layout.folds(a.shape)):
        rows = product_of(name, reshape(f"{name}: rows", a, (-1, a.shape[-1])), b)
        return reshape(name, rows, (*a.shape[:-1], b.shape[1]))
    before = broadcast(a.shape[:-2], b.shape[:-2])
    left, right = (
        reshape(f"{name}: operand", x.expand(*before, *x.shape[-2:]), (-1, *x.shape[-2:]))
        for x in (a, b)
    )
    return reshape(name, product_of(name, left, right), (*before, a.shape[-2], b.shape[-1]))


def put_product(name: str, to: T, a: T, b: T, *, add: bool = False, factors: int = 0) -> T:
    """Write or add products of (batch, m, k) and (batch, k, n) to ``to``; no gradient.

    ``factors`` numbers multiply an entry of ``to``, or of the product.
    """
    entries = Cost(additions=1 if add else 0, multiplications=factors) * to.count
    cost = product_cost(a.shape, b.shape)[1] + entries
    return to.result(name, to.shape, cost, [to, a, b] if add else [a, b], into=to)


def linear(name: str, x: T, weight: T, bias: T | None, *, apart: Number = 0) -> T:
    """Return (…, k) times weight (n, k) transposed, plus bias: one addition a result.

    ``apart`` is 1 where the bias is added to a finished product, into memory of its own: torch does
    so where more than two dimensions do not lie in rows, as heads of width 1 after a transpose.
    """
    n, k = weight.shape
    if x.dim() != 2:
        apart = 0 if bias is None else x.layout.differs(x.shape)
        out = linear(name, reshape(f"{name}: rows", x, (-1, k)), weight, bias, apart=apart)
        return reshape(name, out, (*x.shape[:-1], n))
    reads = [x, weight] if bias is None else [x, weight, bias]
    m, has_bias, of_weight = x.shape[0], bias is not None, dots(n * k, n * k * x.shape[0])
    saved = x if weight.requires_grad else None
    saved_weight = weight if x.requires_grad else None

    def backward(grad: T) -> list[T | None]:
        to_bias = None
        if has_bias:
            cost = Cost(additions=grad.count, reduction_outputs=n)
            to_bias = grad.result(f"{name}: grad of the bias", (n,), cost, [grad])
        return [
            saved_weight and product_of(f"{name}: grad of the input", grad, saved_weight),
            saved and grad.result(f"{name}: grad of the weight", (n, k), of_weight, [grad, saved]),
            to_bias,
        ]

    again = apart * m * n * x.item_size
    cost = dots(m * n, m * n * k) + Cost(additions=m * n if has_bias else 0, bytes_moved=2 * again)
    return x.result(name, (m, n), cost, reads, backward=backward, workspace=again)


#: Backward, a score: scale, shift by the logsumexp and exp make the weight again; then
#: (grad - row sum) · weight · scale.
RECOMPUTED = Cost(multiplications=3, additions=2, exponentials=1)


def fused_attention(name: str, q: T, k: T, v: T, causal: bool) -> T:
    """Count one fused kernel: q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv).

    It keeps its output and a logsumexp a row, of float32 at least. The scaling is one
    multiplication a score, softmax counts as if written out. Backward is one kernel of five
    products, the scores among them. Results lie with the heads of a token side by side.
    """
    b, h, n, d = q.shape
    dv = v.shape[3]
    rows = b * h
    scores = rows * (exact_div(n * (n + 1), 2) if causal else n * k.shape[2])
    needs = any(tensor.requires_grad for tensor in (q, k, v))
    saved = [tensor.detach() for tensor in (q, k, v)] if needs and q.counter.grad else []

    def backward(grad: T) -> list[T]:
        out = saved[3]
        cost = RECOMPUTED * scores + dots(0, scores * (3 * d + 2 * dv))
        cost = cost + Cost(multiplications=out.count, additions=out.count)
        parts = zip("qkv", saved[:3], (cost, Cost(), Cost()), ([grad, *saved], [], []), strict=True)
        return [
            grad.result(f"{name}: grad {letter}", x.shape, cost, read, layout=_by_token(x.shape))
            for letter, x, cost, read in parts
        ]

    cost = (SOFTMAX + Cost(multiplications=1)) * scores
    cost = cost + dots(scores + rows * n * dv, scores * (d + dv))
    shape = (b, h, n, dv)
    out = q.result(name, shape, cost, [q, k, v], backward=backward, layout=_by_token(shape))
    size = q.item_size if q.item_size in (1, 8) else 4
    logsumexp = q.result(f"{name}: logsumexp", (b, h, n), Cost(), [], item_size=size)
    if saved:
        saved.extend([out.detach(), logsumexp])
    return out


def _by_token(shape: Shape) -> Layout:
    """Return the layout of (b, h, n, d) where a token's heads lie side by side."""
    b, h, n, d = shape
    return Layout.rows((b, n, h, d)).permuted((0, 2, 1, 3))
