"""Guess a module's arguments and inputs from the models in its file that call it.

A model is derived like any class, and run until it calls the module (:func:`_watched`). What it
passes there, at several sizes, becomes expressions (:func:`_fitted`): 256 at N = 64 and 512 at N =
128 are ``4*N``. :func:`uses` is the entry point.
"""

import ast
import inspect
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, wraps
from math import prod
from typing import Any
from unittest.mock import patch

from attnprof.errors import AttnprofError
from attnprof.trace.request import signatures
from attnprof.trace.request.configurations import (
    Configuration,
    config_parameter,
    names_around,
    source_of,
)
from attnprof.trace.request.failures import Repair
from attnprof.trace.request.guesses import Request, of_class
from attnprof.trace.request.repairs import Tries
from attnprof.trace.request.target import DEFAULT, Expression, Input, Target, base_of, folded
from attnprof.trace.request.texts import Named
from attnprof.trace.run.runs import outcome

#: Models tried, operations of a run, seconds for all, and lengths of the first run in turn.
_MODELS, _OPERATIONS, _SECONDS, _LENGTHS = 6, 6000, 8.0, (256, 1024, 64)
#: Repairs of a model's own guesses, if its run does not get to the module.
_REPAIRS = 16
#: Sizes of the first run; each is doubled in turn, then all are tripled.
_FIRST_SIZES = {"B": 2, "h": 4, "d": 16}
#: The attribute in which modules of a watched run keep their constructor arguments.
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

    arguments: Mapping[str, Any]
    inputs: Mapping[str, Any]


class _UnlikeCallsError(Exception):
    """Raised when a run has no call, or no expression fits the numbers of several."""


def uses(
    owner: Any, request: Request, symbols: set[str], *, have_all: bool
) -> Iterator[tuple[str, Repair]]:
    """Yield guesses for a class as a model of its file calls it, with that model's name.

    With ``have_all`` only models that have all of the ``symbols`` are run, else only the others;
    each is run at a few lengths.
    """
    end = time.process_time() + _SECONDS
    for model in _models(owner):
        with suppress(AttnprofError):
            takes = signatures.parameters_of_class(model, model.__name__)
            args = {name: x for name, x in request.args.items() if base_of(name) in takes}
            of_model = Request(model.__name__, args, {}, causal=False, dtype=request.dtype)
            target = of_class(model, of_model)
            if (symbols <= {*target.symbols}) == have_all:
                for call in _calls_at_lengths(owner, _reach_module(owner, model, of_model, target)):
                    yield model.__name__, _repair(owner, request, call)
        if time.process_time() > end:
            return


def _models(owner: Any) -> list[Any]:
    """Return classes of the same file that use the owner, directly or not, whole models first."""
    around, names = names_around(owner), _names_used(owner)
    users, using = [owner.__name__], list[str]()
    while users := [n for n in names if n not in using and names[n] & {*users}]:
        using += users
    order = sorted(using, key=lambda name: (not name.endswith("Model"), -using.index(name)))
    kinds = [around[name] for name in order if _is_module(around.get(name))]
    kinds = [kind for kind in kinds if not issubclass(owner, kind)]
    named = ((kind, getattr(kind.forward, "__name__", "")) for kind in kinds)
    return [kind for kind, name in named if name != "_forward_unimplemented"][:_MODELS]


def _names_used(owner: Any) -> dict[str, set[str]]:
    """Return the names that each class, function or table of the owner's file uses."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(source_of(sys.modules.get(owner.__module__))).body:
        assigned = getattr(node, "targets", [])
        defined = [getattr(node, "name", ""), *(getattr(x, "id", "") for x in assigned)]
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {name: names.get(name, set()) | used for name in defined if name}
    return names


# -- runs that end where the module is called ---------------------------------------------


def _calls_at_lengths(owner: Any, target: Target) -> Iterator[Use]:
    """Yield the module's first call in a model at each length, with expressions for sizes."""
    distinct = list[Use]()
    for length in _LENGTHS if "N" in target.symbols else _LENGTHS[:1]:
        base = _base(target, length)
        doubled = [{**base, name: 2 * size} for name, size in base.items()]
        runs = [base, *doubled, {name: 3 * size for name, size in base.items()}]
        with suppress(_UnlikeCallsError):
            first, *others = [_first_call(owner, target, sizes) for sizes in runs]
            use = Use(
                _fitted_each(base, first.arguments, [call.arguments for call in others]),
                _fitted_each(base, first.inputs, [call.inputs for call in others]),
            )
            if use not in distinct:
                distinct.append(use)
                yield use


