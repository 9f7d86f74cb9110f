"""What happens on the device at one point: the check, the memory run, the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from attnprof.measure.allocations import measure_peak
from attnprof.measure.approximation import distance_from_standard
from attnprof.measure.clocks import Clock, MonotonicClock, Timing, cuda_clock, sample
from attnprof.measure.compiling import compile_now
from attnprof.measure.conditions import count_launches, cpu_share, noise, watched
from attnprof.measure.correctness import check_code, check_module
from attnprof.measure.differences import peak_differences
from attnprof.measure.parts import measure_parts
from attnprof.measure.request import PointRequest
from attnprof.measure.statistics import estimate_median, quantiles_of
from attnprof.measure.subject import Subject, build_subject
from attnprof.record import ProfileRecord


def run_point(request: PointRequest, record: ProfileRecord) -> ProfileRecord:
    """The record with what was measured, or with the reason why the module is not timed."""
    if request.check:
        verdict = check_module(request)
        record = replace(record, checked=verdict.against, skipped=verdict.wrong)
        if verdict.wrong:
            return record
    if request.error:
        record = replace(record, error=distance_from_standard(request))
    subject = build_subject(request, compiled=request.compiled)
    clock = _clock(request.device)
    actual = sum(p.numel() for p in subject.module.parameters())
    notes = list(record.differences)
    if actual != record.parameters:
        notes.append(
            f"{request.mechanism}: the module has {actual:,} parameters, "
            f"the closed form {record.parameters:,}"
        )
    if request.compiled:
        seconds, breaks = compile_now(subject.prepare, subject.call, clock.settle)
        subject.reset()
        wrong = check_code(request, subject.call) if request.check else None
        record = replace(record, compile_s=seconds, skipped=wrong)
        if wrong:
            return record
        if breaks:
            notes.append(f"{request.mechanism}: its graph breaks {breaks} times when compiled")
    start = time.perf_counter()
    found = _memory(request, subject, replace(record, parameters=actual, differences=notes))
    with watched(request.device) as conditions:
        timing = sample(clock, subject.prepare, subject.call, request.budget)
    conditions["cpu_share"] = cpu_share(timing)
    return replace(_timed(found, timing, conditions), measured_s=time.perf_counter() - start)


def _memory(request: PointRequest, subject: Subject, record: ProfileRecord) -> ProfileRecord:
    """The peak beside the predicted one, its parts, and how many kernels make it."""
    import torch

    peak = measure_peak(subject, request.device, torch)
    rows = peak_differences(
        request.mechanism, record.peak_bytes_predicted or 0, peak, compiled=request.compiled
    )
    parts = measure_parts(subject, request.phase, request.device, torch)
    return replace(
        record, differences=[*record.differences, *rows], peak_bytes_measured=peak.bytes,
        reserved_bytes=peak.reserved, workspace_bytes=peak.libraries,
        launches=count_launches(subject, request.device, torch), **asdict(parts),
    )  # fmt: skip


def _timed(record: ProfileRecord, timing: Timing, conditions: Mapping[str, Any]) -> ProfileRecord:
    times = timing.wall_s
    found = estimate_median(times)
    flops = record.flops_formula if record.flops_formula is not None else record.flops_derived
    return replace(
        record,
        median_s=found.median_s,
        ci_low_s=found.low_s,
        ci_high_s=found.high_s,
        times_s=times,
        cpu_times_s=timing.cpu_s,
        quantiles_s=quantiles_of(times),
        clock=timing.mode,
        noisy=noise(found.noisy, conditions),
        conditions=dict(conditions),
        flops_per_s=flops / found.median_s if found.median_s and flops is not None else None,
    )


def _clock(device: str) -> Clock:
    if device.startswith("cuda"):
        import torch

        return cuda_clock(torch, device)
    return MonotonicClock()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute threads for the time being."""
    import torch

    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
