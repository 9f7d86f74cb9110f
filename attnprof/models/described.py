"""Turn a description of a model by its sizes alone into a configuration of transformers.

Tables of public numbers give a model's sizes without its type: layers, heads, widths, experts,
which biases there are. :func:`as_typed` finds the type of transformers that has exactly such
layers, by the fields that are given and never by a name: ``kv_lora_rank`` needs latent attention,
``qk_norm: "head"`` normalised queries and keys. Fields become traits (:func:`traits_of`), and the
first row of :data:`KINDS` that has these traits is taken. A field that no row has is refused by
name; a size that is left out is the type's default, and the note says so.
"""

from collections.abc import Mapping
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.described_types import (
    COMMON,
    EXPERTS,
    GONE,
    KINDS,
    LATENT,
    LATENT_SIZES,
    LAYERS,
    LENGTH,
    WITH_VISION,
    WITHOUT_FIELD,
    Fields,
    Kind,
)

#: Other names of fields.
_ALIASES = {
    "padded_vocab": "vocab_size", "n_routed_experts": "num_experts",
    "num_local_experts": "num_experts", "indexer_heads": "index_n_heads",
    "indexer_head_dim": "index_head_dim", "mlp_dim": "intermediate_size",
    "max_position": "max_position_embeddings", "torch_dtype": "dtype",
}  # fmt: skip
#: Values that say nothing: the usual layer has two norms, a gated MLP and one norm at its end.
_USUAL = {"norms_per_layer": 2, "final_norms": 1, "glu": True}
#: Fields whose values are traits, with their possible values.
_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": ("qkv", "qkvo"), "qk_norm": ("head",), "norms_per_layer": (1, 2, 4),
    "final_norms": (1, 2), "glu": (True, False),
}  # fmt: skip
#: Fields that change no operation and no parameter.
_WITHOUT_COST = {
    "rms_norm_eps", "layer_norm_eps", "rope_theta", "initializer_range", "use_cache", "name",
    "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout", "transformers_version",
    "source",
}  # fmt: skip
#: Sizes that may be 0: a layer has no experts, no window and so on.
_MAY_BE_NONE = (
    "first_k_dense_replace", "num_experts", "sliding_window", "q_lora_rank", "moe_layers",
    "shared_expert_intermediate_size", "full_attention_layers",
)  # fmt: skip
#: Tokens of a text where a description does not say it: rotary positions have no weights.
_LONGEST = 2**17


def as_typed(fields: Fields, name: str) -> tuple[dict[str, Any], str]:
    """Return the fields of a ``config.json`` for a described model, and a note on its type.

    Raises :class:`RequestError` for a field, or a value, that no type of transformers has.
    """
    sizes = {_ALIASES.get(key, key): value for key, value in fields.items()}
    none = {key for key in _MAY_BE_NONE if sizes.get(key) == 0} | _WITHOUT_COST
    sizes = {key: value for key, value in sizes.items() if value is not None and key not in none}
    vision = sizes.pop("vision", None)
    _check_values(sizes, name)
    traits = traits_of(sizes)
    kind = next((kind for kind in KINDS if not any(_mismatch(kind, traits))), None)
    if kind is None or (vision and kind.model_type not in WITH_VISION):
        raise RequestError(f"{name}: {_why_none(traits, vision)}")
    sizes = {**kind.usual, **sizes}
    typed: dict[str, Any] = {"model_type": kind.model_type, **_same_fields(sizes, kind)}
    try:
        typed |= kind.write(sizes)
    except KeyError as error:
        raise RequestError(f"{name} does not say {error.args[0]}: write a number there") from error
    except ValueError as error:
        raise RequestError(f"{name}: {error}") from error
    typed = {
        key: value for key, value in typed.items()
        if value is not GONE and key not in WITHOUT_FIELD
    }  # fmt: skip
    note = f"its type is not given: {kind.model_type} of transformers has such layers"
    if left_out := _left_out(kind, sizes, typed):
        note += f", whose defaults stand for {', '.join(left_out)}"
    note += kind.note
    if vision:
        whole = kind.model_type.removesuffix("_text")
        typed = {"model_type": whole, "text_config": typed, "vision_config": vision}
    return typed, note


