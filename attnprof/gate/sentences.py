"""What happened to a metric, in words that every output uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnprof.record import CheckRecord
from attnprof.units import format_bytes, format_count, format_time

TIME = "time"
#: The metric of a record that speaks for a whole case: one that could not run, or is new.
WHOLE = "case"


def values_text(record: CheckRecord) -> str:
    """``1,024 → 2,048 (2.000×)``; what is not known, and formulas, are left to ``why``."""
    if record.metric == TIME:
        return time_text(record)
    before, after = (_value(x, record.unit) for x in (record.baseline, record.current))
    if not before and not after:
        return ""
    ratio = f" ({record.ratio:.3f}×)" if record.ratio is not None else ""
    return f"{before or '–'} → {after or '–'}{ratio}"


def _value(value: Any, unit: str) -> str:
    """Bytes as people read them and as they are compared."""
    if value is None or isinstance(value, str):
        return ""
    if unit == "s":
        return format_time(value)
    exact = format_count(value)
    if unit not in ("bytes", "B"):
        return exact
    short = format_bytes(value)
    return short if short == f"{exact} B" else f"{short} [{exact}]"


def time_text(record: CheckRecord | None) -> str:
    """``1.103× (1.085 to 1.121)``: the ratio of times with its bounds, where there is one."""
    if record is None or record.ratio is None:
        return ""
    if record.ci_low is None or record.ci_high is None:
        return f"{record.ratio:.3f}×"
    return f"{record.ratio:.3f}× ({record.ci_low:.3f} to {record.ci_high:.3f})"


def sentence(record: CheckRecord) -> str:
    """What happened to one metric: its name, its values, why."""
    name = "" if record.metric == WHOLE else record.metric
    head = " ".join(part for part in (name, values_text(record)) if part)
    return ": ".join(part for part in (head, record.why) if part) or record.verdict


def told_once(records: Sequence[CheckRecord]) -> list[CheckRecord]:
    """The same with reasons that an earlier one has left out, for readers."""
    seen: set[str] = set()
    found = []
    for record in records:
        again = record.why in seen and record.why != ""
        found.append(replace(record, why="as above", place="") if again else record)
        seen.add(record.why)
    return found
