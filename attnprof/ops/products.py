"""Products of matrices, with the products that make up their backward pass."""

from typing import TypeVar

from attnprof.costs import Cost, Number, exact_div
from attnprof.errors import RequestError
from attnprof.ops.layout import Layout, Shape, product
from attnprof.ops.pointwise import SOFTMAX
from attnprof.ops.shaped import Shaped
from attnprof.ops.shapes import reshape, stretched

T = TypeVar("T", bound=Shaped)


def dots(outputs: Number, count: Number) -> Cost:
    """So many results, sums of ``count`` products together."""
    return Cost(multiplications=count, additions=count, matmul_flops=2 * count, dot_outputs=outputs)


def product_cost(a: Shape, b: Shape) -> tuple[Shape, Cost]:
    """Shape and cost of products of (…, m, k) and (…, k, n)."""
    shape = (*a[:-1], b[-1])
    outputs = product(shape)
    return shape, dots(outputs, outputs * a[-1])


def product_of(name: str, a: T, b: T) -> T:
    """Products of (batch, m, k) and (batch, k, n), or the product of (m, k) and (k, n)."""
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
    """Products of the last two dimensions; those before broadcast, which copies what stretches.

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
    before = stretched(a.shape[:-2], b.shape[:-2])
    left, right = (
        reshape(f"{name}: operand", x.expand(*before, *x.shape[-2:]), (-1, *x.shape[-2:]))
        for x in (a, b)
    )
    return reshape(name, product_of(name, left, right), (*before, a.shape[-2], b.shape[-1]))


def into(name: str, to: T, a: T, b: T, *, add: bool = False, factors: int = 0) -> T:
    """The same put, or added, where ``to`` lies; no gradient.

    ``factors`` numbers multiply an entry of what is there, or of the product.
    """
    entries = Cost(additions=1 if add else 0, multiplications=factors) * to.count
    cost = product_cost(a.shape, b.shape)[1] + entries
    return to.result(name, to.shape, cost, [to, a, b] if add else [a, b], into=to)


def linear(name: str, x: T, weight: T, bias: T | None) -> T:
    """(…, k) times weight (n, k) transposed, plus bias: one addition a result."""
    n, k = weight.shape
    if x.dim() != 2:
        out = linear(name, reshape(f"{name}: rows", x, (-1, k)), weight, bias)
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

    cost = dots(m * n, m * n * k) + Cost(additions=m * n if has_bias else 0)
    return x.result(name, (m, n), cost, reads, backward=backward)


#: Backward, a score: scale, shift by the logsumexp and exp make the weight again; then
#: (grad - row sum) · weight · scale.
RECOMPUTED = Cost(multiplications=3, additions=2, exponentials=1)


def fused_attention(name: str, q: T, k: T, v: T, causal: bool) -> T:
    """One kernel: q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv).

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
        of = zip("qkv", saved[:3], (cost, Cost(), Cost()), ([grad, *saved], [], []), strict=True)
        return [
            grad.result(f"{name}: grad {letter}", x.shape, cost, read, layout=_by_token(x.shape))
            for letter, x, cost, read in of
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
    """The layout of (b, h, n, d) where a token's heads lie side by side."""
    b, h, n, d = shape
    return Layout.rows((b, n, h, d)).permuted((0, 2, 1, 3))
