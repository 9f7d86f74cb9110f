"""One point: build the real module, time it, measure its memory, count it, set the form beside."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from attnprof.costs import CostTable
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure import headroom
from attnprof.measure.counters import count_with_fvcore, count_with_torch
from attnprof.measure.derived import count_derived, derived_differences
from attnprof.measure.differences import contradiction, counter_differences
from attnprof.measure.modules import UserModule
from attnprof.measure.request import PointRequest
from attnprof.measure.running import run_point, threads
from attnprof.measure.subject import refusing
from attnprof.record import ProfileRecord
from attnprof.units import format_bytes


def predict_point(request: PointRequest) -> ProfileRecord:
    """The closed form's side of a record: nothing is built, nothing runs.

    Raises :class:`attnprof.errors.RequestError` where the mechanism refuses.
    """
    table = request.spec.cost(request.workload, request.scope)
    total = table.total
    moved = int(total.bytes_moved)
    counted = isinstance(request.spec, UserModule)  # no closed form of ours: what its code shows
    flops, products = int(total.flops), int(total.matmul_flops)
    own: dict[str, Any] = request.spec.own_sizes(request.workload) if counted else {}
    return replace(
        blank(request),
        **own,
        parameters=int(table.parameters),
        flops_formula=None if counted else flops,
        matmul_flops_formula=None if counted else products,
        flops_derived=flops if counted else None,
        matmul_flops_derived=products if counted else None,
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
        compiled=request.compiled,
        skipped=skipped,
    )


def needed_bytes(request: PointRequest) -> int:
    """Memory a point needs in all, by the closed form."""
    table: CostTable = request.spec.cost(request.workload, request.scope)
    return headroom.bytes_needed(request, int(table.peak()), int(table.parameters))


def measure_point(request: PointRequest) -> ProfileRecord:
    """Count and measure one point in this process; out of memory is a reason, not a crash."""
    start = time.perf_counter()
    with refusing(request):
        record = without_rates(_measure(request))
    spent = time.perf_counter() - start
    return replace(record, overhead_s=spent - (record.measured_s or 0) - (record.compile_s or 0))


def without_rates(record: ProfileRecord) -> ProfileRecord:
    """The record without rates where what they are computed from is contradicted."""
    why = contradiction(record)
    if why is None:
        return record
    return replace(record, contradicted=why, flops_per_s=None, arithmetic_intensity=None)


def spent_s(record: ProfileRecord) -> float:
    """Seconds of a point that are accounted for."""
    parts = (record.measured_s, record.compile_s, record.overhead_s, record.start_s)
    return sum(part for part in parts if part is not None)


def _measure(request: PointRequest) -> ProfileRecord:
    record = count_point(request) if request.counts else predict_point(request)
    try:
        with threads(request.threads), refusing(request):
            return run_point(request, record)
    except (MemoryError, RuntimeError) as error:
        if not headroom.is_out_of_memory(error):
            raise
        return replace(
            record, skipped=f"out of memory on {request.device}: {headroom.first_line(error)}"
        )
    except CannotRunError as error:
        return replace(record, skipped=str(error))
    except RequestError as error:
        if not isinstance(request.spec, UserModule):
            raise
        return replace(record, skipped=str(error))  # what it counts is known, at least


def count_point(request: PointRequest) -> ProfileRecord:
    """Closed form and second opinions; allocates nothing of the point's size."""
    record = predict_point(request)
    torch_count = count_with_torch(request)
    fvcore = count_with_fvcore(request)
    derived = count_derived(request)
    own = record.flops_formula is None  # then what is derived stands for the closed form
    formula = (derived.matmul_flops if own else record.matmul_flops_formula) or 0
    flops = (derived.flops if own else record.flops_formula) or 0
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
            *derived_differences(request.mechanism, flops, derived),
        ],
    )


def fit(request: PointRequest, available: int | None = None) -> tuple[str | None, bool]:
    """Why a point is not tried (or None), and whether it may die and should run apart."""
    needed = needed_bytes(request)
    free = headroom.available_bytes(request.device) if available is None else available
    reason = headroom.refusal(request.device, needed, free)
    return reason, headroom.is_risky(needed, free)


def describe_need(request: PointRequest) -> str:
    """The memory a point needs, in words."""
    return f"needs {format_bytes(needed_bytes(request))} by the closed form"
