"""Configurations of transformers: read from a file, checked, and made into transformers' objects.

Many programs wrote the configurations on the hub: some leave the format of weights to the
checkpoint, write infinity as a tagged text, have fields that differ by layer, or name code of their
own. A field with which no model can be built is refused here, in words, before transformers or
torch read it. :func:`configuration` makes the object, :func:`class_of` finds the model's class,
:func:`field_of` reads a field.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnprof.errors import CannotRunError, NotFoundError, RequestError, closest
from attnprof.models.config import MAX_LAYERS
from attnprof.models.described import as_typed, is_described
from attnprof.record.files import TEXT_LIMIT, read_json
from attnprof.user_code import error_text

#: Transformers' tables of classes, which are searched if the configuration names no class: of
#: encoder-decoders, encoders, images, images and text; and all of them, decoders first.
_OF_BOTH, _OF_ENCODER = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"), ("MASKED_LM",)
_IMAGES = ("IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION")
_OF_IMAGES_AND_TEXT = ("PRETRAINING", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
_HEADS = ("CAUSAL_LM", *_OF_BOTH, *_OF_ENCODER, *_IMAGES, *_OF_IMAGES_AND_TEXT)
#: Fields for the number of experts, and for how many of them see a token.
EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts", "moe_topk",
)  # fmt: skip
#: Experts that see a token in types whose code alone says it.
_CHOSEN_BY_TYPE = {"switch_transformers": 1, "nllb-moe": 2}
#: Fields for the format of weights; formats in which torch builds models.
_DTYPE_FIELDS = ("dtype", "torch_dtype")
FORMATS = ("float32", "bfloat16", "float16", "float64")
#: The most layers, experts and labels that are built one by one, by patterns of field names.
_MAX_COUNTS = {r"(layer|depth|block)s?$": MAX_LAYERS, r"expert": 100_000, r"num_labels": 1_000_000}
_MAX_SIZE = 2**63 - 1  # of torch's 64-bit sizes
#: Fields for the number of layers of a text.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
#: The key and values by which transformers writes numbers that JSON does not have.
_TAG, _TAGGED = "__float__", ("Infinity", "-Infinity", "NaN")
_HOW = "give a model's config.json, its folder, a preset, a .toml file or my.py:factory"


def read_configuration(path: Path) -> dict[str, Any]:
    """Return the fields of a ``config.json``, or of the ``config.json`` in a folder.

    Raises :class:`RequestError` for other files.
    """
    file = path / "config.json" if path.is_dir() else path
    fields = read_json(file, TEXT_LIMIT, _HOW, ours=False)  # some have Infinity, which is no JSON
    checked_fields(fields, str(file))
    return dict(fields)


def checked_fields(fields: Any, name: str) -> Mapping[str, Any]:
    """Return the fields of a ``config.json``, of a described model with the type that fits.

    Raises :class:`RequestError` for fields that do not name their type, or hold what no model can
    be built with, as far as that shows without transformers.
    """
    typed: Mapping[str, Any] = fields if isinstance(fields, Mapping) else {}
    if is_described(typed):
        typed, _ = as_typed(typed, name)
    if not isinstance(typed.get("model_type"), str):
        note = _own_code(typed)
        raise RequestError(
            f"{name} is no model's configuration: it has no model_type, by which transformers "
            f'knows its code, like "llama"{note and f"; {note}"}'
        )
    _check_counts(typed, name)
    for table in (typed, typed.get("text_config")):
        if none := [x for x in LAYERS if isinstance(table, Mapping) and table.get(x) == 0]:
            raise RequestError(f"{name}: {none[0]} is 0: write the number of layers, 1 or more")
    _check_format(typed, name)
    _names_of(typed.get("architectures"), name)
    return typed


def _own_code(fields: Mapping[str, Any]) -> str:
    """Return a note that the code which a configuration names is not run; "" if it names none."""
    if not fields.get("auto_map"):
        return ""
    return (
        "auto_map names code that lies beside the weights, which attnprof does not run: to count "
        "that code, give a function of yours that builds the model: attnprof model my.py:factory"
    )


def transformers_module() -> Any:
    """Return transformers. Raises :class:`CannotRunError` if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise CannotRunError(
            "models by a config.json are built by transformers, which is not installed; "
            "type pip install 'attnprof[hf]'"
        ) from error
    return transformers


