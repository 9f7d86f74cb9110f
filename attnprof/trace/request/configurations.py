"""Configuration objects that modules take: find their class; guess, take or read their fields."""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from inspect import Parameter
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

from attnprof.errors import NotFoundError, RequestError
from attnprof.record.files import read_json, read_toml, why_of
from attnprof.trace.request.signatures import (
    FEW,
    REQUIRED,
    WIDTHS,
    Parameters,
    is_required,
    parameters_of,
    parameters_of_class,
    plain_value,
)
from attnprof.trace.request.target import Sized, Sizes, at, names_used
from attnprof.trace.request.texts import as_size

#: Names of parameters that take a configuration.
_CONFIG_NAMES = re.compile(
    r"(model_|transformer_|text_|vision_)?(config|cfg|conf|configuration|args|hparams)"
)
#: The base class of transformers' configurations, which no model is built with.
_BASE_CLASS = "pretrainedconfig"
_CONFIG_CLASSES = re.compile(r"\w*(Config|Configuration|Args|Arguments|Params|Options|Cfg|HParams)")


class Fields(dict[str, Any]):
    """A stand-in for a configuration of unknown class: a dict whose entries are attributes."""

    __getattr__ = dict.__getitem__


@dataclass(frozen=True, repr=False)
class Configuration(Sized):
    """A configuration still to be made: its class, and its fields, some of which are sizes."""

    kind: Any
    fields: Mapping[str, Any]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.kind.__name__}({fields})"

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols that the fields use."""
        return tuple(names_used([*self.fields.values()]))

    def at(self, sizes: Sizes) -> Any:
        """Return the object; fields that its constructor does not take are set afterwards."""
        values = at(dict(self.fields), sizes)
        try:
            return self.kind(**values)  # some take more than they say
        except TypeError:
            parameters = inspect.signature(self.kind).parameters
            later = {name: values.pop(name) for name in {*values} - {*parameters}}
            if not later:
                raise
        config = self.kind(**values)
        for name, value in later.items():
            setattr(config, name, value)
        return config


def config_parameter(owner: Any, parameters: Parameters) -> tuple[str, Any] | None:
    """Return the parameter that takes a configuration, with its class (or Fields); else None."""
    for name, item in parameters.items():
        is_named = bool(_CONFIG_NAMES.fullmatch(name)) and item.kind is not Parameter.VAR_POSITIONAL
        kinds = [
            kind
            for kind in _classes(item.annotation, names_around(owner))
            if kind.__module__.partition(".")[0] not in ("builtins", "torch", "typing")
            if kind.__name__.lower() != _BASE_CLASS
            if is_named or (is_required(item) and _CONFIG_CLASSES.fullmatch(kind.__name__))
        ]
        if kinds:
            kinds += [kind for kind in [_best_class(owner, name)] if kind and is_named]
            return name, max(kinds, key=lambda kind: _fit(kind, owner, name))
        if is_named:
            config_class = getattr(owner, "config_class", None) or _best_class(owner, name)
            if config_class or is_required(item):
                return name, config_class or Fields
    return None


def names_around(owner: Any) -> dict[str, Any]:
    """Return the names defined in the file of a class or function."""
    module = sys.modules.get(getattr(owner, "__module__", ""))
    return vars(module) if module else {}


def source_of(function: Any) -> str:
    """Return the source of a function, class or file; "" for built-in ones."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def _classes(annotation: Any, scope: Mapping[str, Any]) -> Iterator[type]:
    """Yield the classes in an annotation; texts like ``"LlamaConfig | None"`` are looked up."""
    if isinstance(annotation, type) and annotation is not Parameter.empty:
        yield annotation
    text = getattr(annotation, "__forward_arg__", annotation)
    for word in re.findall(r"[\w.]+", text) if isinstance(text, str) else ():
        first, *rest = word.split(".")
        value = scope.get(first)
        for part in rest:
            value = getattr(value, part, None)
        if isinstance(value, type):
            yield value
    for part in get_args(annotation):
        yield from _classes(part, scope)


