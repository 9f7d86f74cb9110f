"""A row-stochastic matrix's pseudo-inverse times a thin matrix, without the inverse itself.

With Y = AZ the cubic iteration Z <- Z (13 I - Y (15 I - Y (7 I - Y))) / 4 needs no Z on the way:

    Y <- (13 Y - 15 Y² + Y² (7 Y - Y²)) / 4,

and Y stays symmetric, as it starts: A Aᵀ / c. The inverse times C is Z₀ = Aᵀ / c times the
polynomials of all Y times C, in any order, for they commute: two full products an iteration and
thin ones for C. The backward pass uses the symmetry too: three full products an iteration.

Errors of Y are not undone as they are where AZ is multiplied anew: in float32 the result is good
to about 1e-5 of its norm, not 1e-6. Formats of fewer digits are widened to float32.
"""

from typing import Any

from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, as_format_of, wide


def _next(x: Any, yx: Any, square: Any) -> tuple[Any, Any]:
    """Return (13 x - 15 yx - Y² (yx - 7 x)) / 4, and yx - 7 x; x thin or Y itself."""
    inner = yx.sub(x, alpha=7.0)
    out = x.lerp(yx, 7.5)  # (15 yx - 13 x) / 2
    add_product(out, square, inner, beta=-0.5, alpha=-0.25)
    return out, inner


def _run(a: Any, x: Any, scale: Any, iterations: int, kept: list[Any] | None) -> Any:
    """Return the iterations' result times x; ``kept`` collects four matrices of each step."""
    y = a.bmm(a.transpose(1, 2)).mul_(scale)
    for _ in range(iterations - 1):
        square = y.bmm(y)
        out, inner = _next(x, y.bmm(x), square)
        if kept is not None:
            kept += (y, square, x, inner)
        x = out
        del out, inner
        y = _next(y, square, square)[0]
        del square
    yx = y.bmm(x)
    inner = yx.sub(x, alpha=7.0)
    outer = y.bmm(inner)
    out = x.lerp(yx, 7.5)
    add_product(out, y, outer, beta=-0.5, alpha=-0.25)
    if kept is not None:
        kept += (y, outer, x, inner)
    return out


def _inverse_product(a: Any, x: Any, *, iterations: int, keep: bool) -> tuple[Any, tuple[Any, ...]]:
    original, a = a, wide(a)
    # over the largest column sum; the largest row sum is one
    scale = a.sum(1).amax(1).view(-1, 1, 1).reciprocal()
    kept: list[Any] | None = [] if keep else None
    last = _run(a, wide(x), scale, iterations, kept)
    out = a.transpose(1, 2).bmm(last).mul_(scale)
    saved = (a, scale, out, last, *kept) if kept else ()
    return as_format_of(out, original), saved


def _inverse_product_grads(
    saved: tuple[Any, ...], grad: Any, *, iterations: int
) -> tuple[Any, ...]:
    a, scale, out, last, *kept = saved
    original, grad = grad, wide(grad)
    to_scale = (grad * out).sum((1, 2), keepdim=True).div_(scale)
    above = grad * scale
    to_a = last.bmm(above.transpose(1, 2))
    to_y, to_x = _last_step(kept[-4:], a.bmm(above))
    del above
    for step in reversed(range(iterations - 1)):
        to_y, to_x = _step(kept[4 * step : 4 * step + 4], to_y, to_x)
    both = (to_y + to_y.transpose(1, 2)).bmm(a)
    del to_y
    to_scale.add_((both * a).sum((1, 2), keepdim=True), alpha=0.5)
    to_a.add_(both.mul_(scale))
    del both
    to_a.add_(_columns(a, scale, to_scale))
    return as_format_of(to_a, original), as_format_of(to_x, original)


def _last_step(kept: list[Any], grad: Any) -> tuple[Any, Any]:
    """Return gradients of Y and x through (13 x - 15 Yx - Y (Y (Yx - 7 x))) / 4."""
    y, outer, x, inner = kept
    quarter = grad * -0.25
    to_outer = y.bmm(quarter)
    to_inner = y.bmm(to_outer)
    to_y = quarter.bmm(outer.transpose(1, 2))
    add_product(to_y, to_outer, inner.transpose(1, 2))
    return _through(y, x, (quarter, to_inner), to_y)


def _through(y: Any, x: Any, grads: tuple[Any, Any], to_y: Any) -> tuple[Any, Any]:
    """Return gradients of Y and x, given those of 13 x - 15 Yx (-4 times) and of Yx - 7 x."""
    quarter, to_inner = grads
    to_yx = to_inner.add(quarter, alpha=15.0)
    add_product(to_y, to_yx, x.transpose(1, 2))
    to_x = quarter.mul_(-13.0).sub_(to_inner, alpha=7.0)
    add_product(to_x, y, to_yx)
    return to_y, to_x


def _step(kept: list[Any], to_next: Any, grad: Any) -> tuple[Any, Any]:
    """Return gradients of Y and x through the step's new Y and new x.

    Products with symmetric matrices: their gradients are made symmetric instead of added twice.
    """
    y, square, x, inner = kept
    quarter = grad * -0.25
    to_next = to_next + to_next.transpose(1, 2)
    to_square = quarter.bmm(inner.transpose(1, 2))
    mixed = square.sub(y, alpha=3.5)
    mixed.diagonal(dim1=1, dim2=2).add_(7.5)
    add_product(to_square, to_next, mixed, beta=1.0, alpha=-0.25)
    del mixed
    to_square = to_square + to_square.transpose(1, 2)
    to_y = to_square.bmm(y)
    del to_square
    add_product(to_y, to_next, square, beta=1.0, alpha=0.875)
    to_y.add_(to_next, alpha=1.625)
    return _through(y, x, (quarter, square.bmm(quarter)), to_y)


def _columns(a: Any, scale: Any, to_scale: Any) -> Any:
    """Return the gradient (b, 1, m) of the largest column sum's entries, shared by equal ones."""
    sums = a.sum(1, keepdim=True)
    largest = sums.eq(sums.amax(2, keepdim=True))
    ties = largest.sum(2, keepdim=True, dtype=int)
    share = to_scale.mul_(scale).mul_(scale).neg_().div_(ties)
    return share * largest


#: The pseudo-inverse of row-stochastic a (b, m, m) times x (b, m, d), each of the batch by itself,
#: after so many ``iterations``.
inverse_product = Function(_inverse_product, _inverse_product_grads)
