"""The numbers of a model that conventions for MFU need, from its own code.

The model is built without values and runs once over a few tokens: modules that run tell how many
rows they multiply (:mod:`attnprof.models.text_run`), attention and recurrent layers their shapes
(:mod:`attnprof.models.layer_shapes`). Of experts a token meets as many as the configuration says.
Entry point: :func:`sizes_of`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from os import PathLike
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.config import presets
from attnprof.models.conventions import ModelSizes, RoleWeights
from attnprof.models.hub import hub_subject
from attnprof.models.hub_config import configuration, field_of, first_number, text_config
from attnprof.models.layer_shapes import attention_shapes, mixer_shapes, with_unrecorded
from attnprof.models.mfu_images import image_shape
from attnprof.models.names import named
from attnprof.models.text_run import TextRun, text_run
from attnprof.models.whole import WholeModel
from attnprof.user_code import is_place

_EXPERTS = re.compile(r"(?:^|[._])experts?(?:\.|$)")
_SHARED = re.compile(r"shared_?(expert|mlp)|residual_mlp")
_ROUTER = re.compile(r"router|^gate$|^wg$|classifier")
_VECTORS = re.compile(r"A_log|^[AD]$|dt_bias|position|token|scale|query|memory|sinks|slope|lambda")
#: Fields of a config.json for layers that predict further tokens. Types' defaults for them do not
#: count: models that were released without such layers have them too.
_FURTHER = ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")


def sizes_of(model: str | PathLike[str] | Mapping[str, Any]) -> ModelSizes:
    """Return the sizes of a model: a path, a name, or the fields of a ``config.json``.

    Raises :class:`RequestError` for what is no model of tokens, and :class:`CannotRunError` without
    transformers or if the model does not run without values.
    """
    notes = tuple[str, ...]()
    if isinstance(model, Mapping):
        fields, name = model, "the configuration"
    else:
        source = str(model)
        if is_place(source) or source.endswith(".toml") or source in presets():
            raise RequestError(
                f"{source}: FLOPs a token are told of models of transformers; give a config.json, "
                "its folder or a name (attnprof list --models)"
            )
        found = named(source)
        fields, name, notes = found.fields, found.name, found.notes
    subject = hub_subject(fields, name)
    subject = replace(subject, notes=(*notes, *subject.notes))
    config = configuration(fields, name)
    sizes = subject_sizes(subject, text_config(config))
    further = [fields.get(name) or _text_field(fields, name) for name in _FURTHER]
    named_layers = next((int(x) for x in further if isinstance(x, int)), 0)
    return replace(sizes, images=image_shape(config), mtp_layers=named_layers)


def _text_field(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field of the text part of a ``config.json``, if it has such a part."""
    text = fields.get("text_config")
    return text.get(name) if isinstance(text, Mapping) else None


def subject_sizes(subject: WholeModel, config: Any, run: TextRun | None = None) -> ModelSizes:
    """Return the sizes of a model that is described, with the text part of its configuration.

    ``run`` is one over a few tokens, if there is one.
    """
    if fixed := [name for name in subject.inputs if name not in ("input_ids", "decoder_input_ids")]:
        raise RequestError(
            f"{subject.name} takes {', '.join(fixed)}: FLOPs a token are of models of tokens"
        )
    run = run or text_run(subject)
    hidden = first_number(config, ("hidden_size", "d_model", "n_embd"))
    attention = tuple(attention_shapes(run, config))
    layers = first_number(config, ("num_hidden_layers", "n_layer", "num_layers"))
    weights, left_out = _weights(run, subject)
    attention, notes = with_unrecorded(run, subject, attention)
    mixers = tuple(mixer_shapes(run))
    if not attention and not mixers:
        notes = (*notes, "what its layers do between tokens is not known: products alone count")
    sizes = ModelSizes(
        name=subject.name, hidden=hidden, weights=weights, attention=attention,
        mixers=mixers, layers=layers, tied=run.tied,
        mtp_matrices=_last_layer(run, subject),
        usual_length=subject.usual_length,
        notes=(*subject.notes, *notes, *_note_left_out(left_out)),
    )  # fmt: skip
    return replace(sizes, symbols=_symbols(sizes, config))


# -- weights ---------------------------------------------------------------------------


def _weights(run: TextRun, subject: WholeModel) -> tuple[dict[str, RoleWeights], dict[str, int]]:
    """Return the parameters of text by role, and entries of modules that do not run over text."""
    entries, active = defaultdict[str, int](int), defaultdict[str, Fraction](Fraction)
    left_out = defaultdict[str, int](int)
    share = Fraction(subject.chosen, subject.experts)
    output = run.model.get_output_embeddings() if run.tied else None
    for name, weight in run.model.named_parameters():
        owner, _, last = name.rpartition(".")
        if not _runs(run, owner):
            left_out[_outermost(run, owner)] += weight.numel()
            continue
        tied = output is not None and weight is output.weight
        role = "head" if tied else _role(run, owner, last, weight)
        times = share if _is_expert(owner) else Fraction(1)
        if role in ("attention", "mlp"):  # some models run the same layers several times
            times = max(times, run.rows.get(owner, Fraction(0)))
        entries[role] += weight.numel()
        active[role] += weight.numel() * times
    for name, buffer in run.model.named_buffers():  # experts' biases that training sets by a rule
        if name.endswith("correction_bias") and _runs(run, name.rpartition(".")[0]):
            entries["vector"] += buffer.numel()
    return {role: RoleWeights(entries[role], round(active[role])) for role in entries}, left_out