def _reach_module(owner: Any, model: Any, request: Request, target: Target) -> Target:
    """Return the model's target with the first guesses by which a run gets to the module."""

    def fails(other: Target) -> Exception | None:
        ended = _run(owner, other, _base(other, _LENGTHS[0]))
        return ended if isinstance(ended, Exception) else None

    error = fails(target)
    if error is None:
        return target
    tries = Tries(partial(of_class, model), request, model, fails, _REPAIRS)
    return tries.until_one_runs(target, error) or target


def _base(target: Target, length: int) -> dict[str, int]:
    return {name: {**_FIRST_SIZES, "N": length}.get(name, 16) for name in target.symbols}


def _run(owner: Any, target: Target, sizes: Mapping[str, int]) -> Any:
    """Run a model up to its call of the owner: return that, or an error, or another end."""
    with _watched(owner) as calls:
        ended = outcome(target, sizes, training=False, most=_OPERATIONS)
    return calls[0] if calls else ended


def _first_call(owner: Any, target: Target, sizes: Mapping[str, int]) -> Use:
    """Return the module's first call in a run; with values, or on real tensors, if needed."""
    for how in (target, target.running(routed=True), target.running(real=True)):
        ended = _run(owner, how, sizes)
        if isinstance(ended, Use):
            return ended
        if not type(ended).__module__.startswith("torch."):
            break
    raise _UnlikeCallsError


@contextmanager
def _watched(owner: Any) -> Iterator[list[Use]]:
    """Yield a list that gets the call of an ``owner`` module, which ends the run.

    Modules of the owner's file keep the arguments that they are built with.
    """
    calls, call = list[Use](), owner.forward

    @wraps(call)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        if type(self) is not owner:
            return call(self, *args, **named)
        inputs = _arguments_by_name(call, self, args, named)
        calls.append(Use(_leaves(self.__dict__.get(_ARGUMENTS, {})), _leaves(inputs)))
        raise _CalledError

    kinds = [kind for kind in names_around(owner).values() if _is_module(kind)]
    with ExitStack() as stack:
        for kind in dict.fromkeys([owner, *kinds]):
            if kind.__module__ == owner.__module__ and "__init__" in vars(kind):
                stack.enter_context(patch.object(kind, "__init__", _storing_init(kind.__init__)))
        stack.enter_context(patch.object(owner, "forward", called))
        yield calls


def _storing_init(build: Any) -> Any:
    """Return a constructor that stores its arguments in the module: a subclass's if both do."""

    @wraps(build)
    def built(self: Any, *args: Any, **named: Any) -> None:
        if _ARGUMENTS not in self.__dict__:
            object.__setattr__(self, _ARGUMENTS, _arguments_by_name(build, self, args, named))
        build(self, *args, **named)

    return built


def _arguments_by_name(function: Any, module: Any, args: Any, named: Any) -> dict[str, Any]:
    """Return arguments by name, without those at their default; of ``**kwargs`` only tensors."""
    import torch

    signature = inspect.signature(function)
    try:
        bound = signature.bind(module, *args, **named).arguments
    except TypeError:
        return {}
    _self, *names = bound
    arguments: dict[str, Any] = {}
    for name in names:
        item, value = signature.parameters[name], bound[name]
        if item.kind is item.VAR_KEYWORD:
            arguments |= {n: x for n, x in value.items() if isinstance(x, torch.Tensor)}
        elif isinstance(value, torch.Tensor) or (
            value is not item.default and value != item.default
        ):
            arguments[name] = value
    return arguments


