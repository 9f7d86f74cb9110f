"""What has no noise, compared exactly: any increase is worse, and every change has a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from attnprof.gate.cases import Counted
from attnprof.gate.changes import Change, changes
from attnprof.gate.formulas import compare_formulas
from attnprof.gate.rules import ERROR, IMPROVED, MISSING, NEW, OK, REGRESSED, WHOLE
from attnprof.record import CheckRecord
from attnprof.units import format_count

#: Changes named by name; the rest is counted.
_MOST_NAMED = 3
_BYTES = ("bytes_moved", "peak_bytes")


def compare(case: str, baseline: Counted | None, current: Counted | None) -> list[CheckRecord]:
    """A record for every metric and formula, the equal ones too; one where a side has nothing."""
    if unable := _unable(baseline, current):
        verdict, why = unable
        return [CheckRecord(case=case, metric=WHOLE, verdict=verdict, why=why)]
    assert baseline is not None
    assert current is not None
    found = changes(baseline, current)
    names = dict.fromkeys((*baseline.metrics, *current.metrics))
    records = [_metric(case, name, baseline, current, found) for name in names]
    places = {f"formula:{record.metric}": record.place for record in records}
    for record in compare_formulas(case, baseline, current):
        changed = record.verdict in (REGRESSED, IMPROVED) and found
        place = (places.get(record.metric) or found[0].line) if changed else ""
        records.append(replace(record, place=place))
    return records


def _unable(baseline: Counted | None, current: Counted | None) -> tuple[str, str] | None:
    """The verdict on a whole case where there is nothing to compare, and why."""
    if current is None or current.missing:
        said = f": {current.error}" if current and current.error else ""
        return MISSING, f"it is not there any more{said}"
    if current.error is not None:
        return ERROR, current.error
    if baseline is None or baseline.missing:
        return NEW, "nothing to compare with yet"
    if baseline.error is not None:
        return ERROR, f"nothing to compare with, the baseline failed: {baseline.error}"
    return None


def _metric(
    case: str, name: str, baseline: Counted, current: Counted, found: Sequence[Change]
) -> CheckRecord:
    before, now = baseline.metrics.get(name), current.metrics.get(name)
    unit = "B" if name in _BYTES else ""
    record = CheckRecord(
        case=case, metric=name, baseline=before, current=now, verdict=OK, unit=unit
    )
    if before is None:
        return replace(record, verdict=NEW, why="not counted in the baseline")
    if now is None:
        return replace(record, verdict=MISSING, why="not counted any more")
    amount = now - before
    seen = _SEEN.get(name, attrgetter("flops"))
    causes = [change for change in found if seen(change)]
    if name not in _SEEN and (same := [c for c in causes if c.flops == amount]):
        causes = same[:1]
    else:  # the largest first; all where none went the same way
        along = [change for change in causes if seen(change) * amount > 0]
        causes = sorted(along or causes, key=lambda change: -abs(seen(change)))
    return replace(
        record,
        ratio=now / before if before else None,
        verdict=OK if now == before else REGRESSED if now > before else IMPROVED,
        place=causes[0].line if causes and now != before else "",
        why=_explanation(name, now - before, causes, current.sizes),
    )


#: What of a change a metric sees; FLOPs by kind are not named apart by operation.
_SEEN: Mapping[str, Callable[[Change], int]] = {
    "bytes_moved": lambda change: change.bytes_moved,
    "peak_bytes": lambda change: change.held,
    "parameters": lambda _: 0,
    "dispatched_operations": lambda change: change.times,
    "uncounted_operations": lambda change: change.times if not change.flops else 0,
    "unknown_scratch": lambda change: change.times,
}


def _explanation(name: str, amount: int, causes: Sequence[Change], sizes: Mapping[str, int]) -> str:
    texts = [change.text(sizes) for change in causes[:_MOST_NAMED]]
    if len(causes) > _MOST_NAMED:
        texts.append(f"and {len(causes) - _MOST_NAMED} more")
    named = "; ".join(texts)
    if amount == 0:
        return f"as many, but others: {named}" if name == "dispatched_operations" and named else ""
    if name == "parameters":
        return f"{format_count(abs(amount))} {'more' if amount > 0 else 'fewer'}"
    if name == "peak_bytes" and not any(change.held * amount > 0 for change in causes):
        longer = "longer" if amount > 0 else "shorter"
        return f"results are held {longer}" + (f"; changed: {named}" if named else "")
    return named
