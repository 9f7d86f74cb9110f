"""The records of ``history``."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.record.base import Record, column


@dataclass(frozen=True, kw_only=True)
class HistoryRecord(Record):
    """``history``: one metric of one case in one run.

    ``machine`` tells times of different machines apart and is empty for counts. ``level`` is the
    median of the runs between two change points; where ``change_point`` is true a level begins
    with this run, and ``ratio`` is it over the one before.
    """

    case: str = column("case")
    metric: str = column("metric")
    machine: str = column("machine", default="")
    at: str = column("at")
    commit: str = column("commit", default="")
    file: str = column("file")
    run: int = column("run", fmt="count")
    value: int | float = column("value", fmt="number")
    unit: str = column("unit", default="")
    level: int | float = column("level", fmt="number")
    change_point: bool = column("change point", default=False)
    ratio: float | None = column("ratio", fmt="ratio")
