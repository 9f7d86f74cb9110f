"""What the models beside a module call it with: its arguments and inputs, where nobody guesses."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from attnprof.errors import AttnprofError
from attnprof.trace.request import signatures
from attnprof.trace.request.configurations import Configuration, names_around, taken_by
from attnprof.trace.request.given import Repair, Request
from attnprof.trace.request.messages import source_of
from attnprof.trace.request.modules import of_class
from attnprof.trace.request.target import DEFAULT, Expression, Target
from attnprof.trace.request.texts import Named, Several
from attnprof.trace.request.tuples import base_of, folded
from attnprof.trace.run.runs import outcome

#: Models that are tried, the operations of each run, and lengths at which it may begin.
_MODELS, _OPERATIONS, _LENGTHS = 6, 6000, (256, 1024, 64)
#: Sizes of those runs; each is doubled in turn, then all are tripled.
_BASE = {"B": 2, "h": 4, "d": 32}
_GIVEN = "_attnprof_given"


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


def uses(owner: Any, request: Request) -> Iterator[tuple[str, Target, Repair]]:
    """Guesses for a class: what models around it call it with, each with the model's target."""
    for model in _models(owner):
        try:
            target = of_class(model, _alike(model, request))
        except AttnprofError:
            continue
        if found := _use(owner, target):
            repair = _repair(owner, request, found)
            yield model.__name__, target, repair


def _alike(model: Any, request: Request) -> Request:
    """The request for a model with the arguments and fields that were given for its part."""
    taken = signatures.parameters_of_class(model, model.__name__)
    given = {name: x for name, x in request.given.items() if re.split(r"[.\[]", name)[0] in taken}
    return Request(model.__name__, given, {}, causal=False, dtype=request.dtype)


def _models(owner: Any) -> list[Any]:
    """Classes of the same file that use it, perhaps through others, whole models first."""
    around = {
        name: kind
        for name, kind in names_around(owner).items()
        if _is_module(kind) and kind.__module__ == owner.__module__
        if kind is not owner and hasattr(kind, "forward") and not issubclass(owner, kind)
    }
    code = {name: source_of(kind) for name, kind in around.items()}
    users, found = {owner.__name__}, dict[str, Any]()
    while more := {n for n in code if n not in found and users & {*re.findall(r"\w+", code[n])}}:
        found |= {name: around[name] for name in around if name in more}
        users = more
    order = sorted(found, key=lambda name: (not name.endswith("Model"), -[*found].index(name)))
    return [found[name] for name in order if not _is_abstract(found[name])][:_MODELS]


def _is_module(kind: Any) -> bool:
    from torch import nn

    return isinstance(kind, type) and issubclass(kind, nn.Module)


def _is_abstract(kind: Any) -> bool:
    return getattr(kind.forward, "__name__", "") == "_forward_unimplemented"


# -- runs that end where the module is called ---------------------------------------------


def _use(owner: Any, target: Target) -> Use | None:
    """The first call of the module in a model, with expressions for sizes; None where none is."""
    first, base = None, dict[str, int]()
    for length in _LENGTHS if "N" in target.symbols else _LENGTHS[:1]:
        base = {name: {**_BASE, "N": length}.get(name, 16) for name in target.symbols}
        if first := _seen(owner, target, base):
            break
    if first is None:
        return None
    others = [{**base, name: 2 * size} for name, size in base.items()]
    others.append({name: 3 * size for name, size in base.items()})
    runs = [_seen(owner, target, sizes) for sizes in others]
    whole = [run for run in runs if run is not None]
    fit = partial(_fitted, base)
    if len(whole) < len(runs):
        return None
    try:
        return Use(
            {name: fit(x, [run.arguments.get(name) for run in whole])
             for name, x in first.arguments.items()},
            {name: fit(x, [run.inputs.get(name) for run in whole])
             for name, x in first.inputs.items()},
        )  # fmt: skip
    except _UnlikeError:
        return None


def _seen(owner: Any, target: Target, sizes: Mapping[str, int]) -> Use | None:
    found = list[Use]()
    with _watched(owner, found.append):
        outcome(target, sizes, training=False, most=_OPERATIONS)
    return found[0] if found else None


