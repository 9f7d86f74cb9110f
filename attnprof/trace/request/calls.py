"""Learn from a model's run how it builds and calls a module, as expressions in the sizes.

:func:`watched` ends a run at the module's call and reports it. :func:`fitted` makes expressions of
the numbers of several runs: 256 at N = 64 and 512 at N = 128 are ``4*N``.
"""

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

_ARGUMENTS = "_attnprof_given"
#: Tokens that a model adds to those of an image (for the class, registers): fewer than this.
_EXTRA_TOKENS = 9


class _CalledError(Exception):
    """Ends a run at the module's call."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a tensor in a call; ``dtype`` is empty for torch's default."""

    sizes: tuple[Any, ...]
    dtype: str = ""


@dataclass(frozen=True)
class Use:
    """A call of a module: constructor arguments and inputs, each leaf by its path, like ``x.0``."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def watched(owner: Any, see: Callable[[Use], None]) -> Iterator[None]:
    """Inside the context, report a call of an ``owner`` module to ``see`` and end the run there.

    Modules of the owner's file keep the arguments that they are built with.
    """
    call = owner.forward

    @wraps(call)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        if type(self) is not owner:
            return call(self, *args, **named)
        see(
            Use(
                _leaves_of(_init_arguments(self)),
                _leaves_of(_arguments_by_name(call, self, args, named)),
            )
        )
        raise _CalledError

    kinds = [kind for kind in names_around(owner).values() if is_module(kind)]
    with ExitStack() as stack:
        for kind in dict.fromkeys([owner, *kinds]):
            if kind.__module__ == owner.__module__ and "__init__" in vars(kind):
                stack.enter_context(patch.object(kind, "__init__", _storing_init(kind.__init__)))
        stack.enter_context(patch.object(owner, "forward", called))
        yield


def _storing_init(build: Any) -> Any:
    """Return a constructor that stores its arguments in the module: a subclass's if both do."""

    @wraps(build)
    def built(self: Any, *args: Any, **named: Any) -> None:
        if _ARGUMENTS not in self.__dict__:
            object.__setattr__(self, _ARGUMENTS, _arguments_by_name(build, self, args, named))
        build(self, *args, **named)

    return built


def _init_arguments(module: Any) -> dict[str, Any]:
    """Return the constructor arguments that a module keeps."""
    return dict(module.__dict__.get(_ARGUMENTS, {}))


def _arguments_by_name(function: Any, module: Any, args: Any, named: Any) -> dict[str, Any]:
    """Return arguments by name, without those at their default; of ``**kwargs`` only tensors."""
    import torch

    signature = inspect.signature(function)
    try:
        bound = signature.bind(module, *args, **named).arguments
    except TypeError:
        return {}
    _self, *names = signature.parameters
    taken = {n: bound[n] for n in names if n in bound}
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
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        leaves |= _leaves(name, value)
    return leaves


def _leaves(path: str, value: Any) -> dict[str, Any]:
    """Return tensors and plain values by path, as inputs are named: ``{"x.0": Shape((2, 64))}``."""
    import torch

    if isinstance(value, torch.Tensor):
        usual = value.dtype == torch.get_default_dtype()
        return {path: Shape(tuple(value.shape), "" if usual else str(value.dtype)[6:])}
    if isinstance(value, torch.nn.Module) and _init_arguments(value):
        return {path: Configuration(type(value), _leaves_of(_init_arguments(value)))}
    parts: dict[str, Any] = {}
    if isinstance(value, tuple) and type(value) is tuple and value:
        parts = {f".{at}": x for at, x in enumerate(value)}
    elif isinstance(value, list) and value:
        parts = {f"[{at}]": x for at, x in enumerate(value)}
    elif isinstance(value, dict) and all(str(key).isidentifier() for key in value):
        parts = {f".{key}": x for key, x in value.items()}
    if not parts:
        return {path: value}
    leaves: dict[str, Any] = {}
    for step, part in parts.items():
        leaves |= _leaves(path + step, part)
    return leaves


def is_module(kind: Any) -> bool:
    """Return whether ``kind`` is a class of modules."""
    from torch import nn

    return isinstance(kind, type) and issubclass(kind, nn.Module)


# -- from numbers at some sizes to expressions ----------------------------------------------


class UnlikeCallsError(Exception):
    """Raised when no expression fits the numbers of several runs."""


def fitted(base: Mapping[str, int], first: Any, others: list[Any]) -> Any:
    """Return a leaf with expressions for the numbers that differ between runs.

    ``first`` is the leaf at the sizes ``base``; ``others`` are the leaf with each size doubled in
    turn, then with all tripled.
    """
    if isinstance(first, Shape):
        if not all(isinstance(x, Shape) and len(x.sizes) == len(first.sizes) for x in others):
            raise UnlikeCallsError
        columns = zip(first.sizes, *(x.sizes for x in others), strict=True)
        return Shape(tuple(_size(base, one, rest) for one, *rest in columns), first.dtype)
    if isinstance(first, int) and not isinstance(first, bool):
        if not all(type(x) is int for x in others):
            raise UnlikeCallsError
        text = _size(base, first, others)
        return first if text == str(first) else Expression(text)
    if isinstance(first, Configuration):
        fields = [x.fields if isinstance(x, Configuration) else {} for x in others]
        return Configuration(
            first.kind,
            {n: fitted(base, x, [one.get(n) for one in fields]) for n, x in first.fields.items()},
        )
    return first


def _size(base: Mapping[str, int], first: int, others: list[int]) -> str:
    """Return a number as text: a product of lines in the sizes, plus up to eight tokens.

    ``N/64 - 4``, ``B*h``, ``H*W + 1``; a number that no size changes stays one.
    """
    for more in range(max(1, min(_EXTRA_TOKENS, first))):
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
    number = [str(share.numerator)] if share.numerator != 1 else []
    return "*".join(number + factors) + (f"/{share.denominator}" if share.denominator != 1 else "")
