"""Read the parameters of callables, and tell by usual names what they are: ``num_heads`` is h."""

import inspect
import re
from collections.abc import Iterable, Mapping
from inspect import Parameter
from itertools import takewhile
from typing import Any

from attnprof.errors import RequestError, closest
from attnprof.trace.request.target import Expression, Input, base_of
from attnprof.trace.request.texts import Named

_NAMES = {
    "h*d": "d_model embed_dim dim hidden_size n_embd n_embed width emb_dim embedding_dim "
    "embed_size emb_size model_dim dim_model",
    "h": "num_heads heads n_heads nhead n_head num_attention_heads nheads num_head nb_heads "
    "attention_heads attn_heads num_attn_heads n_attn_heads",
    "d": "head_dim dim_head d_head d_k d_v head_size head_width head_channels",
    "N": "seq_len max_len max_seq_len block_size n seq_length max_length context_length",
}
#: Constructor arguments that are sizes, with the size: ``{"num_heads": "h"}``.
ARGUMENTS = {name: size for size, names in _NAMES.items() for name in names.split()}
WIDTHS = _NAMES["h*d"].split()
_OTHERS = {
    "h*d": "channels in_chs in_features in_channels input_dim in_dim dim_in query_dim out_features "
    "out_channels out_dim output_dim dim_out hidden_dim attention_dim kdim vdim inner_dim "
    "input_size encoder_dim decoder_dim cross_attention_dim context_dim attn_dim attention_size "
    "encoder_embed_dim decoder_embed_dim qkv_dim features n_state n_units embed_dims "
    "channel out_chs q_dim kv_dim qk_channels v_channels cin cout dims hidden_channels dimension "
    "hidden_sizes hidden_size_output d c ch size hidden ninp n_feats n_hid units d_in d_out "
    "d_hidden",
    "h": "h nh n_h num_key_value_heads n_kv_heads num_kv_heads kv_heads encoder_attention_heads "
    "decoder_attention_heads n_kv_head num_query_heads num_heads_q n_q_heads num_groups_kv",
    "d": "d_kv dim_heads attention_head_dim attention_head_size kv_dim_head qk_dim_head "
    "key_dim value_dim rotary_dim rotary_ndims dim_key d_qk d_values d_keys "
    "dim_k dim_v per_head_dim attention_head_width head_features d_qkv",
    "4*h*d": "intermediate_size d_ff ffn_dim mlp_dim ffn_hidden_size dim_feedforward n_inner "
    "encoder_ffn_dim decoder_ffn_dim hidden_features feedforward_dim d_inner dff mlp_hidden_dim "
    "dim_ff ff_dim d_hid intermediate_dim expand_dim feed_forward_size nhid d_ffn ffn_embed_dim "
    "ffn_size",
    "N": "max_position_embeddings n_positions n_ctx sequence_length max_position num_tokens_max "
    "max_sequence_length num_patches ctx_len max_seq_length max_seqlen n_token context_size",
    "B": "batch_size",
    "2": "num_hidden_layers n_layer n_layers num_layers depth layers encoder_layers "
    "decoder_layers num_encoder_layers num_decoder_layers num_blocks n_blocks nlayers n_block",
    "16": "num_experts n_routed_experts num_local_experts moe_num_experts num_routed_experts",
    "1000": "vocab_size n_vocab num_tokens ntoken n_tokens num_embeddings vocab num_words ntokens "
    "src_vocab tgt_vocab src_vocab_size tgt_vocab_size",
}
#: Sizes of required arguments; those of ``ARGUMENTS`` also replace defaults.
REQUIRED = {name: size for size, names in _OTHERS.items() for name in names.split()} | ARGUMENTS
#: The size of a vocabulary that is guessed.
WORDS = "1000"
#: Endings of other names of required arguments that are sizes.
_ENDINGS = {"h*d": r"\w+_(dim|dims|channels|chs|features|width)|d_(embedding|emb|token|hidden)",
            "h": r"\w+_heads", "2": r"\w+_(depth|layers|stages|blocks)"}  # fmt: skip
