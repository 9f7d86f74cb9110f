"""Sizes as the rules see them: ints stay ints, symbolic ones become sympy expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        seen[expression] = _plain(expression, names)
    return seen[expression]


def _plain(expression: Any, names: dict[Any, Any]) -> Any:
    """Torch's integer functions by sympy's own, which print and evaluate everywhere."""
    import sympy

    if expression.is_Symbol:
        return names.get(expression, expression)
    args = [_plain(arg, names) for arg in expression.args]
    kind = type(expression).__name__
    if kind in _PLAIN:
        return _PLAIN[kind](*args)
    if kind.startswith("OpaqueUnaryFn_"):
        return getattr(sympy, kind.removeprefix("OpaqueUnaryFn_"))(*args)
    return expression.func(*args) if args else expression


def _floor(*ratio: Any) -> Any:
    import sympy

    value = _ratio(*ratio)
    return value if _is_whole(value) else sympy.floor(value)


def _ceiling(*ratio: Any) -> Any:
    import sympy

    value = _ratio(*ratio)
    return value if _is_whole(value) else sympy.ceiling(value)


def _is_whole(value: Any) -> bool:
    """Whether it is an integer wherever the sizes are: the user's symbols do not say so."""
    import sympy

    whole = {s: sympy.Symbol(s.name, integer=True, positive=True) for s in value.free_symbols}
    return bool(value.xreplace(whole).is_integer)


def _larger(*args: Any) -> Any:
    """Their maximum; no free size is below two, so that one is less than a product of sizes."""
    import sympy

    above = any(_is_product(argument) for argument in args)
    return sympy.Max(*(argument for argument in args if argument != 1 or not above))


def _is_product(value: Any) -> bool:
    """Whether it is a product of free sizes, like B·h·d²."""
    powers = value.as_powers_dict()
    return all(
        base.is_Symbol and exponent.is_Integer and exponent > 0 for base, exponent in powers.items()
    )


def _ratio(a: Any, b: Any = 1) -> Any:
    return a / b


#: Torch's integer functions by name, as plain sympy.
_PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("FloorDiv", "FloorToInt", "TruncToInt"), _floor),
    **dict.fromkeys(("CeilDiv", "CeilToInt"), _ceiling),
    **dict.fromkeys(("CleanDiv", "IntTrueDiv", "FloatTrueDiv", "ToFloat", "Identity"), _ratio),
    **dict.fromkeys(("Mod", "PythonMod"), lambda a, b: a - b * _floor(a, b)),
    **dict.fromkeys(("PowByNatural", "FloatPow"), lambda a, b: a**b),
    "Max": _larger,
}


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


def half(value: Size) -> Size:
    """value/2, where value is even: exact for ints and expressions."""
    if isinstance(value, int):
        return value // 2
    return value / 2


def smaller(a: Size, b: Size) -> Size:
    """min(a, b), of ints or expressions."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    import sympy

    return sympy.Min(a, b)


def levels(points: Size) -> Size:
    """The logarithm to base 2, rounded up: levels of a tree over so many points."""
    if isinstance(points, int):
        return (points - 1).bit_length()
    import sympy

    return sympy.ceiling(sympy.log(points) / sympy.log(2))


def is_floating(tensor: Any) -> bool:
    """Whether its arithmetic counts: real or complex numbers, not integers or booleans."""
    return bool(tensor.is_floating_point() or tensor.is_complex())
