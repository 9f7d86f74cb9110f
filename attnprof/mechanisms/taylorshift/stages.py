"""What TaylorShift's modules execute, written on the tape, with the backward of each function."""

from __future__ import annotations

from attnprof.costs import Cost, Number, more_than_one
from attnprof.counting.engine import Gradients, Storage, Tensor, product
from attnprof.counting.tape import Tape
from attnprof.workload import Workload


def inplace(tape: Tape, name: str, target: Tensor, each: Cost, *more: Tensor) -> None:
    """One operation that overwrites ``target``; ``each`` an entry, ``more`` its other operands."""
    tape.emit(name, target.shape, each * target.count, [target, *more], into=target)


def copied(tape: Tape, name: str, x: Tensor) -> None:
    """X copied into memory that is there already."""
    tape.record(name, x.shape, Cost(bytes_moved=2 * x.size))


def fresh(tape: Tape, name: str, *shape: Number) -> Tensor:
    """Memory that nothing was written to yet."""
    out = Tensor(shape, Storage(0), tape.item_size)
    out.storage.size = out.size
    tape.record(name, shape, Cost(), out.size)
    return out


def zeros(tape: Tape, name: str, *shape: Number) -> Tensor:
    """Memory filled with zeros."""
    return tape.emit(name, shape, Cost())


def added(tape: Tape, name: str, to: Tensor, more: Tensor) -> None:
    """``to += more``, which dies."""
    tape.emit(name, more.shape, Cost(additions=more.count), [more, more], into=to)
    tape.free(more)


MUL, ADD, DIV, OTHER = (
    Cost(multiplications=1),
    Cost(additions=1),
    Cost(divisions=1),
    Cost(other=1),
)


def keep(out: Tensor, *saved: Tensor) -> None:
    """What a function saves beside its inputs: some of its results."""
    if out.node:
        out.node.saved = (*out.node.saved, *saved)
        for tensor in saved:
            tensor.storage.holders += 1


def rows_to_length(tape: Tape, name: str, x: Tensor) -> Tensor:
    """Rows (…, d) scaled to one length: norm, zero rows set aside, reciprocal, product."""
    count, shape = x.count, (*x.shape[:-1], 1)
    rows = product(shape)
    norm = Cost(multiplications=count, additions=count, other=rows, reduction_outputs=rows)
    factor = tape.emit(f"{name}: norms", shape, norm, [x])
    zero = tape.emit(f"{name}: zero rows", shape, Cost(other=rows), [factor], item_size=1)
    inplace(tape, f"{name}: zero rows", factor, Cost(), zero)
    tape.free(zero)
    inplace(tape, f"{name}: reciprocal norms", factor, DIV)
    inplace(tape, f"{name}: factors", factor, MUL)

    def backward(grad: Tensor) -> Gradients:
        cost = Cost(multiplications=count)
        along_rows = tape.emit(f"{name}: grad along", x.shape, cost, [grad, out])
        cost = Cost(additions=count, reduction_outputs=rows)
        along = tape.emit(f"{name}: grad along", shape, cost, [along_rows])
        tape.free(along_rows)
        inplace(tape, f"{name}: grad along", along, DIV)
        across = tape.emit(f"{name}: grad across", x.shape, MUL * count, [out, along])
        inplace(tape, f"{name}: grad across", across, OTHER)
        inplace(tape, f"{name}: grad across", across, ADD, grad)
        inplace(tape, f"{name}: grad", across, MUL, factor)
        tape.free(along)
        return [(x, across)]

    cost = Cost(multiplications=count)
    out = tape.emit(f"{name}: scaled", x.shape, cost, [x, factor], backward=backward)
    keep(out, out, factor)
    tape.free(factor)
    return out


