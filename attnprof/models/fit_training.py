"""Whether training a model fits a memory: weights, gradients, optimizer and activations a rank.

Bytes of activations are sums over the tensors that a layer keeps for its backward pass, in half
precision, after Korthikanti et al. (arXiv 2205.05198, equation 1: s·b·h·(34 + 5·a·s/h) for a layer
with dropout), here for the layers that a model has, with dropout if its configuration has some.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

from attnprof.arguments import choice
from attnprof.errors import RequestError
from attnprof.models.fit import said_of
from attnprof.models.fit_parts import (
    LONGEST,
    FitModel,
    FitOptions,
    check_ranks,
    entries_of_rank,
    layer_share,
)  # fmt: skip
from attnprof.models.fit_steps import largest, sent_bytes
from attnprof.record import FitRecord, Report
from attnprof.units import format_bytes, plural

#: Bytes a parameter that an optimizer holds beside weights and gradients in half precision: a
#: master copy in float32, and moments in float32 or in eight bits.
OPTIMIZERS = {"adamw": (12, 12), "adamw-8bit": (6, 6), "muon": (8, 12), "sgd": (8, 8)}
#: Bytes of a gradient, by format.
GRADIENTS = {"bfloat16": 2, "float32": 4}
RECOMPUTE = ("none", "selective", "full")
#: What of weights, gradients and optimizer is divided among data-parallel ranks.
SHARDS = {"none": "", "zero1": "o", "zero2": "og", "zero3": "ogw"}
_HALF = 2
#: Roles of weights that are matrices inside layers, which Muon has one moment for.
_INNER = ("attention", "mlp", "expert", "shared expert")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(FitOptions):
    """How a model is trained: by which optimizer, what is recomputed, what is sharded.

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
        if not isinstance(self.data_parallel, int) or not 1 <= self.data_parallel <= LONGEST:
            raise RequestError(f"--data-parallel {self.data_parallel}: give a whole number")


def activation_bytes_per_token(model: FitModel, options: TrainingOptions, tokens: int) -> Fraction:
    """Return the bytes of activations that one token leaves in all layers of a rank.

    ``full`` keeps each layer's input. Otherwise a layer keeps the inputs of two norms and of what
    follows them, queries, keys and values, the result of attention, and gate, up and product of the
    feed-forward network; ``none`` also the probabilities, a row of ``tokens`` for every head. With
    dropout there are masks of one byte: of both blocks' results, and of the probabilities, which
    are kept before and after it.
    """
    hidden, t = model.sizes.hidden, options.tensor_parallel
    share, whole = layer_share(model, options), t if options.sequence_parallel else 1
    if options.recompute == "full":
        return share * model.layers * Fraction(_HALF * hidden, whole)
    width = Fraction(model.layers * model.inner)
    for one in model.sizes.attention:
        rows = Fraction((one.heads + one.kv_heads) * (one.key_dim + one.value_dim))
        if options.recompute == "none":
            rows += one.heads * tokens * (Fraction(5, 2) if model.dropout else 1)
        width += one.layers * rows
    for mixer in model.sizes.mixers:
        width += mixer.layers * mixer.heads * 2 * (mixer.key_dim + mixer.value_dim)
    inputs = Fraction(model.layers * hidden * (4 * _HALF + 2 * model.dropout), whole)
    return share * (inputs + _HALF * width / t)


def training_report(model: FitModel, options: TrainingOptions) -> Report:
    """Return a record a part of a training step, and whether it fits."""
    check_ranks(model, options)
    parts = _parts(model, options)
    total = sum(parts.values())
    records = [
        FitRecord(part=part, bytes=number, formula=formula, basis=basis)
        for (part, number), (formula, basis) in zip(
            parts.items(), _words(model, options), strict=True
        )
    ]
    records.append(
        FitRecord(part="total", bytes=total, formula="",
                  basis=f"of {format_bytes(options.memory)} on one rank")
    )  # fmt: skip
    fits = total <= options.memory
    tokens = options.batch_size * options.seq_len
    summary: dict[str, Any] = {
        "name": model.sizes.name, "fits": fits,
        "longest_context": _largest(model, options, "seq_len"),
        "largest_batch": _largest(model, options, "batch_size"), "cache_bytes_per_token": 0,
        "cache_tokens": 0, "bytes_sent_per_step": _sent(model, options, tokens),
        "memory_bytes": options.memory, "seq_len": options.seq_len,
        "batch_size": options.batch_size, "dtype": "bfloat16", "layers": {},
        "notes": said_of(model),
    }  # fmt: skip
    return Report("fit", records, {**summary, "answer": _answer(summary, total)})


