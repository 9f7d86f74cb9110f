"""Sizes as the rules see them: ints stay ints, symbolic ones become sympy expressions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from attnprof.trace.events import Size

#: The expression over the user's symbols for one over torch's own; set while a run is symbolic.
_SPOKEN: ContextVar[dict[Any, Any]] = ContextVar("spoken")


@contextmanager
def spoken(names: dict[Any, Any]) -> Iterator[None]:
    """Sizes read inside use these symbols (torch's own → the user's)."""
    token = _SPOKEN.set(names)
    try:
        yield
    finally:
        _SPOKEN.reset(token)


def size_of(value: Any) -> Size:
    """A torch size as an int or an expression; also of what is neither, as it is."""
    node = getattr(value, "node", None)
    if node is None:
        return value
    return translated(node.expr)


def translated(expression: Any) -> Size:
    """Torch's expression over its own symbols as one over the user's, in plain sympy."""
    if expression.is_Integer:
        return int(expression)
    names = _SPOKEN.get({})
    seen = names.setdefault("seen", {})
    if expression not in seen:
        from attnprof.trace.doubles import plain

        seen[expression] = plain(expression, names)
    return seen[expression]


def product(sizes: Iterable[Any]) -> Size:
    """The product of torch sizes."""
    total: Size = 1
    for size in sizes:
        total = total * size_of(size)
    return total


def numel(tensor: Tensor) -> Size:
    """Entries of a tensor."""
    return product(tensor.shape)


def nbytes(tensor: Tensor) -> Size:
    """Bytes of a tensor's entries (not of the storage they lie in)."""
    return numel(tensor) * tensor.element_size()


def storage_bytes(tensor: Tensor) -> Size:
    """Bytes of the storage a tensor lies in."""
    return size_of(tensor.untyped_storage().nbytes())


def levels(points: Size) -> Size:
    """The logarithm to base 2, rounded up: levels of a tree over so many points."""
    if isinstance(points, int):
        return (points - 1).bit_length()
    import sympy

    return sympy.ceiling(sympy.log(points) / sympy.log(2))


def is_floating(tensor: Any) -> bool:
    """Whether its arithmetic counts: real or complex numbers, not integers or booleans."""
    return bool(tensor.is_floating_point() or tensor.is_complex())