def _leaves(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors and plain values by path, as inputs are named: ``{"x.0": Shape((2, 64))}``."""
    import torch

    leaves: dict[str, Any] = {}
    for path, value in values.items():
        leaf, parts = value, dict[str, Any]()
        if isinstance(value, torch.Tensor):
            usual = value.dtype == torch.get_default_dtype()
            leaf = Shape(tuple(value.shape), "" if usual else str(value.dtype)[6:])
        elif isinstance(value, torch.nn.Module) and (args := value.__dict__.get(_ARGUMENTS)):
            leaf = Configuration(type(value), _leaves(args))
        elif type(value) is tuple:
            parts = {f"{path}.{at}": x for at, x in enumerate(value)}
        elif isinstance(value, list):
            parts = {f"{path}[{at}]": x for at, x in enumerate(value)}
        elif isinstance(value, dict) and all(str(key).isidentifier() for key in value):
            parts = {f"{path}.{key}": x for key, x in value.items()}
        leaves |= _leaves(parts) if parts else {path: leaf}
    return leaves


def _is_module(kind: Any) -> bool:
    """Return whether ``kind`` is a class of modules."""
    from torch import nn

    return isinstance(kind, type) and issubclass(kind, nn.Module)


# -- from numbers at some sizes to expressions ----------------------------------------------


def _fitted(base: Mapping[str, int], first: Any, others: list[Any]) -> Any:
    """Return a leaf with expressions for the numbers that differ between runs.

    ``first`` is the leaf at the sizes ``base``; ``others`` are the leaf with each size doubled in
    turn, then with all tripled.
    """
    if isinstance(first, Shape):
        if not all(isinstance(x, Shape) and len(x.sizes) == len(first.sizes) for x in others):
            raise _UnlikeCallsError
        columns = zip(first.sizes, *(x.sizes for x in others), strict=True)
        return Shape(tuple(_size(base, one, rest) for one, *rest in columns), first.dtype)
    if isinstance(first, int) and not isinstance(first, bool):
        if not all(type(x) is int for x in others):
            raise _UnlikeCallsError
        text = _size(base, first, others)
        return first if text == str(first) else Expression(text)
    if isinstance(first, Configuration):
        fields = [x.fields if isinstance(x, Configuration) else {} for x in others]
        return Configuration(first.kind, _fitted_each(base, first.fields, fields))
    return first


def _fitted_each(base: Mapping[str, int], first: Any, others: list[Any]) -> dict[str, Any]:
    return {n: _fitted(base, x, [other.get(n) for other in others]) for n, x in first.items()}


def _size(base: Mapping[str, int], first: int, others: list[int]) -> str:
    """Return a number as text: a product of lines in the sizes, plus up to eight tokens.

    ``N/64 - 4``, ``B*h``, ``H*W + 1``; a number that no size changes stays one.
    """
    for more in range(max(1, min(_EXTRA_TOKENS, first))):
        with suppress(_UnlikeCallsError):
            text = _product(base, first - more, [other - more for other in others])
            return f"{text} + {more}" if more else text
    raise _UnlikeCallsError


def _product(base: Mapping[str, int], first: int, others: list[int]) -> str:
    *doubled, tripled = others
    lines, share = list[tuple[str, Fraction]](), Fraction(first)
    for (name, size), twice in zip(base.items(), doubled, strict=True):
        if twice != first:
            slope = Fraction(twice - first, size)
            lines.append((name, first / slope - size))
            share *= slope / first if first else 0
    if share * prod(3 * base[name] + offset for name, offset in lines) != tripled:
        raise _UnlikeCallsError
    return _text(share, lines) if lines else str(first)


def _text(share: Fraction, lines: list[tuple[str, Fraction]]) -> str:
    """Return a share of a product of lines; one line has no brackets: ``2*N - 1``."""
    import sympy

    constants = [share * lines[0][1]] if len(lines) == 1 else [offset for _, offset in lines]
    if any(constant.denominator != 1 for constant in constants):
        raise _UnlikeCallsError
    order = sorted(lines, key=lambda x: DEFAULT.index(x[0]) if x[0] in DEFAULT else 9)
    factors = [sympy.Symbol(name) + offset for name, offset in order]
    if len(factors) == 1:
        return str(sympy.expand(share * factors[0]))
    texts = [f"({factor})" if factor.args else str(factor) for factor in factors]
    # symbols that do not commute stay in this order
    return str(sympy.Mul(share, *(sympy.Symbol(text, commutative=False) for text in texts)))


def _repair(owner: Any, request: Request, use: Use) -> Repair:
    """Return a call as guesses for all that was not typed."""
    parameters = signatures.parameters_of_class(owner, owner.__name__)
    config = (config_parameter(owner, parameters) or ("",))[0]
    typed = {*map(base_of, request.args), config}
    args = {n: _as_argument(x) for n, x in folded(use.arguments).items() if n not in typed}
    typed = {*map(base_of, request.inputs)}
    inputs = {n: _as_input(x) for n, x in use.inputs.items() if base_of(n) not in typed}
    return Repair(args, {name: text for name, text in inputs.items() if text})


def _as_argument(value: Any) -> Any:
    """Return a value as ``--arg`` takes it, or as an object still to be made."""
    if isinstance(value, type):
        return Named(f"{value.__module__}:{value.__qualname__}")
    if isinstance(value, Configuration):
        fields = folded(value.fields)
        return replace(value, fields={name: _as_argument(x) for name, x in fields.items()})
    return value


def _as_input(value: Any) -> str:
    """Return a value as ``--input`` takes it; "" for an object that nobody can type."""
    if isinstance(value, Shape):
        return Input("", tuple(map(Expression, value.sizes)), value.dtype).text
    plain = value is None or isinstance(value, bool | int | float | str | Expression)
    return Input("", value=value, literal=True).text if plain else ""