def _parts(model: FitModel, options: TrainingOptions) -> dict[str, int]:
    """Return the bytes of each part on the fullest rank."""
    held = entries_of_rank(model, options)
    entries = sum(held.values(), Fraction(0))
    inner = sum((held[role] for role in _INNER if role in held), Fraction(0))
    shared, dp = SHARDS[options.shard], options.data_parallel
    by_inner, by_others = OPTIMIZERS[options.optimizer]
    state = by_inner * inner + by_others * (entries - inner)

    def of(letter: str, number: Fraction) -> int:
        return ceil(number / dp if letter in shared else number)

    tokens = options.batch_size * options.seq_len
    each = activation_bytes_per_token(model, options, options.seq_len)
    words = _logits(model, options)
    return {
        "weights": of("w", _HALF * entries),
        "gradients": of("g", GRADIENTS[options.gradient_dtype] * entries),
        "optimizer": of("o", state),
        "activations": ceil(tokens * (each + words) / options.context_parallel),
        "reserve": options.memory - int(options.memory * options.utilization),
    }  # fmt: skip


def _logits(model: FitModel, options: TrainingOptions) -> Fraction:
    """Return the bytes of a token's logits: half precision, float32 for the loss, its gradient."""
    tables = model.sizes.entries("head") or model.sizes.entries("embedding")
    words = tables // model.sizes.hidden if model.sizes.hidden else 0
    return Fraction(words * (_HALF + 4 + 4), options.tensor_parallel)


def _words(model: FitModel, options: TrainingOptions) -> list[tuple[str, str]]:
    """Return the formula and basis of each part."""
    each = activation_bytes_per_token(model, options, options.seq_len) + _logits(model, options)
    by_inner, by_others = OPTIMIZERS[options.optimizer]
    state = f"{by_others}*P" if by_inner == by_others else f"{by_inner} or {by_others} a parameter"
    divided = f", over {options.data_parallel} ranks by {options.shard}"
    shared = SHARDS[options.shard] if options.data_parallel > 1 else ""
    over = {letter: divided if letter in shared else "" for letter in "wgo"}
    return [
        ("2*P", f"bfloat16{over['w']}"),
        (f"{GRADIENTS[options.gradient_dtype]}*P", f"{options.gradient_dtype}{over['g']}"),
        (state, f"{options.optimizer}: float32 master and moments{over['o']}"),
        (f"{float(each):.6g}*B*N", f"recompute {options.recompute}; N = {options.seq_len:,}"),
        (f"{1 - options.utilization:.2g} of the memory", "a convention: --utilization"),
    ]  # fmt: skip


def _largest(model: FitModel, options: TrainingOptions, name: str) -> int:
    """Return the largest context or batch at which the step fits, all else as asked."""

    def fits(number: int) -> bool:
        asked = replace(options, **{name: number})  # type: ignore[arg-type]
        return sum(_parts(model, asked).values()) <= options.memory

    return largest(fits)


def _sent(model: FitModel, options: TrainingOptions, tokens: int) -> int:
    """Return the bytes that a rank sends in a step: of layers three times, and gradients once.

    Gradients are reduced over data-parallel ranks by rings, 2 (d - 1)/d of them; with ZeRO 3
    weights are gathered twice and gradients scattered, 3 (d - 1)/d.
    """
    d = options.data_parallel
    entries = sum(entries_of_rank(model, options).values())
    times = 3 if options.shard == "zero3" else 2
    return 3 * sent_bytes(model, options, tokens) + ceil(
        Fraction(times * (d - 1), d) * _HALF * entries
    )


def _answer(summary: Mapping[str, Any], total: int) -> str:
    memory, seq = format_bytes(summary["memory_bytes"]), summary["seq_len"]
    batch, most = summary["batch_size"], summary["largest_batch"]
    if summary["fits"]:
        return (
            f"trains: {format_bytes(total)} of {memory} with {plural(batch, 'sequence')} of "
            f"{seq:,} tokens a rank; {most:,} fit"
        )
    longest = summary["longest_context"]
    less = f"{longest:,} tokens would fit" if longest else "its weights and optimizer alone do not"
    return f"does not train: {format_bytes(total)} of {memory} at {seq:,} tokens; {less}"
