"""The sizes and options that decide a model's memory: weights, caches, formats, division by ranks.

Sizes come from a run of the model's own code (:mod:`attnprof.models.mfu_sizes`), caches from the
same run (:mod:`attnprof.models.fit_cache`). Entry point: :func:`fit_model`.

Block formats keep scales beside the numbers: GGUF's by their structs (ggml-common.h), MXFP4 by the
OCP microscaling specification, NVFP4 with one scale in eight bits for 16 entries, AWQ and GPTQ with
a half-precision scale and a zero point of four bits for each group.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from math import prod
from os import PathLike
from typing import Any

from attnprof.arguments import choice
from attnprof.errors import CannotRunError, RequestError, closest
from attnprof.models.conventions import ModelSizes
from attnprof.models.fit_cache import LayerCache, cache_layout
from attnprof.models.hub_config import configuration, text_config
from attnprof.models.mfu_sizes import subject_sizes
from attnprof.models.names import config_of
from attnprof.models.sources import hub_subject
from attnprof.models.swap import Swap, notes_on
from attnprof.models.text_run import text_run

#: Bytes an entry.
ENTRY_BYTES: Mapping[str, Fraction] = {
    "float32": Fraction(4), "bfloat16": Fraction(2), "float16": Fraction(2), "fp8": Fraction(1),
    "int8": Fraction(1), "int4": Fraction(1, 2) + Fraction(5, 2) / 128, "mxfp4": Fraction(17, 32),
    "nvfp4": Fraction(9, 16), "nf4": Fraction(1, 2) + Fraction(4, 64),
    "q8_0": Fraction(34, 32), "q6_k": Fraction(210, 256), "q5_k": Fraction(176, 256),
    "q4_k": Fraction(144, 256), "q3_k": Fraction(110, 256), "q5_1": Fraction(24, 32),
    "q5_0": Fraction(22, 32), "q4_1": Fraction(20, 32), "q4_0": Fraction(18, 32),
    "q5_k_m": Fraction(176, 256), "q4_k_m": Fraction(144, 256), "q4_k_s": Fraction(144, 256),
    "q3_k_l": Fraction(110, 256), "q3_k_m": Fraction(110, 256), "mxfp4_moe": Fraction(34, 32),
    "fp8_ds_mla": Fraction(1),
    "mxfp4-pack": Fraction(17, 32),
}  # fmt: skip
#: Formats of weights, and of caches.
WEIGHTS = tuple(name for name in ENTRY_BYTES if name not in ("fp8_ds_mla", "mxfp4-pack"))
CACHES = (
    "float32", "bfloat16", "float16", "fp8", "fp8_ds_mla", "int8", "nvfp4", "q8_0", "q5_1", "q5_0",
    "q4_1", "q4_0",
)  # fmt: skip
#: Other names of formats.
_ALIASES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "float8_e4m3fn": "fp8", "auto": "",
    "q4": "q4_0", "q8": "q8_0", "fp4": "nvfp4", "q5_k_s": "q5_k", "q3_k_s": "q3_k",
}  # fmt: skip
#: Formats of GGUF files: tables and the head are in blocks, too, and vectors in float32.
GGUF = tuple(name for name in ENTRY_BYTES if re.match(r"q\d_|mxfp4_moe", name))
#: Weights that GGUF's mixtures keep in a finer format, by their GGUF names: their roles, and a
#: pattern of their names in models of transformers.
FINER = {
    "attn_v": (("attention",), r"(v_proj|\.value)\.weight"),
    "attn_output": (("attention",), r"attn\.(o_proj|out_proj|c_proj)\.weight"),
    "ffn_down": (("mlp", "expert", "shared expert"), r"down_proj|\.w2\b|fc2|mlp\.c_proj|_4h_to_h"),
}
#: Methods of ``quantization_config`` that name a format by themselves.
_METHODS = {
    "mxfp4": "mxfp4", "fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "int4", "nvfp4": "nvfp4",
    "mxfp4-pack": "mxfp4-pack", "eetq": "int8",
}  # fmt: skip
#: Methods whose ``bits`` are of integers with scales for groups of them.
_GROUPED = ("awq", "gptq", "auto-round")


def format_named(name: str, flag: str, possible: tuple[str, ...]) -> str:
    """Return a format by its name or an alias; RequestError if it is not ``possible``."""
    typed = name.strip().lower()
    typed = _ALIASES.get(typed, typed)
    if typed not in possible:
        raise RequestError(f"{flag} {name}: unknown format; {closest(typed, list(possible))}")
    return typed


def finer_layers(layers: int) -> int:
    """Return how many of ``layers`` have finer tensors: the first and last eighth, each third."""
    first, last = layers // 8, 7 * layers // 8
    return sum(i < first or i >= last or (i - first) % 3 == 2 for i in range(layers))


#: GGUF's mixtures: the tensors in a finer format, that format, and a function that returns the
#: number of layers with it, given all layers (llama.cpp, src/llama-quant.cpp).
MIXTURES: Mapping[str, Sequence[tuple[str, str, Callable[[int], int]]]] = {
    **dict.fromkeys(("q5_k_m", "q4_k_m"), (
        ("attn_v", "q6_k", finer_layers), ("ffn_down", "q6_k", finer_layers),
    )),
    "q4_k_s": (
        ("attn_v", "q5_k", lambda n: min(n, 4)), ("ffn_down", "q5_k", lambda n: n // 8),
    ),
    "q3_k_l": tuple((name, "q5_k", lambda n: n) for name in FINER),
    "q3_k_m": (
        ("attn_v", "q5_k", lambda n: min(n, 2)), ("attn_v", "q4_k", lambda n: max(n - 2, 0)),
        ("attn_output", "q4_k", lambda n: n), ("ffn_down", "q5_k", lambda n: n // 16),
        ("ffn_down", "q4_k", lambda n: n - n // 16),
    ),
}  # fmt: skip


def format_of_file(fields: Mapping[str, Any]) -> tuple[str, Fraction] | None:
    """Return the format that ``quantization_config`` names, and its bytes an entry.

    None without one, and for one that does not say its format in a way that is known.
    """
    config = quantization_of(fields)
    method = str(config.get("quant_method", ""))
    if config.get("load_in_4bit"):  # a scale for 64 entries; doubled, in a byte and one for 256
        twice = config.get("bnb_4bit_use_double_quant")
        scales = Fraction(1, 64) + Fraction(4, 64 * 256) if twice else Fraction(4, 64)
        return "nf4", Fraction(1, 2) + scales
    if config.get("load_in_8bit"):
        return "int8", ENTRY_BYTES["int8"]
    weights: Mapping[str, Any] = config
    for one in _table(config.get("config_groups")).values():
        weights = _table(_table(one).get("weights")) or weights
    group, bits = (_whole(weights.get(name)) for name in ("group_size", "num_bits"))
    bits = bits or _whole(config.get("bits"))
    if weights.get("type") == "float":
        method = {8: "fp8", 4: "mxfp4-pack" if group == 32 else "nvfp4"}.get(bits, method)
    if method == "modelopt":
        method = str(config.get("quant_algo")).lower()
    if method in _METHODS and not (method == "awq" and bits):
        name = _METHODS[method]
        block = weights.get("weight_block_size") or weights.get("block_structure")
        entries = prod(map(_whole, block)) if isinstance(block, list | tuple) else 0
        return name, ENTRY_BYTES[name] + (Fraction(4, entries) if entries > 0 else 0)
    if bits in (4, 8) or (bits and method in _GROUPED):
        zero_point = 0 if weights.get("symmetric") else Fraction(bits, 8)
        group = 0 if weights.get("strategy") in ("channel", "tensor") else group or 128
        scales = Fraction(2 + zero_point) / group if group > 0 else Fraction(0)
        return f"int{bits}", Fraction(bits, 8) + scales
    return None


def quantization_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table of a ``config.json`` on how its weights are quantised; empty without one."""
    return _table(fields.get("quantization_config") or fields.get("compression_config"))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    """Return a number of a file, also one in a text, as a whole number; 0 for anything else."""
    text = str(value).removesuffix(".0")
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else 0


