"""A device as it was measured: its ceilings, and seconds of single operations by size."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnprof.device.ceilings import RATES, Ceilings, is_ceiling, names
from attnprof.device.checked_layers import SelfCheck
from attnprof.device.tables import TimeTable
from attnprof.errors import RequestError
from attnprof.record.files import REPORT_LIMIT, read_json, write_whole
from attnprof.record.recognition import SCHEMA, reading_back
from attnprof.record.report import fits

#: Versions of the tables of a CPU and of a GPU; others are measured anew.
VERSION, GPU_VERSION = 5, 5


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

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.ceilings.name, "device": self.device, "threads": self.threads,
            **{name: getattr(self.ceilings, name) for name in RATES},
            "version": version_of(self.device),
            **{name: getattr(self, name) for name in _MORE},
            "checks": {dtype: check.to_lists() for dtype, check in self.checks.items()},
            "tables": {
                dtype: {name: [[*place, seconds] for place, seconds in table.seconds.items()]
                        for name, table in named.items()}
                for dtype, named in self.tables.items()
            },
        }  # fmt: skip

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Calibration":
        """What :meth:`to_dict` wrote; tables of another version are left out."""
        rates = {name: entry[name] for name in RATES}
        same = entry.get("version") == version_of(entry["device"])
        tables = {
            dtype: {
                name: TimeTable({tuple(place): seconds for *place, seconds in rows})
                for name, rows in named.items()
            }
            for dtype, named in (entry["tables"] if same else {}).items()
        }
        more = {name: entry[name] for name in _MORE if name in entry} if same else {}
        checks = {
            dtype: SelfCheck.from_lists(rows)
            for dtype, rows in (entry.get("checks", {}) if same else {}).items()
        }
        return cls(
            Ceilings(entry["name"], **rates, measured=True), entry["device"], entry["threads"],
            tables, **more, checks=checks,
        )  # fmt: skip


def version_of(device: str) -> int:
    """The version of the tables that are measured on a device, ``cpu`` or one of CUDA's."""
    return GPU_VERSION if device.startswith("cuda") else VERSION


_ENTRY = {"name": str, "device": str, "threads": int, **RATES}
_MORE = {
    "fault_s": float, "repeatability": float | None, "cpu_share": float | None,
    "unsteadiness": float | None, "reference_s": float | None, "processors": int | None,
    "conditions": dict[str, str],
}  # fmt: skip
_ANEW = "move it away and run attnprof calibrate"


def default_path() -> Path:
    """Where calibrations are kept unless said otherwise: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "attnprof" / "calibration.json"


def save(found: Calibration, path: Path, *, force: bool = False) -> None:
    """Add or replace a calibration in a whole file; ``force`` overwrites what is none."""
    try:
        with reading_back():
            there = entries(path)
    except RequestError:
        if not force:
            raise
        there = []
    kept = [entry for entry in there if (entry["name"], entry["threads"]) != found.key]
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"schema": SCHEMA, "ceilings": [*kept, found.to_dict()]}
    write_whole(path, json.dumps(data, indent=1) + "\n")


def load(name: str, threads: int | None, path: Path | None = None) -> Calibration | None:
    """The calibration with so many threads, if any; RequestError for a file of another kind."""
    for entry in entries(default_path() if path is None else path):
        if (entry["name"], entry["threads"]) == (name, threads):
            return Calibration.from_dict(entry)
    return None


def elsewhere(name: str, path: Path | None = None) -> Calibration | None:
    """The last calibration of a device by words of its name, like ``H200``, with its tables."""
    kept = entries(default_path() if path is None else path)
    found = [Calibration.from_dict(entry) for entry in kept if names(name, entry["name"])]
    return next((one for one in reversed(found) if one.tables), None)


def entries(path: Path) -> list[dict[str, Any]]:
    """The devices of a calibration; :class:`RequestError` for a file that is none."""
    if not path.exists():
        return []
    data = read_json(path, REPORT_LIMIT, _ANEW)
    found = data.get("ceilings") if isinstance(data, dict) else None
    known = isinstance(found, list) and data.get("schema") == SCHEMA
    if not known or not all(_is_entry(entry) for entry in found or ()):
        raise RequestError(f"{path} is no calibration; {_ANEW}")
    return found or []


def _is_entry(entry: Any) -> bool:
    """Whether a value of a file is a calibration, with or without tables."""
    if not is_ceiling(entry, _ENTRY):
        return False
    if entry.get("version") != version_of(entry["device"]):
        return True  # ceilings alone, or tables of another version
    tables = entry.get("tables")
    return (
        all(fits(entry.get(name), hint) for name, hint in _MORE.items())
        and all(map(SelfCheck.is_listed, entry.get("checks", {}).values()))
        and fits(tables, dict[str, dict[str, list[list[float]]]])
        and all(map(_is_table, [rows for named in tables.values() for rows in named.values()]))
    )


def _is_table(rows: list[list[float]]) -> bool:
    """Whether rows are places of one grid with seconds above 0 at their ends."""
    lengths = {len(row) for row in rows}
    return (
        len(lengths) == 1 and min(lengths) > 1 and all(value > 0 for row in rows for value in row)
    )