def _best_class(owner: Any, parameter: str) -> Any:
    """Return the configuration class of the owner's file that fits best, by fields and name."""
    classes = {
        name: kind
        for name, kind in names_around(owner).items()
        if isinstance(kind, type) and _CONFIG_CLASSES.fullmatch(name)
        if name.lower() != _BASE_CLASS
    }

    def fit(name: str) -> tuple[bool, bool, int, int]:
        pairs = zip(name, getattr(owner, "__name__", ""), strict=False)
        alike = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        return *_fit(classes[name], owner, parameter), alike

    best = max(classes, key=fit, default="")
    return classes.get(best)


def _fit(kind: Any, owner: Any, parameter: str) -> tuple[bool, bool, int]:
    """Return how well a class fits: it has all fields that are read; it has a width; how many."""
    fields = {*vars(kind), *parameters_of(kind, ""), *getattr(kind, "attribute_map", ())}
    read = {*_fields_read(parameter, owner)}
    return read <= fields, not fields.isdisjoint(WIDTHS), len(fields & read)


def _fields_read(parameter: str, code: Any) -> list[str]:
    """Return the fields of a configuration that code reads: ``config.hidden_size``."""
    return re.findall(rf"\b{parameter}(?:\.|\[[\"'])(\w+)(?!\w*\()", source_of(code))


def fields_of(kind: Any, owner: Any, name: str) -> dict[str, Parameter]:
    """Return the fields that a configuration takes; of an unknown class, those the file reads."""
    if kind is Fields:
        read = _fields_read(name, sys.modules[owner.__module__])
        return {field: Parameter(field, Parameter.KEYWORD_ONLY) for field in read}
    constants = {
        field: Parameter(field, Parameter.KEYWORD_ONLY, default=value)
        for base in reversed(kind.__mro__) for field, value in vars(base).items()
        if isinstance(value, int) and not field.startswith("_")
    }  # fmt: skip
    return constants | dict(inspect.signature(kind).parameters)


def all_parameters(owner: Any) -> dict[str, Parameter]:
    """Return the parameters of a class, with fields of its configuration as ``config.width``."""
    parameters = parameters_of(owner, "")
    name, kind = config_parameter(owner, parameters) or ("", None)
    fields = fields_of(kind, owner, name) if name else {}
    return parameters | {f"{name}.{field}": item for field, item in fields.items()}


def rotary_input(owner: Any, arguments: Mapping[str, Any], head: str) -> str:
    """Return the text of an input for position embeddings, as the file's rotary class makes them.

    ``(B, N, d), (B, N, d)`` for cosines and sines of whole heads. The class is run at two head
    widths, which show the share of a head that it turns, and whether its numbers are complex.
    """
    import sympy
    import torch

    pair = f"(B, N, {head}), (B, N, {head})"
    kinds = [v for n, v in names_around(owner).items() if n.endswith("RotaryEmbedding")]
    config = next((v for v in arguments.values() if isinstance(v, Configuration)), None)
    if not kinds or config is None:
        return pair
    widths = []
    for width in (32, 64):
        sizes = {**dict.fromkeys(config.names, 4), "d": width}
        try:
            x, positions = torch.zeros(1, 2, 8), torch.zeros(1, 2, dtype=torch.int64)
            embeddings = kinds[0](config.at(sizes))(x, positions)
            turns = embeddings if isinstance(embeddings, torch.Tensor) else embeddings[0]
            widths.append((turns.shape[-1], at(as_size(head), sizes)))
        except Exception:  # noqa: BLE001 - somebody's code may raise anything
            return pair
    (short, one), (long, other) = widths
    share = Fraction(short, one)
    if short == long:
        head = str(short)
    elif share != 1 and share == Fraction(long, other):
        part = head if head.isidentifier() else f"({head})"
        head = str(share * sympy.Symbol(part))  # as 3*d/4
    if turns.is_complex():
        return f"B, N, {head} complex64"
    return f"(B, N, {head}), (B, N, {head})"


