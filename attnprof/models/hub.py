"""Models of transformers by their configuration: built of their own code, without weights."""

import copy
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnprof.errors import CannotRunError, NotFoundError, RequestError, closest
from attnprof.models.swap import Swap
from attnprof.models.whole import WholeModel
from attnprof.record.files import read_text

#: Where the class of a model is looked up that its configuration does not name; and where first.
_OF_BOTH, _OF_ENCODER = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"), ("MASKED_LM",)
_HEADS = ("CAUSAL_LM", *_OF_BOTH, *_OF_ENCODER, "IMAGE_CLASSIFICATION", "PRETRAINING")
#: How many experts there are, and how many of them see a token, by what configurations call it.
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts")
#: How many tokens a model is for.
_LENGTHS = ("max_position_embeddings", "max_target_positions", "max_sequence_length", "max_seq_len")
#: Pixels a side of an image, where the configuration does not say it: what most are trained on.
_SIDE = 224
_TEXT = "B, N int64"
#: Inputs that are tokens; and what configurations have of models that take images as tokens.
_TOKENS = frozenset({"input_ids", "decoder_input_ids"})
_PLACES = ("image_token_id", "image_token_index")
#: Labels by how the name of a class ends, where it is trained with one of each input.
_ONE_LABEL = ("ForSequenceClassification", "ForImageClassification")
#: Tokens that a model takes which does not say how many.
_LONGEST = 2**16
#: What models call to warn of tokens that are padding, where no mask says so.
_LOOK = "warn_if_padding_and_no_attention_mask"
_HOW = "give a model's config.json, its folder, a preset, a .toml file or my.py:factory"


def read_configuration(path: Path) -> dict[str, Any]:
    """The fields of a ``config.json``, or of that in a folder; :class:`RequestError` for others."""
    file = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(read_text(file, hint=_HOW))  # some have Infinity, which is no JSON
    except ValueError as error:
        raise RequestError(f"{file} is no whole JSON file ({error}); {_HOW}") from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise RequestError(
            f"{file} is no model's configuration: it has no model_type, by which transformers "
            'knows its code, like "llama"'
        )
    return found


def hub_subject(
    fields: Mapping[str, Any],
    name: str,
    kernel: str | None = None,
    swaps: Sequence[Swap] = (),
    tokens: int | None = None,
) -> WholeModel:
    """A model of transformers, by the fields of its configuration.

    ``kernel`` is ``eager`` or ``sdpa``, or what transformers chooses; ``swaps`` are mechanisms of
    ours in some of its layers, built for so many ``tokens`` where they have one length: unless
    said, for the longest that the model takes. Raises
    :class:`CannotRunError` without transformers, and :class:`RequestError` for a type of model
    that it does not have.
    """
    config = _configuration(fields, name)
    if kernel is not None:
        _set_kernel(config, kernel)
    kind = _class_of(config)
    subject = class_subject(name, kind, config, partial(_built, kind, config))
    if not swaps:
        return subject
    from attnprof.models.hub_swap import swapped

    return swapped(subject, swaps, tokens or subject.longest or _LONGEST)


def class_subject(name: str, kind: Any, config: Any, build: Callable[[], Any]) -> WholeModel:
    """A model of one of transformers' classes, which ``build`` makes, by its configuration."""
    text = config.get_text_config()
    inputs, labels = _inputs(kind, config)
    experts, chosen = _first(text, _EXPERTS), _first(text, _CHOSEN)
    heads = _first(text, ("num_attention_heads",)) or 1
    return WholeModel(
        name,
        build,
        inputs,
        labels,
        dtype=str(config.dtype or "float32").removeprefix("torch."),
        caches=hasattr(text, "use_cache") and not _TOKENS.isdisjoint(inputs),
        layer_types=tuple(getattr(text, "layer_types", None) or ()),
        experts=experts if chosen else 1,
        chosen=chosen if experts else 1,
        num_heads=heads,
        head_dim=getattr(text, "head_dim", None)
        or _first(text, ("hidden_size", "d_model")) // heads,
        longest=_first(text, _LENGTHS),
        notes=_notes(inputs, config),
    )


