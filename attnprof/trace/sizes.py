"""Read sizes of torch's tensors as ints or sympy expressions, and the live bytes of a trace.

In a symbolic run ``tensor.shape`` has torch's symbols; :func:`size_of` returns the user's (``N``).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attnprof.algebra.values import Value, evaluate, power
from attnprof.trace.events import Size, Trace

if TYPE_CHECKING:
    from torch import Tensor

#: Torch's symbols → the user's, and expressions translated so far; set during a symbolic run.
_USER_SYMBOLS: ContextVar[dict[Any, Any]] = ContextVar("user_symbols")


@contextmanager
def user_symbols(names: dict[Any, Any]) -> Iterator[None]:
    """Translate sizes that the body reads: ``names`` maps torch's own symbols to the user's."""
    token = _USER_SYMBOLS.set(names)
    try:
        yield
    finally:
        _USER_SYMBOLS.reset(token)


def size_of(value: Any) -> Size:
    """Return a torch size as an int or an expression; any other value as it is."""
    node = getattr(value, "node", None)
    return value if node is None else translated(node.expr)


def translated(expression: Any) -> Size:
    """Return an expression of torch over the user's symbols, as int or in plain sympy."""
    if expression.is_Integer:
        return int(expression)
    names = _USER_SYMBOLS.get({})
    translations = names.setdefault("translations", {})
    if expression not in translations:
        from attnprof.trace.doubles import from_torch

        translations[expression] = from_torch(expression, names)
    return translations[expression]


def product(sizes: Iterable[Any]) -> Size:
    """Return the product of torch sizes."""
    return math.prod(map(size_of, sizes))


def numel(tensor: "Tensor") -> Size:
    """Return the number of entries of a tensor."""
    return product(tensor.shape)


def nbytes(tensor: "Tensor") -> Size:
    """Return the bytes of a tensor's entries (not of the storage they lie in)."""
    return numel(tensor) * tensor.element_size()


def storage_bytes(tensor: "Tensor") -> Size:
    """Return the bytes of the storage a tensor lies in, as a sum: equal sizes have equal text."""
    size = size_of(tensor.untyped_storage().nbytes())
    return size if isinstance(size, int) else _expanded(without_least(size))


@lru_cache(maxsize=4096)
def _expanded(size: Any) -> Size:
    return size.expand()


def without_least(size: Size) -> Size:
    """Return a stride without torch's max(1, size), which matters only for empty tensors."""
    if isinstance(size, int):
        return size
    import sympy

    least = {part: sympy.Max(*(arg for arg in part.args if arg != 1))
             for part in size.atoms(sympy.Max) if 1 in part.args}  # fmt: skip
    return size.xreplace(least) if least else size


def levels(points: Size) -> Size:
    """Return the levels of a binary tree with so many leaves: 10 for 1000."""
    if isinstance(points, int):
        return (points - 1).bit_length()
    import sympy

    return sympy.ceiling(sympy.log(points) / sympy.log(2))


def expected_bytes(weights: Size, experts: int, each: int, rows: Size) -> Size:
    """Return the mean bytes of experts that are read if each row chooses ``each`` at random.

    Of ``weights``, the bytes of all experts, it is the share 1 - (1 - each/experts)**rows, rounded
    up to a byte: of 8 experts of 100 bytes, 2 rows that choose 2 each read 350 bytes.
    """
    unchosen = Fraction(experts - each, experts)
    if isinstance(weights, int) and isinstance(rows, int):
        return weights - math.floor(weights * power(unchosen, rows))
    import sympy

    unread_share = sympy.Rational(unchosen.numerator, unchosen.denominator) ** rows
    return weights - sympy.floor(weights * unread_share)


def is_floating(tensor: Any) -> bool:
    """Return whether a tensor's arithmetic counts: real or complex, not integers or booleans."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


def live_bytes(trace: Trace, phase: str, sizes: Mapping[str, Any]) -> Iterator[tuple[int, Value]]:
    """Yield the index of each call of a phase, and the bytes that live while it runs, at sizes."""
    live: Value = 0
    for index, call in enumerate(trace.calls):
        live += evaluate(call.takes, sizes) - evaluate(call.gives, sizes)
        if phase in {"train", "decode", call.part}:
            yield index, live + evaluate(call.workspace, sizes)