def guessed_fields(fields: Parameters, config: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return guesses for fields that are sizes or have no default.

    Fields that are None by default are left to the class. Raises :class:`RequestError` for a
    required field that nobody can guess.
    """
    guesses: dict[str, Any] = {}
    for name, item in fields.items():
        size, required = REQUIRED.get(name.lower()), is_required(item)
        number = type(item.default) is int
        is_few = size == FEW and number and item.default <= int(FEW)
        if name in config or is_few or not (required or (size and number)):
            continue
        if size and (required or size not in ("N", "1000")):
            guesses[name] = as_size(size)
        elif required:
            plain = plain_value(name, item)
            if not plain:
                raise RequestError(
                    f"{what}.{name} must be given and cannot be guessed: add --arg {what}.{name}=… "
                    "(a size like h*d, or a value)"
                )
            guesses[name] = plain[0]
    return guesses | _state_space_sizes(fields, config)


def _state_space_sizes(fields: Parameters, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes of a state-space layer: one group of h heads, ``expand`` times the width."""
    sizes = dict[str, Any]()
    for kind in ("", "mamba_"):
        wider = fields.get(f"{kind}expand")
        widths = [n for n in (f"{kind}head_dim", f"{kind}d_head") if n in fields]
        heads = [n for n in (f"{kind}num_heads", f"{kind}n_heads") if n in fields]
        if wider is not None and widths and heads and not {*widths, *heads} & {*config}:
            sizes |= {heads[0]: as_size("h"), widths[0]: as_size(f"{wider.default}*d")}
            extra = {f"{kind}n_groups": 1, f"{kind}d_ssm": as_size(f"{wider.default}*h*d")}
            sizes |= {name: extra[name] for name in extra if name in {*fields} - {*config}}
    return sizes


def module_of(item: Parameter, owner: Any) -> Configuration | None:
    """Return a module of the class that an argument's annotation names, or None."""
    from torch import nn

    kinds = [k for k in _classes(item.annotation, names_around(owner)) if issubclass(k, nn.Module)]
    if not kinds or kinds[0] is nn.Module:
        return None
    fields = parameters_of_class(kinds[0], item.name)
    settings = {"batch_first": True, "depth": 2}
    settings = {name: value for name, value in settings.items() if name in fields}
    return Configuration(kinds[0], guessed_fields(fields, settings, item.name) | settings)


def compared(name: str, owner: Any) -> str:
    """Return the first text that a class's file compares an argument with: ``norm == "rms"``."""
    code = source_of(sys.modules.get(getattr(owner, "__module__", "")))
    pairs = re.findall(r"\b(\w+) == ['\"](\w+)['\"]", code)
    alike = (text for word, text in pairs if name == word or name.endswith(f"_{word}"))
    return next(alike, "")


def may_be_none(name: str, owner: Any) -> bool:
    """Return whether a constructor tests if an argument of this name is None."""
    code = source_of(getattr(owner, "__init__", owner))
    return bool(re.search(rf"(?<![\w.]){re.escape(name)} is (not )?None\b", code))


def read_file(path: str) -> dict[str, Any]:
    """Return the fields in a JSON or TOML file; raise a :class:`RequestError` if it has none."""
    try:
        Path(path).stat()
    except OSError as error:
        raise NotFoundError(
            f"--config {path}: {why_of(error)}; give a .json or .toml file"
        ) from error
    try:
        fields = read_toml(path) if path.endswith(".toml") else read_json(path, ours=False)
    except RequestError as error:
        raise RequestError(f"--config {path} is not readable: {error}") from error
    if not isinstance(fields, dict) or not fields:
        raise RequestError(
            f"--config {path} holds no names with values: write fields, like hidden_size, or leave "
            "--config out"
        )
    return fields
