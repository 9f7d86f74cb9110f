"""What ``blocks/inverse_product.py`` executes: a pseudo-inverse times a thin matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attnprof.costs import Cost, Number
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.row_attention import part
from attnprof.counting.tape import Tape, product_cost

ADD, TIMES = Cost(additions=1), Cost(multiplications=1)
#: a + c·b for a constant c
ADD_SCALED = ADD + TIMES
#: a + c·(b - a)
BLEND = 2 * ADD + TIMES


@contextmanager
def _wide(tape: Tape) -> Iterator[None]:
    """Fewer digits than float32 are too few for the iteration."""
    before = tape.item_size
    tape.item_size = 4 if before == 2 else before
    yield
    tape.item_size = before


def _cast(tape: Tape, name: str, x: Tensor) -> Tensor:
    """X in the tape's format: a copy where that is another one; needs no gradient."""
    if x.item_size == tape.item_size:
        x.storage.holders += 1
        return part(x, *x.shape)
    return tape.emit(name, x.shape, Cost(), [part(x, *x.shape)])


def _scaled_product(
    tape: Tape, name: str, to: Tensor, factors: tuple[Tensor, Tensor], inner: Number, extra: Cost
) -> None:
    """Add a scaled product to what is there; ``extra`` an entry beyond the product's own."""
    batch, rows, columns = to.shape
    cost = product_cost(rows, inner, columns, batch) + extra * to.count
    tape.emit(name, to.shape, cost, [to, *factors], into=to)