#: The longest context that is asked for.
LONGEST = 2**50
#: Bytes a parameter of an optimizer, besides weights and gradients in half precision: a
#: master copy in float32, and moments in float32 or in eight bits.
OPTIMIZERS = {"adamw": (12, 12), "adamw-8bit": (6, 6), "muon": (8, 12), "sgd": (8, 8)}
#: Bytes of a gradient, by format.
GRADIENTS = {"bfloat16": 2, "float32": 4}
RECOMPUTE = ("none", "selective", "full")
#: What of weights, gradients and optimizer is divided among data-parallel ranks.
SHARDS = {"none": "", "zero1": "o", "zero2": "og", "zero3": "ogw"}


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How a model is served: number formats, pages of the cache, and the division among ranks.

    ``memory`` is of one device, in bytes; ``utilization`` the share of it that is used. ``dtype``
    None is the format of the file, else bfloat16. ``chunk`` tokens of a prompt are taken at once.
    """

    memory: int
    seq_len: int = 4096
    batch_size: int = 1
    dtype: str | None = None
    cache_dtype: str | None = None
    block_size: int = 16
    tensor_parallel: int = 1
    pipeline: int = 1
    expert_parallel: int = 1
    context_parallel: int = 1
    chunk: int = 8192
    utilization: float = 0.9
    uncapped: bool = False

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self) if item.type is int):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= LONGEST:
                flag = name.removesuffix("_len").removesuffix("_size").replace("_", "-")
                raise RequestError(f"--{flag} {value}: give a whole number from 1 on")
        if not 0 < self.utilization <= 1:
            raise RequestError(f"--utilization {self.utilization}: give a share, like 0.9")
        if self.dtype is not None:
            format_named(self.dtype, "--dtype", WEIGHTS)
        self.cache_formats()

    @property
    def ranks(self) -> int:
        """The number of devices."""
        shared = max(self.tensor_parallel, self.expert_parallel)  # the same ones
        return shared * self.pipeline * self.context_parallel

    def cache_formats(self) -> tuple[str, str]:
        """Return the formats of keys and of values, which ``fp8,nvfp4`` names apart."""
        names = ("bfloat16" if self.cache_dtype is None else self.cache_dtype).split(",")[:2]
        first, *rest = (format_named(name, "--cache-dtype", CACHES) for name in names)
        return first, (rest or [first])[0]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(FitOptions):
    """How a model is trained: optimizer, recomputed activations, sharding among ranks.

    ``gradient_dtype`` is the format that gradients are summed in; without ``sequence_parallel``
    every rank of tensor parallelism keeps the inputs of norms and blocks whole.
    """

    optimizer: str = "adamw"
    gradient_dtype: str = "bfloat16"
    sequence_parallel: bool = True
    recompute: str = "selective"
    shard: str = "none"
    data_parallel: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("optimizer", self.optimizer, list(OPTIMIZERS))
        choice("gradient_dtype", self.gradient_dtype, list(GRADIENTS))
        choice("recompute", self.recompute, list(RECOMPUTE))
        choice("shard", self.shard, list(SHARDS))


@dataclass(frozen=True)
class FitModel:
    """A model's sizes and caches, as far as memory depends on them.

    ``inner``: entries per token inside a layer's feed-forward network, on average (gate, up and
    product, or before and after the activation; of the experts that a token is sent to). ``finer``:
    entries of tensors by their GGUF names. ``dropout``: whether the configuration has dropout.
    ``swapped``: whether some layers have mechanisms of ours.
    """

    sizes: ModelSizes
    caches: Sequence[LayerCache]
    fields: Mapping[str, Any]
    inner: int
    chosen: int
    experts: int = 1
    expert_layers: int = 0
    latent_weights: int = 0
    finer: Mapping[str, int] = field(default_factory=dict)
    dropout: bool = False
    source: str = ""
    swapped: bool = False

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.sizes.layers or sum(one.layers for one in self.caches)


def fit_model(
    config: str | PathLike[str] | Mapping[str, Any], swaps: Sequence[Swap] = (), tokens: int = 4096
) -> FitModel:
    """Return the layout of a model: a path, a name, or the fields of a ``config.json``.

    ``swaps`` put mechanisms of ours into some of its layers; one of a fixed length has ``tokens``.
    """
    config_fields = config_of(config)
    name = config if isinstance(config, str) else "the configuration"
    title = " with ".join(filter(None, (str(name), ", ".join(swap.text for swap in swaps))))
    subject = hub_subject(config_fields, title.rpartition("/")[2] or title, None, swaps, tokens)
    if subject.no_step:
        raise CannotRunError(f"{subject.name} keeps no cache: {subject.no_step}")
    subject = replace(subject, notes=(*subject.notes, *notes_on(swaps)))
    whole = configuration(config_fields, str(name))
    run = text_run(subject, use_cache=True)
    sizes = subject_sizes(subject, text_config(whole), run)
    if whole.is_encoder_decoder:
        note = "rows of its encoder's tokens are kept, too: as many as of its own"
        sizes = replace(sizes, notes=(*sizes.notes, note))
    weights = dict(run.model.named_parameters())

    def entries(pattern: str) -> int:
        return sum(weight.numel() for name, weight in weights.items() if re.search(pattern, name))

    with_experts = {key.partition(".experts.")[0] for key in weights if ".experts." in key}
    met = sizes.active("mlp", "expert", "shared expert")
    inner = -(-met // (sizes.hidden * sizes.layers)) if sizes.hidden and sizes.layers else 0
    chosen = subject.chosen if subject.experts > 1 else 1
    rates = [rate for key, rate in whole.to_dict().items() if "drop" in key]
    return FitModel(
        sizes, cache_layout(run, subject), config_fields, inner, chosen, subject.experts,
        len(with_experts), entries("_a_proj"),
        {name: entries(pattern) for name, (_, pattern) in FINER.items()},
        any(isinstance(rate, float) and rate > 0 for rate in rates), str(name), bool(swaps),
    )  # fmt: skip


def check_ranks(model: FitModel, options: FitOptions) -> None:
    """Raise :class:`RequestError` for ranks that do not divide the model's layers or heads."""
    if options.pipeline > model.layers:
        raise RequestError(
            f"--pipeline {options.pipeline}: {model.sizes.name} has {model.layers} layers: "
            f"type at most --pipeline {model.layers}"
        )
    heads = {one.heads for one in model.sizes.attention if one.heads > 1}
    if wrong := next((h for h in heads if h % options.tensor_parallel), 0):
        raise RequestError(
            f"--tensor-parallel {options.tensor_parallel} does not divide the {wrong} heads of "
            f"{model.sizes.name}: type a number that does"
        )
    t, e = options.tensor_parallel, options.expert_parallel
    if e > 1 and not 1 < model.experts >= e:
        have = f"{model.experts} experts" if model.experts > 1 else "no experts"
        more = f"type at most {model.experts}" if model.experts > 1 else "leave it out"
        raise RequestError(f"--expert-parallel {e}: {model.sizes.name} has {have}: {more}")
    if max(t, e) % min(t, e):
        raise RequestError(
            f"--expert-parallel {e} and --tensor-parallel {t} are of the same ranks: type numbers "
            "of which one divides the other"
        )
    if options.cache_dtype == "fp8_ds_mla" and not any(one.latent for one in model.caches):
        raise RequestError(
            f"--cache-dtype fp8_ds_mla is of latent rows, which {model.sizes.name} does not have: "
            "type fp8"
        )