#: The number of experts that is guessed if the default is larger.
FEW = "16"
#: Values for required arguments that are no sizes, with patterns of their names.
_VALUES: tuple[tuple[Any, str], ...] = (
    (0, r"(layer|block)_?(idx|index|id|number|num|i)|idx|layer_n|layer"),
    (0.0, r".*drop(out)?(_?(rate|prob|p|path))?|.*_pdrop|p"),
    (1e-5, r".*eps(ilon)?"),
    (True, r".*bias|batch_first"),
    (False, r"(is_)?causal|flash(_attn)?|use_.*|is_.*|cross_attention|return_.*|output_.*"),
    (4, r"(mlp|ffn|attention|attn|squeeze)_ratio|expansion(_factor|_ratio)?|ff_mult|mult"),
    (2, r"((\w+_)?(sr|reduction)_(ratio|factor)|reduction)"),
    (224, r"(img|image)_size|input_resolution"),
    (16, r"patch_size|patch_len"),
    (7, r"(window|partition)(_size)?|win_size"),
    ((14, 14), r"(feat|feature|fmap|map|grid|token)_(size|shape)|((in|out)put_)?resolution"),
    (3, r"halo_size|(kernel|conv|pool)_(size|width)|kernel|in_chans|num_channels|proj_kernel"),
    (1, r"(\w+_)?strides?(_\w+)?|padding(_\w+)?|dilation|shift_size"),
    (10, r"num_(classes|labels)|n_classes|nb_classes"),
    (16, r"(chunk|bucket|segment)(_?(size|len))?|rank|nb_features|num_pixel"),
    (16, r"\w+_(window|block|chunk|segment)_(size|len)|num_\w+_tokens"),
    (16, r"(n_|num_)?(landmarks|slots|latents|queries|agents|anchors|centroids|induc\w+_points)"),
    (64, r"(num_)?freq_bands|max_freq"),
    ("global", r"attention_type"),
    (Named("torch.nn:LayerNorm"), r"norm_(layer|cls|class)"),
    (Named("torch.nn:GELU"), r"act(ivation)?_(layer|cls|class)"),
    ("gelu", r"(hidden_|ffn_)?act(ivation)?(_fn|_function)?|hidden_act"),
)
#: An annotation of a list.
_LISTED = re.compile(r"(typing\.)?(list|sequence)\[", re.IGNORECASE)
#: Arguments for the number of a layer in its model.
PLACES = ("layer_idx", "layer_id")
#: Inputs that are tokens of another source.
CONTEXTS = ("encoder_hidden_states", "context")
_OF_CONTEXTS = r"(caption|joint|cross|context|text|encoder|kv)\w*_(channels|dim|width)|text_dim"
#: Arguments of a call that are (batch, tokens, width).
TOKENS = {
    "x", "hidden_states", "src", "input", "inputs", "tgt", "memory", "hidden", "hidden_state",
    "inputs_embeds", "embeddings", "encoder_hidden_states", "context", "key_value_states", "feats",
    "features", "tokens_embeds", "x_in", "query_states", "residual", "input_tensor", "tgt_emb",
    "cross_attention_states", "latents", "image_hidden_states", "vision_hidden_states",
}  # fmt: skip
#: Inputs of that shape in a layer, but (batch, heads, tokens, head width) in a function.
HEADS = {
    "q", "k", "v", "query", "key", "value", "queries", "keys", "values", "xq", "xk", "xv", "qk",
    "q_input", "k_input", "v_input", "g", "gk", "gate", "gates", "decay", "log_decay", "beta",
    "dt", "w", "u",
}  # fmt: skip
#: Other required inputs; ``{d}`` is the head width, ``{w}`` the model width.
_INPUTS = {
    "B, N int64": "input_ids ids tokens idx token_ids input_tokens src_tokens decoder_input_ids "
    "prev_output_tokens inp token input_id position_ids positions pos_ids token_type_ids pos "
    "segment_ids",
    "B, int64": "timestep timesteps class_labels",
    "N, int64": "cache_position input_pos token_positions",
    "(B, N, {d}), (B, N, {d})": "position_embeddings cos_sin rotary",
    "B, N, {d}": "cos sin rotary_pos_emb",
    "1, 2*N - 1, {w}": "relative_position_embeddings pos_embs",
    "N, {d}/2 complex64": "freqs_cis freqs freqs_ci",
    "=H": "height H",
    "=W": "width W",
    "=(H, W)": "input_dimensions feat_size size hw_shape hw spatial_shape input_size",
    "B, {w}": "pooled_projections temb time_emb emb t_emb cond conditioning c vec",
    "B, 3, 224, 224": "pixel_values img image images",
    "0": "start_pos offset position_offset cur_pos past_length pos_offset",
    "None": "attention_mask mask attn_mask key_padding_mask head_mask padding_mask src_mask "
    "past_key_values past_key_value layer_past cache state cache_params past causal_mask "
    "encoder_attention_mask attention_bias attn_bias bias_mask incremental_state kv_cache "
    "layer_head_mask tgt_mask memory_mask position_bias rotary_emb rope src_key_padding_mask "
    "image_rotary_emb alibi seg_mat is_index_global_attn",
    "B, h, N, N": "rel_pos rel_2d_pos relative_position_bias",
}  # fmt: skip
INPUTS = {name: text for text, names in _INPUTS.items() for name in names.split()}
#: Layouts of tokens by number of dimensions; ``{w}`` is the model width.
LAYOUTS = {
    1: ("N,",),
    2: ("B, {w}", "N, {w}", "B, N"),
    3: ("B, N, {w}", "B, {w}, N", "N, B, {w}"),
    4: ("B, {w}, H, W", "B, H, W, {w}", "B, h, N, d", "B, N, h, d", "B, 3, 224, 224",
        "B, M, N, {w}", "B, 7*H, 7*W, {w}", "B, {w}, 7*H, 7*W"),
    5: ("B, {w}, M, H, W", "B, M, H, W, {w}", "B, M, {w}, H, W", "B, M, h, N, d"),
    6: ("B, H, W, 7, 7, {w}", "B, {w}, H, 7, W, 7"),
}  # fmt: skip
#: Layouts of square images, if the length N is one side.
SQUARES = ("B, {w}, N, N", "B, N, N, {w}")
#: Shapes of masks and biases of scores.
MASKS = ("B, N bool", "N, N bool", "B, N", "B, 1, N, N", "B, N int64", "B, N, N bool", "B*h, 1, N")
#: Constructor arguments for the channels of images, and for their sides in pixels.
CHANNELS = ("in_chans", "in_channels", "channels", "num_channels", "input_channels")
SIDES = ("img_size", "image_size", "input_resolution", "sample_size")
#: Inputs with a default None that the code needs nevertheless.
NEEDED = ("position_embeddings",)
#: Inputs of a call without required ones: the first of these that it takes is passed.
FIRST = ("input_ids", "pixel_values", "hidden_states", "inputs_embeds", "x", "tokens", "idx")


