"""Read a sweep's file as a report: the processes of one point joined into one record."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import fsum
from pathlib import Path
from typing import Any

from attnprof.measure.answers import answer
from attnprof.measure.environment import joined_conditions
from attnprof.measure.point import with_times
from attnprof.measure.statistics import estimate_over_processes
from attnprof.measure.sweep.journal import read
from attnprof.record import ProfileRecord, Report
from attnprof.record.report import by_device, object_in, restored


def load_results(path: Path) -> Report:
    """Return the report of a results file.

    Its environment is the first record's; the summary has all. Raises
    :class:`attnprof.errors.RequestError` for a file that is no results file.
    """
    return report_of(read(path), str(path))


def report_of(entries: Sequence[dict[str, Any]], name: str = "results") -> Report:
    """Return a journal's entries as a report, points in order; ``name`` is for messages."""
    groups: dict[str, list[ProfileRecord]] = {}
    places: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        line = f"{name} line {number}"
        record = restored(ProfileRecord, entry.get("record"), f"{line}: record")
        groups.setdefault(entry["key"].rpartition("/")[0], []).append(record)
        where = object_in(entry, "environment", line)
        places.setdefault(repr(where), where)
    records = [joined(group) for group in groups.values()]
    measured = sum(record.skipped is None for record in records)
    points = f"{measured} point{'s' * (measured != 1)} measured, {len(records) - measured} skipped"
    summary = {
        "answer": ". ".join(filter(None, (points, answer(records).removesuffix(".")))) + ".",
        "measured": measured,
        "skipped": len(records) - measured,
        "processes": max((len(group) for group in groups.values()), default=0),
        "environments": list(places.values()),
        "time": time_spent(records),
    }
    return Report("sweep", records, summary, next(iter(places.values()), {}))


#: Fields that a point's wall time is split into.
TIMES = ("measured_s", "compile_s", "overhead_s", "start_s")


def time_spent(records: Sequence[ProfileRecord]) -> dict[str, float | None]:
    """Return the seconds of the measured points by purpose, and the share of overhead.

    ``overhead_share`` is of measuring and overhead, without compiling and process starts. Imports,
    planning and writing are in none of them.
    """
    done = [record for record in records if record.skipped is None]
    spent = {name: _total(done, name) or 0.0 for name in TIMES}
    whole = spent["measured_s"] + spent["overhead_s"]
    return {**spent, "overhead_share": spent["overhead_s"] / whole if whole else None}


def _total(records: Sequence[ProfileRecord], name: str) -> float | None:
    known = [value for record in records if (value := getattr(record, name)) is not None]
    return fsum(known) if known else None


def joined(records: Sequence[ProfileRecord]) -> ProfileRecord:
    """Return one record for a point that several processes measured: all times, one interval."""
    timed = [record for record in records if record.skipped is None and record.times_s]
    if len(records) == 1 or not timed:
        return records[0]
    failed = [record.skipped for record in records if record.skipped]
    totals: dict[str, Any] = {name: _total(timed, name) for name in TIMES}
    conditions = joined_conditions([record.conditions for record in timed])
    notes = [*timed[0].differences, *(f"a process gave no times: {why}" for why in failed)]
    together = replace(
        timed[0],
        times_s=[time for record in timed for time in record.times_s],
        cpu_times_s=[time for record in timed for time in record.cpu_times_s],
        **totals,
        differences=list(dict.fromkeys(notes)),
    )
    estimate = estimate_over_processes([record.times_s for record in timed])
    return with_times(together, estimate, conditions)


#: Fields in which two curves must agree to be compared.
_SIZES = (
    "phase", "causal", "compiled", "dtype", "batch_size", "d_model", "num_heads", "scope", "device",
)  # fmt: skip


def curve_crossings(reports: Sequence[Report]) -> list[tuple[ProfileRecord, float, float]]:
    """Return where median times of two mechanisms cross, at equal sizes on one device.

    Each is a record of the first, the length and the time, interpolated on a log-log plot.
    """
    curves: dict[Any, dict[int, ProfileRecord]] = {}
    for record in by_device(reports, ProfileRecord):
        key = (tuple(getattr(record, n) for n in _SIZES), record.mechanism, str(record.params))
        if record.median_s:
            curves.setdefault(key, {})[record.seq_len] = record
    crossings = []
    for ((a, name, _), first), ((b, other, _), second) in combinations(curves.items(), 2):
        for low, high in pairwise(sorted(set(first) & set(second)) if a == b else ()):
            start, end, its_start, its_end = (
                math.log(curve[n].median_s or 1) for curve in (first, second) for n in (low, high)
            )
            if (start - its_start) * (end - its_end) < 0 and name != other:
                share = (start - its_start) / (start - its_start - end + its_end)
                time = math.exp(start + share * (end - start))
                crossings.append((first[low], low * (high / low) ** share, time))
    return crossings