@contextmanager
def _watched(owner: Any, see: Callable[[Use], None]) -> Iterator[None]:
    """Inside, modules keep what they are built with, and a call of one of ``owner`` is seen."""
    call = owner.forward

    @wraps(call)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        if type(self) is not owner:
            return call(self, *args, **named)
        see(Use(_leaves_of(_given_to(self)), _leaves_of(_bound(call, self, args, named))))
        raise _CalledError

    kinds = [kind for kind in names_around(owner).values() if _is_module(kind)]
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


# -- from numbers at some sizes to expressions ----------------------------------------------


class _UnlikeError(Exception):
    """Runs at several sizes give what no expression fits."""


def _fitted(base: Mapping[str, int], first: Any, others: list[Any]) -> Any:
    """What a leaf is at any sizes."""
    if isinstance(first, Shape):
        if not all(isinstance(x, Shape) and len(x.sizes) == len(first.sizes) for x in others):
            raise _UnlikeError
        columns = zip(first.sizes, *(x.sizes for x in others), strict=True)
        return Shape(tuple(_size(base, one, rest) for one, *rest in columns), first.dtype)
    if isinstance(first, int) and not isinstance(first, bool):
        if not all(type(x) is int for x in others):
            raise _UnlikeError
        found = _size(base, first, others)
        return first if found == str(first) else Expression(found)
    if isinstance(first, Configuration):
        fields = [x.fields if isinstance(x, Configuration) else {} for x in others]
        return Configuration(
            first.kind,
            {n: _fitted(base, x, [one.get(n) for one in fields]) for n, x in first.fields.items()},
        )
    return first


def _size(base: Mapping[str, int], first: int, others: list[int]) -> str:
    """A product of straight lines in the sizes, as text: ``N/64 - 4``, ``B*h``; or a number."""
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
    if expected != tripled or any(offset.denominator != 1 for _, offset in lines[1:]):
        raise _UnlikeError
    return _text(share, lines) if lines else str(first)


def _text(share: Fraction, lines: list[tuple[str, Fraction]]) -> str:
    if len(lines) == 1:  # a line is shown as one
        name, offset = lines[0]
        more = share * offset
        if more.denominator != 1:
            raise _UnlikeError
        sign = f" {'+' if more > 0 else '-'} {abs(more)}" if more else ""
        return _times(share, [name]) + sign
    order = sorted(lines, key=lambda x: DEFAULT.index(x[0]) if x[0] in DEFAULT else 9)
    return _times(share, [f"({n} {o:+})" if o else n for n, o in order])


def _times(share: Fraction, factors: list[str]) -> str:
    own = [str(share.numerator)] if share.numerator != 1 else []
    return "*".join(own + factors) + (f"/{share.denominator}" if share.denominator != 1 else "")


def _repair(owner: Any, request: Request, use: Use) -> Repair:
    """What is not given of a call, as guesses."""
    parameters = signatures.parameters_of_class(owner, owner.__name__)
    config = (taken_by(owner, parameters) or ("",))[0]
    given = {*map(base_of, request.given), config}
    args = {n: _argument(x) for n, x in folded(use.arguments).items() if n not in given}
    kept = {*map(base_of, request.inputs)}
    inputs = {n: _spelled(x) for n, x in use.inputs.items() if base_of(n) not in kept}
    return Repair(args, {name: text for name, text in inputs.items() if text})


def _argument(value: Any) -> Any:
    """As an argument is typed, or built."""
    if isinstance(value, type):
        return Named(f"{value.__module__}:{value.__qualname__}")
    if isinstance(value, Configuration):
        fields = folded(value.fields)
        return replace(value, fields={name: _argument(x) for name, x in fields.items()})
    return Several(value) if isinstance(value, tuple | list | dict) else value


def _spelled(value: Any) -> Any:
    """As an input is typed; "" for an object that nobody can type."""
    if isinstance(value, Shape):
        dims = ", ".join(value.sizes) + ("," if len(value.sizes) == 1 else "")
        return f"{dims or '()'} {value.dtype}".strip()
    if isinstance(value, Expression):
        return f"={value.text}"
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else ""
