"""Parameters, FLOPs, decoded tokens and training memory, by the parts of ``model`` and ``fit``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from models.cases import Case, GiB, MiB, Replay

from attnprof.models.conventions import (
    MATRICES,
    ModelSizes,
    RoleWeights,
    count,
    sequence_flops,
)
from attnprof.models.fit import training_report
from attnprof.models.fit_layout import FitModel, fit_model
from attnprof.models.fit_options import TrainingOptions
from attnprof.models.fit_parts import (
    activation_bytes_per_token,
    cache_bytes,
    entries_of_rank,
    row_bytes,
)
from attnprof.models.fit_speed import token_scores
from attnprof.models.mfu import flops_of
from attnprof.models.names import config_of
from attnprof.models.sources import hub_subject
from attnprof.record import FitRecord
from attnprof.trace.events import totals
from attnprof.trace.solve.count import count as traced

#: Gemma 3's vision tower.
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27,
    "num_attention_heads": 16, "intermediate_size": 4304, "patch_size": 14, "image_size": 896,
    "vision_use_head": False,
}  # fmt: skip


# -- training ----------------------------------------------------------------------------------


def _training(case: Case, **options: Any) -> TrainingOptions:
    setting = case.setting
    return TrainingOptions(**{
        "memory": 2**50, "seq_len": setting.get("context", 1),
        "batch_size": setting.get("batch", 1),
        "tensor_parallel": setting.get("tp", 1), "pipeline": setting.get("pp", 1),
        "sequence_parallel": False, **options,
    })  # fmt: skip


def layer_activations(case: Case) -> Replay:
    """Return the activations that one layer keeps, attention recomputed."""
    model, options = case.model, _training(case)
    each = activation_bytes_per_token(model, options, options.seq_len) / model.layers
    return Replay(each * options.seq_len * options.batch_size / MiB)


def attention_share(case: Case) -> Replay:
    """Return attention's kept scores over all else a layer keeps, or over all in per cent."""
    model, length = case.model, case.setting["context"]
    whole, rest = (
        activation_bytes_per_token(model, _training(case, recompute=how), length)
        for how in ("none", "selective")
    )
    if case.unit == "%":
        return Replay(100 * (whole - rest) / whole)
    return Replay((whole - rest) / (model.layers * model.sizes.hidden))


def recomputation(case: Case) -> Replay:
    """Return the share of FLOPs that recomputing attention adds, in per cent.

    The paper's ratio has all of attention's FLOPs in training, of which it is the third.
    """
    scores, whole = _step(case)
    return Replay(100 * scores / 3 / whole, printed=100 * scores / whole)


def _step(case: Case) -> tuple[Fraction, Fraction]:
    """Return a trained token's FLOPs of attention over all pairs, and of all; without the head."""
    length = case.setting["context"]
    per_layer = 12 * sum(x.layers * x.heads * x.key_dim for x in case.sizes.attention) * length
    matrices = 6 * case.sizes.active("attention", "mlp")
    return Fraction(per_layer), Fraction(per_layer + matrices)


def shard(case: Case) -> Replay:
    """Return the parameters of the most loaded shard, or their bytes in training.

    The framework's report leaves biases of maps out, and divides norms among ranks, too.
    """
    sizes = case.model.sizes
    kept = sizes.entries("attention", "mlp") + 2 * sizes.entries("norm")  # with their biases
    weights = {"mlp": RoleWeights(kept, kept), "embedding": _table(sizes)}
    model = replace(case.model, sizes=replace(sizes, weights=weights), latent_weights=0)
    options = _training(case, gradient_dtype="float32")
    if case.unit.endswith("params"):
        return Replay(sum(entries_of_rank(model, options).values()) / 10**9)
    return Replay(_state_bytes(model, options) / MiB)


def _table(sizes: ModelSizes) -> RoleWeights:
    return RoleWeights(sizes.entries("head"), 0)  # tied: the token table is the head


def _state_bytes(model: FitModel, options: TrainingOptions) -> int:
    parts = {x.part: x.bytes for x in training_report(model, options).of(FitRecord)}
    return int(parts["weights"] + parts["gradients"] + parts["optimizer"])


def pipeline_activations(case: Case) -> Replay:
    """Return the first stage's activations of as many sequences as there are stages.

    The framework adds token numbers, the embedding's dropout mask, and a twentieth to all of it.
    """
    model, options = case.model, _training(case)
    tokens = options.seq_len * options.batch_size * options.pipeline
    each = activation_bytes_per_token(model, options, options.seq_len)
    more = 8 + model.sizes.hidden
    return Replay(
        1.05 * float(tokens * (each + more)) / MiB, added="with token numbers, a mask, 5 %"
    )


