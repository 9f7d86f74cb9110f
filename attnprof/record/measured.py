"""Records of code that ran: measured points, devices, checks, and claims replayed.

The functions below name points of one mechanism apart, for tables and figures.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.record.base import Record, column
from attnprof.units import setting_text


@dataclass(frozen=True, kw_only=True)
class ProfileRecord(Record, commands=("profile", "sweep")):
    """``profile`` and ``sweep``: one point, its predicted and its measured numbers.

    Sizes are those of the measured module; null if the module fixes a size and does not say which.
    ``contradicted`` says where prediction and measurement differ for no known reason; rates such as
    FLOP/s, computed from the prediction, are then null. ``checked`` names the reference that the
    output was compared with before it was timed. ``activations_bytes``: kept by the forward pass
    for the backward pass, output included. ``optimizer_bytes``: AdamW's two moments, computed, not
    in the peak. ``kv_cache_bytes``: storage of a decoder's token caches, room to grow included;
    ``state_bytes``: storage of its whole state. Seconds spent: ``measured_s`` on warming up, timing
    and memory, ``compile_s`` on the first call of compiled code, ``start_s`` on starting a process,
    ``overhead_s`` on the rest.
    """

    mechanism: str = column("mechanism")
    params: dict[str, Any] = column("params", default=dict)
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
    uncounted: dict[str, int] = column("uncounted", default=dict)
    differences: list[str] = column("differences", default=list)
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
    times_s: list[float] = column("times", "s", default=list)
    cpu_times_s: list[float] = column("CPU times", "s", default=list)
    quantiles_s: dict[str, float] = column("quantiles", "s", default=dict)
    clock: str | None = column("clock")
    noisy: str | None = column("noise")
    conditions: dict[str, Any] = column("conditions", default=dict)
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
class TradeoffRecord(Record, commands=("tradeoff",)):
    """``tradeoff``: how far a mechanism is from softmax attention on one input, and its cost.

    An error is a share of the norm of softmax attention's output, in float64, over all rows or for
    the worst row: the median over ``seeds`` draws of the mechanism's weights, with minimum and
    maximum. ``error_distribution``: total variation between both attention distributions, mean over
    rows, of the first draw; if null, ``weights`` says why. ``relation``: whether the mechanism
    approximates softmax attention or is another function. FLOPs and peaks are closed forms without
    projections; times of all mechanisms are taken in turns. ``pareto``: no other setting on this
    input has both fewer FLOPs and a smaller error.
    """

    mechanism: str = column("mechanism")
    params: dict[str, Any] = column("params", default=dict)
    input: str = column("input")
    norms: str | None = column("norms")
    relation: str = column("to softmax", default="")
    scope: str = column("scope", default="core")
    phase: str = column("phase", default="forward")
    causal: bool = column("causal")
    batch_size: int = column("batch", fmt="count")
    seq_len: int = column("seq", fmt="count")
    d_model: int = column("d_model", fmt="count")
    num_heads: int = column("heads", fmt="count")
    head_dim: int = column("head dim", fmt="count")
    dtype: str = column("dtype")
    device: str = column("device")
    seeds: int = column("seeds", fmt="count")
    error_relative: float | None = column("error", fmt="number")
    error_relative_low: float | None = column("least", fmt="number")
    error_relative_high: float | None = column("largest", fmt="number")
    error_worst_row: float | None = column("worst row", fmt="number")
    error_distribution: float | None = column("weights apart", fmt="number")
    weights: str | None = column("weights")
    flops: int | None = column("FLOPs", fmt="count")
    bytes_moved: int | None = column("bytes moved", "B", "bytes")
    peak_bytes: int | None = column("peak memory", "B", "bytes")
    median_s: float | None = column("time", "s", "time")
    ci_low_s: float | None = column("low", "s", "time")
    ci_high_s: float | None = column("high", "s", "time")
    pareto: bool | None = column("not beaten")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class DistillRecord(Record, commands=("tradeoff --distill",)):
    """``tradeoff --distill``: one model of document 003's experiment at one length.

    ``setting``: ``printed`` as in the document, or ``fair``. Errors are medians over ``seeds``
    repetitions, with minimum and maximum: cross-entropy (nats) and share of right tokens on the
    examples, Kullback-Leibler divergence from the teacher, mean squared error of the logits to the
    teacher's. ``mse_ratio``: that squared error over the one at the trained length, which is the
    number that the document prints.
    """

    setting: str = column("setting")
    model: str = column("model")
    seq_len: int = column("seq", fmt="count")
    seeds: int = column("seeds", fmt="count")
    parameters: int | None = column("parameters", fmt="count")
    steps: int | None = column("steps", fmt="count")
    loss_first: float | None = column("loss before", fmt="number")
    loss_last: float | None = column("loss after", fmt="number")
    cross_entropy: float | None = column("cross-entropy", "nats", "number")
    cross_entropy_low: float | None = column("least", "nats", "number")
    cross_entropy_high: float | None = column("largest", "nats", "number")
    accuracy: float | None = column("right", fmt="percent")
    kl_teacher: float | None = column("KL to teacher", "nats", "number")
    mse_teacher: float | None = column("MSE to teacher", fmt="number")
    mse_before: float | None = column("MSE before", fmt="number")
    mse_ratio: float | None = column("MSE ratio", fmt="ratio")
    matmul_flops: int | None = column("matmul FLOPs", fmt="count")
    median_s: float | None = column("time", "s", "time")
    ci_low_s: float | None = column("low", "s", "time")
    ci_high_s: float | None = column("high", "s", "time")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord(Record, commands=("calibrate",)):
    """``calibrate``: the ceilings of a device for one number format."""

    device: str = column("device")
    device_name: str = column("name")
    threads: int = column("threads", fmt="count")
    dtype: str = column("dtype")
    flops_per_s: float = column("products", "FLOP/s", "flops_rate")
    bytes_per_s: float = column("copy", "B/s", "bytes_rate")
    source: str = column("source")
    operations: int = column("operations", fmt="count", default=0)
    repeatability: float | None = column("repeatable to", fmt="percent")


@dataclass(frozen=True, kw_only=True)
class DoctorRecord(Record, commands=("doctor",)):
    """``doctor``: one check of the environment, its result and advice."""

    check: str = column("check")
    found: str = column("found")
    status: str = column("status")
    advice: str = column("advice", default="")


@dataclass(frozen=True, kw_only=True)
class CheckRecord(Record, commands=("check",)):
    """``check``: one metric of one case, before and now.

    Values are exact integers, seconds (metric ``time``) or a formula's text (``formula:flops`` …).
    ``ratio``: current / baseline, with its bounds. ``why``: the change, or why there is no verdict.
    ``place``: a line of the user's code. For times, ``noise`` is half the width of the interval as
    a share of the ratio, ``wall_ratio`` the ratio of wall-clock times, ``log_ratios`` the logarithm
    of the ratio in each of the ``pairs``.
    """

    case: str = column("case")
    metric: str = column("metric")
    baseline: int | float | str | None = column("baseline", fmt="count")
    current: int | float | str | None = column("current", fmt="count")
    ratio: float | None = column("ratio", fmt="ratio")
    ci_low: float | None = column("low", fmt="ratio")
    ci_high: float | None = column("high", fmt="ratio")
    verdict: str = column("verdict")
    why: str = column("why", default="")
    unit: str = column("unit", default="")
    place: str = column("place", default="")
    pairs: int | None = column("pairs", fmt="count")
    noise: float | None = column("noise", fmt="percent")
    wall_ratio: float | None = column("wall ratio", fmt="ratio")
    log_ratios: list[float] = column("log ratios", default=list)


@dataclass(frozen=True, kw_only=True)
class BaselineRecord(Record, commands=("baseline",)):
    """``baseline``: the counts and times of one case.

    ``request``: sizes and options of the case. ``rule``: thresholds by which its times are judged.
    ``metrics``: exact integers by name. ``formulas``: closed forms by quantity. ``operations``:
    rows of op, part, line, number of calls, bytes_moved, flops, dtype and shape of the result.
    ``times_s``: processor seconds of each call, one list per process. ``error``: why the case has
    no counts.
    """

    case: str = column("case")
    request: dict[str, Any] = column("request", default=dict)
    rule: str = column("rule", default="default")
    metrics: dict[str, int] = column("metrics", default=dict)
    formulas: dict[str, str] = column("formulas", default=dict)
    no_formula: str = column("why no formula", default="")
    operations: list[dict[str, Any]] = column("operations", default=list)
    times_s: list[list[float]] = column("times", default=list)
    error: str | None = column("error")


@dataclass(frozen=True, kw_only=True)
class SelfTestRecord(Record, commands=("check --self-test",)):
    """``check --self-test``: how often the gate noticed code slower by ``slowdown`` here.

    ``regressed`` of ``trials`` were judged slower; with ``slowdown`` 0 these are false alarms.
    ``ratio``, ``noise`` and ``case_s`` (seconds of one check) are medians over the trials.
    """

    slowdown: float = column("slower by", fmt="percent")
    rule: str = column("rule")
    trials: int = column("trials", fmt="count")
    regressed: int = column("regressed", fmt="count")
    inconclusive: int = column("inconclusive", fmt="count")
    ratio: float = column("ratio found", fmt="ratio")
    noise: float = column("noise", fmt="percent")
    case_s: float = column("a case", fmt="time")


@dataclass(frozen=True, kw_only=True)
class HistoryRecord(Record, commands=("history",)):
    """``history``: one metric of one case in one run.

    ``machine`` tells times of different machines apart and is empty for counts. ``level`` is the
    median of the runs between two change points. Where ``change_point`` is true a level begins
    with this run, and ``ratio`` is this level over the one before.
    """

    case: str = column("case")
    metric: str = column("metric")
    machine: str = column("machine", default="")
    at: str = column("at")
    commit: str = column("commit", default="")
    file: str = column("file")
    run: int = column("run", fmt="count")
    value: int | float = column("value", fmt="number")
    unit: str = column("unit", default="")
    level: int | float = column("level", fmt="number")
    change_point: bool = column("change point", default=False)
    ratio: float | None = column("ratio", fmt="ratio")


@dataclass(frozen=True, kw_only=True)
class ReproduceRecord(Record, commands=("reproduce",)):
    """``reproduce``: one claim of a document, the printed value and ours.

    ``published`` and ``ours`` are numbers, formulas, a bool for a statement, or lists and dicts of
    these. ``verdict``: ``match``, ``erratum``, ``not-reproducible``, or ``error`` where no check
    answers; ``why`` has the reason. ``basis``: ``computed``, ``measured``, ``reading``.
    ``committed`` is the verdict that ships with the package.
    """

    claim: str = column("claim")
    document: str = column("document")
    place: str = column("place")
    says: str = column("says")
    published: Any = column("published")
    ours: Any = column("ours")
    verdict: str = column("verdict")
    basis: str | None = column("basis")
    why: str = column("why", default="")
    how: str = column("how", default="")
    committed: str | None = column("committed")


#: Fields that tell two points apart if mechanism and sequence length do not.
CONDITIONS = (
    "phase", "causal", "compiled", "scope", "batch_size", "d_model", "num_heads", "dtype", "device",
)  # fmt: skip


def varying(records: Sequence[Any]) -> list[str]:
    """Return the conditions that differ between points: ``["dtype", "num_heads"]``."""
    return [name for name in CONDITIONS if len({getattr(r, name, None) for r in records}) > 1]


def names_of(records: Sequence[Any]) -> list[str]:
    """Return a name for each record: its mechanism, and its values of parameters that vary.

    Numbers of threads that vary are named, too: a file of a sweep may have several.
    """
    settings = [{**r.params, **_threads(r)} for r in records]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record, of_record in zip(records, settings, strict=True):
        for name, value in of_record.items():
            values[record.mechanism, name].add(setting_text(value))
    return [
        " ".join([record.mechanism, *(
            f"{name}={setting_text(value)}" for name, value in of_record.items()
            if len(values[record.mechanism, name]) > 1
        )])
        for record, of_record in zip(records, settings, strict=True)
    ]  # fmt: skip


def _threads(record: Any) -> dict[str, Any]:
    """Return the number of threads that a record was measured with, by its name, or nothing."""
    threads = getattr(record, "conditions", {}).get("threads")
    return {} if threads is None else {"threads": threads}


def named_results(records: Sequence[Any]) -> list[Any]:
    """Return the records that were not skipped, each called by :func:`names_of`."""
    named = zip(records, names_of(records), strict=True)
    return [replace(record, mechanism=name) for record, name in named if record.skipped is None]
