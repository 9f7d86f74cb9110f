"""Load a model from a configuration of transformers, a name, a TOML file, a preset, or code.

Code makes it by a function without arguments, or by its class.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.config import ModelConfig, load, presets
from attnprof.models.names import named
from attnprof.models.swap import Swap, mechanisms_of, notes_on, swapped_config
from attnprof.models.whole import WholeModel
from attnprof.trace.request import signatures
from attnprof.trace.request.lookup import target_of
from attnprof.user_code import is_place, loaded


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
    if not {*target.symbols} <= {"B", "N"}:
        raise RequestError(
            f"{source}: the sizes of its inputs are not known, guessed are "
            f"{'; '.join(target.spelled_inputs)}; give them in numbers, B and N, like "
            f'--input "{target.spelled_inputs[0].split(":")[0]}: B, 3, 224, 224"'
        )
    from attnprof.trace.run.worlds import fake_world

    with fake_world():
        model = target.make({})
    if not inputs and hasattr(model, "main_input_name") and hasattr(model, "config"):
        from attnprof.models.hub import class_subject

        return class_subject(source, type(model), model.config, partial(target.make, {}))
    taken = dict(text.split(": ", 1) for text in target.spelled_inputs)
    steps: Any = type(model) if hasattr(model, "init_state") else None
    guessed = (f"its inputs are guessed: {'; '.join(target.spelled_inputs)}",)
    notes = () if inputs else guessed
    return WholeModel(source, partial(target.make, {}), taken, steps=steps, notes=notes)


def subject_of(
    source: str,
    kernel: str | None = None,
    swaps: Sequence[Swap] = (),
    tokens: int | None = None,
    inputs: Sequence[str] = (),
) -> WholeModel:
    """Return the named model, with other mechanisms in some of its layers, as its name says.

    In transformers' models, mechanisms of one length are built for so many ``tokens``, by default
    for the longest that the model takes. ``inputs`` are those of user code, guessed unless given.
    Raises :class:`RequestError` for an unknown name, and if a mechanism does not fit.
    """
    if inputs and not is_place(source):
        raise RequestError(f"--input is for my.py:factory: the inputs of {source} are known")
    subject = _subject(source, kernel, swaps, tokens, inputs)
    swap_names = ", ".join(swap.text for swap in swaps)
    if not swaps:
        return subject
    notes = (*subject.notes, *notes_on(swaps))
    return replace(subject, name=f"{subject.name} with {swap_names}", notes=notes)


def _subject(
    source: str,
    kernel: str | None,
    swaps: Sequence[Swap],
    tokens: int | None,
    inputs: Sequence[str],
) -> WholeModel:
    if is_place(source):
        if kernel is not None or swaps:
            flag = "--swap" if swaps else "--kernel"
            raise RequestError(f"{flag} is for a config.json or a model's name: not {source}")
        return factory_subject(source, inputs)
    if source.endswith(".toml") or source in presets():
        if kernel is not None:
            raise RequestError(f"--kernel is for a model of transformers, not for {source}")
        config = swapped_config(load(source), swaps) if swaps else load(source)
        return config_subject(source, config)
    from attnprof.models.hub import hub_subject

    model = named(source)
    subject = hub_subject(model.fields, model.name, kernel, swaps, tokens)
    return replace(subject, notes=(*model.notes, *subject.notes))


def config_subject(name: str, config: ModelConfig) -> WholeModel:
    """Return one of our own models."""
    from attnprof.models import build
    from attnprof.models.embeddings import input_texts
    from attnprof.models.transformer import EncoderDecoder, Transformer

    steps = {"decoder": Transformer, "encoder-decoder": EncoderDecoder}.get(config.kind)
    kinds = [one.name for stack in mechanisms_of(config) for one in stack]
    inputs = {name: text.replace("M", "N") for name, text in input_texts(config).items()}
    return WholeModel(
        name, partial(build, config), inputs, steps=steps, layer_types=kinds,
        num_heads=config.num_heads, head_dim=config.d_model // config.num_heads, in_blocks=True,
        longest=config.seq_len,
    )  # fmt: skip
