"""A device's calibration: ceilings, tables of single operations, checked layers; its file.

Predicted times rest on measurements of the device that are made once and kept in a JSON file.
:class:`Calibration` holds one device with one number of threads; :func:`load`, :func:`save` and
:func:`entries` read and write the file, and refuse values that would give no times.
:func:`with_roofline` sets measured times against the least that the ceilings allow.
"""

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cache
from math import exp, prod
from pathlib import Path
from typing import Any

from attnprof.arguments import shown
from attnprof.device.ceilings import RATES, Ceilings, is_ceiling, is_named, stated_ceilings
from attnprof.device.checked_layers import CheckedLayer, SelfCheck
from attnprof.device.tables import Benchmark, TimeTable
from attnprof.errors import RequestError
from attnprof.processes.folders import locked_folder
from attnprof.record import ProfileRecord, Report
from attnprof.record.files import REPORT_LIMIT, read_json, write_whole
from attnprof.record.recognition import SCHEMA, reading_back, writers_of
from attnprof.record.report import fits
from attnprof.units import joined, plural

#: Versions of the tables of a CPU and of a GPU; tables of another version are measured again.
VERSION, GPU_VERSION = 9, 5


@dataclass(frozen=True)
class Calibration:
    """The measurements of a device with a number of threads.

    ``tables``: seconds by number format and benchmark (:mod:`attnprof.device.benchmarks`).
    ``fault_s``: seconds per byte of memory that is used for the first time. ``repeatability``:
    typical relative difference of two measurements of one call. ``unsteadiness``: standard
    deviation of the logarithm of the reference operation's time while calibrating.
    ``reference_s``: its usual seconds. ``cpu_share``: share of the processors that other programs
    left. ``processors``: multiprocessors of a GPU. ``checks``: checked layers by number format.
    ``conditions``: cores, wait policy, allocator and torch's version at that time.
    """

    ceilings: Ceilings
    device: str
    threads: int
    tables: Mapping[str, Mapping[str, TimeTable]] = field(default_factory=dict)
    fault_s: float = 0.0
    repeatability: float | None = None
    cpu_share: float | None = None
    unsteadiness: float | None = None
    reference_s: float | None = None
    processors: int | None = None
    checks: Mapping[str, SelfCheck] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """The device's name and the threads, which identify a calibration in a file."""
        return self.ceilings.name, self.threads

    @property
    def swing(self) -> float:
        """How many times as long as in its fast state the processor took in its slow state.

        Two speeds in equal shares have a standard deviation of half their difference. 1 if unknown.
        """
        return exp(2 * (self.unsteadiness or 0.0))

    def with_formats_of(self, before: "Calibration") -> "Calibration":
        """Return this calibration, with formats that only an earlier one has added.

        None that were measured under other conditions, whose times would not be told from these.
        """
        if before.conditions and self.conditions and before.conditions != self.conditions:
            return self
        rates = {**before.ceilings.flops_per_s, **self.ceilings.flops_per_s}
        ceilings = replace(self.ceilings, flops_per_s=rates)
        tables, checks = {**before.tables, **self.tables}, {**before.checks, **self.checks}
        return replace(self, ceilings=ceilings, tables=tables, checks=checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as plain values."""
        return {
            "name": self.ceilings.name, "device": self.device, "threads": self.threads,
            **{name: getattr(self.ceilings, name) for name in RATES},
            "version": version_of(self.device),
            **{name: getattr(self, name) for name in _MORE},
            "checks": {
                dtype: [list(astuple(layer)) for layer in check.layers]
                for dtype, check in self.checks.items()
            },
            "tables": {
                dtype: {name: [[*place, seconds] for place, seconds in table.seconds.items()]
                        for name, table in named.items()}
                for dtype, named in self.tables.items()
            },
        }  # fmt: skip

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Calibration":
        """Return the calibration of :meth:`to_dict`'s values, without tables of another version."""
        rates = {name: entry[name] for name in RATES}
        is_current = entry.get("version") == version_of(entry["device"])
        tables = {
            dtype: {
                name: TimeTable({tuple(place): seconds for *place, seconds in rows})
                for name, rows in named.items()
            }
            for dtype, named in (entry["tables"] if is_current else {}).items()
        }
        more = (
            {name: entry[name] for name in _MORE if entry.get(name) is not None}
            if is_current
            else {}
        )
        checks = {
            dtype: SelfCheck(tuple(CheckedLayer(*row) for row in rows))
            for dtype, rows in (entry.get("checks", {}) if is_current else {}).items()
        }
        return cls(
            Ceilings(entry["name"], **rates, measured=True), entry["device"], entry["threads"],
            tables, **more, checks=checks,
        )  # fmt: skip


def version_of(device: str) -> int:
    """Return the current version of the tables of a device: ``cpu`` or one of CUDA's."""
    return GPU_VERSION if device.startswith("cuda") else VERSION


_ENTRY = {"name": str, "device": str, "threads": int, **RATES}
#: Types of further values and the largest plausible number of each (seconds, shares, counts);
#: larger ones would make predictions infinite.
_MORE: Mapping[str, tuple[Any, float]] = {
    "fault_s": (float, 1.0), "repeatability": (float | None, 10.0),
    "cpu_share": (float | None, 1.0), "unsteadiness": (float | None, 10.0),
    "reference_s": (float | None, 1e6), "processors": (int | None, 1e6),
    "conditions": (dict[str, str] | None, 0.0),
}  # fmt: skip
_MOST_THREADS = 10**6
#: Least and most seconds of an operation in a table, and the largest size of an operand.
_LEAST_S, _MOST_S, _MOST_SIZE = 1e-60, 1e6, 10**15
#: Most times as long as a larger operation a smaller one may take. A change of kernels makes up to
#: a factor of ten (sums on a GPU); more than this is no measurement.
MOST_FALL = 100.0
#: Most combinations of a table's sizes; a calibration has at most a few hundred.
_MOST_PLACES = 100_000


def default_path() -> Path:
    """Return the default file of calibrations, in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "attnprof" / "calibration.json"


def save(calibration: Calibration, path: Path, *, force: bool = False) -> None:
    """Write a calibration into a file, next to those of other devices and numbers of threads.

    Earlier formats of the same device and threads stay if their tables have the current version
    and were measured under the same conditions.
    ``force`` overwrites a file that holds no calibrations. The folder is locked meanwhile, so that
    calibrations that end at the same time lose nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(path.resolve().parent):
        try:
            with reading_back():
                saved = entries(path)
        except RequestError:
            if not force:
                raise
            saved = []
        others = [entry for entry in saved if (entry["name"], entry["threads"]) != calibration.key]
        for entry in saved:
            if entry not in others and entry.get("version") == version_of(calibration.device):
                calibration = calibration.with_formats_of(Calibration.from_dict(entry))
        data = {"schema": SCHEMA, "ceilings": [*others, calibration.to_dict()]}
        write_whole(path, json.dumps(data, indent=1) + "\n")


def load(name: str, threads: int | None, path: Path | None = None) -> Calibration | None:
    """Return the calibration of a device with a number of threads in a file; None if missing."""
    for entry in entries(path or default_path()):
        if (entry["name"], entry["threads"]) == (name, threads):
            return Calibration.from_dict(entry)
    return None


def load_by_words(
    name: str, path: Path | None = None, threads: int | None = None
) -> Calibration | None:
    """Return the last calibration with tables of a device by words of its name, like ``H200``.

    ``threads``: a CPU's calibration has to be with so many; None for any. Raises
    :class:`RequestError` if there are only others, or if several devices have these words; or
    tables of another version, of a device whose maker's figures are not known either.
    """
    loaded = map(Calibration.from_dict, entries(path or default_path()))
    named = [one for one in loaded if is_named(name, one.ceilings.name)]
    matches = [one for one in named if one.tables]
    if named and not matches and stated_ceilings(name) is None:
        raise RequestError(
            f"--on {name}: {named[-1].ceilings.name} was calibrated by another version of "
            "attnprof: type attnprof calibrate there"
        )
    exact = [one for one in matches if is_named(one.ceilings.name, name)]
    names = list(dict.fromkeys(one.ceilings.name for one in exact or matches))
    if len(names) > 1:
        raise RequestError(f"--on {name}: {joined(names)} were calibrated: type more of the name")
    fitting = [
        one for one in exact or matches if one.device != "cpu" or threads in (None, one.threads)
    ]
    if matches and not fitting:
        counts = joined([plural(one.threads, "thread") for one in exact or matches])
        raise RequestError(f"--on {name}: calibrated with {counts}, not with {threads}")
    return fitting[-1] if fitting else None


def calibrated_names(path: Path | None = None) -> list[str]:
    """Return the names of the devices that a file has calibrations of."""
    return list(dict.fromkeys(entry["name"] for entry in entries(path or default_path())))


def entries(path: Path) -> list[dict[str, Any]]:
    """Return a file's calibrations as plain values; :class:`RequestError` if it is damaged."""
    if not path.exists():
        return []
    advice = "name another file, or move it away and run attnprof calibrate"
    if "calibrate --calibration" in writers_of(path):  # attnprof wrote it: deleting it is safe
        advice = f"delete it (rm {shlex.quote(str(path))}) and run attnprof calibrate"
    data = read_json(path, REPORT_LIMIT, advice)
    listed = data.get("ceilings") if isinstance(data, dict) else None
    if not isinstance(listed, list) or data.get("schema") != SCHEMA:
        raise RequestError(f"{path} is no calibration; {advice}")
    for number, entry in enumerate(listed):
        if fault := _fault_of_entry(entry):
            raise RequestError(f"{path} is no calibration: ceilings[{number}] {fault}; {advice}")
    return listed


def _fault_of_entry(entry: Any) -> str:
    """Return what is wrong with a calibration's values, as the end of a sentence; "" if nothing."""
    if not is_ceiling(entry, _ENTRY):
        return "has no name, device, threads or rates above 0"
    if not 1 <= entry["threads"] <= _MOST_THREADS:
        return f"has threads {entry['threads']}"
    if entry.get("version") != version_of(entry["device"]):
        return ""  # only the ceilings are read then
    for name, (hint, limit) in _MORE.items():
        value = entry.get(name)
        beyond = isinstance(value, (int, float)) and not 0 <= value <= limit
        if not fits(value, hint) or beyond:
            return f"has {name} {shown(value)}"
    return _fault_of_tables(entry.get("tables"), entry.get("checks", {}))


def _fault_of_tables(tables: Any, checks: Any) -> str:
    """Return what is wrong with tables or checked layers, as the end of a sentence."""
    if not isinstance(checks, dict) or not all(map(SelfCheck.is_listed, checks.values())):
        return "has checks that are no lists of layers"
    if not fits(tables, dict[str, dict[str, list[list[float]]]]):
        return "has no tables of numbers"
    for dtype, named in tables.items():
        for name, rows in named.items():
            if not _is_table(rows):
                return f"has no table {shown(name)} of {shown(dtype)}"
    return ""


def _is_table(rows: list[list[float]]) -> bool:
    """Return whether rows are equally many sizes each, followed by plausible seconds."""
    lengths = {len(row) for row in rows}
    return len(lengths) == 1 and min(lengths) > 1 and all(
        _LEAST_S <= seconds <= _MOST_S
        and all(isinstance(size, int) and 0 < size <= _MOST_SIZE for size in place)
        for *place, seconds in rows
    )  # fmt: skip


def check_tables(tables: Mapping[str, TimeTable], expected: Iterable[Benchmark]) -> None:
    """Raise :class:`RequestError` if a table is missing, has other sizes, or falls with size.

    Tables of pointwise arithmetic ("of …") may be missing: they are priced as multiplications.
    """
    for benchmark in expected:
        if (table := tables.get(benchmark.name)) is None:
            if benchmark.name.startswith("of ") and benchmark.name != "of mul":
                continue
            raise RequestError(f"it has no table of {benchmark.name}")
        sizes = len(benchmark.axes or benchmark.scattered[0])
        if len(table.axes) != sizes:
            raise RequestError(
                f"its table of {benchmark.name} has {len(table.axes)} sizes, not {sizes}"
            )
        if not benchmark.scattered and prod(map(len, table.axes)) > _MOST_PLACES:
            raise RequestError(f"its table of {benchmark.name} is no grid")
        if fall := None if benchmark.scattered else table.fall(MOST_FALL):
            less, more = (f"{table.seconds[place]:.1e} s for {place}" for place in fall)
            raise RequestError(
                f"its table of {benchmark.name} falls with size, from {less} to {more}"
            )


# -- roofline: measured times against the least that ceilings allow --------------------
def roofline(flops: int, bytes_moved: int, ceilings: Ceilings, rate: float) -> tuple[float, str]:
    """Return the least seconds of FLOPs at ``rate`` and bytes, and the limit: compute or memory.

    The roofline model of Williams, Waterman and Patterson.
    """
    compute, memory = flops / rate, bytes_moved / ceilings.bytes_per_s
    return max(compute, memory), "compute" if compute >= memory else "memory"


def ceilings_of(environment: Mapping[str, Any], path: Path | None = None) -> Ceilings | None:
    """Return a device's calibrated ceilings, else its maker's, else None."""
    name = str(environment.get("device_name") or "")
    calibration = load(name, environment.get("threads"), path)
    return calibration.ceilings if calibration else stated_ceilings(name)


def with_roofline(report: Report, path: Path | None = None) -> Report:
    """Return the report with each record's roofline, or the advice to calibrate in its summary.

    A record of a sweep has that of the device and the threads that it was measured with.
    """

    @cache
    def of_device(name: Any, threads: Any) -> Ceilings | None:
        return ceilings_of({"device_name": name, "threads": threads}, path)

    def bounded(record: ProfileRecord) -> ProfileRecord:
        where = _environment_of(record, report)
        if (ceilings := of_device(where.get("device_name"), where.get("threads"))) is None:
            return record
        return _with_fraction(record, ceilings, tf32=bool(where.get("tf32")))

    first = of_device(report.environment.get("device_name"), report.environment.get("threads"))
    if first is None:
        advice = "no ceilings known for this device: run attnprof calibrate"
        return replace(report, summary={**report.summary, "roofline": advice})
    records = [bounded(one) if isinstance(one, ProfileRecord) else one for one in report.records]
    fields = asdict(first)
    fields = {"device": fields.pop("name"), **fields}
    return replace(report, records=records, summary={**report.summary, "roofline": fields})


def _environment_of(record: ProfileRecord, report: Report) -> Mapping[str, Any]:
    """Return the environment of a sweep that has a record's device and threads, or the report's."""
    here = record.device, record.conditions.get("threads")
    environments: Any = report.summary.get("environments", ())
    same = (one for one in environments if (one.get("device"), one.get("threads")) == here)
    return next(same, report.environment)


def _with_fraction(record: ProfileRecord, ceilings: Ceilings, *, tf32: bool) -> ProfileRecord:
    """Return a record with its roofline; unchanged if its time, counts or rate are unknown."""
    rate = ceilings.rate(record.dtype, tf32=tf32)
    flops = record.flops_formula or record.flops_derived
    if not (rate and record.median_s and flops and record.bytes_moved) or record.contradicted:
        return record
    time_s, bound = roofline(flops, record.bytes_moved, ceilings, rate)
    share = time_s / record.median_s
    return replace(record, roofline_time_s=time_s, bound=bound, roofline_fraction=share)