def size_of(name: str, parameters: Iterable[str] = ()) -> str:
    """Return the size that a required argument stands for by its name; "" for none.

    ``d`` is a width, or that of a head if one of the other ``parameters`` is a width.
    """
    if name == "d" and any(REQUIRED.get(other.lower()) == "h*d" for other in {*parameters} - {"d"}):
        return "d"
    name = name.lower()
    ends = (size for size, ending in _ENDINGS.items() if re.fullmatch(ending, name))
    return REQUIRED.get(name) or next(ends, "")


def context_widths(arguments: Mapping[str, Any]) -> list[int]:
    """Return widths of another source's tokens, by names of arguments, likelier ones first."""
    named = (n for n in arguments if re.fullmatch(_OF_CONTEXTS, n) and "head" not in n)
    order = sorted(named, key=lambda n: ("caption" not in n, "joint" not in n))
    return [arguments[n] for n in order if type(arguments[n]) is int]


def plain_value(name: str, item: Parameter) -> tuple[Any, ...]:
    """Return a value for a required argument that is no size, in a tuple; () for none."""
    kind = str(getattr(item.annotation, "__name__", item.annotation))
    for value, pattern in _VALUES:
        if re.fullmatch(pattern, name.lower()) and not (kind == "int" and type(value) is bool):
            return (_as_annotated(value, item),)
    if "None" in kind or "Optional" in kind:
        return (None,)
    return {"bool": (False,), "float": (0.0,)}.get(kind, ())


