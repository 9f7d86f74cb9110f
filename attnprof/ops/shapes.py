"""Reshape, slice and sum counting tensors: a view if the layout allows it, else a copy.

With symbols as sizes the layout may decide it only for some sizes; then the copy has a flag, an
expression that is 1 at sizes at which torch would copy, and else 0 (:meth:`Base.copy_if`).
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from attnprof import costs
from attnprof.ops.base import Base
from attnprof.ops.layout import Layout, Shape, is_literally, product

T = TypeVar("T", bound=Base)


def _same(one: costs.Number, size: costs.Number) -> bool:
    """Return whether sizes are one object or equal arrays; ``==`` of symbols adds a condition."""
    return one is size or (hasattr(one, "dtype") and costs.same_size(one, size))


def _inferred(shape: Shape, others: Sequence[costs.Number]) -> costs.Number:
    """Return the size that -1 stands for; equal sizes cancel, so that arrays need no division."""
    sizes, divisors = list(shape), list[costs.Number]()
    for size in others:
        same = next((index for index, other in enumerate(sizes) if _same(other, size)), None)
        if same is None:
            divisors.append(size)
        else:
            del sizes[same]
    return costs.exact_div(product(sizes), product(divisors))


def sizes(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return sizes given one by one, ``view(2, 3)``, or as a sequence, ``view((2, 3))``."""
    only = arguments[0] if len(arguments) == 1 else None
    return tuple(only) if isinstance(only, tuple | list) else tuple(arguments)


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that shapes broadcast to."""
    if len(shapes) == 1:
        return tuple(shapes[0])
    longest = max(map(len, shapes))
    full = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(
        next((size for size in sizes if not is_literally(size, 1)), 1)
        for sizes in zip(*full, strict=True)
    )


def empty(
    name: str, like: T, shape: Shape, layout: Layout | None = None, cost: costs.Cost | None = None,
    *, item_size: int = 0, whole: bool | None = None,
) -> T:  # fmt: skip
    """Return a tensor in new memory; ``cost`` is that of filling it, none by default."""
    out = like.allocate(like.counter, shape, layout, item_size or like.item_size)
    out.whole = like.whole if whole is None else whole
    like.counter.operations += 1
    like.counter.record(name, shape, cost or costs.Cost(), out.size_bytes)
    out.label = name
    return out


def reshape(name: str, x: T, shape: Shape) -> T:
    """Return x in another shape, one size of which may be -1.

    The stage of a copy is called after the stage that made the entries, if one did.
    """
    name = f"{x.label} in rows" if x.label else name
    old = x.shape
    others = [size for size in shape if not is_literally(size, -1)]
    new = tuple(_inferred(old, others) if is_literally(size, -1) else size for size in shape)
    is_empty = costs.same_size(x.count, 0)
    flag, layout = (0, Layout.rows(new)) if is_empty else x.layout.reshaped(old, new)
    return x.copy_if(
        flag, name, new, layout, backward=lambda grad: [reshape(f"{name}: grad", grad, old)]
    )


def in_rows(name: str, x: T, group: costs.Number) -> T:
    """Return x row by row, copied if it is laid out otherwise; for a ``group`` of 1 never."""
    flag, layout = x.layout.in_rows(x.shape, group)
    return x.copy_if(flag, name, x.shape, layout, backward=lambda grad: [grad])


def summed_to(name: str, x: T, shape: Shape) -> T:
    """Return x summed to the shape from which it was broadcast."""
    added = x.dim() - len(shape)
    pairs = zip(shape, x.shape[added:], strict=True)
    expanded = [large for small, large in pairs if not costs.same_size(small, large)]
    if not added and not expanded:
        return x
    # torch sums a new dimension even of one entry, an expanded one only if it has more
    flag: costs.Number = 1 if added else costs.more_than_one(product(expanded))
    out = product(shape)
    moved = x.size_bytes + out * x.item_size
    cost = costs.Cost(additions=x.count, reduction_outputs=out, bytes_moved=moved)
    return x.copy_if(flag, name, shape, Layout.rows(shape), cost)


def select(x: T, dim: int, index: Any) -> T:
    """Return a view of a slice, or of one entry, of a dimension."""
    old, before, after = x.shape, x.shape[:dim], x.shape[dim + 1 :]
    is_shorter: costs.Number = 1
    if isinstance(index, slice):
        length = _length(old[dim], index)
        if costs.same_size(length, old[dim]):
            return x
        shape, is_shorter = (*before, length, *after), costs.at_least_one(old[dim] - length)
        rows = Layout.rows(shape) if costs.same_size(x.layout.differs(old), 0) else None
        layout = Layout(x.layout.cases, 1 if rows is None else is_shorter, rows)
        if index.step is not None:
            layout = layout.with_strides(
                lambda strides: (*strides[:dim], strides[dim] * index.step, *strides[dim + 1 :])
            )
    else:
        order = [other for other in range(len(old)) if other != dim]
        shape, layout = (*before, *after), x.layout.permuted(order)

    def backward(grad: T) -> list[T]:
        cost = costs.Cost(bytes_moved=grad.size_bytes + product(old) * grad.item_size)
        return [grad.copy_if(is_shorter, "slice: grad", old, Layout.rows(old), cost)]

    return x.alias(shape, layout, backward)


def _length(size: costs.Number, part: slice) -> costs.Number:
    """Return the length of a slice of a dimension."""
    if part.stop is None and costs.is_plain(part.start) and part.start == -1:
        return 1  # the last one, whatever the size is
    length = _bound(part.stop, size)
    if part.start is not None:
        length = length - _bound(part.start, size)
    if part.step is None:
        return length
    divided = costs.exact_div if costs.is_symbolic(length) else costs.ceil_div
    return divided(length, part.step)


def _bound(at: costs.Number | None, size: costs.Number) -> costs.Number:
    """Return where a slice begins or ends; counted from the end if negative."""
    if at is None:
        return size
    if costs.is_plain(at) and at < 0:
        return size + at
    return min(at, size) if costs.is_plain(at, size) else at
