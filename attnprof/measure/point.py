"""One point: build the real module, time it, measure its memory, count it, set the form beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from attnprof.costs import CostTable
from attnprof.errors import CannotRunError
from attnprof.measure import headroom
from attnprof.measure.allocations import measure_peak
from attnprof.measure.clocks import Clock, MonotonicClock, cuda_clock, sample
from attnprof.measure.counters import count_with_fvcore, count_with_torch
from attnprof.measure.derived import count_derived, derived_differences
from attnprof.measure.differences import counter_differences, peak_differences
from attnprof.measure.request import PointRequest
from attnprof.measure.statistics import estimate_median, quantiles_of
from attnprof.measure.subject import build_subject
from attnprof.record import ProfileRecord
from attnprof.units import format_bytes


def predict_point(request: PointRequest) -> ProfileRecord:
    """The closed form's side of a record: nothing is built, nothing runs.

    Raises :class:`attnprof.errors.RequestError` where the mechanism refuses.
    """
    table = request.spec.cost(request.workload, request.scope)
    total = table.total
    moved = int(total.bytes_moved)
    return replace(
        blank(request),
        parameters=int(table.parameters),
        flops_formula=int(total.flops),
        matmul_flops_formula=int(total.matmul_flops),
        peak_bytes_predicted=int(table.peak()),
        bytes_moved=moved,
        arithmetic_intensity=total.flops / moved if moved else None,
    )


def blank(request: PointRequest, skipped: str | None = None) -> ProfileRecord:
    """A record that says what was asked for and, maybe, why it has no numbers."""
    return ProfileRecord(
        mechanism=request.mechanism,
        params=dict(request.params),
        batch_size=request.batch_size,
        seq_len=request.seq_len,
        d_model=request.num_heads * request.head_dim,
        num_heads=request.num_heads,
        head_dim=request.head_dim,
        dtype=request.dtype,
        device=request.device,
        phase=request.phase,
        causal=request.causal,
        scope=request.scope,
        skipped=skipped,
    )


def needed_bytes(request: PointRequest) -> int:
    """Memory a point needs in all, by the closed form."""
    table: CostTable = request.spec.cost(request.workload, request.scope)
    return headroom.bytes_needed(request, int(table.peak()), int(table.parameters))


def measure_point(request: PointRequest) -> ProfileRecord:
    """Count and measure one point in this process; out of memory is a reason, not a crash."""
    record = count_point(request) if request.counts else predict_point(request)
    try:
        with _threads(request.threads):
            return _measured(request, record)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return replace(record, skipped=f"out of memory on {request.device}: {_short(error)}")
    except CannotRunError as error:
        return replace(record, skipped=str(error))


def count_point(request: PointRequest) -> ProfileRecord:
    """Closed form and second opinions; allocates nothing of the point's size."""
    record = predict_point(request)
    torch_count = count_with_torch(request)
    fvcore = count_with_fvcore(request)
    derived = count_derived(request)
    formula = record.matmul_flops_formula or 0
    macs = fvcore.total
    return replace(
        record,
        flops_torch=torch_count.total,
        macs_fvcore=macs,
        flops_fvcore=None if macs is None else 2 * macs,
        uncounted=dict(fvcore.uncounted),
        flops_derived=derived.flops,
        matmul_flops_derived=derived.matmul_flops,
        differences=[
            *counter_differences(request.mechanism, formula, torch_count, fvcore),
            *derived_differences(request.mechanism, record.flops_formula or 0, derived),
        ],
    )


def _measured(request: PointRequest, record: ProfileRecord) -> ProfileRecord:
    import torch

    subject = build_subject(request)
    actual = sum(p.numel() for p in subject.module.parameters())
    notes = list(record.differences)
    if actual != record.parameters:
        notes.append(
            f"{request.mechanism}: the module has {actual:,} parameters, "
            f"the closed form {record.parameters:,}"
        )
    peak = measure_peak(subject, request.device, torch)
    notes += peak_differences(request.mechanism, record.peak_bytes_predicted or 0, peak)
    timing = sample(_clock(request.device), subject.prepare, subject.call, request.budget)
    times = timing.wall_s
    found = estimate_median(times)
    return replace(
        record,
        parameters=actual,
        differences=notes,
        peak_bytes_measured=peak.bytes,
        median_s=found.median_s,
        ci_low_s=found.low_s,
        ci_high_s=found.high_s,
        times_s=times,
        cpu_times_s=timing.cpu_s,
        quantiles_s=quantiles_of(times),
        clock=timing.mode,
        noisy=found.noisy,
        flops_per_s=(record.flops_formula or 0) / found.median_s if found.median_s else None,
    )


def _clock(device: str) -> Clock:
    if device.startswith("cuda"):
        import torch

        return cuda_clock(torch, device)
    return MonotonicClock()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Compute threads for the time being."""
    import torch

    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory", "invalid buffer")


def _is_out_of_memory(error: BaseException) -> bool:
    """``torch.OutOfMemoryError`` is a RuntimeError; the CPU allocator raises a plain one."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in _OUT_OF_MEMORY)


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]


def fit(request: PointRequest, available: int | None = None) -> tuple[str | None, bool]:
    """Why a point is not tried (or None), and whether it may die and should run apart."""
    needed = needed_bytes(request)
    free = headroom.available_bytes(request.device) if available is None else available
    reason = headroom.refusal(request.device, needed, free)
    return reason, headroom.is_risky(needed, free)


def describe_need(request: PointRequest) -> str:
    """The memory a point needs, in words."""
    return f"needs {format_bytes(needed_bytes(request))} by the closed form"
