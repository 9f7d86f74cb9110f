"""Other shapes of the same entries: views where the layout allows them, copies else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from attnprof.costs import Cost, Number, more_than_one, same_size
from attnprof.ops.base import Base
from attnprof.ops.layout import Layout, Shape, full_shape, is_literally, product

T = TypeVar("T", bound=Base)


def sizes(given: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes given one by one, or as one sequence."""
    only = given[0] if len(given) == 1 else None
    return tuple(only) if isinstance(only, tuple | list) else tuple(given)


def reshape(name: str, x: T, shape: Shape) -> T:
    """Another shape; its gradient takes the old one again, with its own copy or view.

    Where it copies, the stage is called after the one that made the entries, if one did.
    """
    name = f"{x.label} in rows" if x.label else name
    old, new = x.shape, full_shape(shape, x.count)
    flag, layout = x.layout.reshaped(old, new)
    out = x.where(flag, name, new, layout)
    if x.counter.grad and x.requires_grad:
        out.attach([x], lambda grad: [reshape(f"{name}: grad", grad, old)])
    return out


def in_rows(name: str, x: T, group: Number) -> T:
    """Itself, or for a group above one a copy if it is not laid out row by row."""
    flag, layout = x.layout.in_rows(x.shape, group)
    out = x.where(flag, name, x.shape, layout)
    if x.counter.grad and x.requires_grad:
        out.attach([x], lambda grad: [grad.detach()])
    return out


def permute(x: T, dims: Sequence[int]) -> T:
    """The dimensions in another order."""
    order = [place % x.dim() for place in dims]
    back = [order.index(place) for place in range(len(order))]
    shape = tuple(x.shape[place] for place in order)
    return x.alias(shape, x.layout.permuted(order), lambda grad: [permute(grad, back)])


def expand(x: T, shape: Shape) -> T:
    """Stretched along new dimensions in front and those of one entry, without memory."""
    old, own = x.shape, (1,) * (len(shape) - x.dim()) + x.shape
    full = tuple(b if is_literally(a, -1) else a for a, b in zip(shape, own, strict=True))
    layout = x.layout.stretched(old, shape)
    return x.alias(full, layout, lambda grad: [summed_to("stretched: grad", grad, old)])


def summed_to(name: str, x: T, shape: Shape) -> T:
    """Summed over dimensions that were stretched or added in front; itself where none was."""
    added = x.dim() - len(shape)
    lines = zip(shape, x.shape[added:], strict=True)
    stretched = [large for small, large in lines if not same_size(small, large)]
    if not added and not stretched:
        return x.detach()
    # a dimension that turns out to be one long was not stretched; a new one is summed anyway
    happens: Number = 1 if added else more_than_one(product(stretched))
    out = product(shape)
    cost = Cost(additions=x.count, reduction_outputs=out)
    moved = Cost(bytes_moved=x.size_bytes + out * x.item_size)
    return x.where(happens, name, shape, Layout.rows(shape), cost + moved)


def sliced(x: T, places: Any) -> T:
    """The first entries of some dimensions, ``x[..., :t]``; no gradient."""
    given = list(places) if isinstance(places, tuple) else [places]
    missing = slice(None)
    if Ellipsis in given:
        at = given.index(Ellipsis)
        given[at : at + 1] = [missing] * (x.dim() - len(given) + 1)
    given += [missing] * (x.dim() - len(given))
    parts = zip(x.shape, given, strict=True)
    ends = tuple(size if part.stop is None else part.stop for size, part in parts)
    return x.alias(ends, x.layout)


def selected(x: T, dim: int) -> T:
    """One entry of a dimension, which is gone then; no gradient."""
    order = [place for place in range(x.dim()) if place != dim % x.dim()]
    return x.alias(tuple(x.shape[place] for place in order), x.layout.permuted(order))
