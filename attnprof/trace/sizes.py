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
    if expression.is_Symbol:
        return names.get(expression, expression)
    from attnprof.trace import doubles

    if expression.is_Float:
        return doubles.exact(expression)
    args = [_plain(arg, names) for arg in expression.args]
    kind = type(expression).__name__
    if kind in _PLAIN:
        return _PLAIN[kind](*args)
    if kind in _DOUBLE:
        return getattr(doubles, _DOUBLE[kind])(*args)
    if kind.startswith("OpaqueUnaryFn_"):
        return _function(kind.removeprefix("OpaqueUnaryFn_"), *args)
    if kind in _UNSAID:
        raise ValueError(f"{expression}: a size that no formula here can say")
    return expression.func(*args) if args else expression


def _function(name: str, argument: Any) -> Any:
    """A function of :mod:`math`, as floats compute it."""
    from attnprof.trace import doubles

    if name == "log2":
        return doubles.DoubleLog2(argument)
    return doubles.called(f"Double{name.title()}", name)(argument)


def _bits(name: str) -> Callable[..., Any]:
    def combined(a: Any, b: Any) -> Any:
        from attnprof.trace import doubles

        return doubles.called(name, name, whole=True)(a, b)

    return combined


def _rounding(name: str) -> Callable[..., Any]:
    """``floor`` or ``ceiling`` of a ratio: exact, or as floats compute it."""

    def rounding(*ratio: Any) -> Any:
        import sympy

        from attnprof.trace import doubles

        value = doubles.divided(*ratio)
        if doubles.is_double(value):
            return doubles.rounded(name, value)
        return value if _is_whole(value) else getattr(sympy, name)(value)

    return rounding


def _rounded(value: Any) -> Any:
    """To the nearest integer, halves to even ones."""
    from attnprof.trace import doubles

    return value if _is_whole(value) else doubles.rounded("round", value)


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


def _least(*args: Any) -> Any:
    import sympy

    return sympy.Min(*args)


def _is_product(value: Any) -> bool:
    """Whether it is a product of free sizes, like B·h·d²."""
    powers = value.as_powers_dict()
    return all(
        base.is_Symbol and exponent.is_Integer and exponent > 0 for base, exponent in powers.items()
    )


def _same(value: Any) -> Any:
    return value


#: Torch's integer functions by name, as plain sympy.
_PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("FloorDiv", "FloorToInt", "TruncToInt"), _rounding("floor")),
    **dict.fromkeys(("CeilDiv", "CeilToInt"), _rounding("ceiling")),
    "RoundToInt": _rounded,
    **dict.fromkeys(("ToFloat", "Identity"), _same),
    **dict.fromkeys(("Mod", "PythonMod"), lambda a, b: a - b * _rounding("floor")(a, b)),
    "PowByNatural": lambda a, b: a**b,
    **{f"BitwiseFn_bitwise_{name}": _bits(f"bitwise_{name}") for name in ("and", "or", "xor")},
    "Max": _larger,
    "Min": _least,
}


#: What has no plain form here.
_UNSAID = frozenset({"TruncToFloat", "RoundDecimal", "LShift", "RShift", "Where"})
#: Its arithmetic with floats, which may be exact.
_DOUBLE = {
    "Add": "added", "Mul": "multiplied", "FloatPow": "raised",
    **dict.fromkeys(("CleanDiv", "IntTrueDiv", "FloatTrueDiv"), "divided"),
}  # fmt: skip


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