def is_described(fields: Fields) -> bool:
    """Return whether fields describe a model's sizes without naming its type or its class."""
    sizes = [{LAYERS, "hidden_size"}, {"num_layers", "d_model"}]
    named = {"model_type", "architectures", "auto_map"} & {*fields}
    return not named and any(x <= {*fields} for x in sizes)


def traits_of(fields: Fields) -> set[str]:
    """Return the traits of a model: names of its fields, with the value if it decides the type."""
    traits = set()
    for key, value in fields.items():
        if (value is False and key != "glu") or value == _USUAL.get(key, ...):
            traits |= {key} & {"tie_word_embeddings"}
        else:
            traits.add(f"{key}:{str(value).lower()}" if key in _CHOICES else key)
    return traits


def _check_values(fields: Fields, name: str) -> None:
    for key, value in fields.items():
        possible = _CHOICES.get(key)
        if possible and value is not False and value not in possible:
            texts = " or ".join(str(x).lower() for x in possible)
            raise RequestError(f"{name}: {key} is {value}, which is not understood; type {texts}")
        is_size = isinstance(value, int) and (isinstance(value, bool) or value > 0)
        if not possible and key != "dtype" and not is_size:
            raise RequestError(f"{name}: {key} is {value!r}: a described model has whole numbers")


def _mismatch(kind: Kind, traits: set[str]) -> tuple[set[str], set[str]]:
    """Return the traits that a type cannot have, and needed traits that are missing."""
    allowed = {*f"{kind.needs} {kind.takes} {kind.common}".split()}
    return traits - allowed, {*kind.needs.split()} - traits


def _why_none(traits: set[str], vision: Any) -> str:
    """Return the sentence on why no type fits: how the nearest type differs from the traits."""
    if vision:
        return "vision is not understood beside such layers; leave it out to count the text alone"
    gaps = {kind: _mismatch(kind, traits) for kind in KINDS}
    nearest = min(KINDS, key=lambda kind: (sum(map(len, gaps[kind])), len(gaps[kind][0])))
    beyond, missing = gaps[nearest]
    if unknown := sorted(set.intersection(*(foreign for foreign, _ in gaps.values()))):
        are = "is" if len(unknown) == 1 else "are"
        return f"{', '.join(unknown)} {are} not understood; name the model_type in the file"
    more = f" with {', '.join(sorted(beyond))}" if beyond else ""
    less = f" without {', '.join(sorted(missing))}" if missing else ""
    return (
        f"no type of transformers is known that is like {nearest.model_type}{more}{less}; "
        "name the model_type in the file"
    )


def _same_fields(fields: Fields, kind: Kind) -> dict[str, Any]:
    """Return the fields that the type has under the same name and with the same values.

    Without a number of key heads there are as many as query heads, with equal shares of the width.
    """
    usual: dict[str, Any] = {}
    if kind.common == COMMON:
        usual[LENGTH] = _LONGEST
        width, heads = fields.get("hidden_size", 0), fields.get("num_attention_heads", 0)
        if heads and "kv_lora_rank" not in fields:
            usual |= {"num_key_value_heads": heads, "head_dim": width // heads}
    return usual | {key: value for key, value in fields.items() if key not in _CHOICES}


def _left_out(kind: Kind, fields: Fields, typed: Fields) -> list[str]:
    """Return the sizes that a description should give and does not."""
    sizes = f"{kind.needs} {kind.takes} vocab_size"
    wanted = {"vocab_size", "num_attention_heads"} & {*kind.common.split()}
    optional = set() if "index_topk" in sizes else {"q_lora_rank"}
    wanted |= {*f"{EXPERTS} {LATENT} {LATENT_SIZES}".split()} & {*sizes.split()} - optional
    if kind.common == COMMON and ("num_experts" not in sizes or "first_k_dense_replace" in fields):
        wanted |= {"intermediate_size"}
    return sorted(x for x in wanted if x not in fields and x not in typed)
