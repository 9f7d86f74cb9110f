"""Compare measured times with the least ones that a device's ceilings allow (the roofline)."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from attnprof.device.calibration import load
from attnprof.device.ceilings import Ceilings, stated
from attnprof.record import ProfileRecord, Report


def roofline(flops: int, bytes_moved: int, ceilings: Ceilings, rate: float) -> tuple[float, str]:
    """Return Williams, Waterman and Patterson's least time, and its limit: compute or memory."""
    compute, memory = flops / rate, bytes_moved / ceilings.bytes_per_s
    return max(compute, memory), "compute" if compute >= memory else "memory"


def ceilings_of(environment: Mapping[str, Any], path: Path | None = None) -> Ceilings | None:
    """Return the device's own calibration (in ``path`` or the cache), else its maker's figures."""
    name = str(environment.get("device_name") or "")
    calibration = load(name, environment.get("threads"), path)
    return calibration.ceilings if calibration else stated(name)


def with_roofline(report: Report, path: Path | None = None) -> Report:
    """Return the report with each record's share of the bound, if the device is known."""
    ceilings = ceilings_of(report.environment, path)
    if ceilings is None:
        advice = "no ceilings known for this device: run attnprof calibrate"
        return replace(report, summary={**report.summary, "roofline": advice})
    tf32 = bool(report.environment.get("tf32"))
    records = [
        _placed(record, ceilings, tf32=tf32) if isinstance(record, ProfileRecord) else record
        for record in report.records
    ]
    fields = asdict(ceilings)
    fields = {"device": fields.pop("name"), **fields}
    return replace(report, records=records, summary={**report.summary, "roofline": fields})


def _placed(record: ProfileRecord, ceilings: Ceilings, *, tf32: bool) -> ProfileRecord:
    rate = ceilings.rate(record.dtype, tf32=tf32)
    flops = record.flops_formula or record.flops_derived
    if not (rate and record.median_s and flops and record.bytes_moved) or record.contradicted:
        return record
    time_s, bound = roofline(flops, record.bytes_moved, ceilings, rate)
    share = time_s / record.median_s
    return replace(record, roofline_time_s=time_s, bound=bound, roofline_fraction=share)
