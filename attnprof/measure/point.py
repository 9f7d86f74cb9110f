"""Measure one point: check that it fits, build the module, time it, measure memory, count it."""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure import counters
from attnprof.measure.clocks import Clock, cuda_clock, on_device, onednn_restored, sample, threads
from attnprof.measure.correctness import check_code, check_module, distance_from_standard
from attnprof.measure.environment import cpu_share, noise, watched
from attnprof.measure.memory import count_launches, measure_parts, measure_peak
from attnprof.measure.request import PointRequest, UserModule
from attnprof.measure.statistics import MedianEstimate, estimate_median, quantiles_of
from attnprof.measure.subject import Subject, build_subject, compile_now, is_out_of_memory, refusing
from attnprof.record import ProfileRecord
from attnprof.record.report import Kind
from attnprof.units import format_bytes

#: A point that needs more than this share of the free memory may still die: it runs apart.
RISKY_SHARE = 0.5


def predict_point(request: PointRequest) -> ProfileRecord:
    """Return a record with the closed form's numbers; RequestError if the mechanism refuses."""
    table = request.spec.cost(request.workload, request.scope)
    total = table.total
    moved = int(total.bytes_moved)
    counted = isinstance(request.spec, UserModule)  # counts come from its code
    kind = "derived" if counted else "formula"
    sizes: dict[str, Any] = request.spec.own_sizes(request.workload) if counted else {}
    sizes |= {f"flops_{kind}": int(total.flops), f"matmul_flops_{kind}": int(total.matmul_flops)}
    return replace(
        blank(request), **sizes, parameters=int(table.parameters),
        peak_bytes_predicted=int(table.peak()), bytes_moved=moved,
        arithmetic_intensity=total.flops / moved if moved else None,
    )  # fmt: skip


def blank(request: PointRequest, skipped: str | None = None) -> ProfileRecord:
    """Return a record of a request without numbers and, if it is ``skipped``, the reason."""
    return blank_of(ProfileRecord, request, skipped)


def blank_of(kind: type[Kind], request: PointRequest, skipped: str | None) -> Kind:
    """Return a record of a kind for a request without numbers, with the reason if it is skipped."""
    names = {field.name for field in fields(kind)}
    values: dict[str, Any] = {n: getattr(request, n) for n in _COPIED if n in names}
    return kind(**values | {"params": dict(request.params), "skipped": skipped})


#: Fields that a record copies from its request.
_COPIED = (
    "mechanism", "batch_size", "seq_len", "d_model", "num_heads", "head_dim", "dtype", "device",
    "phase", "causal", "scope", "compiled",
)  # fmt: skip


def needed_bytes(request: PointRequest) -> int:
    """Return the predicted peak plus parameters, inputs, output gradient, decoding state."""
    workload = request.workload
    table = request.spec.cost(workload, request.scope)
    inputs = sum(prod(shape) for shape, _ in request.inputs)
    gradient = inputs if request.phase in ("backward", "train") else 0
    state = int(table.state_entries) if request.phase == "decode" else 0
    entries = int(table.parameters) + inputs + gradient + state
    return int(table.peak()) + workload.item_size * entries


def fit(request: PointRequest, available: int | None = None) -> tuple[str | None, bool]:
    """Return why a point does not fit (or None), and whether it may die and should run apart."""
    needed = needed_bytes(request)
    free = available_bytes(request.device) if available is None else available
    if needed <= free:
        return None, needed > RISKY_SHARE * free
    return (
        f"does not fit: needs {format_bytes(needed)} by the closed form, {request.device} has "
        f"{format_bytes(free)} free"
    ), True


def available_bytes(device: str) -> int:
    """Return a device's free memory; on a CPU, also within this process group's limits."""
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    import psutil

    return min(int(psutil.virtual_memory().available), *_control_group_limits())