def _is_expert(owner: str) -> bool:
    """Return whether a module is of experts of which a token meets some."""
    return bool(_EXPERTS.search(owner)) and not _SHARED.search(owner)


def _outermost(run: TextRun, owner: str) -> str:
    """Return the outermost module around one that does not run."""
    parts = owner.split(".")
    paths = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((path for path in paths if not _runs(run, path)), owner)


def _note_left_out(left_out: Mapping[str, int]) -> Iterator[str]:
    if left_out:
        parts = ", ".join(f"{name} ({number:,} parameters)" for name, number in left_out.items())
        yield f"not counted, since text alone does not run it: {parts}"


def _runs(run: TextRun, owner: str) -> bool:
    """Return whether a module runs over text, or is inside one that does and is no module apart."""
    while owner and owner not in run.ran:
        if not _EXPERTS.search(owner) and not _used_inside(run, owner):
            return False
        owner = owner.rpartition(".")[0]
    return True


def _used_inside(run: TextRun, owner: str) -> bool:
    """Return whether a module that did not run may be read by the module that it is in."""
    return owner.rpartition(".")[0] in run.ran and not list(run.modules[owner].children())


def _role(run: TextRun, owner: str, last: str, weight: Any) -> str:
    """Return the role of a parameter, by its module's class, place and name."""
    module, place = run.modules[owner], run.places[owner]
    kind, inner = type(module).__name__, owner.rpartition(".")[2]
    table = place.part == "embedding" and "Linear" not in kind
    norm = place.part == "norm" or (weight.ndim == 1 and "norm" in f"{inner} {kind}".lower())
    roles = {
        "bias": last.endswith("bias"),
        "embedding": kind.endswith("Embedding") or table,
        "convolution": kind in ("Conv1d", "Conv2d") and weight.ndim > 2,
        "latent norm": norm and re.search(r"(q|kv)_a_|latent", inner),
        "norm": norm,
        "vector": weight.ndim < 2 or _VECTORS.search(last),
        "head": place.part == "head",
        "expert": _is_expert(owner),
    }
    found = next((role for role, holds in roles.items() if holds), "")
    return found or _matrix_role(owner, inner, kind, place.part, weight)


def _matrix_role(owner: str, inner: str, kind: str, part: str, weight: Any) -> str:
    if "indexer" in owner:
        return "indexer"
    if part == "attention":
        return "attention"
    if _SHARED.search(owner):
        return "shared gate" if weight.shape[0] == 1 else "shared expert"
    gate = _ROUTER.search(inner) or "Router" in kind or "router" in owner
    return "router" if gate and not kind.endswith("MLP") else "mlp"


def _last_layer(run: TextRun, subject: WholeModel) -> int:
    """Return the matrix entries that a token meets in the last layer: those of an MTP layer."""
    layers = list(dict.fromkeys(x.layer for x in run.places.values() if x.layer))
    if not layers:
        return 0
    total, share = Fraction(0), Fraction(subject.chosen, subject.experts)
    for name, weight in run.model.named_parameters():
        owner, _, last = name.rpartition(".")
        if run.places[owner].layer == layers[-1]:
            role = _role(run, owner, last, weight)
            if role in ("attention", "mlp", "expert", "shared expert"):
                total += weight.numel() * (share if role == "expert" else 1)
    return int(total)


# -- symbols of hand-written formulas --------------------------------------------------


def _symbols(sizes: ModelSizes, config: Any) -> dict[str, int]:
    """Return the sizes that a formula may name: short symbols, and fields of the configuration."""
    first = max(sizes.attention, key=lambda x: x.layers, default=None)
    found = {
        "P": sum(x.entries for x in sizes.weights.values()),
        "A": sum(x.active for x in sizes.weights.values()),
        "E": sizes.entries("embedding"), "L": sizes.layers, "D": sizes.hidden,
        "V": first_number(config, ("vocab_size",)),
    }  # fmt: skip
    if first is not None:
        found |= {"h": first.heads, "g": first.kv_heads, "d": first.key_dim}
        windows = [x.mask.size for x in sizes.attention if x.mask.size]
        found |= {"w": windows[0]} if windows else {}
    named = {x: field_of(config, x) for x in config.to_dict()}
    numbers = {
        name: value for name, value in named.items()
        if type(value) is int and value > 0 and "token_id" not in name
    }  # fmt: skip
    return {**numbers, **found}
