"""The records of ``check`` and ``baseline``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnprof.record.base import Record, column


def _values(title: str, kind: Any) -> Any:
    return field(default_factory=kind, metadata={"title": title, "unit": "", "format": "text"})


@dataclass(frozen=True, kw_only=True)
class CheckRecord(Record):
    """``check``: one metric of one case, before and now.

    ``baseline`` and ``current`` are exact integers, seconds (metric ``time``) or a formula's text
    (metrics ``formula:flops`` …); ``ratio`` is current / baseline with its bounds. ``why`` names
    what changed, or why nothing can be said. ``place`` is a line of the user's code. For times,
    ``pairs`` were taken, ``noise`` is half the bounds' distance as a share, ``wall_ratio`` the
    same by the wall clock, and ``log_ratios`` the pairs' raw values.
    """

    case: str = column("case")
    metric: str = column("metric")
    baseline: int | float | str | None = column("baseline", fmt="count")
    current: int | float | str | None = column("current", fmt="count")
    ratio: float | None = column("ratio", fmt="ratio")
    ci_low: float | None = column("low", fmt="ratio")
    ci_high: float | None = column("high", fmt="ratio")
    verdict: str = column("verdict")
    why: str = column("why", default="")
    unit: str = column("unit", default="")
    place: str = column("place", default="")
    pairs: int | None = column("pairs", fmt="count")
    noise: float | None = column("noise", fmt="percent")
    wall_ratio: float | None = column("wall ratio", fmt="ratio")
    log_ratios: list[float] = _values("log ratios", list)


@dataclass(frozen=True, kw_only=True)
class BaselineRecord(Record):
    """``baseline``: what one case counted and how long it took.

    ``request`` is the case as asked, ``rule`` what its times are judged by, ``metrics`` exact
    integers by name, ``formulas`` closed forms by quantity, ``operations`` rows of op, part, line,
    times, bytes_moved, flops, and dtype and shape of the result, ``times_s`` processor seconds a
    call, one list a process. ``error`` says why there is nothing.
    """

    case: str = column("case")
    request: dict[str, Any] = _values("request", dict)
    rule: str = column("rule", default="default")
    metrics: dict[str, int] = _values("metrics", dict)
    formulas: dict[str, str] = _values("formulas", dict)
    no_formula: str = column("why no formula", default="")
    operations: list[dict[str, Any]] = _values("operations", list)
    times_s: list[list[float]] = _values("times", list)
    error: str | None = column("error")


@dataclass(frozen=True, kw_only=True)
class SelfTestRecord(Record):
    """``check --self-test``: how often code slower by ``slowdown`` was called so on this machine.

    ``regressed`` of ``trials`` are false alarms where ``slowdown`` is 0. ``ratio``, ``noise`` and
    ``case_s`` are medians over the trials.
    """

    slowdown: float = column("slower by", fmt="percent")
    rule: str = column("rule")
    trials: int = column("trials", fmt="count")
    regressed: int = column("regressed", fmt="count")
    inconclusive: int = column("inconclusive", fmt="count")
    ratio: float = column("ratio found", fmt="ratio")
    noise: float = column("noise", fmt="percent")
    case_s: float = column("a case", fmt="time")
