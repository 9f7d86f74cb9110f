"""Load a model from a configuration of transformers, a name, a TOML file, a preset, or code.

Models of transformers are built from transformers' own code by their configuration, without weights
(:func:`hub_subject`). User code is a function without arguments that makes a model, or its class
(:func:`factory_subject`). Entry point: :func:`subject_of`.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.models import hub_config
from attnprof.models.config import ModelConfig, load, presets
from attnprof.models.hub_config import configuration, first_number, format_of, text_config
from attnprof.models.names import named
from attnprof.models.swap import Swap, notes_on, swapped_config
from attnprof.models.whole import WholeModel
from attnprof.trace.request import signatures
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import Target
from attnprof.user_code import error_text, is_place, loaded


def factory_subject(source: str, inputs: Sequence[str] = ()) -> WholeModel:
    """Return the model that ``path.py:name`` or ``module:name`` makes without arguments.

    Its ``inputs``, like ``x: B, 3, 32, 32``, are guessed from the forward pass unless given, as
    ``attnprof derive`` does, and named in its notes; a model of transformers has the inputs and the
    cache of its class. Raises :class:`RequestError` if no model is made, or its inputs have unknown
    sizes.
    """
    from torch import nn

    thing = loaded(source)
    if isinstance(thing, nn.Module) or not callable(thing):
        raise RequestError(f"{source} is no function that makes a model, and no class of one")
    parameters = signatures.parameters_of(thing, source)
    if needed := [name for name, item in parameters.items() if signatures.is_required(item)]:
        raise RequestError(
            f"{source} needs {', '.join(needed)}: write a function that takes nothing and returns "
            "the whole model"
        )
    target = target_of(source, inputs=inputs or None)
    runs = target.advice == Target.advice  # else it says what was tried
    if not (runs and {*target.symbols} <= {"B", "N"}):
        raise RequestError(
            f"{source}: the sizes of its inputs are not known, guessed are "
            f"{'; '.join(target.spelled_inputs)}; give them in numbers, B and N, like "
            f'--input "{target.spelled_inputs[0].split(":")[0]}: B, 3, 224, 224"'
        )
    from attnprof.trace.run.worlds import fake_world

    with fake_world():
        model = target.make({})
    if not inputs and hasattr(model, "main_input_name") and hasattr(model, "config"):
        return class_subject(source, type(model), model.config, partial(target.make, {}))
    dimensions = dict(text.split(": ", 1) for text in target.spelled_inputs)
    steps: Any = type(model) if hasattr(model, "init_state") else None
    guessed = (f"its inputs are guessed: {'; '.join(target.spelled_inputs)}",)
    notes = () if inputs else guessed
    return WholeModel(source, partial(target.make, {}), dimensions, steps=steps, notes=notes)


def subject_of(
    source: str, kernel: str | None = None, swaps: Sequence[Swap] = (), tokens: int | None = None,
    inputs: Sequence[str] = (),
) -> WholeModel:  # fmt: skip
    """Return the model of a name, with other mechanisms in some of its layers (``swaps``).

    In transformers' models, mechanisms of one length are built for so many ``tokens``, by default
    for the longest that the model takes. ``inputs`` are the inputs of user code, guessed by
    default. Raises :class:`RequestError` for an unknown name, and if a mechanism does not fit.
    """
    if is_place(source):
        if kernel is not None or swaps:
            flag = "--swap" if swaps else "--kernel"
            raise RequestError(
                f"{flag} is for a config.json or a model's name, not for {source}: leave {flag} out"
            )
        return factory_subject(source, inputs)
    if inputs:
        raise RequestError(
            f"--input is for my.py:factory: the inputs of {source} are known: leave --input out"
        )
    if source.endswith(".toml") or source in presets():
        if kernel is not None:
            raise RequestError(
                f"--kernel is for a model of transformers, not for {source}: leave --kernel out"
            )
        config = swapped_config(load(source), swaps) if swaps else load(source)
        subject = config_subject(source, config)
    else:
        model = named(source)
        subject = hub_subject(model.fields, model.name, kernel, swaps, tokens)
        subject = replace(subject, notes=(*model.notes, *subject.notes))
    if not swaps:
        return subject
    name = f"{subject.name} with {', '.join(swap.text for swap in swaps)}"
    return replace(subject, name=name, notes=(*subject.notes, *notes_on(swaps)))


def config_subject(name: str, config: ModelConfig) -> WholeModel:
    """Return one of our own models."""
    from attnprof.models import build
    from attnprof.models.embeddings import input_texts
    from attnprof.models.transformer import EncoderDecoder, Transformer

    steps = {"decoder": Transformer, "encoder-decoder": EncoderDecoder}.get(config.kind)
    kinds = [one.name for stack in config.mechanisms for one in stack]
    inputs = {name: text.replace("M", "N") for name, text in input_texts(config).items()}
    return WholeModel(
        name, partial(build, config), inputs, steps=steps, layer_types=kinds,
        num_heads=config.num_heads, head_dim=config.d_model // config.num_heads, in_blocks=True,
        longest=config.seq_len,
    )  # fmt: skip


#: Fields for the number of tokens that a model is for.
_LENGTHS = ("max_position_embeddings", "max_target_positions", "max_sequence_length", "max_seq_len")
#: Pixels a side of an image, if the configuration does not say it, as most models are trained.
_SIDE = 224
#: Fields for the width of a spectrogram's rows.
_BINS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
#: Fields for the time steps of a series, and for the numbers at each.
_TIME_STEPS = ("context_length", "num_input_channels")
#: Dimensions of tokens, as ``--input`` takes them.
_TEXT = "B, N int64"
#: Inputs that are tokens.
_TOKENS = frozenset({"input_ids", "decoder_input_ids"})
#: Ends of the names of classes that are trained with one label for each input.
_ONE_LABEL = ("ForSequenceClassification", "ForImageClassification")
#: Tokens of a model whose configuration does not say how many it takes.
_LONGEST = 2**16
#: The argument of a forward pass that says for how many of the last tokens it gives logits.
_LAST = "logits_to_keep"


def hub_subject(
    fields: Mapping[str, Any], name: str, kernel: str | None = None, swaps: Sequence[Swap] = (),
    tokens: int | None = None,
) -> WholeModel:  # fmt: skip
    """Return a model of transformers, by the fields of its configuration.

    ``kernel`` is ``eager`` or ``sdpa``; None leaves the choice to transformers. ``swaps`` put
    mechanisms of ours into some of its layers; a mechanism that is built for one length is built
    for ``tokens``, by default the most that the model takes. Raises :class:`CannotRunError` without
    transformers, and :class:`RequestError` for a type of model that it does not have.
    """
    config = configuration(fields, name)
    if kernel is not None:
        config._attn_implementation = kernel  # noqa: SLF001 - no other way before it is built
    try:
        kind = hub_config.class_of(config)
        build = lambda: kind(copy.deepcopy(config))  # noqa: E731 - models change their own
        subject = class_subject(name, kind, config, build)
    except AttnprofError:
        raise
    except Exception as error:
        raise RequestError(
            f"{name}: no model can be built with this configuration: {error_text(error)}"
        ) from error
    notes = (*subject.notes, *hub_config.notes_on(fields, config, kind))
    subject = replace(subject, notes=notes, of_hub=True)
    if not swaps:
        return subject
    from attnprof.models.hub_swap import swapped

    return swapped(subject, swaps, tokens or subject.longest or _LONGEST)


def class_subject(name: str, kind: Any, config: Any, build: Callable[[], Any]) -> WholeModel:
    """Return the model of a class of transformers as a subject; ``build`` makes the model."""
    text = text_config(config)
    inputs, labels = _inputs(kind, config)
    parts = text, getattr(text, "ffn_config", None)
    experts = next(filter(None, (first_number(part, hub_config.EXPERTS) for part in parts)), 0)
    chosen = next(filter(None, map(hub_config.chosen_experts, parts)), 0)
    if idle := first_number(text, ("zero_expert_num",)):  # some choices fall on experts of nothing
        chosen = chosen * experts // (experts + idle)
    if not (experts and chosen):  # a dense model, also of a class that can have experts
        experts = chosen = 1
    heads = first_number(text, ("num_attention_heads",)) or 1
    return WholeModel(
        name, build, inputs, labels, dtype=format_of(config),
        caches=hasattr(text, "use_cache") and not _TOKENS.isdisjoint(inputs),
        layer_types=tuple(getattr(text, "layer_types", None) or ()),
        experts=experts, chosen=chosen, num_heads=heads,
        head_dim=hub_config.field_of(text, "head_dim")
        or first_number(text, ("hidden_size", "d_model")) // heads,
        longest=first_number(text, _LENGTHS),
        last_logits=_LAST if _LAST in inspect.signature(kind.forward).parameters else "",
        notes=tuple(_notes(inputs, config)),
    )  # fmt: skip


def _inputs(kind: Any, config: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return the dimensions of a class's inputs and labels by name, as ``--input`` takes them."""
    parameters = inspect.signature(kind.forward).parameters
    name = kind.main_input_name
    dimensions = {
        "input_ids": lambda: _TEXT, "pixel_values": lambda: _image(config),
        "pixel_values_videos": lambda: _image(config), "input_features": lambda: _sound(config),
        "input_values": lambda: _wave(config), "past_values": lambda: _series(config),
    }  # fmt: skip
    if name not in dimensions:
        raise RequestError(
            f"{kind.__name__} takes {name}; attnprof model knows models of {', '.join(dimensions)}"
        )
    try:
        inputs = {name: dimensions[name]()}
    except AttributeError as error:
        raise RequestError(
            f"{kind.__name__}: the size of its input is not known: {error}"
        ) from error
    if config.is_encoder_decoder and "decoder_input_ids" in parameters:
        inputs["decoder_input_ids"] = _TEXT
    if {"input_ids", "pixel_values"} <= {*parameters} and hasattr(config, "vision_config"):
        both = {"input_ids": _TEXT, "pixel_values": _image(config)}
        inputs |= {} if _takes_images_as_tokens(config) else both
    tokens = not _TOKENS.isdisjoint(inputs)
    one = kind.__name__.endswith(_ONE_LABEL)
    if "labels" not in parameters or not (one or tokens):
        return inputs, {}
    return inputs, {"labels": "B int64" if one else _TEXT}


