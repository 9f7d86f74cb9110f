"""What is typed of arguments and inputs, and what stands for what is left out."""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from itertools import accumulate, chain, takewhile
from typing import Any

from attnprof.algebra.parser import name_of, names_in, parse, parts_of, short
from attnprof.errors import RequestError, closest
from attnprof.trace.request.target import DEFAULT, Expression, Input, parsed

#: A tensor's element type as an input's last word, with torch's own shorter names.
DTYPES = {
    **{name: name for name in ("float64", "float32", "float16", "bfloat16", "complex64")},
    **{name: name for name in ("int64", "int32", "int16", "int8", "uint8", "bool")},
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32",
}  # fmt: skip
_WORDS = {"true": True, "false": False, "none": None, "null": None}
INPUT_HOW = (
    '--input "{}": type a name, a colon and sizes, like --input "x: B, N, h*d", with a number '
    'format last where it is not the usual one ("ids: B, N int64"), or a value ("need_weights: '
    'False")'
)

#: Sizes that a tensor may have: torch takes no more.
MOST_SIZES = 64
Texts = Sequence[str] | Mapping[str, Any] | None
#: Longer values are no arguments that anybody types.
LONGEST_VALUE = 4000


def parse_arguments(texts: Texts, known: set[str]) -> dict[str, Any]:
    """``name=value`` texts (or a mapping from Python) as expressions and plain values.

    One word is a size where ``known`` has it or it is one letter, else text. Raises
    :class:`RequestError` for what is neither.
    """
    how = "--arg {}: type a name, '=' and a value, like d_model=h*d"
    return {name: _value(name, value, known) for name, value in _pairs(texts, "=", how)}


def _pairs(texts: Texts, sign: str, how: str) -> Iterator[tuple[str, Any]]:
    """Names, and what stands behind the sign; what a mapping has, as it is."""
    if isinstance(texts, Mapping):
        yield from texts.items()
        return
    for text in texts or ():
        name, found, value = (part.strip() for part in text.partition(sign))
        if not found or not name_of(name) or not value:
            raise RequestError(how.format(short(text)))
        yield name_of(name), value


def _value(name: str, given: Any, known: set[str]) -> Any:
    """An expression over sizes, a Python literal, or a bare word as text."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if (literal := _literal(text)) is not _NONE:
        return literal
    if name_of(text):
        return Expression(text) if name_of(text) in known or len(text) == 1 else text
    try:
        return parsed(text, f"--arg {name}")
    except RequestError as error:
        raise RequestError(
            f"--arg {name}={short(text)}: not a size like h*d, nor a value like 0.1, True or "
            f"'gelu': {error.__cause__}"
        ) from error


_NONE = object()


def _literal(text: str) -> Any:
    """The value of True, None, 0.1, 4 or 'text'; ``_NONE`` for what is none."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > LONGEST_VALUE:
        return _NONE
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NONE


def parse_inputs(texts: Texts) -> dict[str, Input]:
    """``name: dims`` texts (or a mapping of names to dims from Python) as inputs, by name.

    Raises :class:`RequestError` for anything else.
    """
    return {name: _input(name, value) for name, value in _pairs(texts, ":", INPUT_HOW)}


def _input(name: str, given: Any) -> Input:
    if isinstance(given, tuple | list):
        given = ", ".join(map(str, given)) + ("," if len(given) == 1 else "")
    if not isinstance(given, str):
        return Input(name, value=given, literal=True)
    plain = _literal(given)
    if plain is not _NONE and not isinstance(plain, tuple):  # a shape of one size ends in ','
        return Input(name, value=plain, literal=True)
    body, dtype = _dtype(name, given)
    where = f'--input "{name}: {short(given)}"'
    body = body.strip()
    depths = list(accumulate((sign == "(") - (sign == ")") for sign in body))
    if body.startswith("(") and 0 in depths and depths.index(0) == len(body) - 1:
        body = body[1:-1]  # a tuple as Python writes it
    pieces = [piece for piece in parts_of(body) if piece]
    if len(pieces) > MOST_SIZES:
        raise RequestError(f"{where}: more than {MOST_SIZES} sizes")
    return Input(name, tuple(parsed(piece, where) for piece in pieces), dtype)


def _dtype(name: str, text: str) -> tuple[str, str]:
    """Sizes and the number format behind them, if there is one."""
    body, _, last = text.rpartition(" ")
    if body and last in DTYPES:
        return body, DTYPES[last]
    if body and last.isidentifier() and not body.rstrip().endswith((*",+-*/%(",)):
        raise RequestError(
            f"--input \"{name}: {short(text)}\": unknown number format '{last}': "
            f"{closest(last, list(DTYPES))}"
        )
    return text, ""


def symbols_in(values: Iterable[Any]) -> tuple[str, ...]:
    """The symbols that inputs and arguments use: batch, tokens, heads, width, then others."""
    parts = chain(*((*v.dims, v.value) if isinstance(v, Input) else (v,) for v in values))
    sizes = [parse(part.text) for part in parts if isinstance(part, Expression)]
    found = [name for size in sizes for name in names_in(size)]
    return tuple(dict.fromkeys((*(name for name in DEFAULT if name in found), *found)))


# -- what an attention module is usually called with --------------------------------------


_NAMES = {
    "h*d": "d_model embed_dim dim hidden_size n_embd n_embed width emb_dim embedding_dim "
    "embed_size emb_size model_dim dim_model",
    "h": "num_heads heads n_heads nhead n_head num_attention_heads nheads num_head nb_heads "
    "attention_heads attn_heads num_attn_heads n_attn_heads",
    "d": "head_dim dim_head d_head d_k d_v head_size head_width head_channels",
    "N": "seq_len max_len max_seq_len block_size n seq_length max_length context_length",
}
#: Constructor arguments that say a size, and which.
ARGUMENTS = {name: size for size, names in _NAMES.items() for name in names.split()}
WIDTHS = _NAMES["h*d"].split()
#: Arguments of a call that are (batch, tokens, width).
TOKENS = {"x", "hidden_states", "src", "input", "inputs", "tgt", "memory", "hidden"}
#: The same in a layer, but (batch, heads, tokens, head width) in a function.
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
    others = (Parameter.KEYWORD_ONLY, *_VARIADIC)
    before = takewhile(lambda n: n in found and parameters[n].kind not in others, parameters)
    return frozenset(found) - set(before)
