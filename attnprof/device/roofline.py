"""A measurement against the roofline: the time it cannot beat, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnprof.device.ceilings import Ceilings, load, stated
from attnprof.record import ProfileRecord, Report

COMPUTE, MEMORY = "compute", "memory"


@dataclass(frozen=True)
class Roofline:
    """``time_s`` a point takes at least, and whether ``compute`` or ``memory`` says so."""

    time_s: float
    bound: str


def roofline(flops: int, bytes_moved: int, ceilings: Ceilings, rate: float) -> Roofline:
    """max(FLOPs / FLOP/s, bytes / B/s): Williams, Waterman and Patterson's bound, as a time."""
    compute, memory = flops / rate, bytes_moved / ceilings.bytes_per_s
    return Roofline(max(compute, memory), COMPUTE if compute >= memory else MEMORY)


def ceilings_of(environment: Mapping[str, Any], path: Path | None = None) -> Ceilings | None:
    """What the device of a result can do: its own calibration, else the maker's figures.

    ``path`` is a file of ``attnprof calibrate``; None the one in the cache folder.
    """
    name = str(environment.get("device_name") or "")
    return load(name, environment.get("threads"), path) or stated(name)


def with_roofline(report: Report, path: Path | None = None) -> Report:
    """The report with each record's share of the bound; untouched where the device is unknown."""
    ceilings = ceilings_of(report.environment, path)
    if ceilings is None:
        advice = "no ceilings known for this device: run attnprof calibrate"
        return replace(report, summary={**report.summary, "roofline": advice})
    tf32 = bool(report.environment.get("tf32"))
    records = [
        _placed(record, ceilings, tf32=tf32) if isinstance(record, ProfileRecord) else record
        for record in report.records
    ]
    told = asdict(ceilings)
    told = {"device": told.pop("name"), **told}
    return replace(report, records=records, summary={**report.summary, "roofline": told})


def _placed(record: ProfileRecord, ceilings: Ceilings, *, tf32: bool) -> ProfileRecord:
    rate = ceilings.rate(record.dtype, tf32=tf32)
    flops = record.flops_formula or record.flops_derived
    if not (rate and record.median_s and flops and record.bytes_moved) or record.contradicted:
        return record
    found = roofline(flops, record.bytes_moved, ceilings, rate)
    return replace(
        record,
        roofline_time_s=found.time_s,
        bound=found.bound,
        roofline_fraction=found.time_s / record.median_s,
    )
