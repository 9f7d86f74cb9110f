"""From a request to a target: a registered mechanism, somebody's module, a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof import registry
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.trace.request.expressions import DEFAULT
from attnprof.trace.request.mechanisms import mechanism_target
from attnprof.trace.request.modules import Request, of_class, of_factory, of_function, of_instance
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_arguments, parse_inputs, symbols_in
from attnprof.user_code import is_place, loaded

Texts = Sequence[str] | Mapping[str, Any] | None


def target_from(
    text: str,
    args: Texts = None,
    inputs: Texts = None,
    params: Mapping[str, Any] | None = None,
    scope: str | None = None,
    causal: bool = False,
    dtype: str = "float32",
) -> Target:
    """What ``text`` names, made ready to run: a mechanism's id, ``path.py:Name``, ``module:Name``.

    ``args`` are constructor arguments (``name=expr`` texts or a mapping), ``inputs`` those of the
    call (``name: dims``); what is left out is guessed and told in the target's ``notes``.
    ``params`` and ``scope`` belong to registered mechanisms. Raises :class:`RequestError`.
    """
    thing = loaded(text) if is_place(text) else _registered(text)
    return target_of(thing, text, args, inputs, params, scope, causal, dtype)


def target_of(
    thing: Any,
    name: str,
    args: Texts = None,
    inputs: Texts = None,
    params: Mapping[str, Any] | None = None,
    scope: str | None = None,
    causal: bool = False,
    dtype: str = "float32",
    width: int | None = None,
) -> Target:
    """The same for a Python object: a module class, a module, a function, or a factory of modules.

    ``width`` is the model width of a module that exists already.
    """
    from torch import nn

    is_class = isinstance(thing, type)
    if is_class and issubclass(thing, Mechanism):
        _refuse(f"is for your own modules; {name} takes --set name=value", arg=args, input=inputs)
        spec = registry.configured([name], params or {})[0]
        return mechanism_target(spec, scope or "layer", causal=causal, dtype=dtype)
    told = f"is for registered mechanisms; {name} takes --arg and --input"
    _refuse(told, set=params, scope=scope)
    asked = parse_inputs(inputs)
    given = dict(parse_arguments(args, {*DEFAULT, *symbols_in(asked.values())}))
    request = Request(name, given, asked, causal, dtype)
    if isinstance(thing, nn.Module):
        return of_instance(thing, request, width)
    if is_class and issubclass(thing, nn.Module):
        return of_class(thing, request)
    if is_class or not callable(thing):
        is_a = "a class, but no nn.Module" if is_class else repr(thing)[:60]
        raise RequestError(f"{name} is {is_a}: point at a module class, a module or a function")
    return of_factory(thing, request) if request.is_factory(thing) else of_function(thing, request)


def _refuse(why: str, **flags: Any) -> None:
    for flag, value in flags.items():
        if value:
            raise RequestError(f"--{flag} {why}")


def _registered(text: str) -> type[Mechanism]:
    """A mechanism's class; RequestError says what else could be typed."""
    try:
        return type(registry.get(text))
    except RequestError as error:
        if str(error).startswith("unknown mechanism"):
            hint = registry.HINTS.get(text.lower()) or closest(text, registry.names())
            raise RequestError(
                f"'{text}' is no mechanism: {hint}; for your own code type path/to/file.py:Class "
                "or package.module:Class"
            ) from error
        raise