def _as_annotated(value: Any, item: Parameter) -> Any:
    """Return a value as its annotation asks: an int of a tuple, or two numbers as a list."""
    if isinstance(value, tuple) and item.annotation is int:
        return value[0]
    listed = _LISTED.match(str(item.annotation)) and not isinstance(value, tuple)
    return [value, value] if listed else value


def form_of_several(item: Parameter) -> str:
    """Return how an argument's several tensors are written, ``[{}]`` or ``({})``; "" for one."""
    text = str(item.annotation)
    if "Tensor" not in text:
        return ""
    several = re.match(r"(typing\.)?tuple\[", text, re.IGNORECASE)
    return "[{}]" if _LISTED.match(text) else "({})" if several else ""


def input_text(name: str, width: str, head: str, tokens: str = "N") -> str:
    """Return the usual text of an input of this name, like ``B, N, h*d``; "" for an unknown name.

    Without ``width`` q, k and v are (B, h, N, d), as a function takes them.
    """
    usual, name = INPUTS.get(name, ""), name.lower()
    if not usual and (name in TOKENS or (width and name in HEADS)):
        return f"B, {tokens}, {width or 'h*d'}"
    if not width and name in ("beta", "dt"):
        return "B, h, N"
    if name in HEADS and not usual:
        return "B, h, N, d"
    usual = usual or INPUTS.get(name, "None" if "mask" in name else "")
    return usual.format(w=width or "h*d", d=head)


# -- parameters of callables, and a model's sizes by them ---------------------------------
#: A callable's parameters by name.
Parameters = Mapping[str, Parameter]
#: Numbers of channels by which a model is taken to be one of images, or of their latents.
_CHANNELS = (1, 3, 4, 16, 32)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parameters_of(function: Any, what: str) -> dict[str, Parameter]:
    """Return a callable's parameters by name.

    A built-in function that does not say them takes ``*args`` and ``**kwargs``. Raises
    :class:`RequestError` for a module without a forward pass.
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


def documented(function: Any) -> dict[str, Parameter]:
    """Return the required parameters that a built-in function's documentation begins with."""
    name, text = getattr(function, "__name__", ""), function.__doc__ or ""
    match = re.search(rf"{re.escape(name)}\(([^()]*)\)", text)
    parts = [part.strip() for part in match[1].split(",")] if name and match else []
    must = takewhile(lambda part: part.isidentifier(), parts)
    return {part: Parameter(part, Parameter.POSITIONAL_ONLY) for part in must}


def parameters_of_class(layer: Any, what: str) -> dict[str, Parameter]:
    """Return a class's parameters: its parents', where it only takes ``**kwargs``."""
    parameters = parameters_of(layer, what)
    bases = [base for base in layer.__mro__ if "__init__" in vars(base)]
    for base in bases[1:]:
        kinds = {item.kind for item in parameters.values()}
        if kinds != {Parameter.VAR_KEYWORD} or base.__module__.startswith("torch."):
            break
        parameters = parameters_of(base, what)
    return parameters


def is_required(parameter: Parameter) -> bool:
    """Return whether a call must give a parameter."""
    return parameter.default is Parameter.empty and parameter.kind not in _VARIADIC


def takes_any(parameters: Parameters) -> bool:
    """Return whether a callable takes any number of tensors, as ``*args``."""
    return any(item.kind is Parameter.VAR_POSITIONAL for item in parameters.values())


def only_named(parameters: Parameters) -> set[str]:
    """Return the keyword-only parameters beside ``*args``; none without ``*args``."""
    named = {n for n, item in parameters.items() if item.kind is Parameter.KEYWORD_ONLY}
    return named if takes_any(parameters) else set()


def checked_names(values: Mapping[str, Any], parameters: Parameters, flag: str, what: str) -> None:
    """Raise :class:`RequestError` for a name that the callable does not take."""
    if any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values()):
        return
    takes = [name for name, item in parameters.items() if item.kind not in _VARIADIC]
    for name in map(base_of, values):
        if name not in takes:
            hint = closest(name, takes) if takes else "it takes nothing"
            raise RequestError(f"{flag} {name}: {what} has no '{name}'; {hint}")


