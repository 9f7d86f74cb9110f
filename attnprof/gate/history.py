"""Order saved results by time and find where the level of each case and metric changed.

:func:`history_report` is the entry point. Counts have no noise: any other value is a change. Times
are searched by Pelt with a cost of absolute deviations, which a single slow run does not move; a
change of level must repay ``PENALTY`` times the noise times the logarithm of the number of runs.
Measured on simulated series with 2 % noise and one slow run in twenty: a step of a tenth is found
at its run, give or take one, in 90 of 100 series of ten runs and 95 of 100 longer ones; in 98 of
100 flat ones nothing is found.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from attnprof.arguments import shown
from attnprof.errors import RequestError, closest
from attnprof.gate.rules import TIME
from attnprof.record import BaselineRecord, CheckRecord, HistoryRecord, Report
from attnprof.record.files import REPORT_LIMIT
from attnprof.record.report import object_in

PENALTY = 2.5
#: Least number of runs at a level of times; a single one may be chance.
LEAST = 3
#: Noise of times is never taken to be less than this share.
LEAST_NOISE = 0.005


@dataclass(frozen=True)
class SavedResult:
    """A saved result: its time, commit, machine, and values by (case, metric)."""

    file: str
    at: datetime
    dated: bool
    commit: str
    machine: str
    values: Mapping[tuple[str, str], int | float]


def history_report(
    folder: str | Path, case: str | None = None, metrics: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:  # fmt: skip
    """Return every run of the selected series; ``tell`` gets a line for a file left out."""
    runs, left_out = _runs(Path(folder))
    if not runs:
        reason = "; ".join(left_out) or "it has no .json files"
        raise RequestError(
            f"no results in {folder}: {reason}; save some there: attnprof check … --output "
            f"{Path(folder) / 'NAME.json'} --format json"
        )
    for run in left_out:
        tell(f"left out {run}")
    records = list(_records(runs))
    if case is not None:
        cases = list(dict.fromkeys(record.case for record in records))
        records = [record for record in records if case in record.case]
        if not records:
            raise RequestError(f"--case {case}: no case has it; {closest(case, cases)}")
    possible = sorted({record.metric for record in records})
    for name in metrics or ():
        if name not in possible:
            raise RequestError(f"--metric {name}: {closest(name, possible)}")
    records = [record for record in records if record.metric in (metrics or possible)]
    summary = {
        "runs": len(runs), "series": len({(r.case, r.metric, r.machine) for r in records}),
        "change_points": sum(record.change_point for record in records), "left_out": left_out,
    }  # fmt: skip
    return Report("history", records, summary)


def _runs(folder: Path) -> tuple[list[SavedResult], list[str]]:
    """Return the folder's results, by date or else by name, and why files were left out."""

    def natural(path: Path) -> list[tuple[int, str]]:  # run10 after run9
        parts = re.findall(r"\d+|\D+", path.name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    if not folder.is_dir():
        raise RequestError(f"{folder} is no folder: give the one that results were saved to")
    runs, left_out = [], []
    try:
        paths = sorted(folder.glob("*.json"), key=natural)
    except OSError as error:
        raise RequestError(f"cannot read {folder}: {error.strerror}") from error
    for path in paths:
        try:
            runs.append(_run(path))
        except RequestError as error:
            left_out.append(f"{path.name}: {error}")
    if all(run.dated for run in runs):
        runs.sort(key=lambda run: run.at)
    return runs, left_out


def _run(path: Path) -> SavedResult:
    """Return a saved report of check or baseline with its date, commit, machine and values."""
    report = Report.load(path, REPORT_LIMIT)
    if report.command not in ("check", "baseline"):
        raise RequestError(f"a report of {report.command}, not of check or baseline")
    environment = report.environment
    date = environment.get("time")
    try:
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        at = datetime.fromisoformat(date) if date else changed
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        at.astimezone(UTC)  # raises here, not when runs are sorted
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{path}: environment.time is {shown(date)}, no date") from error
    commit = str(environment.get("git") or report.summary.get("head") or "")
    values = {
        (case, metric): value for case, metric, value in _values(report)
        if case and isinstance(value, int | float) and math.isfinite(value) and value >= 0
    }  # fmt: skip
    fingerprint = object_in(report.summary, "fingerprint", f"{path}: summary")
    facts = {name: value for name, value in fingerprint.items() if name != "attnprof"}
    machine = f"not known ({path.name})"  # a machine of its own
    if facts:  # the device's name, and a few letters of the digest of all facts
        text = json.dumps(facts, sort_keys=True).encode()
        machine = f"{facts.get('device_name') or 'unnamed'} #{sha256(text).hexdigest()[:6]}"
    return SavedResult(path.name, at, bool(date), commit, machine, values)


def _values(report: Report) -> Iterator[tuple[str, str, Any]]:
    for record in report.records:
        if isinstance(record, CheckRecord):
            yield record.case, record.metric, record.current
        elif isinstance(record, BaselineRecord):
            yield from ((record.case, name, value) for name, value in record.metrics.items())
            if medians := [median(times) for times in record.times_s if times]:
                yield record.case, TIME, median(medians)


def _records(runs: Sequence[SavedResult]) -> Iterator[HistoryRecord]:
    """Yield runs by series (case, metric and, for times, machine), each with its level."""
    by_series: dict[tuple[str, str, str], list[tuple[int, SavedResult, int | float]]] = {}
    for number, run in enumerate(runs, 1):
        for (case, metric), value in run.values.items():
            machine = run.machine if metric == TIME else ""
            by_series.setdefault((case, metric, machine), []).append((number, run, value))
    for (case, metric, machine), series in by_series.items():
        values = [value for _, _, value in series]
        starts = time_changes(values) if metric == TIME else count_changes(values)
        before = None
        for start, end in pairwise([0, *starts, len(values)]):
            level = median(values[start:end])
            for place in range(start, end):
                number, run, value = series[place]
                first = before is not None and place == start
                yield HistoryRecord(
                    case=case, metric=metric, machine=machine, at=run.at.isoformat(),
                    commit=run.commit, file=run.file, run=number, value=value,
                    unit="s" if metric == TIME else "B" if "bytes" in metric else "", level=level,
                    change_point=first, ratio=level / before if first and before else None,
                )  # fmt: skip
            before = level


def count_changes(values: Sequence[float]) -> list[int]:
    """Return the positions at which a value differs from the one before."""
    return [place for place, (a, b) in enumerate(pairwise(values), 1) if a != b]


def time_changes(values: Sequence[float]) -> list[int]:
    """Return the positions at which a level of times begins; none if two levels cannot fit.

    Noise is the standard deviation by the median step between neighbours, which levels do not
    enter; a little more for few runs, where that median may be small by chance.
    """
    import numpy as np
    import ruptures

    if len(values) < 2 * LEAST or min(values) <= 0:
        return []
    logs = np.log(np.asarray(values, dtype=float))
    step = float(np.median(np.abs(np.diff(logs))))
    noise = max(step / (0.6745 * math.sqrt(2)) * (1 + 2 / logs.size), LEAST_NOISE)
    search = ruptures.Pelt(model="l1", min_size=LEAST, jump=1).fit(logs)
    return [int(place) for place in search.predict(pen=PENALTY * noise * math.log(logs.size))[:-1]]