def _add_outer(tape: Tape, name: str, to: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a bᵀ for thin a and b."""
    _scaled_product(tape, name, to, (a, b), a.shape[2], ADD)


def _over(tape: Tape, name: str, x: Tensor, per_entry: Cost, *reads: Tensor) -> None:
    """An operation in the memory of x."""
    tape.emit(name, x.shape, per_entry * x.count, [x, *reads], into=x)


def _next(tape: Tape, name: str, x: Tensor, yx: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    inner = tape.pointwise(f"{name}: Yx - 7x", [yx, x], ADD_SCALED)
    out = tape.pointwise(f"{name}: 13x - 15Yx", [x, yx], BLEND)
    _scaled_product(
        tape, f"{name}: polynomial", out, (square, inner), square.shape[1], ADD + 2 * TIMES
    )
    return out, inner


Kept = tuple[list[Tensor], list[Tensor], list[Tensor]]


def _run(tape: Tape, a: Tensor, x: Tensor, scale: Tensor, steps: int) -> tuple[Tensor, Kept]:
    """All polynomials times x; holders of what is kept are counted for whoever saves it."""
    y = tape.bmm("A Aᵀ", a, a, tb=True)
    _over(tape, "A Aᵀ / c", y, TIMES, scale)
    kept: Kept = ([], [], [])
    for step in range(1, steps):
        name = f"iteration {step}"
        square = tape.bmm(f"{name}: Y²", y, y)
        yx = tape.bmm(f"{name}: Yx", y, x)
        out, inner = _next(tape, name, x, yx, square)
        tape.free(yx)
        _keep(tape, kept, y, [square], [x, inner])
        x = out
        new, second = _next(tape, f"{name}, Y", y, square, square)
        tape.free(second, *([] if tape.grad else [y]))
        if not tape.grad:
            tape.free(square)
        y = new
    name = f"iteration {steps}"
    yx = tape.bmm(f"{name}: Yx", y, x)
    inner = tape.pointwise(f"{name}: Yx - 7x", [yx, x], ADD_SCALED)
    outer = tape.bmm(f"{name}: Y (Yx - 7x)", y, inner)
    out = tape.pointwise(f"{name}: 13x - 15Yx", [x, yx], BLEND)
    _scaled_product(tape, f"{name}: polynomial", out, (y, outer), y.shape[1], ADD + 2 * TIMES)
    tape.free(yx)
    _keep(tape, kept, y, [], [x, inner, outer])
    if not tape.grad:
        tape.free(y)
    return out, kept


def _keep(tape: Tape, kept: Kept, y: Tensor, squares: list[Tensor], thin: list[Tensor]) -> None:
    """One step's tensors, or the end of the thin ones where nothing is kept."""
    if tape.grad:
        for group, tensors in zip(kept, ([y], squares, thin), strict=True):
            group.extend(tensors)
    else:
        tape.free(*thin)


def inverse_product(tape: Tape, a: Tensor, x: Tensor, steps: int) -> Tensor:
    """Z C for the iterated pseudo-inverse Z of a (b, m, m) and C = x (b, m, d)."""
    b, m, _ = a.shape
    with _wide(tape):
        wide, thin = _cast(tape, "inner softmax, wide", a), _cast(tape, "context, wide", x)
        columns = tape.sum("column sums", wide, (b, m))
        cost = Cost(other=columns.count)
        largest = tape.emit("largest column sum", (b, 1, 1), cost, [columns])
        scale = tape.emit("reciprocal", (b, 1, 1), Cost(divisions=b), [largest])
        tape.free(columns, largest)
        last, kept = _run(tape, wide, thin, scale, steps)
        found = tape.bmm("start times the rest", wide, last, ta=True)
        _over(tape, "start times the rest, / c", found, TIMES, scale)
    held = [wide, scale, found, last, *(t for group in kept for t in group)]

    def backward(grad: Tensor) -> Gradients:
        with _wide(tape):
            above = _cast(tape, "inverse: grad, wide", grad)
            to_a, to_x = _backward(tape, (wide, scale, found, last), kept, above)
            tape.free(above)
        return [(to, _narrow(tape, given)) for to, given in ((a, to_a), (x, to_x))]

    out = _narrow(tape, found)
    if out is not found:
        held.append(found)
    if tape.grad and (a.requires_grad or x.requires_grad):
        tape.attach(out, "pseudo-inverse", backward, held)
    tape.free(wide, scale, last, *(t for group in kept for t in group))
    return out


def _narrow(tape: Tape, x: Tensor) -> Tensor:
    """X in the tape's format again."""
    if x.item_size == tape.item_size:
        return x
    out = tape.emit("inverse: in the operands' format", x.shape, Cost(), [x])
    tape.free(x)
    return out


def _backward(
    tape: Tape, saved: tuple[Tensor, Tensor, Tensor, Tensor], kept: Kept, grad: Tensor
) -> tuple[Tensor, Tensor]:
    a, scale, out, last = saved
    b = out.shape[0]
    product = tape.pointwise("inverse: grad times output", [grad, out], TIMES)
    to_scale = tape.sum("inverse: grad 1 / c", product, (b, 1, 1))
    tape.free(product)
    _over(tape, "inverse: grad 1 / c", to_scale, Cost(divisions=1), scale)
    above = tape.pointwise("inverse: grad / c", [grad, scale], TIMES)
    to_a = tape.bmm("inverse: grad A", last, above, tb=True)
    to_x = tape.bmm("inverse: grad of the rest", a, above)
    to_y, to_x = _last_step(tape, kept, to_x)
    tape.free(above)
    for step in range(len(kept[0]) - 1, 0, -1):
        to_y, to_x = _step(tape, kept, step, (to_y, to_x))
    both = tape.pointwise("inverse: grad Y, both ways", [to_y, to_y], ADD)
    back = tape.bmm("inverse: grad A Aᵀ", both, a)
    tape.free(both, to_y)
    product = tape.pointwise("inverse: grad A Aᵀ times A", [back, a], TIMES)
    more = tape.sum("inverse: grad 1 / c, more", product, (b, 1, 1))
    tape.free(product)
    _over(tape, "inverse: add grad 1 / c", to_scale, ADD_SCALED, more)
    tape.free(more)
    _over(tape, "inverse: grad A Aᵀ / c", back, TIMES, scale)
    _over(tape, "inverse: add grad A", to_a, ADD, back)
    tape.free(back)
    columns = _columns(tape, a, scale, to_scale)
    _over(tape, "inverse: add grad of the largest column", to_a, ADD, columns)
    tape.free(columns, to_scale)
    return to_a, to_x


def _last_step(tape: Tape, kept: Kept, grad: Tensor) -> tuple[Tensor, Tensor]:
    y, (x, inner, outer), name = kept[0][-1], kept[2][-3:], f"iteration {len(kept[0])}: grad"
    quarter = tape.pointwise(f"{name} / 4", [grad], TIMES)
    to_outer = tape.bmm(f"{name} Y (Yx - 7x)", y, quarter)
    to_inner = tape.bmm(f"{name} Yx - 7x", y, to_outer)
    to_y = tape.bmm(f"{name} Y", quarter, outer, tb=True)
    _add_outer(tape, f"{name} Y, more", to_y, to_outer, inner)
    to_x = _through(tape, name, (y, x), (quarter, to_inner), to_y)
    tape.free(grad, to_outer, to_inner)
    return to_y, to_x


def _through(
    tape: Tape, name: str, of: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor], to_y: Tensor
) -> Tensor:
    (y, x), (quarter, to_inner) = of, grads
    to_yx = tape.pointwise(f"{name} Yx", [to_inner, quarter], ADD_SCALED)
    _add_outer(tape, f"{name} Y, thin", to_y, to_yx, x)
    _over(tape, f"{name} 13x", quarter, TIMES)
    _over(tape, f"{name} 13x - 7x", quarter, ADD_SCALED, to_inner)
    _scaled_product(tape, f"{name} x", quarter, (y, to_yx), y.shape[1], ADD)
    tape.free(to_yx)
    return quarter