def normalised(
    tape: Tape, w: Workload, q: Tensor, k: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Normalised rows, queries times their head's temperature; (b·h, n, d) each."""
    heads = tape.view(q, w.batch_size, w.num_heads, *q.shape[1:])
    unit = rows_to_length(tape, "queries", heads)
    per_head = tape.view(temperature, w.num_heads, 1, 1)
    tempered = tape.mul("temperature", unit, per_head)
    tape.free(unit, per_head, heads)
    queries = tape.view(tempered, *q.shape)
    tape.free(tempered)
    return queries, rows_to_length(tape, "keys", k)


def box_gradient(tape: Tape, name: str, x: Tensor) -> Tensor:
    """(G + Gᵀ) x of every row: two products."""
    b, n, d = x.shape
    square, row = tape.constant(b * n, d, d), tape.constant(b * n, d, 1)
    out = tape.bmm(name, square, row)
    more = tape.bmm(name, square, row, ta=True)
    tape.emit(name, out.shape, Cost(additions=out.count), [out, more], into=out)
    tape.free(more)
    out.shape = x.shape
    return out


def box(tape: Tape, name: str, x: Tensor) -> Tensor:
    """The box product x ⊠ x: (b, n, d) → (b, n, d²)."""
    b, n, d = x.shape
    return tape.emit(
        name,
        (b, n, d * d),
        Cost(multiplications=b * n * d * d),
        [x, x],
        backward=lambda _: [(x, box_gradient(tape, f"{name}: grad", x))],
        saves=[x],
    )


def padded(tape: Tape, v: Tensor) -> Tensor:
    """[1, v]: a copy one column wider; the gradient is copied without that column."""
    return tape.emit(
        "ones and values",
        (*v.shape[:-1], v.shape[-1] + 1),
        Cost(),
        [v],
        backward=lambda grad: [(v, tape.emit("values: grad", v.shape, Cost(), [grad]))],
    )


def taylor_map(tape: Tape, scores: Tensor, *, causal: bool) -> Tensor:
    """s² + 1 of shifted scores into a second N × N tensor; zero above the diagonal if causal."""
    count = scores.count

    def backward(grad: Tensor) -> Gradients:
        out = tape.emit("Taylor map: grad", scores.shape, MUL * count, [grad, scores])
        inplace(tape, "Taylor map: grad", out, MUL)
        if causal:
            inplace(tape, "Taylor map: grad, masked", out, Cost())
        return [(scores, out)]

    weights = tape.emit(
        "Taylor map: square",
        scores.shape,
        MUL * count,
        [scores, scores],
        backward=backward,
        saves=[scores],
    )
    inplace(tape, "Taylor map: + 1", weights, ADD)
    if causal:
        inplace(tape, "masking", weights, Cost())
    return weights


def add_row(tape: Tape, name: str, y: Tensor, row: Tensor) -> Tensor:
    """Y (b, n, w) += row (b, 1, w); its gradient is a sum unless there is one row only."""
    several = more_than_one(y.shape[1])

    def backward(grad: Tensor) -> Gradients:
        cost = Cost(additions=y.count, reduction_outputs=row.count) * several
        moved = Cost(bytes_moved=(y.size + row.size) * several)
        tape.record(f"{name}: grad", row.shape, cost + moved, row.size)
        summed = Tensor(row.shape, Storage(row.size), row.item_size)
        return [(y, tape.view(grad, *y.shape)), (row, summed)]

    cost = Cost(additions=y.count)
    return tape.emit(name, y.shape, cost, [y, row], into=y, backward=backward)


def row_scale(tape: Tape, n: Number) -> Tensor:
    """sqrt(d / t) for every row t."""
    scale = tape.emit("row numbers", (n, 1), Cost())
    for each in (DIV, MUL, OTHER):
        inplace(tape, "output scale", scale, each)
    return scale


def ratio(tape: Tape, top: Tensor, bottom: Tensor, scale: Tensor | None = None) -> Tensor:
    """Nominator (b, n, d) by denominator (b, n, 1) times a scale."""
    rows, count = bottom.count, top.count
    reads = [bottom] if scale is None else [bottom, scale]
    scaled = tape.emit("scaled denominator", bottom.shape, Cost(multiplications=rows), reads)

    def backward(grad: Tensor) -> Gradients:
        cost = Cost(multiplications=count)
        weighted = tape.emit("division: grad denominator", top.shape, cost, [grad, out])
        cost = Cost(additions=count, reduction_outputs=rows)
        shared = tape.emit("division: grad denominator", bottom.shape, cost, [weighted])
        tape.free(weighted)
        cost = Cost(divisions=count)
        over = tape.emit("division: grad nominator", top.shape, cost, [grad, scaled])
        inplace(tape, "division: grad denominator", shared, OTHER)
        inplace(tape, "division: grad denominator", shared, MUL, *reads[1:])
        inplace(tape, "division: grad denominator", shared, DIV, scaled)
        return [(top, over), (bottom, shared)]

    both, cost = [top, bottom], Cost(divisions=count)
    out = tape.emit("division", top.shape, cost, both, backward=backward)
    keep(out, out, scaled, *([] if scale is None else [scale]))
    tape.free(scaled)
    return out


def split_ratio(tape: Tape, y: Tensor, scale: Tensor | None = None) -> Tensor:
    """The same for (b, n, 1 + d): denominator in column 0; gradients joined again."""
    b, n, width = y.shape
    waiting: list[Tensor] = []

    def join(grad: Tensor) -> Gradients:
        whole = tape.emit("denominator, nominator: grad", y.shape, Cost(), [*waiting, grad])
        tape.free(*waiting)
        return [(y, whole)]

    top = tape.alias(y, (b, n, width - 1), join)
    bottom = Tensor((b, n, 1), y.storage, y.item_size, requires_grad=top.requires_grad)
    out = ratio(tape, top, bottom, scale)
    if out.node:
        inner = out.node.backward

        def backward(grad: Tensor) -> Gradients:
            (_, over), (_, shared) = inner(grad)
            if shared is not None:
                waiting.append(shared)
            return [(top, over)]

        out.node.backward = backward
    tape.free(top)
    return out
