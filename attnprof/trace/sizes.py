"""Read sizes of tensors as ints or sympy expressions, and evaluate expressions at numbers."""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from attnprof.trace.events import Size, Trace

if TYPE_CHECKING:
    from torch import Tensor

Value = Any  # int | Fraction | float
#: A share of weights below 2**-128 is no byte: its exact powers would be endless.
_SHARE_BITS = 128
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
    return size if isinstance(size, int) else _expanded(size)


@lru_cache(maxsize=4096)
def _expanded(size: Any) -> Size:
    return size.expand()


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
        return weights - math.floor(weights * _power(unchosen, rows))
    import sympy

    unread_share = sympy.Rational(unchosen.numerator, unchosen.denominator) ** rows
    return weights - sympy.floor(weights * unread_share)


def is_floating(tensor: Any) -> bool:
    """Return whether a tensor's arithmetic counts: real or complex, not integers or booleans."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


# -- exact values: integers stay integers, at any size, in microseconds -------------------


def evaluate(expression: Any, sizes: Mapping[str, Any]) -> Value:
    """Return the value of an expression at sizes: an int if the value is whole.

    Raises KeyError for a symbol that has no value.
    """
    value = _function(expression)(sizes)
    whole = isinstance(value, Fraction) and value.denominator == 1
    return value.numerator if whole else value


def live_bytes(trace: Trace, phase: str, sizes: Mapping[str, Any]) -> Iterator[tuple[int, Value]]:
    """Yield the number of each call of a phase, and the bytes held while it runs, at sizes."""
    total: Value = 0
    for place, call in enumerate(trace.calls):
        total += evaluate(call.takes, sizes) - evaluate(call.gives, sizes)
        if phase in {"train", "decode", call.part}:
            yield place, total + evaluate(call.workspace, sizes)


@lru_cache(maxsize=2**14, typed=True)
def _function(node: Any) -> Callable[[Mapping[str, Any]], Value]:
    """Return an expression as a function of the sizes, cached for evaluation at many shapes."""
    if isinstance(node, int | float | Fraction):
        return lambda _: node
    if node.is_Symbol:
        return operator.itemgetter(node.name)
    if node.is_Integer or node.is_Rational or node.is_Float:
        number = Fraction(int(node.p), int(node.q)) if node.is_Rational else float(node)
        value = int(node) if node.is_Integer else number
        return lambda _: value
    rule = RULES.get(type(node).__name__)
    if rule is None:
        return node.subs  # type: ignore[no-any-return]
    parts = [_function(arg) for arg in node.args]
    if not node.is_Relational:
        return lambda sizes: rule(*[part(sizes) for part in parts])

    def related(sizes: Mapping[str, Any]) -> Value:
        try:
            return rule(*[part(sizes) for part in parts])
        except (ArithmeticError, ValueError):  # of code that cannot run at these sizes
            return False

    return related


def chosen(expression: Any, at: Mapping[str, Any], *kinds: Any) -> Any:
    """Return an expression with each Max, Min and Piecewise replaced by the branch taken.

    ``at`` are sizes by name; ``kinds`` restricts which of the three are replaced.
    """
    import sympy

    def branch(node: Any) -> Any:
        if isinstance(node, sympy.Piecewise):
            return next(value for value, condition in node.args if evaluate(condition, at))
        value = evaluate(node, at)
        return next(arg for arg in node.args if evaluate(arg, at) == value)

    def walked(node: Any) -> Any:
        if isinstance(node, kinds):  # from outside in: branches not taken are never rebuilt
            return walked(branch(node))
        if not node.args:
            return node
        args = [walked(arg) for arg in node.args]
        same = all(new is old for new, old in zip(args, node.args, strict=True))
        return node if same else node.func(*args)

    kinds = kinds or (sympy.Min, sympy.Max, sympy.Piecewise)
    return walked(expression)


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, int):
        if isinstance(base, Fraction) and 0 < base < 1 and exponent > _SHARE_BITS / (1 - base):
            return Fraction(1, 2**_SHARE_BITS)  # exp(-_SHARE_BITS) at most: no byte of a weight
        return (base if exponent >= 0 else Fraction(base)) ** exponent
    if isinstance(exponent, Fraction) and exponent.denominator == 2 and isinstance(base, int):
        root = math.isqrt(max(base, 0))
        if root * root == base:
            return _power(root, exponent.numerator)
    return float(base) ** float(exponent)


def _log(value: Value, *base: Value) -> Value:
    if not base and isinstance(value, int) and value & (value - 1) == 0:
        return math.log(value)
    return math.log(*map(float, (value, *base)))


def _whole(rounded: Callable[[Any], int], value: Value) -> Value:
    """Return a rounded value; the whole number itself if floats miss it by their last digits."""
    misses = isinstance(value, float) and math.isclose(value, round(value), rel_tol=1e-14)
    return round(value) if misses else rounded(value)


#: Functions by the name of an expression's class: sympy's, and :mod:`attnprof.trace.doubles`'.
RULES: dict[str, Callable[..., Value]] = {
    "Add": lambda *args: sum(args), "Mul": lambda *args: math.prod(args), "Pow": _power,
    "Max": max, "Min": min, "Abs": abs, "Mod": operator.mod, "log": _log, "exp": math.exp,
    "floor": partial(_whole, math.floor), "ceiling": partial(_whole, math.ceil),
    "Piecewise": lambda *cases: next(value for value, holds in cases if holds),
    "ExprCondPair": lambda *case: case,
    "DoubleSum": lambda a, b: float(a) + float(b),
    "DoubleProduct": lambda a, b: float(a) * float(b),
    "DoubleQuotient": lambda a, b: float(a) / float(b),
    "DoublePower": lambda a, b: float(a) ** float(b),
    "DoubleFloor": math.floor, "DoubleCeiling": math.ceil, "DoubleRound": round,
    **{f"Double{name.title()}": getattr(math, name) for name in ("sqrt", "log", "log2", "exp")},
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "StrictGreaterThan": operator.gt, "GreaterThan": operator.ge, "StrictLessThan": operator.lt,
    "LessThan": operator.le, "Equality": operator.eq, "Unequality": operator.ne,
    "BooleanTrue": lambda: True, "BooleanFalse": lambda: False, "Not": operator.not_,
    "And": lambda *args: all(args), "Or": lambda *args: any(args),
}  # fmt: skip
