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
from attnprof.trace.request.places import is_place, loaded
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_arguments, parse_inputs, symbols_in

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
    if not is_place(text):
        _refuse_unless_none(text, args, inputs)
        spec = registry.configured([_known(text)], params or {})[0]
        return mechanism_target(spec, scope or "layer", causal=causal, dtype=dtype)
    return target_of(loaded(text), text, args, inputs, params, scope, causal, dtype)


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

    if isinstance(thing, type) and issubclass(thing, Mechanism):
        _refuse_unless_none(name, args, inputs)
        spec = registry.configured([name], params or {})[0]
        return mechanism_target(spec, scope or "layer", causal=causal, dtype=dtype)
    for flag, value in (("--set", params), ("--scope", scope)):
        if value:
            raise RequestError(
                f"{flag} is for registered mechanisms; {name} takes --arg and --input"
            )
    asked_inputs = parse_inputs(inputs)
    known = {*DEFAULT, *symbols_in(asked_inputs.values())}
    given = dict(parse_arguments(args, known))
    request = Request(name, given, asked_inputs, causal, dtype)
    if isinstance(thing, nn.Module):
        return of_instance(thing, request, width)
    if isinstance(thing, type) and issubclass(thing, nn.Module):
        return of_class(thing, request)
    if not callable(thing) or isinstance(thing, type):
        is_a = "a class, but no nn.Module" if isinstance(thing, type) else repr(thing)[:60]
        raise RequestError(f"{name} is {is_a}: point at a module class, a module or a function")
    return of_factory(thing, request) if request.is_factory(thing) else of_function(thing, request)


def _refuse_unless_none(name: str, args: Texts, inputs: Texts) -> None:
    for flag, value in (("--arg", args), ("--input", inputs)):
        if value:
            raise RequestError(f"{flag} is for your own modules; {name} takes --set name=value")


def _known(text: str) -> str:
    """A registered name; RequestError says what else could be typed."""
    try:
        registry.get(text)
    except RequestError as error:
        if str(error).startswith("unknown mechanism"):
            hint = registry.HINTS.get(text.lower()) or closest(text, registry.names())
            raise RequestError(
                f"'{text}' is no mechanism: {hint}; for your own code type path/to/file.py:Class "
                "or package.module:Class"
            ) from error
        raise
    return text
