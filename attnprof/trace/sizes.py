"""Read sizes of tensors as ints or sympy expressions, and the bytes that a trace holds."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
    """Translate sizes read inside: ``names`` maps torch's own symbols to the user's."""
    with ExitStack() as stack:
        stack.callback(_USER_SYMBOLS.reset, _USER_SYMBOLS.set(names))
        yield


def size_of(value: Any) -> Size:
    """Return a torch size as an int or an expression; any other value as it is."""
    node = getattr(value, "node", None)
    return value if node is None else translated(node.expr)


def translated(expression: Any) -> Size:
    """Return torch's expression over its own symbols as one over the user's, in plain sympy."""
    if expression.is_Integer:
        return int(expression)
    names = _USER_SYMBOLS.get({})
    translations = names.setdefault("translations", {})
    if expression not in translations:
        from attnprof.trace.doubles import plain

        translations[expression] = plain(expression, names)
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
    """Return the bytes of the storage a tensor lies in, expanded, so that equal ones look alike."""
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
    """Return the levels of a tree over so many points: the logarithm to base 2, rounded up."""
    if isinstance(points, int):
        return (points - 1).bit_length()
    import sympy

    return sympy.ceiling(sympy.log(points) / sympy.log(2))


def expected_bytes(weights: Size, experts: int, each: int, rows: Size) -> Size:
    """Return the bytes of experts chosen by any row, if each row chooses ``each`` at random.

    The share of bytes is 1 - (1 - each/experts)**rows, rounded up to a byte: of 8 experts of 100
    bytes each, 2 rows that choose 2 experts each read 800 - 450 bytes.
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
    """Yield the number of each call of a phase, and the bytes held while it runs, at sizes."""
    total: Value = 0
    for place, call in enumerate(trace.calls):
        total += evaluate(call.takes, sizes) - evaluate(call.gives, sizes)
        if phase in {"train", "decode", call.part}:
            yield place, total + evaluate(call.workspace, sizes)