def bridge(case: Case) -> Replay:
    """Return weights, gradients in float32 and a sharded optimizer."""
    dp = case.setting["dp"]
    options = _training(case, shard="zero1", data_parallel=dp, gradient_dtype="float32")
    return Replay(_state_bytes(case.model, options) / MiB)


def peak(case: Case) -> Replay:
    """Return what a training step holds, sharded, with attention recomputed; not its peak."""
    gpus = case.setting["gpus"]
    options = _training(
        case, shard="zero3", data_parallel=gpus, utilization=1.0, sequence_parallel=True
    )
    parts = {x.part: x.bytes for x in training_report(case.model, options).of(FitRecord)}
    return Replay(parts["total"] / GiB)


# -- parameters and FLOPs ------------------------------------------------------------------------


def parameters(case: Case) -> Replay:
    """Return all parameters, or those that a token meets."""
    sizes = case.sizes
    whole, active = (
        sum(getattr(x, name) for x in sizes.weights.values()) for name in ("entries", "active")
    )
    ours = {
        "params_active": active,
        "params_active_no_embedding": active - sizes.active("embedding"),
    }
    return Replay(ours.get(case.quantity, whole))


def tied_twice(case: Case) -> Replay:
    """Return all parameters with vision; the index counts the tied table as a head, too."""
    whole = {
        "model_type": "gemma3", "text_config": config_of(case.fields), "vision_config": SIGLIP,
        "architectures": ["Gemma3ForConditionalGeneration"],
    }  # fmt: skip
    ours = _built(whole, case.id)
    return Replay(ours, printed=ours + case.sizes.entries("head"))


def built_parameters(case: Case) -> Replay:
    """Return the parameters of the model that transformers builds."""
    head = case.fields.get("vocab_size", 0) * case.fields.get("d_model", 0)  # of T5: it ties them
    added = "with a head of its own, which transformers ties to the table" if head else ""
    return Replay(_built(case.fields, case.id) + head, added=added)


def _built(fields: Mapping[str, Any], name: str) -> int:
    import torch

    with torch.device("meta"):
        model = hub_subject(fields, name).build()
    return sum(x.numel() for x in model.parameters())


def multiply_adds(case: Case) -> Replay:
    """Return the multiply-adds of products of a forward pass of one image, in thousand millions."""
    subject = hub_subject(case.fields, case.id)
    trace = traced(subject.target("forward"), {"B": 1}, "forward")
    return Replay(Fraction(totals(trace, "forward")["matmul_flops"], 2 * 10**9))


def matrices(case: Case) -> Replay:
    """Return the parameters that a token is multiplied with."""
    return Replay(case.sizes.active(*MATRICES))


def convention(case: Case) -> Replay:
    """Return the FLOPs of a batch or of a token by a named convention."""
    name = {"6N+12LhdN": "torchtitan", "verl": "verl"}[case.setting["convention"]]
    lengths = case.setting.get("seqlens") or [case.setting["context"]]
    images = case.setting.get("image_seqlens", ())
    whole = flops_of(case.sizes, lengths, name, "train", images)
    return Replay(whole if "seqlens" in case.setting else Fraction(whole, lengths[0]))


def all_experts(case: Case) -> Replay:
    """Return a token's FLOPs; the framework's other path counts all experts and the embedding."""
    length, sizes = case.setting["context"], case.sizes
    ours = flops_of(sizes, [length], "torchtitan", "train") // length
    theirs = 6 * parameters(case).ours + 3 * _pair_widths(sizes) * length
    return Replay(ours, printed=theirs)


def _pair_widths(sizes: ModelSizes) -> int:
    return sum(x.widths for x in sizes.attention)


def megatron(case: Case) -> Replay:
    """Return the FLOPs of a trained sequence as Megatron counts them, or of its token."""
    length = case.setting["context"]
    whole = Fraction(flops_of(case.sizes, [length], "megatron", "train"))
    if case.unit == "FLOP":
        return Replay(whole)
    return Replay(whole / length / (10**9 if case.unit.startswith("GFLOP") else 1))


def qwen72b(case: Case) -> Replay:
    """Return a token's FLOPs; the printed ones are fewer than those of its matrices alone."""
    least = 6 * case.sizes.active("attention", "mlp")
    ours = megatron(case).ours
    return Replay(ours, wrong=f"6 FLOPs for each of its matrices' parameters are {least / 1e9:.0f}")


