"""Reshape, cut and join counting tensors: a view if the layout allows it, else a copy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from attnprof import costs
from attnprof.ops.base import Base
from attnprof.ops.layout import Layout, Shape, is_literally, product

T = TypeVar("T", bound=Base)


def _same(one: costs.Number, size: costs.Number) -> bool:
    """Return whether sizes are one object or equal arrays; comparing symbols adds a condition."""
    return one is size or (hasattr(one, "dtype") and costs.same_size(one, size))


def _left(shape: Shape, fixed: Sequence[costs.Number]) -> costs.Number:
    """Return the size that -1 stands for; equal sizes cancel, so that arrays need no division."""
    sizes, by = list(shape), list[costs.Number]()
    for size in fixed:
        same = next((place for place, other in enumerate(sizes) if _same(other, size)), None)
        if same is None:
            by.append(size)
        else:
            del sizes[same]
    return costs.exact_div(product(sizes), product(by))


def sizes(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return sizes one by one, or as one sequence."""
    only = arguments[0] if len(arguments) == 1 else None
    return tuple(only) if isinstance(only, tuple | list) else tuple(arguments)


def stretched(*shapes: Shape) -> Shape:
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
    """Return uninitialised memory; ``cost`` is that of filling it in the same operation."""
    out = like.allocate(like.counter, shape, layout, item_size or like.item_size)
    out.whole = like.whole if whole is None else whole
    like.counter.operations += 1
    like.counter.record(name, shape, cost or costs.Cost(), out.size_bytes)
    out.label = name
    return out


def reshape(name: str, x: T, shape: Shape) -> T:
    """Return another shape, one size of which may be -1; its gradient takes the old one again.

    Where it copies, the stage is called after the one that made the entries, if one did.
    """
    name = f"{x.label} in rows" if x.label else name
    old = x.shape
    fixed = [size for size in shape if not is_literally(size, -1)]
    new = tuple(_left(old, fixed) if is_literally(size, -1) else size for size in shape)
    empty = costs.same_size(x.count, 0)
    flag, layout = (0, Layout.rows(new)) if empty else x.layout.reshaped(old, new)
    return x.where(
        flag, name, new, layout, backward=lambda grad: [reshape(f"{name}: grad", grad, old)]
    )


def in_rows(name: str, x: T, group: costs.Number) -> T:
    """Return x laid out row by row: itself, or (for a group above one) a copy."""
    flag, layout = x.layout.in_rows(x.shape, group)
    return x.where(flag, name, x.shape, layout, backward=lambda grad: [grad])


def summed_to(name: str, x: T, shape: Shape) -> T:
    """Return x summed to a shape: over dimensions that were expanded or added in front."""
    added = x.dim() - len(shape)
    lines = zip(shape, x.shape[added:], strict=True)
    stretched = [large for small, large in lines if not costs.same_size(small, large)]
    if not added and not stretched:
        return x
    # a dimension that turns out to be one long was not stretched; a new one is summed anyway
    happens: costs.Number = 1 if added else costs.more_than_one(product(stretched))
    out = product(shape)
    cost = costs.Cost(additions=x.count, reduction_outputs=out)
    moved = costs.Cost(bytes_moved=x.size_bytes + out * x.item_size)
    return x.where(happens, name, shape, Layout.rows(shape), cost + moved)


def cut_at(x: T, place: int, part: Any) -> T:
    """Return one dimension sliced, or one entry of it; its gradient is put among zeros."""
    old, before, after = x.shape, x.shape[:place], x.shape[place + 1 :]
    cut: costs.Number = 1
    if isinstance(part, slice):
        length = _length(old[place], part)
        if costs.same_size(length, old[place]):
            return x
        shape, cut = (*before, length, *after), costs.at_least_one(old[place] - length)
        rows = Layout.rows(shape) if costs.same_size(x.layout.differs(old), 0) else None
        layout = replace(x.layout, cut=1 if rows is None else cut, whole=rows)
        if part.step is not None:
            layout = layout.with_strides(
                lambda strides: (
                    *strides[:place],
                    strides[place] * part.step,
                    *strides[place + 1 :],
                )
            )
    else:
        order = [dim for dim in range(len(old)) if dim != place]
        shape, layout = (*before, *after), x.layout.permuted(order)

    def backward(grad: T) -> list[T]:
        cost = costs.Cost(bytes_moved=grad.size_bytes + product(old) * grad.item_size)
        return [grad.where(cut, "slice: grad", old, Layout.rows(old), cost)]

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