def _image_config(config: Any) -> Any:
    """Return the part of a configuration with the size of images."""
    parts = (getattr(config, name, None) for name in ("vision_config", "encoder"))
    return next((part for part in parts if hasattr(part, "image_size")), config)


def _image(config: Any) -> str:
    """Return the dimensions of an image, or of the pictures of a video."""
    config = _image_config(config)
    size = getattr(config, "image_size", None) or _SIDE
    sides = size if isinstance(size, list | tuple) else (size, size)
    frames = first_number(config, ("num_frames", "frames_per_clip"))
    channels = first_number(config, ("num_channels", "in_chans")) or 3
    return ", ".join(map(str, ("B", *([frames] if frames else []), channels, *sides)))


def _notes(inputs: Mapping[str, str], config: Any) -> Iterator[str]:
    """Yield notes on assumed sizes of images, and on costs that are left out."""
    has_size = getattr(_image_config(config), "image_size", None)
    if "pixel_values" in inputs and not has_size:
        yield f"its configuration names no size of images: {_SIDE} x {_SIDE} is taken"
    if "pixel_values" not in inputs and _takes_images_as_tokens(config):
        yield "its input is text alone: what images would cost is not counted"
    if getattr(config, "quantization_config", None):
        name = format_of(config)
        yield (
            f"its weights are counted in {name}: quantization_config is not built; attnprof fit "
            "counts their bytes in its format"
        )