def sizes_at_default(
    parameters: Parameters, passed: Mapping[str, Any], used: Iterable[str]
) -> dict[str, str]:
    """Return sizes for arguments that would stay at a default although formulas use h or d.

    A module with its class's default of eight heads is not one of h heads: ``{"num_heads": "h"}``.
    """
    if {"h", "d"}.isdisjoint(used):
        return {}
    sizes = {}
    for name, item in parameters.items():
        size, default = ARGUMENTS.get(name.lower(), "N"), item.default
        least = 8 if size == "h*d" else 1  # dim=-1 or dim=2 is an axis
        if size != "N" and name not in passed and type(default) is int and default >= least:
            sizes[name] = size
    return sizes


def model_sizes(arguments: Mapping[str, Any], parameters: Parameters) -> dict[str, str]:
    """Return the model's sizes by arguments or defaults: ``{"width": "h*d", "head": "d"}``.

    ``whole`` is the input of a model of images or words, ``=context`` that of an argument
    ``context``.
    """
    values = {name: arguments.get(name, item.default) for name, item in parameters.items()}
    texts: dict[str, str] = {}
    # the usual names of a width first; of a configuration its fields
    for argument in sorted(values.items(), key=lambda pair: pair[0].lower() not in WIDTHS):
        fields = getattr(argument[1], "fields", None)
        for name, value in fields.items() if isinstance(fields, Mapping) else [argument]:
            size = REQUIRED.get(name.lower(), "")
            wide = name.lower() in WIDTHS or (size == "h*d" and name in arguments)
            key = "width" if wide else {"d": "head", "h": "heads"}.get(size, "")
            if text := _size_text(value):
                texts.setdefault(key, text)
    width, heads = texts.get("width", "h*d"), texts.get("heads", "h")
    head = "d" if (width, heads) == ("h*d", "h") else f"({width})/({heads})"
    if width.isdecimal() and heads.isdecimal():
        head = str(int(width) // max(int(heads), 1))
    whole = _picture(values) or _words(parameters)
    sizes = {"width": width, "head": texts.get("head", head)}
    if not whole:
        return sizes
    widths = context_widths(values)[:1]
    others = {f"={name}": f"B, N, {size}" for name in CONTEXTS for size in widths}
    return {**sizes, "whole": whole, **others}


def with_grid(arguments: Any, forward: Parameters, sizes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the sizes, with an image's sides if call and constructor both take an image's size."""
    names = [name for name in forward if input_text(name, "", "") == "=(H, W)"]
    for name in names if sizes else ():
        sides = arguments.get(name)
        if isinstance(sides, tuple | list) and len(sides) == 2:
            high, wide = sides
            return {**sizes, "tokens": f"{high}*{wide}", f"={name}": f"=({high}, {wide})"}
    return sizes


def _words(parameters: Parameters) -> str:
    """Return token ids as a model's input if it requires the size of a vocabulary, else ""."""
    must = [name.lower() for name, item in parameters.items() if is_required(item)]
    return "B, N int64" if any(REQUIRED.get(name) == WORDS for name in must) else ""


def _size_text(value: Any) -> str:
    """Return a size, a number or an expression, as text; "" for other values."""
    return value.text if isinstance(value, Expression) else str(value) if type(value) is int else ""


def _picture(values: Mapping[str, Any]) -> str:
    """Return an image as a model's input if it has channels and sides, else ""."""
    channels = next((values[name] for name in CHANNELS if name in values), None)
    side = next((values[name] for name in SIDES if name in values), None)
    sides = side if isinstance(side, tuple | list) and len(side) == 2 else (side, side)
    texts = [_size_text(x) for x in (channels, *sides)]
    return ", ".join(["B", *texts]) if all(texts) and channels in _CHANNELS else ""


def passed_by_name(inputs: Mapping[str, Input], parameters: Parameters) -> frozenset[str]:
    """Return the inputs to pass by name: keyword-only ones, and those after a gap.

    A callable with ``*args`` gets its tensors in order.
    """
    if takes_any(parameters):
        named = only_named(parameters)
        return frozenset(base_of(n) for n, x in inputs.items() if x.literal or base_of(n) in named)
    inputs = {base_of(name): item for name, item in inputs.items()}
    others = (Parameter.KEYWORD_ONLY, *_VARIADIC)
    before = takewhile(lambda n: n in inputs and parameters[n].kind not in others, parameters)
    return frozenset(inputs) - set(before)
