"""What an attention module is usually called with, for what the request leaves out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

from attnprof.errors import RequestError, closest
from attnprof.trace.request.target import Expression, Input


def _named(names: str, text: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), text)


WIDTHS = _named(
    "d_model embed_dim dim hidden_size n_embd n_embed width emb_dim embedding_dim embed_size "
    "emb_size model_dim dim_model",
    "h*d",
)
#: Constructor arguments that say a size, and which.
ARGUMENTS = {
    **WIDTHS,
    **_named(
        "num_heads heads n_heads nhead n_head num_attention_heads nheads num_head nb_heads "
        "attention_heads attn_heads num_attn_heads n_attn_heads",
        "h",
    ),
    **_named("head_dim dim_head d_head d_k d_v head_size head_width head_channels", "d"),
    **_named("seq_len max_len max_seq_len block_size n seq_length max_length context_length", "N"),
}
#: Arguments of a call that are (batch, tokens, width).
TOKENS = {"x", "hidden_states", "src", "input", "inputs", "tgt", "memory", "hidden"}
#: Arguments that are (batch, tokens, width) in a layer, (batch, heads, tokens, head width) in a
#: function.
HEADS = {"q", "k", "v", "query", "key", "value", "queries", "keys", "values"}
Parameters = Mapping[str, Parameter]
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parameters_of(function: Any, what: str) -> dict[str, Parameter]:
    """A callable's parameters.

    Built-in functions do not say theirs: they take anything. Raises :class:`RequestError` for a
    module without a forward pass.
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


def is_required(parameter: Parameter) -> bool:
    """Whether a call must give it."""
    return parameter.default is Parameter.empty and parameter.kind not in _VARIADIC


def takes_any(parameters: Parameters) -> bool:
    """Whether it takes any number of tensors in order."""
    return any(item.kind is Parameter.VAR_POSITIONAL for item in parameters.values())


def checked_names(given: Mapping[str, Any], parameters: Parameters, flag: str, what: str) -> None:
    """Raises :class:`RequestError` for a name that the callable does not take."""
    if any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values()):
        return
    takes = [name for name, item in parameters.items() if item.kind not in _VARIADIC]
    for name in given:
        if name not in takes:
            hint = closest(name, takes) if takes else "it takes nothing"
            raise RequestError(f"{flag} {name}: {what} has no '{name}'; {hint}")


def sizes_at_default(
    parameters: Parameters, passed: Mapping[str, Any], used: Iterable[str]
) -> dict[str, str]:
    """Heads and widths that would stay at a default although formulas speak of h or d.

    A formula over h of a module that keeps its class's eight heads would be that of another one.
    """
    if {"h", "d"}.isdisjoint(used):
        return {}
    found = {}
    for name, item in parameters.items():
        size, default = ARGUMENTS.get(name.lower(), "N"), item.default
        least = 8 if size == "h*d" else 1  # dim=-1 or dim=2 is an axis
        number = isinstance(default, int) and not isinstance(default, bool)
        if size != "N" and name not in passed and number and default >= least:
            found[name] = size
    return found


def width_of(arguments: Mapping[str, Any], parameters: Parameters) -> str:
    """The model width as text: what is passed for it, its default, or h*d."""
    for name, item in parameters.items():
        if name.lower() not in WIDTHS:
            continue
        value = arguments.get(name, item.default)
        if isinstance(value, Expression):
            return value.text
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return "h*d"


def by_name(found: Mapping[str, Input], parameters: Parameters) -> frozenset[str]:
    """Inputs after a gap, or that can only be given by name; to ``*args`` tensors go in order."""
    if takes_any(parameters):
        return frozenset(name for name, item in found.items() if item.literal)
    named, gap = set[str](), False
    for name, item in parameters.items():
        gap = gap or name not in found or item.kind in (Parameter.KEYWORD_ONLY, *_VARIADIC)
        if gap and name in found:
            named.add(name)
    return frozenset(named | (set(found) - set(parameters)))
