"""What has no noise, compared exactly: any increase is worse, and every change has a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from attnprof.gate.cases import Counted
from attnprof.gate.changes import Change, changes
from attnprof.gate.formulas import compare_formulas
from attnprof.gate.rules import ERROR, IMPROVED, MISSING, NEW, OK, REGRESSED
from attnprof.record import CheckRecord
from attnprof.units import format_count

#: Changes named by name; the rest is counted.
_MOST_NAMED = 3
_BYTES = ("bytes_moved", "peak_bytes")


def compare(case: str, baseline: Counted | None, current: Counted | None) -> list[CheckRecord]:
    """A record for every metric and formula, the equal ones too; one where a side has nothing."""
    unable = _unable(case, baseline, current)
    if unable is not None or baseline is None or current is None:
        return [unable] if unable else []
    found = changes(baseline, current)
    names = dict.fromkeys((*baseline.metrics, *current.metrics))
    records = [_metric(case, name, baseline, current, found) for name in names]
    places = {record.metric: record.place for record in records}
    lines = [change.line for change in found]
    return [
        *records,
        *(
            replace(record, place=places.get(record.metric.partition(":")[2]) or lines[0])
            if record.verdict in (REGRESSED, IMPROVED) and lines
            else record
            for record in compare_formulas(case, baseline, current)
        ),
    ]


def _unable(case: str, baseline: Counted | None, current: Counted | None) -> CheckRecord | None:
    """One record of metric ``case`` where there is nothing to compare."""
    if current is None or current.missing:
        said = f": {current.error}" if current and current.error else ""
        return _case(case, MISSING, f"it is not there any more{said}")
    if current.error is not None:
        return _case(case, ERROR, current.error)
    if baseline is None or baseline.missing:
        return _case(case, NEW, "nothing to compare with yet")
    if baseline.error is not None:
        return _case(case, ERROR, f"nothing to compare with, the baseline failed: {baseline.error}")
    return None


def _case(case: str, verdict: str, why: str) -> CheckRecord:
    return CheckRecord(case=case, metric="case", verdict=verdict, why=why)


def _metric(
    case: str, name: str, baseline: Counted, current: Counted, found: Sequence[Change]
) -> CheckRecord:
    before, now = baseline.metrics.get(name), current.metrics.get(name)
    unit = "B" if name in _BYTES else ""
    if before is None or now is None:
        verdict, why = (NEW, "not counted in the baseline") if before is None else (
            MISSING, "not counted any more")  # fmt: skip
        return CheckRecord(case=case, metric=name, baseline=before, current=now, verdict=verdict,
                           why=why, unit=unit)  # fmt: skip
    causes = _causes(name, now - before, found)
    verdict = OK if now == before else REGRESSED if now > before else IMPROVED
    place = causes[0].line if causes and now != before else ""
    return CheckRecord(
        case=case, metric=name, baseline=before, current=now,
        ratio=now / before if before else None, verdict=verdict, unit=unit, place=place,
        why=_explanation(name, now - before, causes, current.sizes),
    )  # fmt: skip


#: What of a change a metric sees; FLOPs by kind are not named apart by operation.
_SEEN: Mapping[str, Callable[[Change], int]] = {
    "bytes_moved": lambda change: change.bytes_moved,
    "peak_bytes": lambda change: change.held,
    "parameters": lambda _: 0,
    "dispatched_operations": lambda change: change.times,
    "uncounted_operations": lambda change: change.times if not change.flops else 0,
    "unknown_scratch": lambda change: change.times,
}


def _causes(name: str, amount: int, found: Sequence[Change]) -> list[Change]:
    """The changes that made a metric more (or less), the largest first; all where none did."""
    seen = _SEEN.get(name, attrgetter("flops"))
    causes = [change for change in found if seen(change)]
    if name not in _SEEN and (same := [c for c in causes if c.flops == amount]):
        return same[:1]
    along = [change for change in causes if seen(change) * amount > 0]
    return sorted(along or causes, key=lambda change: -abs(seen(change)))


def _explanation(name: str, amount: int, causes: Sequence[Change], sizes: Mapping[str, int]) -> str:
    named = _named(causes, sizes)
    if amount == 0:
        return f"as many, but others: {named}" if name == "dispatched_operations" and named else ""
    if name == "parameters":
        return f"{format_count(abs(amount))} {'more' if amount > 0 else 'fewer'}"
    if name == "peak_bytes" and not any(change.held * amount > 0 for change in causes):
        longer = "longer" if amount > 0 else "shorter"
        return f"results are held {longer}" + (f"; changed: {named}" if named else "")
    return named


def _named(causes: Sequence[Change], sizes: Mapping[str, int]) -> str:
    texts = [change.text(sizes) for change in causes[:_MOST_NAMED]]
    if len(causes) > _MOST_NAMED:
        texts.append(f"and {len(causes) - _MOST_NAMED} more")
    return "; ".join(texts)
