"""Group the differences of a check by cause: a line of code, or else an operation or a metric.

One line that adds a clone may make five metrics of twenty cases worse. It is one cause, with the
range of ratios that it brings about in each metric.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from attnprof.gate import rules
from attnprof.gate.changes import Change, changes
from attnprof.gate.counts import Counted
from attnprof.gate.exact import SEEN
from attnprof.gate.rules import FORMULA, TIME, TOGETHER, WHOLE, Cause
from attnprof.record import CheckRecord

#: Metrics that are sums over operations: what each line adds is known.
_SUMS = {*SEEN, "flops"} - {"peak_bytes", "parameters"}
Lines = dict[str, list[Change]]


def causes(
    records: Sequence[CheckRecord], before: Mapping[str, Counted], after: Mapping[str, Counted],
    common: str | None = None,
) -> list[Cause]:  # fmt: skip
    """Return the causes of all differences in ``records``, worst first.

    ``before`` and ``after`` map each case to what the two sides counted. Times with the reason
    ``common`` to the whole run are no cause.
    """
    lines: dict[str, Lines] = {}
    groups: dict[tuple[str, ...], tuple[dict[str, None], list[CheckRecord]]] = {}
    for record in (record for record in records if rules.is_worth_showing(record, common)):
        case, changed_lines = record.case, Lines()
        if record.metric not in (TIME, WHOLE) and case in before and case in after:
            if case not in lines:
                lines[case] = _changes_by_line(changes(before[case], after[case]))
            changed_lines = lines[case]
        for line, part in _records_by_line(record, changed_lines):
            everything = [change for some in changed_lines.values() for change in some]
            names = _names(everything if line == TOGETHER else changed_lines.get(line, ()))
            operations, parts = groups.setdefault(_key(part, _path(line, case), names), ({}, []))
            operations |= dict.fromkeys(names)
            parts.append(part)
    if len({place for place, *_ in groups} - {""}) > 1 and (TOGETHER,) in groups:
        groups[TOGETHER,][0].clear()  # each line tells its own operations
    return sorted((_cause(place, *cause) for (place, *_), cause in groups.items()), key=_badness)


def _key(part: CheckRecord, place: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return what records of one cause share: a line, else operations, else verdict and reason."""
    if place or names:
        return (place,) if place else ("", *names)
    numbers = part.metric == TIME or part.verdict in (rules.REGRESSED, rules.IMPROVED)
    return ("", part.verdict, part.metric if numbers else part.why)


def _cause(place: str, operations: Mapping[str, None], parts: Sequence[CheckRecord]) -> Cause:
    metrics: dict[str, list[float | None]] = {}
    for part in parts:
        if part.metric != WHOLE and part.verdict != rules.OK:
            known = [x for x in (part.ratio, *metrics.get(part.metric, ())) if x is not None]
            metrics[part.metric] = [min(known, default=None), max(known, default=None)]
    named = operations or place == TOGETHER
    why = [part.why for part in parts if part.metric.startswith(FORMULA) or not named]
    if len(parts) == 1:
        why = [rules.time_text(parts[0]) if parts[0].metric == TIME else "", *why]
    return Cause(
        rules.worst(part.verdict for part in parts), place, [*operations], metrics,
        [*dict.fromkeys(filter(None, why))], [*dict.fromkeys(part.case for part in parts)],
    )  # fmt: skip


def _badness(cause: Cause) -> tuple[int, bool, float]:
    most = max((high for _, high in cause.metrics.values() if high is not None), default=0.0)
    return rules.WORST_FIRST.index(cause.verdict), cause.place == TOGETHER, -most


def _changes_by_line(found: Sequence[Change]) -> Lines:
    """Return changes by line.

    A cast back, or an operation in another format, counts at the line of the upcast before it.
    """
    lines = Lines()
    wide: str | None = None
    for change in found:
        opens = change.upcast and (wide is None or (change.casts and change.part == "forward"))
        wide = change.line if opens else wide
        follows = wide is not None and (change.casts or change.format)
        lines.setdefault(str(wide) if follows else change.line, []).append(change)
    # views that were written down without their lines accompany what is there
    if len(lines) > 1 and not any(change.is_work for change in lines.get("", ())):
        lines.pop("", None)
    return lines


def _records_by_line(record: CheckRecord, lines: Lines) -> Iterator[tuple[str, CheckRecord]]:
    """Yield a record with the line that caused it, or one record a line with that line's share."""
    if not lines:
        yield record.place, record
        return
    before, now = record.baseline, record.current
    amount = now - before if isinstance(before, int) and isinstance(now, int) else 0
    name = record.metric.removeprefix(FORMULA)
    see = SEEN.get(name, attrgetter("flops"))
    amounts = {line: n for line, some in lines.items() if (n := sum(map(see, some)))}
    if len(amounts) > 1 and amount and before and record.metric in _SUMS:
        for line, n in amounts.items():
            verdict = rules.REGRESSED if n > 0 else rules.IMPROVED
            yield line, replace(record, ratio=1 + n / float(before), verdict=verdict)
        return
    along = [line for line, n in amounts.items() if n * amount > 0] or [*amounts] or [*lines]
    if name not in SEEN and name != "flops":  # a kind of FLOPs: of the line that has most
        along = [max(along, key=lambda line: abs(amounts.get(line, 0)))]
    yield along[0] if len(along) == 1 else TOGETHER, record


def _names(some: Sequence[Change]) -> list[str]:
    """Return names of operations: without views and backward ones unless there is nothing else."""
    work = [change for change in some if change.is_work] or some
    ahead = [change for change in work if change.part != "backward"]
    return [change.name for change in ahead] or [f"{change.name} (backward)" for change in work]


def _path(line: str, case: str) -> str:
    """Return a line as ``src/my.py:15``: its file with the folders that the case's name has."""
    file, _, number = line.rpartition(":")
    named, there, _ = case.partition(".py:")
    path = Path(f"{named}.py")
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{path}:{number}" if there and file == path.name else line