def six_n(case: Case) -> Replay:
    """Return 6 FLOPs for each parameter and token."""
    flops = sequence_flops(count(case.sizes, "6n"), int(case.setting["tokens"]))
    return Replay(Fraction(flops, 10**15 * 86400 if case.unit == "PF-day" else 1))


def chinchilla(case: Case) -> Replay:
    """Return FLOPs by appendix F over 6 N; the paper's table leaves embedding and logits out."""
    sizes, length = case.sizes, case.setting["context"]
    block = 2 * sizes.active("attention", "mlp") + 2 * _pair_widths(sizes) * length
    heads = sum(x.layers * x.heads for x in sizes.attention)
    block += 3 * heads * length  # softmax
    tables = 4 * sizes.active("head")  # embedding and logits
    relative = sum(x.layers * x.heads * x.key_dim * sizes.hidden for x in sizes.attention)
    parameters = sizes.active("attention", "mlp", "head") + relative
    return Replay(Fraction(block + tables, 2 * parameters), printed=Fraction(block, 2 * parameters))


def utilisation(case: Case) -> Replay:
    """Return the share of a device's FLOP/s in per cent, with attention recomputed or without.

    The paper counts recomputed attention as often as all of it in training.
    """
    setting, sizes = case.setting, case.sizes
    length = setting["context"]
    seconds = setting["seconds"] * setting["gpus"] * setting["peak"]

    def share(flops: int) -> float:
        return 100 * setting["batch"] * flops / seconds

    model = flops_of(sizes, [length], "torchtitan", "train")
    if "mfu" in case.id:
        return Replay(share(model))
    scores = _pair_widths(sizes) * length**2
    return Replay(share(model + 2 * scores), printed=share(model + 6 * scores))


# -- decoded tokens ------------------------------------------------------------------------------


def decoded_cache(case: Case) -> Replay:
    """Return the bytes that a decoded token reads; of Maverick full layers are in bfloat16."""
    options, tokens = case.options, case.setting["context"]
    if "maverick" not in case.id:
        options = replace(options, cache_dtype="fp8")
        return Replay(cache_bytes(case.model, options, tokens))
    parts = {x.kind: replace(case.model, caches=[x]) for x in case.model.caches}
    formats = {kind: "bfloat16" if kind == "full" else "fp8" for kind in parts}
    return Replay(sum(
        cache_bytes(one, replace(options, cache_dtype=formats[kind]), tokens)
        for kind, one in parts.items()
    ))  # fmt: skip


def decoded_scores(case: Case) -> Replay:
    """Return the FLOPs of a decoded token's attention; latent rows were summed with their keys."""
    ours = token_scores(case.model, case.setting["context"])
    latent = next((one for one in case.model.caches if one.latent), None)
    if latent is None:
        return Replay(ours)
    theirs = 2 * (latent.key_dim + latent.value_dim)
    return Replay(ours, printed=ours * theirs // (theirs - latent.value_dim))


def projections(case: Case) -> Replay:
    """Return the FLOPs of a token's projections of attention; Step-3's query is of two factors."""
    entries = case.sizes.active("attention")
    if rank := json.loads(case.config).get("share_q_dim"):
        (shape,) = case.sizes.attention
        width, query = case.sizes.hidden, shape.heads * shape.key_dim
        entries += shape.layers * (rank * (width + query) - width * query)
    return Replay(2 * entries)


def feed_forward(case: Case) -> Replay:
    """Return the FLOPs of a token's feed-forward networks, routers left out."""
    return Replay(2 * case.sizes.active("mlp", "expert", "shared expert"))


def intensity(case: Case) -> Replay:
    """Return a decoded token's FLOPs of attention for each byte of its cache."""
    scores = token_scores(case.model, case.setting["context"])
    return Replay(Fraction(scores, decoded_cache(case).ours))


def ratio(case: Case) -> Replay:
    """Return the bytes of a token's rows over those of DeepSeek-V3, by released configurations."""
    name = {"405b": "llama-3.1-405b", "qwen": "qwen2.5-72b"}[case.id.rpartition("-")[2]]
    each = [
        sum(x.layers * row_bytes(x, case.options) for x in fit_model(one).caches)
        for one in (name, "deepseek-v3")
    ]
    ours = Fraction(*map(int, each))
    wrong = f"{int(each[0]):,} / {int(each[1]):,}" if name.endswith("405b") else ""
    return Replay(ours, wrong=wrong)
