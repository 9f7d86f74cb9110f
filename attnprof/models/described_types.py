"""Find the transformers type (``llama``, ``qwen3_moe``) of a model described by sizes alone.

A description has fields like those of a ``config.json``, without ``model_type``. :data:`KINDS` has
a row per type: traits (fields, or ``field:value``) that a description must have, traits that it may
have, and a function that writes its sizes under the type's own field names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

Fields = Mapping[str, Any]
#: The value of a described field that has no counterpart in the type's configuration.
GONE = object()
#: Traits that are fixed in a type's code, without a field of its configuration.
WITHOUT_FIELD = (
    "full_attention_layers", "attn_output_gate", "attention_sinks", "expert_bias", "router_bias",
    "norm_bias", "moe_layers", "shared_expert_gate",
)  # fmt: skip

LAYERS, LENGTH = "num_hidden_layers", "max_position_embeddings"
#: Fields that every type of a decoder has.
COMMON = (
    f"{LAYERS} hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size "
    f"vocab_size tie_word_embeddings {LENGTH} dtype"
)
_WINDOWS = "sliding_window full_attention_layers"
EXPERTS = "num_experts num_experts_per_tok moe_intermediate_size"
_SHARED = "shared_expert_intermediate_size"
SPARSE, _FIRST = f"{EXPERTS} {_SHARED}", "first_k_dense_replace router_bias"
LATENT = "kv_lora_rank qk_rope_head_dim"
LATENT_SIZES = "q_lora_rank qk_nope_head_dim v_head_dim"
_DELTA = (
    "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim "
    "attn_output_gate qk_norm:head full_attention_layers"
)
_INDEX = "index_head_dim index_topk"
_MAMBA = "mamba_num_heads mamba_head_dim ssm_state_size n_groups conv_kernel full_attention_layers"


@dataclass(frozen=True, eq=False)
class Kind:
    """A type of transformers: the traits that it needs, and those that it takes.

    ``names``: described fields by the type's own names; ``values``: its fields with fixed values,
    :data:`GONE` for one that it lacks; ``usual``: described fields where a description has none;
    ``writes``: functions that return fields which follow from several. ``common``: sizes that most
    types have. ``note``: how the type's layers differ from the description, for the user.
    """

    model_type: str
    needs: str
    takes: str = ""
    common: str = COMMON
    note: str = ""
    names: Fields = field(default_factory=dict)
    values: Fields = field(default_factory=dict)
    usual: Fields = field(default_factory=dict)
    writes: tuple[Callable[[Fields], Fields], ...] = ()

    def write(self, fields: Fields) -> dict[str, Any]:
        """Return the fields that the type spells otherwise than the description.

        Raises KeyError for a size that is missing, and ValueError for one that no layer can have.
        """
        renamed = {new: fields.get(old, GONE) for new, old in self.names.items()}
        typed = {**dict.fromkeys(self.names.values(), GONE), **renamed}
        for write in self.writes:
            typed |= write(fields)
        return {**typed, **self.values}


def _layer_types(fields: Fields, other: str) -> list[str]:
    """Return the kind of each layer: ``full_attention_layers`` of them are full, evenly spread.

    As in released models, every p-th layer is full, counted from 1. If these are too few, the last
    layers are full as well: 7 of 27 are layers 4, 8, ..., 24 and 27.
    """
    layers, count = fields[LAYERS], fields["full_attention_layers"]
    if count > layers:
        raise ValueError(f"full_attention_layers is {count}, more than {LAYERS} {layers}")
    periods = range(1, layers + 1)
    period = next((p for p in periods if layers // p == count), -(-layers // count))
    places = {*range(period - 1, layers, period)}
    for place in reversed(range(layers)):
        if len(places) < count:
            places.add(place)
    return ["full_attention" if place in places else other for place in range(layers)]


def _biased(fields: Fields) -> Fields:
    return {"attention_bias": bool(fields.get("attention_bias"))}


def _window(fields: Fields) -> Fields:
    """Return the window's size and, if only some layers have it, the kind of each layer."""
    window, layers = fields.get("sliding_window"), fields[LAYERS]
    if window is None:
        if fields.get("full_attention_layers", layers) != layers:
            raise ValueError("full_attention_layers needs sliding_window, of the other layers")
        return {"layer_types": ["full_attention"] * layers}
    some = "full_attention_layers" in fields
    types = _layer_types(fields, "sliding_attention") if some else ["sliding_attention"] * layers
    return {"layer_types": types, "use_sliding_window": True}


