"""What an attention module is usually called with, for what the request leaves out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

from attnprof.algebra.parser import parts_of
from attnprof.errors import RequestError, closest
from attnprof.trace.request.expressions import Expression
from attnprof.trace.request.target import Input


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
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass
class Guesses:
    """What was guessed, for the reader: ``d_model=h*d``, ``x: B, N, h*d``."""

    arguments: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def notes(self) -> tuple[str, ...]:
        """One line for all of them, and what else was decided."""
        found = [f"{name}={text}" for name, text in self.arguments.items()]
        ways = ["--arg"] if found else []
        if self.inputs:
            found += [f'"{name}: {text}"' for name, text in self.inputs.items()]
            ways.append("--input")
        said = f"guessed: {', '.join(found)}; give {' and '.join(ways)} to say otherwise"
        return (said, *self.others) if found else tuple(self.others)


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


def forward_of(layer: type) -> Any:
    """A module class's forward as an instance has it: bound, whatever it calls the instance."""
    found = inspect.getattr_static(layer, "forward")
    bind = getattr(type(found), "__get__", None)
    return found if bind is None else bind(found, object(), layer)


def is_required(parameter: Parameter) -> bool:
    """Whether a call must give it."""
    return parameter.default is Parameter.empty and parameter.kind not in _VARIADIC


def checked_names(
    given: Mapping[str, Any], parameters: Mapping[str, Parameter], flag: str, what: str
) -> None:
    """Raises :class:`RequestError` for a name that the callable does not take."""
    if any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values()):
        return
    takes = [name for name, item in parameters.items() if item.kind not in _VARIADIC]
    for name in given:
        if name not in takes:
            hint = closest(name, takes) if takes else "it takes nothing"
            raise RequestError(f"{flag} {name}: {what} has no '{name}'; {hint}")


def guess_arguments(
    what: str, parameters: Mapping[str, Parameter], given: Mapping[str, Any], guesses: Guesses
) -> dict[str, Any]:
    """Constructor arguments: the given ones, and a size for each required one that names one.

    Raises :class:`RequestError` for a required one that nobody can guess.
    """
    checked_names(given, parameters, "--arg", what)
    found = dict(given)
    for name, item in parameters.items():
        if name in given or not is_required(item):
            continue
        if name.lower() not in ARGUMENTS:
            raise RequestError(_not_guessed(what, name, parameters))
        guesses.arguments[name] = ARGUMENTS[name.lower()]
        found[name] = Expression(ARGUMENTS[name.lower()])
    if "batch_first" in parameters and "batch_first" not in given:
        guesses.others.append("batch_first=True was set: inputs are (batch, tokens, width)")
        found["batch_first"] = True
    return found


def sizes_at_default(
    parameters: Mapping[str, Parameter], passed: Mapping[str, Any], used: Iterable[str]
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


def _not_guessed(what: str, name: str, parameters: Mapping[str, Parameter]) -> str:
    takes = ", ".join(str(item) for item in parameters.values())
    return (
        f"{what}({takes}) needs '{name}', which cannot be guessed: add --arg {name}=… (a size like "
        "h*d, or a value), or point at a function of yours that returns the module, like "
        "def make(d_model, num_heads)"
    )


def width_of(arguments: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> str:
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


def guess_inputs(
    what: str,
    parameters: Mapping[str, Parameter],
    given: Mapping[str, Input],
    guesses: Guesses,
    *,
    width: str = "h*d",
    heads_apart: bool = False,
) -> tuple[tuple[Input, ...], frozenset[str]]:
    """Inputs of the call in its order, and which go by name.

    ``heads_apart``: q, k and v are (B, h, N, d), as a function takes them. Raises
    :class:`RequestError` for a required one that nobody can guess.
    """
    if not any(item.kind is Parameter.VAR_POSITIONAL for item in parameters.values()):
        checked_names(given, parameters, "--input", what)
    found: dict[str, Input] = {}
    for name, item in parameters.items():
        if name in given:
            found[name] = given[name]
        elif is_required(item):
            found[name] = _guessed(what, name, width, heads_apart, guesses)
    found.update(given)
    if not found:
        raise RequestError(
            f'{what} does not say what it takes: give its inputs in order, like --input "q: B, h, '
            'N, d"'
        )
    return tuple(found.values()), _by_name(found, parameters)


def _guessed(what: str, name: str, width: str, heads_apart: bool, guesses: Guesses) -> Input:
    if name.lower() in HEADS and heads_apart:
        text = "B, h, N, d"
    elif name.lower() in TOKENS | HEADS:
        text = f"B, N, {width}"
    else:
        raise RequestError(
            f"{what} needs '{name}', which cannot be guessed: add its sizes, like "
            f'--input "{name}: B, N, {width}" or --input "{name}: N, N bool", or a value, like '
            f'--input "{name}: None"'
        )
    guesses.inputs[name] = text
    return Input(name, tuple(map(Expression, parts_of(text))))


def _by_name(found: Mapping[str, Input], parameters: Mapping[str, Parameter]) -> frozenset[str]:
    """Inputs after a gap, or that can only be given by name; to ``*args`` tensors go in order."""
    named: set[str] = set()
    gap = False
    if any(item.kind is Parameter.VAR_POSITIONAL for item in parameters.values()):
        return frozenset(name for name, item in found.items() if item.literal)
    for name, item in parameters.items():
        gap = gap or name not in found or item.kind in (Parameter.KEYWORD_ONLY, *_VARIADIC)
        if gap and name in found:
            named.add(name)
    return frozenset(named | (set(found) - set(parameters)))
