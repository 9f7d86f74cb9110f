"""Bound the speed of serving a model by the roofline of a device.

A prompt takes at least its FLOPs at the device's peak, or the weights read once; a decoded token
the weights that its batch meets and the rows of caches that it sees, read once. A bound, not a
forecast: kernels reach part of it.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from attnprof.models.conventions import EXECUTED, sequence_flops, summed, terms
from attnprof.models.fit_formats import ENTRY_BYTES, WEIGHTS, format_named
from attnprof.models.fit_layout import FitModel
from attnprof.models.fit_options import FitOptions
from attnprof.models.fit_parts import HALF, cache_bytes, row_parts, weight_bytes, weight_format
from attnprof.record import Report
from attnprof.trace.sizes import expected_bytes
from attnprof.workload import DTYPES

#: How many times as fast as half precision matrix units are at most, by the format of weights.
_FASTER = {"fp8": 2, "mxfp8": 2, "int8": 2, "nvfp4": 4, "mxfp4": 4}


def with_speed(report: Report, model: FitModel, options: FitOptions, device: Any) -> Report:
    """Return the report with bounds on the time to the first token and on tokens a second.

    ``device`` has its most FLOP/s by number format (``flops_per_s``), its most bytes a second
    (``bytes_per_s``), its ``name``, and the ``source`` of these figures.
    """
    faster = _FASTER.get(weight_format(model, options)[0], 1)
    rate = faster * (device.flops_per_s.get("bfloat16") or device.flops_per_s["float16"])
    peak = "in half precision" if faster == 1 else f"at {faster} times its half precision"
    whole = replace(options, pipeline=1)  # a token passes all stages one after the other
    stages, ranks = options.pipeline, options.ranks
    tokens, batch = options.seq_len, options.batch_size
    prompt, token = prompt_flops(model, tokens), token_flops(model, tokens)
    group = max(Fraction(1), Fraction(batch, stages))  # sequences of one stage at a time
    read = _weights_met(model, whole, int(group)) + group * rows_read(model, whole, tokens)
    prompt_s = {
        "FLOPs": prompt / ranks / rate,
        "weights read": _weights_met(model, whole, tokens) / device.bytes_per_s,
    }
    step_s = {
        "FLOPs": float(stages * group * token / ranks) / rate,
        "weights and cache": float(read) / device.bytes_per_s,
    }
    by, slowest = (max(one, key=one.__getitem__) for one in (step_s, prompt_s))
    bounds = {
        "first_token_s": (prompt_s[slowest], slowest),
        "request_tokens_per_s": (1 / step_s[by], by), "all_tokens_per_s": (batch / step_s[by], by),
    }  # fmt: skip
    speed = {
        "device": device.name, "source": device.source, "basis": "bound", "prompt_by": slowest,
        "by": by, **{name: value for name, (value, _) in bounds.items()},
        "figures": [
            {"quantity": name, "basis": "bound", "value": value, "by": why,
             "low": value if name.endswith("token_s") else None,
             "high": None if name.endswith("token_s") else value}
            for name, (value, why) in bounds.items()
        ],
        "notes": [f"bounds by {device.source}, {peak}; engines reach part of them"],
    }  # fmt: skip
    return replace(report, summary={**report.summary, "speed": speed})


def with_checks(report: Report, hub_name: str, options: FitOptions) -> Report:
    """Return the report with commands that measure its speeds in an engine on the device."""
    each = f"vllm bench latency --model {hub_name} --input-len {options.seq_len}"
    ranks = {"tensor-parallel": options.tensor_parallel, "pipeline-parallel": options.pipeline}
    each += "".join(f" --{name}-size {number}" for name, number in ranks.items() if number > 1)
    each += " --enable-expert-parallel" * (options.expert_parallel > 1)
    weights = format_named(options.dtype, "--dtype", WEIGHTS) if options.dtype else ""
    each += f" --dtype {weights}" * (weights in DTYPES) + " --quantization fp8" * (weights == "fp8")
    keys, values = options.cache_formats()
    each += f" --kv-cache-dtype {keys}" * (keys == values and keys.startswith("fp8"))
    checks = {
        "the first token": f"{each} --output-len 1 --batch-size 1",
        "tokens a second": f"{each} --output-len 128 --batch-size {options.batch_size}",
    }
    speed = {**report.summary["speed"], "checks": checks}
    return replace(report, summary={**report.summary, "speed": speed})


def prompt_flops(model: FitModel, tokens: int) -> int:
    """Return the FLOPs of a prompt of ``tokens`` tokens, with the logits of the last one."""
    executed = {**terms(model.sizes, EXECUTED, "forward")}
    head = executed.pop("head", {})
    return sequence_flops(summed(executed.values()), tokens) + sequence_flops(head, 1)


def token_flops(model: FitModel, tokens: int) -> int:
    """Return the FLOPs of one decoded token, the last of ``tokens``."""
    steps = [replace(one, chunk=0) for one in model.sizes.mixers]  # a token is no chunk
    executed = {**terms(replace(model.sizes, mixers=steps), EXECUTED, "forward")}
    executed.pop("scores", None)
    others = summed(executed.values())
    before = sequence_flops(others, tokens - 1)
    return sequence_flops(others, tokens) - before + token_scores(model, tokens)


def token_scores(model: FitModel, tokens: int) -> int:
    """Return the FLOPs of attention over pairs of one decoded token, the last of ``tokens``.

    Latent rows are not expanded: their heads score and sum the row that all of them share, of
    ``key_dim`` and ``value_dim`` (rotary) entries, as wide as the row and as its latent.
    """
    latent = next((one for one in model.caches if one.latent), None)
    total = 0
    for one in model.sizes.attention:
        keys = sum(mask.pairs(tokens) - mask.pairs(tokens - 1) for mask in one.masks)
        width = one.key_dim + one.value_dim
        if latent is not None:
            width = 2 * latent.key_dim + latent.value_dim
        total += 2 * one.layers * one.heads * width * keys
    return total


def rows_read(model: FitModel, options: FitOptions, tokens: int) -> Fraction:
    """Return the bytes of one sequence's cache that a decoded token reads on one rank.

    It reads no empty places of pages, no tokens that wait for their row, only the window or chunk
    that its mask leaves, and of rows that an indexer scores those that it chooses.
    """
    exact = replace(options, block_size=1, uncapped=False)
    n, entry = -(-tokens // options.context_parallel), ENTRY_BYTES[options.cache_formats()[0]]
    picks = any(one.index for one in model.caches)
    unread = sum((x.layers * x.rest * Fraction(HALF) for x in model.caches), Fraction(0))
    for shape in model.sizes.attention:
        mask, rows = shape.mask, shape.rows
        if rows is not None and rows.most:
            unseen = max(Fraction(n, rows.size) - rows.most, Fraction(0))
            unread += shape.layers * shape.kv_heads * shape.key_dim * unseen * entry
        if mask.kind not in ("window", "chunk"):
            continue
        kept, caches = n, [x for x in model.caches if picks and x.heads and not x.window]
        if capped := [x for x in model.caches if x.window == mask.size]:
            kept, caches = min(n, mask.size), capped
        row = max((row_parts(x, options)[0] for x in caches), default=Fraction(0))
        unread += shape.layers * row * (kept - mask.pairs(n) + mask.pairs(n - 1))
    return cache_bytes(model, exact, tokens) - unread


def _weights_met(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes of weights that a step of so many tokens reads on one rank.

    It reads the experts that tokens meet on average if they choose evenly, and no tables of
    embeddings, of which a token needs a row.
    """
    sizes = model.sizes

    def held_without(*roles: str) -> int:
        kept = {role: one for role, one in sizes.weights.items() if role not in roles}
        return weight_bytes(replace(model, sizes=replace(sizes, weights=kept), idle=0), options)

    tables = () if sizes.tied else ("embedding",)
    read, expert = held_without(*tables), sizes.weights.get("expert")
    if expert is None or not expert.entries:
        return min(weight_bytes(model, options), read)
    others = held_without(*tables, "expert")
    return others + int(expected_bytes(read - others, expert.entries, expert.active, tokens))