def _alternating(fields: Fields) -> Fields:
    """Return the kind of each layer, of which most have linear attention."""
    return {"layer_types": _layer_types(fields, "linear_attention")}


def _scaled(fields: Fields) -> Fields:
    """Return the number whose root divides scores, as Gemma's configurations have it."""
    width = fields.get("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    return {"query_pre_attn_scalar": width}


def _sparse(fields: Fields) -> Fields:
    """Return the fields of layers with experts and a shared one; the first may be dense."""
    if "num_experts" not in fields:
        return {"first_k_dense_replace": fields[LAYERS]}
    shared, width = fields.get(_SHARED, 0), fields["moe_intermediate_size"]
    if shared % width:
        raise ValueError(f"{_SHARED} is {shared}, which is no multiple of {width}, an expert's")
    return {
        "n_routed_experts": fields["num_experts"], "num_experts": GONE, _SHARED: GONE,
        "n_shared_experts": int(shared // width), "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": fields.get("first_k_dense_replace", 0),
    }  # fmt: skip


def _expanded_keys(fields: Fields) -> Fields:
    """Return the fields of latent attention, which expands keys and values for every head."""
    return {"num_key_value_heads": fields["num_attention_heads"], "head_dim": GONE}


def _kimi(fields: Fields) -> Fields:
    """Return Kimi's fields: which layers have experts is a list, and experts are local."""
    sparse = dict(_sparse(fields)) if "num_experts" in fields else {}
    dense = sparse.pop("first_k_dense_replace", fields.get("first_k_dense_replace", 1))
    return {
        "num_local_experts": sparse.pop("n_routed_experts", GONE), **sparse,
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (fields[LAYERS] - dense),
    }  # fmt: skip


def _llama4(fields: Fields) -> Fields:
    """Return Llama 4's fields: every k-th layer has experts; chunked layers have positions."""
    width, layers = fields["moe_intermediate_size"], fields[LAYERS]
    if fields[_SHARED] != width:
        raise ValueError(f"{_SHARED} is not moe_intermediate_size, as Llama 4 has it")
    sparse = fields.get("moe_layers", layers)
    if layers % sparse:
        raise ValueError(f"moe_layers is {sparse}, which does not divide {LAYERS} {layers}")
    types = _layer_types({"full_attention_layers": layers, **fields}, "chunked_attention")
    return {
        "intermediate_size_mlp": fields.get("intermediate_size", width),
        "interleave_moe_layer_step": layers // sparse, "layer_types": types,
        "no_rope_layers": [int(kind != "full_attention") for kind in types],
    }  # fmt: skip


def _equal_heads(fields: Fields, of: str) -> Fields:
    """Return nothing, or raise ValueError for heads that do not share the model's width."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    if fields.get("head_dim", width // heads) * heads != width:
        raise ValueError(f"head_dim * num_attention_heads is not hidden_size, as in {of}'s layers")
    return {}


def _bloom(fields: Fields) -> Fields:
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    if fields.get("num_key_value_heads", heads) != heads:
        raise ValueError("num_key_value_heads is not num_attention_heads, as in BLOOM's layers")
    if fields.get("intermediate_size", 4 * width) != 4 * width:
        raise ValueError("intermediate_size is not 4 * hidden_size, as in BLOOM's layers")
    return {}


def _falcon(fields: Fields) -> Fields:
    """Return Falcon's fields: attention and MLP read the same norm; key heads are 1 or all."""
    heads = fields["num_attention_heads"]
    keys = fields.get("num_key_value_heads", heads)
    if keys not in (1, heads):
        raise ValueError("num_key_value_heads is neither 1 nor num_attention_heads, as in Falcon's")
    hidden = fields.get("intermediate_size", 4 * fields["hidden_size"])
    return {"ffn_hidden_size": hidden, "multi_query": keys == 1, "bias": "attention_bias" in fields}


def _heads_of_64(fields: Fields) -> Fields:
    heads = fields.get("num_attention_heads", fields["hidden_size"] // 64)
    return {"num_attention_heads": heads}


def _bamba(fields: Fields) -> Fields:
    """Return Bamba's fields: each layer has an MLP after its attention or its recurrence."""
    inner, width = fields["mamba_num_heads"] * fields["mamba_head_dim"], fields["hidden_size"]
    if inner % width:
        raise ValueError("mamba_num_heads * mamba_head_dim is no multiple of hidden_size")
    types = _layer_types(fields, "mamba")
    places = [place for place, kind in enumerate(types) if kind == "full_attention"]
    return {"mamba_expand": inner // width, "attn_layer_indices": places}


def _gone(fields: str) -> Fields:
    return dict.fromkeys(fields.split(), GONE)


_ENCODER = f"{LAYERS} hidden_size intermediate_size num_attention_heads dtype"
WITH_VISION = ("qwen3_5_text", "qwen3_5_moe_text")
_KV, _BIASES = "num_key_value_heads", "glu:false mlp_bias norm_bias attention_bias:qkvo"
_WINDOWS_AND_BIAS = f"attention_bias:qkvo {_WINDOWS}"
_FALCONS: dict[str, Any] = {
    "writes": (partial(_equal_heads, of="Falcon"), _falcon), "values": {
        **_gone("num_key_value_heads head_dim mlp_bias intermediate_size"),
        "parallel_attn": True, "new_decoder_architecture": False,
    },
}  # fmt: skip
_LOCAL = {"num_local_experts": "num_experts", "intermediate_size": "moe_intermediate_size"}
_GEMMA: dict[str, Any] = {
    "writes": (_window, _biased, _scaled),
    "values": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
}
_DEEPSEEK: dict[str, Any] = {"writes": (_sparse, _expanded_keys), "usual": {"q_lora_rank": None}}
_LINEAR = "linear_conv_kernel_dim attention_bias:qkvo"
#: Types by their traits. Of several that fit, the first is taken, so simple types come first.
KINDS = (
    Kind("llama", _KV, "attention_bias:qkvo mlp_bias", writes=(_biased,)),
    Kind("mistral", "sliding_window"),
    Kind("ministral", _WINDOWS, writes=(_window,), values=_gone("use_sliding_window")),
    Kind("qwen2", "attention_bias:qkv", _WINDOWS, writes=(_window,)),
    Kind("qwen3", "qk_norm:head", _WINDOWS_AND_BIAS, writes=(_window, _biased)),
    Kind("gemma2", "norms_per_layer:4", _WINDOWS_AND_BIAS, **_GEMMA),
    Kind("gemma3_text", "norms_per_layer:4 qk_norm:head", _WINDOWS_AND_BIAS, **_GEMMA),
    Kind("cohere", "norms_per_layer:1", "attention_bias:qkvo", writes=(_biased,)),
    Kind("arcee", "glu:false", "attention_bias:qkvo mlp_bias", writes=(_biased,)),
    Kind("nemotron", "glu:false norm_bias", "attention_bias:qkvo mlp_bias", writes=(_biased,)),
    Kind("falcon", "glu:false norm_bias norms_per_layer:1", **_FALCONS),
    Kind("falcon", f"{_BIASES} norms_per_layer:1", **_FALCONS),
    Kind("bloom", f"{_BIASES} final_norms:2", writes=(_bloom,),
         names={"n_layer": LAYERS, "n_head": "num_attention_heads"},
         values=_gone(f"{_KV} head_dim intermediate_size {LENGTH} dtype mlp_bias")),
    Kind("mixtral", EXPERTS, "sliding_window", names=_LOCAL),
    Kind("qwen3_moe", f"{EXPERTS} qk_norm:head", "attention_bias:qkvo", writes=(_biased,),
         values={"mlp_only_layers": []}),
    Kind("qwen2_moe", f"{EXPERTS} {_SHARED} shared_expert_gate", "attention_bias:qkv",
         writes=(lambda x: {"qkv_bias": _biased(x)["attention_bias"]},),
         values={"mlp_only_layers": []}),
    Kind("ernie4_5_moe", f"{EXPERTS} first_k_dense_replace", "router_bias",
         note="; its router has a bias for each expert",
         names={"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok",
                "moe_layer_start_index": "first_k_dense_replace"},
         usual={"tie_word_embeddings": False},
         values={"moe_num_shared_experts": 0, "use_bias": False}),
    Kind("glm4_moe", SPARSE, f"{_FIRST} attention_bias:qkv qk_norm:head",
         writes=(_sparse, _biased, lambda x: {"use_qk_norm": "qk_norm" in x})),
    Kind("gpt_oss", f"{EXPERTS} attention_sinks expert_bias router_bias attention_bias:qkvo "
         "sliding_window", "full_attention_layers", names=_LOCAL, writes=(_window, _biased),
         values=_gone("use_sliding_window")),
    Kind("llama4_text", f"{EXPERTS} {_SHARED} attention_chunk_size",
         "full_attention_layers moe_layers", names=_LOCAL, writes=(_llama4,),
         values=_gone(_SHARED)),
    Kind("deepseek_v3", LATENT, LATENT_SIZES, **_DEEPSEEK),
    Kind("deepseek_v3", f"{LATENT} {SPARSE}", f"{LATENT_SIZES} {_FIRST}", **_DEEPSEEK),
    Kind("deepseek_v32", f"{LATENT} {_INDEX}", f"index_n_heads {LATENT_SIZES}",
         writes=(_sparse, _expanded_keys)),
    Kind("deepseek_v32", f"{LATENT} {_INDEX} {SPARSE}", f"index_n_heads {LATENT_SIZES} {_FIRST}",
         writes=(_sparse, _expanded_keys)),
    Kind("kimi_linear", f"{LATENT} kda_num_heads kda_head_dim full_attention_layers",
         f"kda_conv_kernel {LATENT_SIZES} {EXPERTS} {_SHARED} first_k_dense_replace router_bias",
         names={"linear_num_heads": "kda_num_heads", "linear_head_dim": "kda_head_dim",
                "linear_conv_kernel_dim": "kda_conv_kernel"},
         usual={"q_lora_rank": None}, writes=(_kimi, _expanded_keys, _alternating),
         values=_gone("first_k_dense_replace")),
    Kind("qwen3_5_text", _DELTA, _LINEAR, writes=(_alternating, _biased)),
    Kind("qwen3_5_moe_text", f"{_DELTA} {EXPERTS} {_SHARED} shared_expert_gate", _LINEAR,
         writes=(_alternating, _biased)),
    Kind("bamba", f"{_MAMBA} intermediate_size", writes=(_bamba,),
         names={"mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim",
                "mamba_d_state": "ssm_state_size", "mamba_n_groups": "n_groups",
                "mamba_d_conv": "conv_kernel"}),
    Kind("nemotron_h", _MAMBA, values=_gone(LAYERS),
         writes=(lambda x: {"layers_block_type": _layer_types(x, "linear_attention")},)),
    Kind("bert", "type_vocab", common=f"{_ENCODER} vocab_size {LENGTH}", writes=(_heads_of_64,),
         names={"type_vocab_size": "type_vocab"}, values={"architectures": ["BertModel"]}),
    Kind("vit", "patch image", "classes", common=_ENCODER, names={
        "image_size": "image", "patch_size": "patch", "num_labels": "classes",
    }, writes=(_heads_of_64, lambda x: {
        "architectures": ["ViTForImageClassification"] if "classes" in x else [],
    })),
    Kind("t5", "num_layers d_model d_kv d_ff num_heads", "num_decoder_layers relative_buckets",
         common="vocab_size tie_word_embeddings dtype",
         note="; its token table is its head, too",
         names={"relative_attention_num_buckets": "relative_buckets"},
         values={"feed_forward_proj": "gated-gelu", **_gone("tie_word_embeddings")}),
    Kind("gpt2", "num_attention_heads", "head_dim",
         common=f"{_ENCODER} vocab_size tie_word_embeddings {LENGTH}",
         names={"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": LAYERS,
                "n_positions": LENGTH},
         usual={LENGTH: 2048}, values={
             **_gone("head_dim intermediate_size"), "bos_token_id": 0, "eos_token_id": 0,
         },
         writes=(partial(_equal_heads, of="GPT"),
                 lambda x: {"n_inner": x.get("intermediate_size", 4 * x["hidden_size"])})),
)  # fmt: skip