def model_types() -> list[str]:
    """Return the types of models that transformers has, by its files unless it is loaded.

    Its import takes seconds, which a misspelt name need not wait for. Raises
    :class:`CannotRunError` if it is not installed.
    """
    spec = None if "transformers" in sys.modules else find_spec("transformers")
    folder = Path(str(spec and spec.origin)).parent / "models" / "auto"
    files = [folder / name for name in ("auto_mappings.py", "configuration_auto.py")]
    tables = "".join(file.read_text("utf-8") for file in files if file.is_file())
    types = re.findall(r'"([\w.-]+)"[,:] "(?!AutoConfig)\w+Config"', tables)
    return types or list(transformers_module().CONFIG_MAPPING)


def configuration(fields: Mapping[str, Any], name: str) -> Any:
    """Return transformers' object for the fields of a ``config.json``.

    Raises :class:`NotFoundError` for a type of model that transformers does not have, and
    :class:`RequestError` for fields that no model can be built with.
    """
    fields, transformers = checked_fields(fields, name), transformers_module()
    types, model_type = transformers.CONFIG_MAPPING, fields["model_type"]
    if named := _type_of_class(fields, name):
        fields, model_type = {**fields, "model_type": named}, named
    if model_type not in types:
        why = (
            f"; {note}" if (note := _own_code(fields)) else f": {closest(model_type, list(types))}"
        )
        raise NotFoundError(
            f"{name}: transformers {transformers.__version__} has no model_type '{model_type}'{why}"
        )
    values, kind = _readable(fields), types[model_type]
    try:
        config = kind.from_dict(dict(values))
    except Exception as error:
        message = " ".join(str(error).split())
        message = message if " " in message else error_text(error)
        field = next((x for x in values if x not in message and _is_taken(kind, values, x)), "")
        message = f"{field} is {values[field]!r}: {message}" if field else message
        raise RequestError(f"{name}: transformers refuses this configuration: {message}") from error
    text = text_config(config)
    padding, words = field_of(text, "pad_token_id"), first_number(text, ("vocab_size",))
    if isinstance(padding, int) and 0 < words <= padding:
        text.pad_token_id = words - 1  # a default of the type, whose own vocabulary is larger
    return config


def _type_of_class(fields: Mapping[str, Any], name: str) -> str:
    """Return the type of the class that a configuration of an unknown type names; else "".

    Some makers give their release a type of its own and a class that transformers has.
    """
    transformers = transformers_module()
    if fields["model_type"] in transformers.CONFIG_MAPPING:
        return ""
    for architecture in _names_of(fields.get("architectures"), name):
        kind = getattr(transformers, architecture, None)
        if model_type := getattr(getattr(kind, "config_class", None), "model_type", ""):
            return str(model_type)
    return ""


def _is_taken(kind: Any, fields: Mapping[str, Any], without: str) -> bool:
    """Return whether transformers accepts the fields if one is left out."""
    with suppress(Exception):
        return bool(kind.from_dict({x: value for x, value in fields.items() if x != without}))
    return False


