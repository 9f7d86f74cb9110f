"""Find the transformers type (``llama``, ``qwen3_moe``) of a model described by sizes alone.

A description has fields like those of a ``config.json``, without ``model_type``. :data:`KINDS` has
a row per type: traits (fields, or ``field:value``) that a description must have, traits that it may
have, and a function that writes its sizes under the type's own field names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Kind:
    """A type of transformers: the traits that it needs, and those that it takes.

    ``write`` returns the fields that the type spells otherwise; :data:`GONE` drops a field.
    ``common``: sizes that most types have. ``note``: how the type's layers differ from the
    description, for the user.
    """

    model_type: str
    needs: str
    takes: str = ""
    write: Callable[[Fields], Fields] = field(default=lambda _: {})
    common: str = COMMON
    note: str = ""


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


def _renamed(fields: Fields, **names: str) -> Fields:
    """Return fields under the type's names, ``new="old"``; one that is not given is left out."""
    values = {new: fields.get(old, GONE) for new, old in names.items()}
    return {**dict.fromkeys(names.values(), GONE), **values}


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


def _windows_and_bias(fields: Fields) -> Fields:
    return {**_window(fields), **_biased(fields)}


def _soft_capped(fields: Fields) -> Fields:
    """Return Gemma 2's fields without the caps on scores and logits."""
    cap = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    width = fields.get("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    return {**_windows_and_bias(fields), **cap, "query_pre_attn_scalar": width}


def _sparse(fields: Fields) -> Fields:
    """Return the fields of layers with experts and a shared one; the first may be dense."""
    if "num_experts" not in fields:
        return {"first_k_dense_replace": fields[LAYERS]}
    shared, width = fields.get(_SHARED, 0), fields["moe_intermediate_size"]
    if shared % width:
        raise ValueError(f"{_SHARED} is {shared}, which is no multiple of {width}, an expert's")
    return {
        **_renamed(fields, n_routed_experts="num_experts"), _SHARED: GONE,
        "n_shared_experts": int(shared // width), "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": fields.get("first_k_dense_replace", 0),
    }  # fmt: skip


def _latent(fields: Fields) -> Fields:
    """Return the fields of latent attention, which expands keys and values for every head."""
    heads = {"num_key_value_heads": fields["num_attention_heads"]}
    return {**_sparse(fields), **heads, "q_lora_rank": fields.get("q_lora_rank"), "head_dim": GONE}


def _indexed(fields: Fields) -> Fields:
    """Return the fields of latent attention with an indexer; queries come from latents, too."""
    return {**_latent(fields), "q_lora_rank": fields.get("q_lora_rank", GONE)}


def _glm(fields: Fields) -> Fields:
    return {**_sparse(fields), **_biased(fields), "use_qk_norm": "qk_norm" in fields}


def _ernie(fields: Fields) -> Fields:
    """Return the fields of layers with experts and no shared one, after the first dense ones."""
    names = {
        "moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok",
        "moe_layer_start_index": "first_k_dense_replace",
    }  # fmt: skip
    tied = fields.get("tie_word_embeddings", False)
    written = {"moe_num_shared_experts": 0, "use_bias": False, "tie_word_embeddings": tied}
    return {**_renamed(fields, **names), **written}


def _mixtral(fields: Fields) -> Fields:
    names = {"num_local_experts": "num_experts", "intermediate_size": "moe_intermediate_size"}
    return _renamed(fields, **names)


def _gpt_oss(fields: Fields) -> Fields:
    return {**_mixtral(fields), **_windows_and_bias(fields), "use_sliding_window": GONE}


def _kimi(fields: Fields) -> Fields:
    names = {
        "linear_num_heads": "kda_num_heads", "linear_head_dim": "kda_head_dim",
        "linear_conv_kernel_dim": "kda_conv_kernel",
    }  # fmt: skip
    latent = dict(_latent(fields)) if "num_experts" in fields else {}
    dense = latent.pop("first_k_dense_replace", fields.get("first_k_dense_replace", 1))
    latent |= {"num_local_experts": latent.pop("n_routed_experts", GONE)}
    return {
        **latent, **_renamed(fields, **names), "first_k_dense_replace": GONE,
        "layer_types": _layer_types(fields, "linear_attention"),
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (fields[LAYERS] - dense),
    }  # fmt: skip


def _delta(fields: Fields) -> Fields:
    return {"layer_types": _layer_types(fields, "linear_attention"), **_biased(fields)}


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
        **_mixtral(fields), "intermediate_size_mlp": fields.get("intermediate_size", width),
        _SHARED: GONE, "interleave_moe_layer_step": layers // sparse, "layer_types": types,
        "no_rope_layers": [int(kind != "full_attention") for kind in types],
    }  # fmt: skip


def _gpt(fields: Fields) -> Fields:
    """Return GPT-2's fields: an MLP of two maps, by default four times as wide as the model."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    if fields.get("head_dim", width // heads) * heads != width:
        raise ValueError("head_dim * num_attention_heads is not hidden_size, as in GPT's layers")
    names = {
        "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": LAYERS,
        "n_inner": "intermediate_size", "n_positions": LENGTH,
    }  # fmt: skip
    usual = {"intermediate_size": 4 * width, LENGTH: 2048}
    written = {"head_dim": GONE, "bos_token_id": 0, "eos_token_id": 0}
    return {**_renamed({**usual, **fields}, **names), **written}


def _bloom(fields: Fields) -> Fields:
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    if fields.get("num_key_value_heads", heads) != heads:
        raise ValueError("num_key_value_heads is not num_attention_heads, as in BLOOM's layers")
    if fields.get("intermediate_size", 4 * width) != 4 * width:
        raise ValueError("intermediate_size is not 4 * hidden_size, as in BLOOM's layers")
    gone = dict.fromkeys((*COMMON.split(), "mlp_bias"), GONE)
    kept = {
        key: fields.get(key, GONE) for key in ("hidden_size", "tie_word_embeddings", "vocab_size")
    }
    return {**gone, **kept, "n_layer": fields[LAYERS], "n_head": heads}


def _falcon(fields: Fields) -> Fields:
    """Return Falcon's fields: attention and MLP read the same norm; key heads are 1 or all."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    keys = fields.get("num_key_value_heads", heads)
    if keys not in (1, heads):
        raise ValueError("num_key_value_heads is neither 1 nor num_attention_heads, as in Falcon's")
    if fields.get("head_dim", width // heads) * heads != width:
        raise ValueError("head_dim * num_attention_heads is not hidden_size, as in Falcon's layers")
    gone = ("num_key_value_heads", "head_dim", "mlp_bias", "intermediate_size")
    return {
        **dict.fromkeys(gone, GONE), "ffn_hidden_size": fields.get("intermediate_size", 4 * width),
        "multi_query": keys == 1, "bias": _biased(fields)["attention_bias"],
        "parallel_attn": True, "new_decoder_architecture": False,
    }  # fmt: skip


def _bert(fields: Fields) -> Fields:
    heads = fields.get("num_attention_heads", fields["hidden_size"] // 64)
    types = _renamed(fields, type_vocab_size="type_vocab")
    return {**types, "num_attention_heads": heads, "architectures": ["BertModel"]}


def _vit(fields: Fields) -> Fields:
    heads = fields.get("num_attention_heads", fields["hidden_size"] // 64)
    sizes = _renamed(fields, image_size="image", patch_size="patch", num_labels="classes")
    kind = ["ViTForImageClassification"] if "classes" in fields else []
    return {**sizes, "num_attention_heads": heads, "architectures": kind}


def _t5(fields: Fields) -> Fields:
    buckets = _renamed(fields, relative_attention_num_buckets="relative_buckets")
    return {**buckets, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": GONE}


def _nemotron(fields: Fields) -> Fields:
    return {"layers_block_type": _layer_types(fields, "linear_attention"), LAYERS: GONE}


def _bamba(fields: Fields) -> Fields:
    """Return Bamba's fields: each layer has an MLP after its attention or its recurrence."""
    names = {
        "mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim",
        "mamba_d_state": "ssm_state_size", "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
    }  # fmt: skip
    inner, width = fields["mamba_num_heads"] * fields["mamba_head_dim"], fields["hidden_size"]
    if inner % width:
        raise ValueError("mamba_num_heads * mamba_head_dim is no multiple of hidden_size")
    types = _layer_types(fields, "mamba")
    places = [place for place, kind in enumerate(types) if kind == "full_attention"]
    expand = {"mamba_expand": inner // width, "attn_layer_indices": places}
    return {**_renamed(fields, **names), **expand}


_ENCODER = f"{LAYERS} hidden_size intermediate_size num_attention_heads dtype"
WITH_VISION = ("qwen3_5_text", "qwen3_5_moe_text")
_KV, _BIASES = "num_key_value_heads", "glu:false mlp_bias norm_bias attention_bias:qkvo"
#: Types by their traits. Of several that fit, the first is taken, so simple types come first.
KINDS = (
    Kind("llama", _KV, "attention_bias:qkvo mlp_bias", _biased),
    Kind("mistral", "sliding_window"),
    Kind("ministral", _WINDOWS, "", lambda x: {**_window(x), "use_sliding_window": GONE}),
    Kind("qwen2", "attention_bias:qkv", _WINDOWS, _window),
    Kind("qwen3", "qk_norm:head", f"attention_bias:qkvo {_WINDOWS}", _windows_and_bias),
    Kind("gemma2", "norms_per_layer:4", f"attention_bias:qkvo {_WINDOWS}", _soft_capped),
    Kind("gemma3_text", "norms_per_layer:4 qk_norm:head", f"attention_bias:qkvo {_WINDOWS}",
         _soft_capped),
    Kind("cohere", "norms_per_layer:1", "attention_bias:qkvo", _biased),
    Kind("arcee", "glu:false", "attention_bias:qkvo mlp_bias", _biased),
    Kind("nemotron", "glu:false norm_bias", "attention_bias:qkvo mlp_bias", _biased),
    Kind("falcon", "glu:false norm_bias norms_per_layer:1", "", _falcon),
    Kind("falcon", f"{_BIASES} norms_per_layer:1", "", _falcon),
    Kind("bloom", f"{_BIASES} final_norms:2", "", _bloom),
    Kind("mixtral", EXPERTS, "sliding_window", _mixtral),
    Kind("qwen3_moe", f"{EXPERTS} qk_norm:head", "attention_bias:qkvo",
         lambda x: {**_biased(x), "mlp_only_layers": []}),
    Kind("qwen2_moe", f"{EXPERTS} {_SHARED} shared_expert_gate", "attention_bias:qkv",
         lambda x: {"qkv_bias": _biased(x)["attention_bias"], "mlp_only_layers": []}),
    Kind("ernie4_5_moe", f"{EXPERTS} first_k_dense_replace", "router_bias", _ernie,
         note="; its router has a bias for each expert"),
    Kind("glm4_moe", SPARSE, f"{_FIRST} attention_bias:qkv qk_norm:head", _glm),
    Kind("gpt_oss", f"{EXPERTS} attention_sinks expert_bias router_bias attention_bias:qkvo "
         "sliding_window", "full_attention_layers", _gpt_oss),
    Kind("llama4_text", f"{EXPERTS} {_SHARED} attention_chunk_size",
         "full_attention_layers moe_layers", _llama4),
    Kind("deepseek_v3", LATENT, LATENT_SIZES, _latent),
    Kind("deepseek_v3", f"{LATENT} {SPARSE}", f"{LATENT_SIZES} {_FIRST}", _latent),
    Kind("deepseek_v32", f"{LATENT} {_INDEX}", f"index_n_heads {LATENT_SIZES}", _indexed),
    Kind("deepseek_v32", f"{LATENT} {_INDEX} {SPARSE}", f"index_n_heads {LATENT_SIZES} {_FIRST}",
         _indexed),
    Kind("kimi_linear", f"{LATENT} kda_num_heads kda_head_dim full_attention_layers",
         f"kda_conv_kernel {LATENT_SIZES} {EXPERTS} {_SHARED} first_k_dense_replace router_bias",
         _kimi),
    Kind("qwen3_5_text", _DELTA, "linear_conv_kernel_dim attention_bias:qkvo", _delta),
    Kind("qwen3_5_moe_text", f"{_DELTA} {EXPERTS} {_SHARED} shared_expert_gate",
         "linear_conv_kernel_dim attention_bias:qkvo", _delta),
    Kind("bamba", f"{_MAMBA} intermediate_size", "", _bamba),
    Kind("nemotron_h", _MAMBA, "", _nemotron),
    Kind("bert", "type_vocab", "", _bert, f"{_ENCODER} vocab_size {LENGTH}"),
    Kind("vit", "patch image", "classes", _vit, _ENCODER),
    Kind("t5", "num_layers d_model d_kv d_ff num_heads", "num_decoder_layers relative_buckets", _t5,
         "vocab_size tie_word_embeddings dtype", "; its token table is its head, too"),
    Kind("gpt2", "num_attention_heads", "head_dim", _gpt, f"{_ENCODER} vocab_size "
         f"tie_word_embeddings {LENGTH}"),
)  # fmt: skip
