"""What a module is built with and called with in a run of a model, and that at any sizes."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import wraps
from typing import Any
from unittest.mock import patch

from attnprof.trace.request.configurations import Configuration, names_around
from attnprof.trace.request.target import DEFAULT, Expression

_GIVEN = "_attnprof_given"
#: Tokens that a model puts beside those of an image: fewer than this.
_MORE = 9


class _CalledError(Exception):
    """Ends a run where the module is called."""


@dataclass(frozen=True)
class Shape:
    """A tensor of a call."""

    sizes: tuple[Any, ...]
    dtype: str = ""


@dataclass(frozen=True)
class Use:
    """A call of the module: what it was built with, and what it gets; leaves by their paths."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def watched(owner: Any, see: Callable[[Use], None]) -> Iterator[None]:
    """Inside, modules keep what they are built with, and a call of one of ``owner`` is seen."""
    call = owner.forward

    @wraps(call)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        if type(self) is not owner:
            return call(self, *args, **named)
        see(Use(_leaves_of(_given_to(self)), _leaves_of(_bound(call, self, args, named))))
        raise _CalledError

    kinds = [kind for kind in names_around(owner).values() if is_module(kind)]
    with ExitStack() as stack:
        for kind in dict.fromkeys([owner, *kinds]):
            if kind.__module__ == owner.__module__ and "__init__" in vars(kind):
                stack.enter_context(patch.object(kind, "__init__", _keeping(kind.__init__)))
        stack.enter_context(patch.object(owner, "forward", called))
        yield


def _keeping(build: Any) -> Any:
    """A constructor that keeps its arguments, those of the outermost where it calls another."""

    @wraps(build)
    def built(self: Any, *args: Any, **named: Any) -> None:
        if _GIVEN not in self.__dict__:
            object.__setattr__(self, _GIVEN, _bound(build, self, args, named))
        build(self, *args, **named)

    return built


def _given_to(module: Any) -> dict[str, Any]:
    return dict(module.__dict__.get(_GIVEN, {}))


def _bound(function: Any, module: Any, args: Any, named: Any) -> dict[str, Any]:
    """Arguments by name, without those at their default; tensors alone of any others."""
    import torch

    signature = inspect.signature(function)
    try:
        found = signature.bind(module, *args, **named).arguments
    except TypeError:
        return {}
    _self, *names = signature.parameters
    taken = {n: found[n] for n in names if n in found}
    for name in names:
        item = signature.parameters[name]
        if item.kind is item.VAR_KEYWORD:
            more = taken.pop(name, {})
            taken |= {n: x for n, x in more.items() if isinstance(x, torch.Tensor)}
        elif isinstance(taken.get(name, item), torch.Tensor):
            continue
        elif taken.get(name, item) is item.default or taken.get(name, item) == item.default:
            del taken[name]
    return taken


def _leaves_of(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _leaves(name, value)
    return found


def _leaves(path: str, value: Any) -> dict[str, Any]:
    """Tensors and plain values by their paths, as inputs are named."""
    import torch

    if isinstance(value, torch.Tensor):
        usual = value.dtype == torch.get_default_dtype()
        return {path: Shape(tuple(value.shape), "" if usual else str(value.dtype)[6:])}
    if isinstance(value, torch.nn.Module) and _given_to(value):
        return {path: Configuration(type(value), _leaves_of(_given_to(value)))}
    parts: dict[str, Any] = {}
    if isinstance(value, tuple) and type(value) is tuple and value:
        parts = {f".{at}": x for at, x in enumerate(value)}
    elif isinstance(value, list) and value:
        parts = {f"[{at}]": x for at, x in enumerate(value)}
    elif isinstance(value, dict) and all(str(key).isidentifier() for key in value):
        parts = {f".{key}": x for key, x in value.items()}
    if not parts:
        return {path: value}
    found: dict[str, Any] = {}
    for step, part in parts.items():
        found |= _leaves(path + step, part)
    return found


def is_module(kind: Any) -> bool:
    """Whether it is a class of modules."""
    from torch import nn

    return isinstance(kind, type) and issubclass(kind, nn.Module)


# -- from numbers at some sizes to expressions ----------------------------------------------


class UnlikeCallsError(Exception):
    """Runs at several sizes give what no expression fits."""


def fitted(base: Mapping[str, int], first: Any, others: list[Any]) -> Any:
    """What a leaf is at any sizes."""
    if isinstance(first, Shape):
        if not all(isinstance(x, Shape) and len(x.sizes) == len(first.sizes) for x in others):
            raise UnlikeCallsError
        columns = zip(first.sizes, *(x.sizes for x in others), strict=True)
        return Shape(tuple(_size(base, one, rest) for one, *rest in columns), first.dtype)
    if isinstance(first, int) and not isinstance(first, bool):
        if not all(type(x) is int for x in others):
            raise UnlikeCallsError
        found = _size(base, first, others)
        return first if found == str(first) else Expression(found)
    if isinstance(first, Configuration):
        fields = [x.fields if isinstance(x, Configuration) else {} for x in others]
        return Configuration(
            first.kind,
            {n: fitted(base, x, [one.get(n) for one in fields]) for n, x in first.fields.items()},
        )
    return first


def _size(base: Mapping[str, int], first: int, others: list[int]) -> str:
    """A product of straight lines in the sizes, and tokens more, or a number, as text.

    ``N/64 - 4``, ``B*h``, ``H*W + 1``.
    """
    for more in range(max(1, min(_MORE, first))):
        with suppress(UnlikeCallsError):
            text = _product(base, first - more, [other - more for other in others])
            return f"{text} + {more}" if more else text
    raise UnlikeCallsError


def _product(base: Mapping[str, int], first: int, others: list[int]) -> str:
    *doubled, tripled = others
    lines, share = list[tuple[str, Fraction]](), Fraction(first)
    for (name, size), twice in zip(base.items(), doubled, strict=True):
        if twice != first:
            slope = Fraction(twice - first, size)
            lines.append((name, Fraction(first) - slope * size))
            share *= slope / first if first else 0
            lines[-1] = name, lines[-1][1] / slope
    expected = share
    for name, offset in lines:
        expected *= 3 * base[name] + offset
    if expected != tripled:
        raise UnlikeCallsError
    return _text(share, lines) if lines else str(first)


def _text(share: Fraction, lines: list[tuple[str, Fraction]]) -> str:
    if len(lines) == 1:  # a line is shown as one
        name, offset = lines[0]
        more = share * offset
        if more.denominator != 1:
            raise UnlikeCallsError
        return _times(share, [name]) + _signed(more)
    if any(offset.denominator != 1 for _, offset in lines):
        raise UnlikeCallsError
    order = sorted(lines, key=lambda x: DEFAULT.index(x[0]) if x[0] in DEFAULT else 9)
    return _times(share, [f"({n}{_signed(o)})" if o else n for n, o in order])


def _signed(number: Fraction) -> str:
    return f" {'+' if number > 0 else '-'} {abs(number)}" if number else ""


def _times(share: Fraction, factors: list[str]) -> str:
    own = [str(share.numerator)] if share.numerator != 1 else []
    return "*".join(own + factors) + (f"/{share.denominator}" if share.denominator != 1 else "")