def _control_group_limits(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Return the memory that a container's limits leave (cgroup v2, v1); huge if there is none."""
    limits = [1 << 62]
    for folder, limit, used in (
        (root, "memory.max", "memory.current"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such file, or "max"
            stat = (folder / "memory.stat").read_text()
            pages = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
            cached = int(pages[1]) if pages else 0  # the kernel gives it back under pressure
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            limits.append(left + cached)
    return limits


def measure_point(request: PointRequest) -> ProfileRecord:
    """Count and measure one point in this process; out of memory becomes a reason."""
    start = time.perf_counter()
    with refusing(request), torch.random.fork_rng(devices=[]), onednn_restored():
        record = count_point(request) if request.counts else predict_point(request)
        try:
            with threads(request.threads), on_device(request.device), refusing(request):
                record = run_point(request, record)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = (str(error) or type(error).__name__).splitlines()[0][:160]
            record = replace(record, skipped=f"out of memory on {request.device}: {reason}")
        except (CannotRunError, RequestError) as error:
            if isinstance(error, RequestError) and not isinstance(request.spec, UserModule):
                raise
            record = replace(record, skipped=str(error))  # its counts stay
    if why := counters.contradiction(record):  # numbers that follow from it are left out
        record = replace(record, contradicted=why, flops_per_s=None, arithmetic_intensity=None)
    spent = time.perf_counter() - start
    return replace(record, overhead_s=spent - (record.measured_s or 0) - (record.compile_s or 0))


def tried_point(
    request: PointRequest, available: int | None = None, *, try_all: bool = False,
    before: Callable[[], object] = lambda: None,
) -> ProfileRecord:  # fmt: skip
    """Measure a point here if it fits, or with ``try_all``, after ``before``; else say why not."""
    reason, _ = fit(request, available)
    if reason and not try_all:
        return replace(predict_point(request), skipped=reason)
    before()
    return measure_point(request)


def spent_s(record: ProfileRecord) -> float:
    """Return the seconds that a record accounts for."""
    parts = (record.measured_s, record.compile_s, record.overhead_s, record.start_s)
    return sum(part for part in parts if part is not None)


def count_point(request: PointRequest) -> ProfileRecord:
    """Count a point by closed form and other counters, without tensors of its size.

    Each counter builds the module anew: a recorded run has tensors of its own, torch's counter
    needs the point's device, fvcore traces on meta tensors.
    """
    record = predict_point(request)
    torch_count = counters.count_with_torch(request)
    fvcore = counters.count_with_fvcore(request)
    derived = counters.count_derived(request)
    derived_only = record.flops_formula is None  # derived counts take the place of a closed form
    formula = (derived.matmul_flops if derived_only else record.matmul_flops_formula) or 0
    flops = (derived.flops if derived_only else record.flops_formula) or 0
    macs = None if fvcore.failed else fvcore.macs.total()
    rows = counters.counter_differences(formula, torch_count, fvcore)
    rows += counters.derived_differences(flops, derived)
    return replace(
        record, flops_torch=torch_count.counted.total(), macs_fvcore=macs,
        flops_fvcore=None if macs is None else 2 * macs, uncounted=dict(fvcore.uncounted),
        flops_derived=derived.flops, matmul_flops_derived=derived.matmul_flops,
        differences=[f"{request.mechanism}: {row}" for row in rows],
    )  # fmt: skip


def run_point(request: PointRequest, record: ProfileRecord) -> ProfileRecord:
    """Return the record with measured numbers, or with the reason why the module is not timed."""
    if request.check:
        verdict = check_module(request)
        record = replace(record, checked=verdict.against, skipped=verdict.wrong)
        if verdict.wrong:
            return record
    if request.error:
        record = replace(record, error=distance_from_standard(request))
    subject = build_subject(request, compiled=request.compiled)
    on_gpu = request.device.startswith("cuda")
    clock = cuda_clock(torch, request.device) if on_gpu else Clock()
    actual = sum(p.numel() for p in subject.module.parameters())
    notes = list(record.differences)
    if actual != record.parameters:
        difference = f"the module has {actual:,} parameters, the closed form {record.parameters:,}"
        notes.append(f"{request.mechanism}: {difference}")
    if request.compiled:
        seconds, breaks = compile_now(subject.prepare, subject.call, clock.settle)
        subject.reset()
        wrong = check_code(request, subject.call) if request.check else None
        record = replace(record, compile_s=seconds, skipped=wrong)
        if wrong:
            return record
        if breaks:
            often = "once" if breaks == 1 else f"{breaks} times"
            notes.append(f"{request.mechanism}: its graph breaks {often} when compiled")
    start = time.perf_counter()
    measured = _memory(request, subject, replace(record, parameters=actual, differences=notes))
    with watched(request.device) as conditions:
        timing = sample(clock, subject.prepare, subject.call, request.budget)
    times = [call.wall_s for call in timing]
    busy = [call.cpu_s for call in timing if call.cpu_s is not None]
    conditions["cpu_share"] = cpu_share(times, busy)
    measured = replace(measured, times_s=times, cpu_times_s=busy, clock=clock.name)
    measured = with_times(measured, estimate_median(times), conditions)
    return replace(measured, measured_s=time.perf_counter() - start)


def _memory(request: PointRequest, subject: Subject, record: ProfileRecord) -> ProfileRecord:
    """Return the record with the measured peak, its parts, and the number of kernels."""
    peak = measure_peak(subject, request.device, torch)
    predicted = record.peak_bytes_predicted or 0
    rows = counters.peak_differences(predicted, peak, compiled=request.compiled)
    notes = [*record.differences, *(f"{request.mechanism}: {row}" for row in rows)]
    parts: dict[str, Any] = measure_parts(subject, request.phase, request.device, torch)
    return replace(
        record, differences=notes, peak_bytes_measured=peak.bytes,
        reserved_bytes=peak.reserved, workspace_bytes=peak.libraries,
        launches=count_launches(subject, request.device, torch), **parts,
    )  # fmt: skip


def with_times(
    record: ProfileRecord, estimate: MedianEstimate, conditions: Mapping[str, Any]
) -> ProfileRecord:
    """Return the record with the median, its interval, and the values that follow from them."""
    flops = record.flops_formula if record.flops_formula is not None else record.flops_derived
    has_rate = estimate.median_s and not record.contradicted
    return replace(
        record, median_s=estimate.median_s, ci_low_s=estimate.low_s, ci_high_s=estimate.high_s,
        quantiles_s=quantiles_of(record.times_s), noisy=noise(estimate.noisy, conditions),
        conditions=dict(conditions),
        flops_per_s=flops / estimate.median_s if has_rate and flops is not None else None,
    )  # fmt: skip
