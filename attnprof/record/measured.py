"""Records of what ran: measured points, and the ceilings of the device they ran on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnprof.record.base import Record, column


def _mapping(title: str, unit: str = "") -> Any:
    return field(default_factory=dict, metadata={"title": title, "unit": unit, "format": "text"})


def _listed(title: str, unit: str = "") -> Any:
    return field(default_factory=list, metadata={"title": title, "unit": unit, "format": "text"})


@dataclass(frozen=True, kw_only=True)
class ProfileRecord(Record):
    """``profile`` and ``sweep``: one point, closed form beside what was measured.

    ``d_model``, ``num_heads`` and ``head_dim`` are those of the module, null where it keeps its own
    and they are not known. ``contradicted`` is the difference for which nothing is computed from
    the predicted counts. ``checked`` names what the module's output was compared with before it
    was timed.
    ``activations_bytes`` is what a forward pass leaves for the backward one, its output included;
    ``gradients_bytes`` are those of parameters and inputs; ``optimizer_bytes`` AdamW's two
    moments of the parameters, arithmetic and no part of the peak. ``kv_cache_bytes`` is the
    storage of a decoder's token caches, room to grow included, ``state_bytes`` that of all it
    keeps. ``conditions`` says how busy the machine was. ``measured_s`` went into warming up,
    timing and memory, ``compile_s`` into the first call of compiled code, ``start_s`` into
    starting a process, ``overhead_s`` into the rest.
    """

    mechanism: str = column("mechanism")
    params: dict[str, Any] = _mapping("params")
    batch_size: int = column("batch", fmt="count")
    seq_len: int = column("seq", fmt="count")
    d_model: int | None = column("d_model", fmt="count")
    num_heads: int | None = column("heads", fmt="count")
    head_dim: int | None = column("head dim", fmt="count")
    dtype: str = column("dtype")
    device: str = column("device")
    phase: str = column("phase")
    causal: bool = column("causal")
    scope: str = column("scope", default="layer")
    compiled: bool = column("compiled", default=False)
    checked: str | None = column("checked against")
    parameters: int | None = column("parameters", fmt="count")
    flops_formula: int | None = column("FLOPs (formula)", fmt="count")
    flops_derived: int | None = column("FLOPs (derived)", fmt="count")
    matmul_flops_formula: int | None = column("matmul FLOPs (formula)", fmt="count")
    matmul_flops_derived: int | None = column("matmul FLOPs (derived)", fmt="count")
    flops_torch: int | None = column("torch's counter", fmt="count")
    macs_fvcore: int | None = column("fvcore MACs", fmt="count")
    flops_fvcore: int | None = column("2x fvcore", fmt="count")
    uncounted: dict[str, int] = _mapping("uncounted")
    differences: list[str] = _listed("differences")
    contradicted: str | None = column("contradicted")
    peak_bytes_predicted: int | None = column("peak (predicted)", "B", "bytes")
    peak_bytes_measured: int | None = column("peak (measured)", "B", "bytes")
    activations_bytes: int | None = column("activations", "B", "bytes")
    gradients_bytes: int | None = column("gradients", "B", "bytes")
    optimizer_bytes: int | None = column("AdamW moments", "B", "bytes")
    kv_cache_bytes: int | None = column("KV cache", "B", "bytes")
    state_bytes: int | None = column("decoding state", "B", "bytes")
    reserved_bytes: int | None = column("reserved", "B", "bytes")
    workspace_bytes: int | None = column("workspaces", "B", "bytes")
    median_s: float | None = column("median", "s", "time")
    ci_low_s: float | None = column("low", "s", "time")
    ci_high_s: float | None = column("high", "s", "time")
    times_s: list[float] = _listed("times", "s")
    cpu_times_s: list[float] = _listed("CPU times", "s")
    quantiles_s: dict[str, float] = _mapping("quantiles", "s")
    clock: str | None = column("clock")
    noisy: str | None = column("noise")
    conditions: dict[str, Any] = _mapping("conditions")
    launches: int | None = column("kernel launches", fmt="count")
    flops_per_s: float | None = column("rate", "FLOP/s", "flops_rate")
    bytes_moved: int | None = column("bytes moved", "B", "bytes")
    arithmetic_intensity: float | None = column("intensity", "FLOP/B", "number")
    roofline_time_s: float | None = column("roofline", "s", "time")
    bound: str | None = column("bound")
    roofline_fraction: float | None = column("of roofline", fmt="percent")
    compile_s: float | None = column("compiling", "s", "time")
    measured_s: float | None = column("measuring", "s", "time")
    overhead_s: float | None = column("overhead", "s", "time")
    start_s: float | None = column("process start", "s", "time")
    error: float | None = column("distance from softmax", fmt="percent")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord(Record):
    """``calibrate``: the ceilings of a device for one number format."""

    device: str = column("device")
    device_name: str = column("name")
    threads: int = column("threads", fmt="count")
    dtype: str = column("dtype")
    flops_per_s: float = column("products", "FLOP/s", "flops_rate")
    bytes_per_s: float = column("copy", "B/s", "bytes_rate")
    source: str = column("source")
