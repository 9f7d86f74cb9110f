"""A device as it was measured: ceilings, seconds of single operations by size, checked layers."""

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from math import ceil, exp, log, prod
from pathlib import Path
from statistics import median
from typing import Any

from attnprof.arguments import shown
from attnprof.device.ceilings import RATES, Ceilings, is_ceiling, names, stated
from attnprof.device.tables import Benchmark, TimeTable
from attnprof.errors import RequestError
from attnprof.processes.folders import locked_folder
from attnprof.record import ProfileRecord, Report
from attnprof.record.files import REPORT_LIMIT, read_json, write_whole
from attnprof.record.recognition import SCHEMA, reading_back, writers_of
from attnprof.record.report import fits

#: The share of predictions whose time lies in their interval.
COVERED = 0.95


@dataclass(frozen=True)
class CheckedLayer:
    """A layer that was predicted and timed; seconds."""

    mechanism: str
    phase: str
    seq_len: int
    num_heads: int
    head_dim: int
    predicted_s: float
    measured_s: float

    @property
    def residual(self) -> float:
        """The logarithm of measured over predicted."""
        return log(self.measured_s / self.predicted_s)


@dataclass(frozen=True)
class SelfCheck:
    """What checked layers tell of predictions on their device."""

    layers: tuple[CheckedLayer, ...]

    @staticmethod
    def is_listed(rows: Any) -> bool:
        """Return whether a value of a file has a list of plain values for each layer."""
        hints = list(CheckedLayer.__annotations__.values())
        return isinstance(rows, list) and len(rows) > 1 and all(
            isinstance(row, list) and len(row) == len(hints) and all(map(fits, row, hints))
            and min(row[-2:]) > 0
            for row in rows
        )  # fmt: skip

    def bias(self, phase: str) -> float:
        """Return the median residual of a phase's layers, by which its predictions are corrected.

        Of a phase without layers, the median of all.
        """
        return median(self._residuals(phase) or [layer.residual for layer in self.layers])

    def _residuals(self, phase: str) -> list[float]:
        return [layer.residual for layer in self.layers if layer.phase == phase]

    @property
    def scores(self) -> list[float]:
        """How far each layer's residual lies from the median of its phase's others, in order."""
        scores = []
        for phase in dict.fromkeys(layer.phase for layer in self.layers):
            residuals = self._residuals(phase)
            for place, residual in enumerate(residuals):
                others = residuals[:place] + residuals[place + 1 :]
                scores.append(abs(residual - median(others or residuals)))
        return sorted(scores)

    @property
    def median_error(self) -> float:
        """The median share by which a corrected prediction is off, as a factor minus one."""
        return exp(median(self.scores)) - 1

    @property
    def reach(self) -> float:
        """The half width of an interval of 95 %, in logarithms: the score that 95 % stay below.

        One more layer is as likely to have any rank among the scores (split conformal prediction).
        """
        scores = self.scores
        return scores[min(len(scores), ceil(COVERED * (len(scores) + 1))) - 1]

    def __str__(self) -> str:
        return (
            f"on this device median error {self.median_error:.0%}, at most "
            f"{exp(self.scores[-1]) - 1:.0%} in {len(self.layers)} layers drawn at random"
        )


#: Versions of the tables of a CPU and of a GPU; others are measured anew.
VERSION, GPU_VERSION = 8, 5


@dataclass(frozen=True)
class Calibration:
    """What is known of a device, with so many threads.

    ``tables`` are seconds by number format and benchmark (:mod:`attnprof.device.benchmarks`),
    ``fault_s`` those of a byte of memory used for the first time. ``repeatability`` is the typical
    difference between two measurements of the same, as a share; ``unsteadiness`` the standard
    deviation, in logarithms, of how slow the processor was meanwhile, ``reference_s`` the usual
    time of the operation that showed it; ``cpu_share`` the share of it that the calibration had.
    ``processors`` are a GPU's multiprocessors, ``checks`` the layers by number format that its
    predictions were held against, ``conditions`` what it was made under (cores, wait policy,
    allocator, torch's version).
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
        """What calibrations of a file are told apart by."""
        return self.ceilings.name, self.threads

    def with_formats_of(self, before: "Calibration") -> "Calibration":
        """Return this calibration with the formats that were measured before only."""
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
            "checks": {x: [list(astuple(one)) for one in y.layers] for x, y in self.checks.items()},
            "tables": {
                dtype: {name: [[*place, seconds] for place, seconds in table.seconds.items()]
                        for name, table in named.items()}
                for dtype, named in self.tables.items()
            },
        }  # fmt: skip

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Calibration":
        """Return what :meth:`to_dict` wrote; tables of another version are left out."""
        rates = {name: entry[name] for name in RATES}
        same = entry.get("version") == version_of(entry["device"])
        tables = {
            dtype: {
                name: TimeTable({tuple(place): seconds for *place, seconds in rows})
                for name, rows in named.items()
            }
            for dtype, named in (entry["tables"] if same else {}).items()
        }
        more = {name: entry[name] for name in _MORE if entry.get(name) is not None} if same else {}
        checks = {
            dtype: SelfCheck(tuple(CheckedLayer(*row) for row in rows))
            for dtype, rows in (entry.get("checks", {}) if same else {}).items()
        }
        return cls(
            Ceilings(entry["name"], **rates, measured=True), entry["device"], entry["threads"],
            tables, **more, checks=checks,
        )  # fmt: skip


def version_of(device: str) -> int:
    """Return the version of the tables for a device, ``cpu`` or one of CUDA's."""
    return GPU_VERSION if device.startswith("cuda") else VERSION