def _takes_images_as_tokens(config: Any) -> bool:
    """Return whether images are tokens of the model's text."""
    fields = ("image_token_id", "image_token_index")
    return any(getattr(config, field, None) is not None for field in fields)


def _series(config: Any) -> str:
    """Return the dimensions of a series: the time steps, and the numbers at each, of a model."""
    sizes = [first_number(config, (name,)) for name in _TIME_STEPS]
    if not all(sizes):
        raise AttributeError(f"its configuration lacks {_TIME_STEPS[sizes.index(0)]}")
    return ", ".join(map(str, ("B", *sizes)))


def _wave(config: Any) -> str:
    """Return the dimensions of sound: a spectrogram if its width is configured, else N samples."""
    bins = getattr(config, "num_mel_bins", None)
    return f"B, {config.max_length}, {bins}" if bins else "B, N"


def _sound(config: Any) -> str:
    """Return the dimensions of a spectrogram: N rows, or the model's own number of columns."""
    parts = (getattr(config, name, None) for name in ("audio_config", "encoder_config"))
    audio = next((part for part in parts if part is not None), config)
    columns = getattr(audio, "max_source_positions", None)
    if columns and hasattr(audio, "num_mel_bins"):
        return f"B, {audio.num_mel_bins}, {2 * columns}"
    if not (bins := first_number(audio, _BINS)):
        raise AttributeError(f"its configuration has none of {', '.join(_BINS)}")
    return f"B, N, {bins}"