def _check_counts(value: Any, name: str, field: str = "") -> None:
    """Raise :class:`RequestError` for numbers that are too large to be built."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_counts(inner, name, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_counts(inner, name, field)
    elif isinstance(value, int) and not isinstance(value, bool):
        most = next((n for kind, n in _MAX_COUNTS.items() if re.search(kind, field)), _MAX_SIZE)
        if value > most:
            more = ": formulas are in the number of layers L" if most == MAX_LAYERS else ""
            raise RequestError(
                f"{name}: {field} is {value:,}, at most {most:,} can be built; write fewer{more}"
            )


def _check_format(fields: Mapping[str, Any], name: str) -> None:
    """Raise :class:`RequestError` for a format of weights in which torch builds no model."""
    for field in _DTYPE_FIELDS:
        value = fields.get(field)
        for dtype in value.values() if isinstance(value, Mapping) else [value]:
            if str(dtype or "auto").removeprefix("torch.") not in (*FORMATS, "auto"):
                raise RequestError(
                    f"{name}: {field} is {dtype}, in which torch builds no model; possible: "
                    f"{', '.join(FORMATS)}; type one of them there"
                )


def _readable(value: Any, field: str = "") -> Any:
    """Return a configuration's value as transformers takes it; ``field`` is its key.

    Tagged numbers become numbers; a format that only a checkpoint decides becomes None.
    """
    if isinstance(value, Mapping):
        if set(value) == {_TAG} and value[_TAG] in _TAGGED:
            return float(value[_TAG])
        if field in _DTYPE_FIELDS:  # a format for each part: the model has the format of its text
            return _readable(value.get("text_config", value.get("")), field)
        return {key: _readable(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_readable(inner) for inner in value]
    if field in _DTYPE_FIELDS and isinstance(value, str):
        dtype = value.removeprefix("torch.")
        return dtype if dtype in FORMATS else None
    return value


def format_of(config: Any) -> str:
    """Return the format of a model's weights, as far as its configuration names one.

    Else it is float32; bfloat16 if they are stored in another one, as engines multiply them then.
    """
    dtype = config.dtype or field_of(text_config(config), "dtype")
    stored = getattr(config, "quantization_config", None)
    return str(dtype or ("bfloat16" if stored else "float32")).removeprefix("torch.")


def notes_on(fields: Mapping[str, Any], config: Any, kind: Any) -> Iterator[str]:
    """Yield notes on the type, format and class (``kind``) that are taken, and on code not run."""
    if is_described(fields):
        yield as_typed(fields, "")[1]
    elif named := _type_of_class(fields, ""):
        classes = " or ".join(_names_of(fields["architectures"], ""))
        yield f"transformers has no type {fields['model_type']}: {named} is built, as of {classes}"
    if any(fields.get(field) == "auto" for field in _DTYPE_FIELDS):
        yield f'its dtype is "auto", which its weights decide: {format_of(config)} is taken'
    if _own_code(fields):
        yield "auto_map names code that is not run: transformers' own class is built"
    if (others := _architectures(config)) and kind.__name__ not in others:
        yield f"transformers has no model class {others[0]}: {kind.__name__} is built"


def field_of(config: Any, name: str) -> Any:
    """Return a field of a configuration or None; the first layer's if layers differ in it."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers has a field that differs in the layers' configurations
        return getattr(config.per_layer_config[0], name, None)


def first_number(config: Any, names: Iterable[str]) -> int:
    """Return the first whole number among the fields of these names; 0 if there is none.

    A list with the same number for each layer is that number.
    """
    values = (field_of(config, name) for name in names)
    firsts = (x[0] if isinstance(x, list) and x and x == x[:1] * len(x) else x for x in values)
    return next((value for value in firsts if isinstance(value, int)), 0)


def chosen_experts(config: Any) -> int:
    """Return how many experts see a token, by a model's configuration; 0 if it does not say."""
    named = first_number(config, CHOSEN)
    return named or _CHOSEN_BY_TYPE.get(getattr(config, "model_type", ""), 0)


def text_config(config: Any) -> Any:
    """Return the part of a configuration about text; if there are two, the decoder's."""
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


def class_of(config: Any) -> Any:
    """Return the class that the configuration names, or the usual one of its type."""
    from transformers.models.auto import modeling_auto as auto

    first = _OF_BOTH if config.is_encoder_decoder else _OF_ENCODER
    heads = _HEADS if getattr(config, "is_decoder", False) else (*first, *_HEADS)
    tables = [vars(auto)[f"MODEL_FOR_{head}_MAPPING_NAMES"] for head in heads]
    others = (x for name, x in vars(auto).items() if re.fullmatch(r"MODEL_FOR_\w+_NAMES", name))
    entries = (x.get(config.model_type) for x in (*tables, auto.MODEL_MAPPING_NAMES, *others))
    usual = (name if isinstance(name, str) else name[0] for name in entries if name)
    stem = type(config).__name__.removesuffix("Config")
    named, text_class = _architectures(config), None
    for name in (*named, *usual, f"{stem}Model", stem):
        kind = getattr(transformers_module(), name, None)
        if missing := getattr(kind, "_backends", None):  # a placeholder: packages are missing
            raise CannotRunError(f"{name} needs {', '.join(missing)}, which is not installed")
        if isinstance(kind, type) and issubclass(kind, transformers_module().PreTrainedModel):
            if name in named or isinstance(config, getattr(kind, "config_class", None) or object):
                return kind
            text_class = text_class or kind  # of a model of images and text
    if text_class is None:
        raise NotFoundError(f"transformers has no model of type {config.model_type}")
    return text_class


def _architectures(config: Any) -> list[str]:
    """Return the names of classes that a configuration gives in ``architectures``."""
    return _names_of(getattr(config, "architectures", None), config.model_type)


def _names_of(value: Any, name: str) -> list[str]:
    """Return a list of names of classes. Raises :class:`RequestError` for anything else."""
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list | tuple):
        raise RequestError(
            f'{name}: architectures is {value}: write a list of names like ["LlamaForCausalLM"], '
            "or leave it out"
        )
    return [name for name in names if isinstance(name, str)]