_ENTRY = {"name": str, "device": str, "threads": int, **RATES}
#: Types of further values, and the most that a device can have; beyond it predictions are no
#: numbers.
_MORE: Mapping[str, tuple[Any, float]] = {
    "fault_s": (float, 1.0), "repeatability": (float | None, 10.0),
    "cpu_share": (float | None, 1.0), "unsteadiness": (float | None, 10.0),
    "reference_s": (float | None, 1e6), "processors": (int | None, 1e6),
    "conditions": (dict[str, str] | None, 0.0),
}  # fmt: skip
_MOST_THREADS = 10**6
#: Seconds of an operation and sizes of its operands lie between these.
_LEAST_S, _MOST_S, _MOST_SIZE = 1e-60, 1e6, 10**15
#: So many times as long as more of it an operation takes by no kernel: some that kernels treat in
#: another way take ten times as long (sums so far, on a GPU).
MOST_FALL = 100.0
#: Combinations of a table's sizes; a calibration has at most a few hundred.
_MOST_PLACES = 100_000


def default_path() -> Path:
    """Return where calibrations are kept unless said otherwise: in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "attnprof" / "calibration.json"


def save(calibration: Calibration, path: Path, *, force: bool = False) -> None:
    """Add a calibration to a whole file, format by format; ``force`` overwrites what is none.

    Formats of the same device and threads that were calibrated before stay, those of another
    version do not. Calibrations that end at the same time wait for each other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(path.resolve().parent):
        try:
            with reading_back():
                there = entries(path)
        except RequestError:
            if not force:
                raise
            there = []
        kept = [entry for entry in there if (entry["name"], entry["threads"]) != calibration.key]
        for entry in there:
            if entry not in kept and entry.get("version") == version_of(calibration.device):
                calibration = calibration.with_formats_of(Calibration.from_dict(entry))
        data = {"schema": SCHEMA, "ceilings": [*kept, calibration.to_dict()]}
        write_whole(path, json.dumps(data, indent=1) + "\n")


def load(name: str, threads: int | None, path: Path | None = None) -> Calibration | None:
    """Return the calibration with so many threads, if any."""
    for entry in entries(path or default_path()):
        if (entry["name"], entry["threads"]) == (name, threads):
            return Calibration.from_dict(entry)
    return None


def elsewhere(name: str, path: Path | None = None) -> Calibration | None:
    """Return the last calibration of a device by words of its name, like ``H200``."""
    saved = entries(path or default_path())
    same = [Calibration.from_dict(entry) for entry in saved if names(name, entry["name"])]
    return next((one for one in reversed(same) if one.tables), None)


def entries(path: Path) -> list[dict[str, Any]]:
    """Return the devices of a calibration; :class:`RequestError` for a file that is none."""
    if not path.exists():
        return []
    advice = "name another file, or move it away and run attnprof calibrate"
    if "calibrate --calibration" in writers_of(path):  # only one of ours may be deleted
        advice = f"delete it (rm {shlex.quote(str(path))}) and run attnprof calibrate"
    data = read_json(path, REPORT_LIMIT, advice)
    listed = data.get("ceilings") if isinstance(data, dict) else None
    if not isinstance(listed, list) or data.get("schema") != SCHEMA:
        raise RequestError(f"{path} is no calibration; {advice}")
    for number, entry in enumerate(listed):
        if why := _why_no_entry(entry):
            raise RequestError(f"{path} is no calibration: ceilings[{number}] {why}; {advice}")
    return listed


def _why_no_entry(entry: Any) -> str:
    """Return why a value of a file is no calibration; empty where it is one."""
    if not is_ceiling(entry, _ENTRY):
        return "has no name, device, threads or rates above 0"
    if not 1 <= entry["threads"] <= _MOST_THREADS:
        return f"has threads {entry['threads']}"
    if entry.get("version") != version_of(entry["device"]):
        return ""  # ceilings alone, or tables of another version
    for name, (hint, most) in _MORE.items():
        value = entry.get(name)
        beyond = isinstance(value, (int, float)) and not 0 <= value <= most
        if not fits(value, hint) or beyond:
            return f"has {name} {shown(value)}"
    return _why_no_tables(entry.get("tables"), entry.get("checks", {}))


def _why_no_tables(tables: Any, checks: Any) -> str:
    """Return why an entry's tables or checked layers are none; empty where they are."""
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
    """Return whether rows are places of one grid, with seconds at their ends."""
    lengths = {len(row) for row in rows}
    return len(lengths) == 1 and min(lengths) > 1 and all(
        _LEAST_S <= seconds <= _MOST_S
        and all(isinstance(size, int) and 0 < size <= _MOST_SIZE for size in place)
        for *place, seconds in rows
    )  # fmt: skip


def check_tables(tables: Mapping[str, TimeTable], expected: Iterable[Benchmark]) -> None:
    """Raise :class:`RequestError` if tables lack what is measured, have other sizes, or fall.

    Single operations may be missing: they are priced as multiplications.
    """
    for one in expected:
        if (table := tables.get(one.name)) is None:
            if one.name.startswith("of ") and one.name != "of mul":
                continue
            raise RequestError(f"it has no table of {one.name}")
        sizes = len(one.axes or one.scattered[0])
        if len(table.axes) != sizes:
            raise RequestError(f"its table of {one.name} has {len(table.axes)} sizes, not {sizes}")
        if not one.scattered and prod(map(len, table.axes)) > _MOST_PLACES:
            raise RequestError(f"its table of {one.name} is no grid")
        if fall := None if one.scattered else table.fall(MOST_FALL):
            less, more = (f"{table.seconds[place]:.1e} s for {place}" for place in fall)
            raise RequestError(f"its table of {one.name} falls with size, from {less} to {more}")


# -- measured times beside the least that ceilings allow (the roofline) ----------------
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