def _built(kind: Any, config: Any) -> Any:
    model = kind(copy.deepcopy(config))  # models change their configuration
    for module in model.modules():
        if hasattr(module, _LOOK):  # looks for padding among the tokens, only to warn of it
            setattr(module, _LOOK, _nothing)
    return model


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise CannotRunError(
            "models by a config.json are built by transformers, which is not installed; "
            "type pip install 'attnprof[hf]'"
        ) from error
    return transformers


def _configuration(fields: Mapping[str, Any], name: str) -> Any:
    transformers = _transformers()
    known, kind = transformers.CONFIG_MAPPING, fields["model_type"]
    if kind not in known:
        raise NotFoundError(
            f"{name}: transformers {transformers.__version__} has no model_type '{kind}': "
            f"{closest(kind, list(known))}"
        )
    try:
        return known[kind].from_dict(dict(fields))
    except Exception as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(f"{name}: transformers refuses this configuration: {told}") from error


def _class_of(config: Any) -> Any:
    """The class that the configuration names, or the usual one of its type."""
    transformers = _transformers()
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    from transformers.models.auto import modeling_auto as auto

    first = _OF_BOTH if config.is_encoder_decoder else _OF_ENCODER
    heads = _HEADS if getattr(config, "is_decoder", False) else (*first, *_HEADS)
    tables = [vars(auto)[f"MODEL_FOR_{head}_MAPPING_NAMES"] for head in heads]
    for table in (*tables, auto.MODEL_MAPPING_NAMES):
        name = table.get(config.model_type)
        if name and not isinstance(name, str):
            name = name[0]
        if name and hasattr(transformers, name):
            return getattr(transformers, name)
    raise NotFoundError(f"transformers has no model of type {config.model_type}")


def _set_kernel(config: Any, kernel: str) -> None:
    """In the configuration and in those inside it."""
    config._attn_implementation = kernel  # noqa: SLF001 - there is no other way before it is built


def _first(config: Any, names: Iterable[str]) -> int:
    """The first of some fields that is a number; else 0."""
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), 0)


def _inputs(kind: Any, config: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Inputs and labels of a class, as ``--input`` takes them."""
    taken = inspect.signature(kind.forward).parameters
    name = kind.main_input_name
    known = {"input_ids": lambda: _TEXT, "pixel_values": lambda: _image(config),
             "input_features": lambda: _sound(config)}  # fmt: skip
    if name not in known:
        raise RequestError(
            f"{kind.__name__} takes {name}; attnprof model knows models of {', '.join(known)}"
        )
    try:
        found = {name: known[name]()}
    except AttributeError as error:
        raise RequestError(
            f"{kind.__name__}: the size of its input is not known: {error}"
        ) from error
    if config.is_encoder_decoder and "decoder_input_ids" in taken:
        found["decoder_input_ids"] = _TEXT
    one_tower = any(getattr(config, field, None) is not None for field in _PLACES)
    if {"input_ids", "pixel_values"} <= {*taken} and hasattr(config, "vision_config"):
        found |= {} if one_tower else {"input_ids": _TEXT, "pixel_values": _image(config)}
    tokens = not _TOKENS.isdisjoint(found)
    one = kind.__name__.endswith(_ONE_LABEL)
    if "labels" not in taken or not (one or tokens):
        return found, {}
    return found, {"labels": "B int64" if one else _TEXT}


def _image(config: Any) -> str:
    config = getattr(config, "vision_config", None) or config
    size = getattr(config, "image_size", None) or _SIDE
    sides = size if isinstance(size, list | tuple) else (size, size)
    return ", ".join(map(str, ("B", getattr(config, "num_channels", 3), *sides)))


def _notes(inputs: Mapping[str, str], config: Any) -> tuple[str, ...]:
    """What is taken where the configuration does not say it."""
    sized = getattr(getattr(config, "vision_config", None) or config, "image_size", None)
    taken = f"its configuration names no size of images: {_SIDE} x {_SIDE} is taken"
    return (taken,) if "pixel_values" in inputs and not sized else ()


def _sound(config: Any) -> str:
    return f"B, {config.num_mel_bins}, {2 * config.max_source_positions}"
