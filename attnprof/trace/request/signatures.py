"""Parameters of callables, and the model's sizes that their arguments give."""

import inspect
import re
from collections.abc import Iterable, Mapping
from inspect import Parameter
from itertools import takewhile
from typing import Any

from attnprof.errors import RequestError, closest
from attnprof.trace.request.target import Expression, Input, base_of
from attnprof.trace.request.usual import (
    ARGUMENTS,
    CHANNELS,
    CONTEXTS,
    REQUIRED,
    SIDES,
    WIDTHS,
    WORDS,
    context_widths,
)

#: A callable's parameters by name.
Parameters = Mapping[str, Parameter]
#: Numbers of channels by which a model is taken to be one of images, or of their latents.
_CHANNELS = (1, 3, 4, 16, 32)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parameters_of(function: Any, what: str) -> dict[str, Parameter]:
    """Return a callable's parameters by name.

    A built-in function that does not say them takes ``*args`` and ``**kwargs``. Raises
    :class:`RequestError` for a module without a forward pass.
    """
    if getattr(function, "__name__", "") == "_forward_unimplemented":
        raise RequestError(f"{what} is not defined: the module has no forward pass to derive")
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {
            "inputs_in_order": Parameter("inputs_in_order", Parameter.VAR_POSITIONAL),
            "values_by_name": Parameter("values_by_name", Parameter.VAR_KEYWORD),
        }


def documented(function: Any) -> dict[str, Parameter]:
    """Return the required parameters that a built-in function's documentation begins with."""
    name, text = getattr(function, "__name__", ""), function.__doc__ or ""
    match = re.search(rf"{re.escape(name)}\(([^()]*)\)", text)
    parts = [part.strip() for part in match[1].split(",")] if name and match else []
    must = takewhile(lambda part: part.isidentifier(), parts)
    return {part: Parameter(part, Parameter.POSITIONAL_ONLY) for part in must}


def parameters_of_class(layer: Any, what: str) -> dict[str, Parameter]:
    """Return a class's parameters: its parents', where it only takes ``**kwargs``."""
    parameters = parameters_of(layer, what)
    bases = [base for base in layer.__mro__ if "__init__" in vars(base)]
    for base in bases[1:]:
        kinds = {item.kind for item in parameters.values()}
        if kinds != {Parameter.VAR_KEYWORD} or base.__module__.startswith("torch."):
            break
        parameters = parameters_of(base, what)
    return parameters


def is_required(parameter: Parameter) -> bool:
    """Return whether a call must give a parameter."""
    return parameter.default is Parameter.empty and parameter.kind not in _VARIADIC


def takes_any(parameters: Parameters) -> bool:
    """Return whether a callable takes any number of tensors, as ``*args``."""
    return any(item.kind is Parameter.VAR_POSITIONAL for item in parameters.values())


def only_named(parameters: Parameters) -> set[str]:
    """Return the keyword-only parameters beside ``*args``; none without ``*args``."""
    named = {n for n, item in parameters.items() if item.kind is Parameter.KEYWORD_ONLY}
    return named if takes_any(parameters) else set()


def checked_names(given: Mapping[str, Any], parameters: Parameters, flag: str, what: str) -> None:
    """Raise :class:`RequestError` for a name that the callable does not take."""
    if any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values()):
        return
    takes = [name for name, item in parameters.items() if item.kind not in _VARIADIC]
    for name in map(base_of, given):
        if name not in takes:
            hint = closest(name, takes) if takes else "it takes nothing"
            raise RequestError(f"{flag} {name}: {what} has no '{name}'; {hint}")


def sizes_at_default(
    parameters: Parameters, passed: Mapping[str, Any], used: Iterable[str]
) -> dict[str, str]:
    """Return sizes for arguments that would stay at a default although formulas use h or d.

    A module with its class's default of eight heads is not one of h heads: ``{"num_heads": "h"}``.
    """
    if {"h", "d"}.isdisjoint(used):
        return {}
    sizes = {}
    for name, item in parameters.items():
        size, default = ARGUMENTS.get(name.lower(), "N"), item.default
        least = 8 if size == "h*d" else 1  # dim=-1 or dim=2 is an axis
        if size != "N" and name not in passed and type(default) is int and default >= least:
            sizes[name] = size
    return sizes


def model_sizes(arguments: Mapping[str, Any], parameters: Parameters) -> dict[str, str]:
    """Return the model's sizes by arguments or defaults: ``{"width": "h*d", "head": "d"}``.

    ``whole`` is the input of a model of images or words, ``=context`` that of an argument
    ``context``.
    """
    values = {name: arguments.get(name, item.default) for name, item in parameters.items()}
    texts: dict[str, str] = {}
    # the usual names of a width first; of a configuration its fields
    for argument in sorted(values.items(), key=lambda pair: pair[0].lower() not in WIDTHS):
        fields = getattr(argument[1], "fields", None)
        for name, value in fields.items() if isinstance(fields, Mapping) else [argument]:
            size = REQUIRED.get(name.lower(), "")
            wide = name.lower() in WIDTHS or (size == "h*d" and name in arguments)
            key = "width" if wide else {"d": "head", "h": "heads"}.get(size, "")
            if text := _size_text(value):
                texts.setdefault(key, text)
    width, heads = texts.get("width", "h*d"), texts.get("heads", "h")
    head = "d" if (width, heads) == ("h*d", "h") else f"({width})/({heads})"
    if width.isdecimal() and heads.isdecimal():
        head = str(int(width) // max(int(heads), 1))
    whole = _picture(values) or _words(parameters)
    sizes = {"width": width, "head": texts.get("head", head)}
    if not whole:
        return sizes
    widths = context_widths(values)[:1]
    others = {f"={name}": f"B, N, {size}" for name in CONTEXTS for size in widths}
    return {**sizes, "whole": whole, **others}


def _words(parameters: Parameters) -> str:
    """Return token ids as a model's input if it requires the size of a vocabulary, else ""."""
    must = [name.lower() for name, item in parameters.items() if is_required(item)]
    return "B, N int64" if any(REQUIRED.get(name) == WORDS for name in must) else ""


def _size_text(value: Any) -> str:
    """Return a size, a number or an expression, as text; "" for other values."""
    return value.text if isinstance(value, Expression) else str(value) if type(value) is int else ""


def _picture(values: Mapping[str, Any]) -> str:
    """Return an image as a model's input if it has channels and sides, else ""."""
    channels = next((values[name] for name in CHANNELS if name in values), None)
    side = next((values[name] for name in SIDES if name in values), None)
    sides = side if isinstance(side, tuple | list) and len(side) == 2 else (side, side)
    texts = [_size_text(x) for x in (channels, *sides)]
    return ", ".join(["B", *texts]) if all(texts) and channels in _CHANNELS else ""


def by_name(inputs: Mapping[str, Input], parameters: Parameters) -> frozenset[str]:
    """Return the inputs to pass by name: keyword-only ones, and those after a gap.

    A callable with ``*args`` gets its tensors in order.
    """
    if takes_any(parameters):
        named = only_named(parameters)
        return frozenset(base_of(n) for n, x in inputs.items() if x.literal or base_of(n) in named)
    inputs = {base_of(name): item for name, item in inputs.items()}
    others = (Parameter.KEYWORD_ONLY, *_VARIADIC)
    before = takewhile(lambda n: n in inputs and parameters[n].kind not in others, parameters)
    return frozenset(inputs) - set(before)
