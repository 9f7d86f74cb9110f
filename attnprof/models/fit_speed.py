"""How fast a model can be served at most: bounds by the roofline of a device.

A prompt takes at least its FLOPs at the device's peak, or the weights read once; a decoded token
the weights that its batch meets and its caches, read once. A bound, not a forecast: kernels reach
part of it.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Protocol

from attnprof.models.conventions import EXECUTED, count
from attnprof.models.fit_parts import FitModel, FitOptions, cache_bytes, weight_bytes, weight_format
from attnprof.models.flops_terms import sequence_flops
from attnprof.record import Report

#: How many times as fast as half precision matrix units are at most, by the format of weights.
_FASTER = {"fp8": 2, "int8": 2, "nvfp4": 4, "mxfp4": 4}


class Peaks(Protocol):
    """What a device can do at most, and who says so."""

    @property
    def name(self) -> str:
        """The device."""
        ...

    @property
    def source(self) -> str:
        """Where the figures are from."""
        ...

    @property
    def flops_per_s(self) -> Mapping[str, float]:
        """FLOP/s by number format."""
        ...

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second of its memory."""
        ...


def with_speed(report: Report, model: FitModel, options: FitOptions, device: Peaks) -> Report:
    """Return the report with bounds on the time to the first token and on tokens a second."""
    faster = _FASTER.get(weight_format(model, options)[0], 1)
    rate = faster * (device.flops_per_s.get("bfloat16") or device.flops_per_s["float16"])
    peak = "in half precision" if faster == 1 else f"at {faster} times its half precision"
    stages = options.pipeline  # a token passes them one after the other
    ranks = stages * options.tensor_parallel * options.expert_parallel * options.context_parallel
    tokens, batch = options.seq_len, options.batch_size
    executed = count(model.sizes, EXECUTED, "forward")
    prompt = sequence_flops(executed, tokens)
    token = prompt - sequence_flops(executed, tokens - 1) if tokens > 1 else prompt
    group = max(1, batch // stages)  # sequences of one stage at a time
    read = _weights_met(model, options, group) + group * cache_bytes(model, options, tokens)
    prompt_s = {
        "FLOPs": prompt / ranks / rate,
        "weights read": stages * _weights_met(model, options, tokens) / device.bytes_per_s,
    }
    step_s = {
        "FLOPs": stages * group * token / ranks / rate,
        "weights and cache": stages * read / device.bytes_per_s,
    }
    by, slowest = (max(one, key=one.__getitem__) for one in (step_s, prompt_s))
    speed = {
        "device": device.name, "source": device.source, "basis": "bound",
        "first_token_s": prompt_s[slowest], "prompt_by": slowest,
        "request_tokens_per_s": 1 / step_s[by], "all_tokens_per_s": batch / step_s[by], "by": by,
        "notes": [f"bounds by {device.source}, {peak}; engines reach part of them"],
    }  # fmt: skip
    return replace(report, summary={**report.summary, "speed": speed})


def _weights_met(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes of weights that a step of so many tokens reads on one rank.

    Of experts those that tokens meet on average if they choose evenly; of embeddings a row each.
    """
    whole = weight_bytes(model, options)
    sizes = model.sizes
    expert = sizes.weights.get("expert")
    tables = sizes.weights.get("embedding")
    without = {
        role: one for role, one in sizes.weights.items()
        if role != "embedding" or (tables and sizes.tied)
    }  # fmt: skip
    read = weight_bytes(replace(model, sizes=replace(sizes, weights=without)), options)
    if expert is None or not expert.entries:
        return min(whole, read)
    shared = {role: one for role, one in without.items() if role != "expert"}
    others = weight_bytes(replace(model, sizes=replace(sizes, weights=shared)), options)
    met = 1 - (1 - Fraction(expert.active, expert.entries)) ** tokens
    return others + ceil((read - others) * met)