def _step(tape: Tape, kept: Kept, step: int, grads: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    y, square, name = kept[0][step - 1], kept[1][step - 1], f"iteration {step}: grad"
    x, inner = kept[2][2 * step - 2 : 2 * step]
    raw, grad = grads
    m = y.shape[1]
    quarter = tape.pointwise(f"{name} / 4", [grad], TIMES)
    to_next = tape.pointwise(f"{name} next Y, both ways", [raw, raw], ADD)
    first = tape.bmm(f"{name} Y²", quarter, inner, tb=True)
    mixed = tape.pointwise(f"{name} Y² - 3.5 Y", [square, y], ADD_SCALED)
    diagonal = part(mixed, y.shape[0], m)
    _over(tape, f"{name} Y² - 3.5 Y + 7.5 I", diagonal, ADD)
    _scaled_product(tape, f"{name} Y², full", first, (to_next, mixed), m, ADD_SCALED)
    tape.free(mixed)
    to_square = tape.pointwise(f"{name} Y², both ways", [first, first], ADD)
    tape.free(first)
    to_y = tape.bmm(f"{name} Y", to_square, y)
    tape.free(to_square)
    _scaled_product(tape, f"{name} Y, full", to_y, (to_next, square), m, ADD_SCALED)
    _over(tape, f"{name} Y, added", to_y, ADD_SCALED, to_next)
    to_inner = tape.bmm(f"{name} Yx - 7x", square, quarter)
    to_x = _through(tape, name, (y, x), (quarter, to_inner), to_y)
    tape.free(to_next, to_inner, raw, grad)
    return to_y, to_x


def _columns(tape: Tape, a: Tensor, scale: Tensor, to_scale: Tensor) -> Tensor:
    """The gradient of the largest column sum, shared among ties."""
    b, m, _ = a.shape
    sums = tape.sum("inverse: column sums", a, (b, 1, m))
    count = Cost(other=sums.count)
    largest = tape.emit("inverse: largest column sum", (b, 1, 1), count, [sums])
    which = tape.emit("inverse: largest columns", (b, 1, m), count, [sums, largest], item_size=1)
    tape.free(largest)
    for name in ("squared", "squared again"):
        _over(tape, f"inverse: c {name}", to_scale, TIMES, scale)
    _over(tape, "inverse: minus", to_scale, Cost(other=1))
    ties = tape.emit("inverse: how many columns", (b, 1, 1), Cost(), [which], item_size=8)
    _over(tape, "inverse: share", to_scale, Cost(divisions=1), ties)
    tape.free(ties)
    out = tape.emit("inverse: grad columns", (b, 1, m), TIMES * (b * m), [to_scale, which])
    tape.free(sums, which)
    return out
