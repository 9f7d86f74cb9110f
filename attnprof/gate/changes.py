"""Find the operations that appeared, vanished or grew between two sides, and their lines.

Lines shift when code above them changes, so operations are matched by name and part of the pass
(:func:`changes`). The line of a new operation is found by aligning the two sequences of operations,
as diff does. :func:`causes` groups differences of metrics by cause: a line of code, or else an
operation or a metric.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from operator import attrgetter
from pathlib import Path

from attnprof.gate import rules
from attnprof.gate.counts import Counted, Operation, Work
from attnprof.gate.rules import FORMULA, TIME, TOGETHER, WHOLE, Cause
from attnprof.record import CheckRecord
from attnprof.units import format_bytes, format_count

#: Number format and shape of a result.
Result = tuple[str, str]
_Rows = Sequence[Operation]
#: Bytes of an entry by number format; formats not listed have 1.
_BYTES = {
    "complex128": 16,
    **dict.fromkeys(("float64", "complex64", "int64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16"), 2),
}
_FLOATS = frozenset({"float64", "float32", "bfloat16", "float16"})
#: How many results a sentence names.
_SHOWN = 2
_CAST = "_to_copy to "


@dataclass(frozen=True)
class Change(Work):
    """The difference in one operation of one part between two sides; negative where it is less.

    ``line`` is where the operation is now or, if it vanished, where it was. ``gained`` and ``lost``
    are results that only one side has. ``upcast`` names a number format wider than any before.
    """

    gained: Mapping[Result, int]
    lost: Mapping[Result, int]
    upcast: str = ""

    @property
    def extra_bytes(self) -> int:
        """Return how many more bytes its results have than before; 0 for a view."""
        return _bytes(self.gained) - _bytes(self.lost) if self.bytes_moved else 0

    @property
    def casts(self) -> bool:
        """Return whether the operation only converts to another number format."""
        return self.op.startswith(_CAST)

    @property
    def format(self) -> str:
        """Return the new number format if as many results as before have another; else ""."""
        now, before = ({dtype for dtype, _ in side} for side in (self.gained, self.lost))
        other = not self.times and len(now) == len(before) == 1 and now != before
        return now.pop() if other else ""

    @property
    def name(self) -> str:
        """Return ``+clone``, ``−mul``, ``+cast to float64``, ``softmax in float64`` or the like."""
        name = self.op.replace(_CAST, "cast to ").lstrip("_")
        if self.times:
            return f"{'+' if self.times > 0 else '−'}{name}"
        if self.format:
            return f"{name} in {self.format}"
        more = self.bytes_moved or self.flops
        return f"{'larger' if more > 0 else 'smaller' if more else 'reshaped'} {name}"

    def text(self, sizes: Mapping[str, int]) -> str:
        """Return ``aten.clone ×1 more at attention.py:14 (float32 1×8×64), moves 8 MiB more``."""
        name = self.op if "." in self.op else f"aten.{self.op}"
        part = " (backward)" if self.part == "backward" else ""
        upcast = "upcast: " if self.upcast and self.casts else ""
        often = f" ×{abs(self.times)} {'more' if self.times > 0 else 'fewer'}" if self.times else ""
        was = "was " if self.times < 0 and not self.gained else ""
        place = f" {was}at {self.line}" if self.line else ""
        parts = [f"{upcast}{name}{part}{often}{place}{self._results(sizes)}"]
        if self.bytes_moved:
            parts.append(f"moves {_amount_text(self.bytes_moved, format_bytes, 'less')}")
        if self.flops:
            parts.append(f"{_amount_text(self.flops, format_count, 'fewer')} FLOPs")
        return ", ".join(parts)

    def _results(self, sizes: Mapping[str, int]) -> str:
        """Return the new results and, for as many calls as before, the replaced ones."""
        if not self.gained:
            return ""
        now, before = _results_text(self.gained, sizes), _results_text(self.lost, sizes)
        if self.times or not self.lost:
            return f" ({now})"
        if self.format:
            now, before = self.format, next(dtype for dtype, _ in self.lost)
        return f" ({now} instead of {before})"


def changes(baseline: Counted, current: Counted) -> list[Change]:
    """Return a change for each operation that differs, in the order of the current side."""
    before, now = baseline.operations, current.operations
    views = [[row for row in rows if not row.is_work] for rows in (before, now)]
    if any(rows and not any(row.line for row in rows) for rows in views):  # of an older layout
        before, now = without_views(before), without_views(now)
    moving = [[row for row in rows if row.is_work] for rows in (before, now)]
    if any(rows and not any(row.dtype for row in rows) for rows in moving):
        before, now = _without_results(before), _without_results(now)
    earlier = set(map(_key, before))
    first = {_key(r): [r.line] for r in reversed(current.operations) if _key(r) not in earlier}
    lines = first | {key: each for key, each in _lines(before, now).items() if any(each)}
    widest = max((_BYTES[r.dtype] for r in before if r.dtype in _FLOATS), default=8)
    result = []
    for key in dict.fromkeys(map(_key, (*now, *before))):
        old = [row for row in before if _key(row) == key]
        new = [row for row in now if _key(row) == key]
        by_line = {line: [row for row in new if row.line == line] for line in lines.get(key, ("",))}
        added = [row for rows in by_line.values() for row in rows]
        if len(by_line) > 1 and _results(old) + _results(added) == _results(new):
            old = []
        else:  # lines do not tell new calls from old ones
            by_line = {next(iter(by_line)): new}
        for line, rows in by_line.items():
            gained, lost = _results(rows) - _results(old), _results(old) - _results(rows)
            times, moved, flops = (b - a for a, b in zip(sums(old), sums(rows), strict=True))
            if times or moved or flops or gained or lost:
                wide = {dtype for dtype, _ in gained if dtype in _FLOATS and _BYTES[dtype] > widest}
                upcast = max(wide, default="")
                result.append(Change(*key, line, times, moved, flops, gained, lost, upcast))
    return result


def _key(row: Operation) -> tuple[str, str]:
    """Return the key to match operations by: name and part, and for a cast its new format."""
    cast = row.op == "_to_copy" and row.dtype
    return (f"{_CAST}{row.dtype}" if cast else row.op, row.part)


def sums(rows: _Rows) -> tuple[int, int, int]:
    """Return the calls, bytes moved and FLOPs of these rows."""
    return sum(r.times for r in rows), sum(r.bytes_moved for r in rows), sum(r.flops for r in rows)


def without_views(rows: _Rows) -> _Rows:
    """Return rows with all calls of a view in one row without a line, as in older layouts."""
    views: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if not row.is_work:
            views[row.op, row.part] += row.times
    kept = [row for row in rows if row.is_work]
    return [*kept, *(Operation(*key, "", times, 0, 0) for key, times in views.items())]


def _without_results(rows: _Rows) -> _Rows:
    """Return rows summed over number formats and shapes, as in layout 1."""
    groups: dict[tuple[str, str, str], list[Operation]] = {}
    for row in rows:
        groups.setdefault((row.op, row.part, row.line), []).append(row)
    return [Operation(*key, *sums(group)) for key, group in groups.items()]


def _results(rows: _Rows) -> Counter[Result]:
    """Return how many results the calls have, by number format and shape."""
    counts: Counter[Result] = Counter()
    for row in rows:
        if row.dtype:
            counts[row.dtype, row.shape] += row.times
    return counts


def _lines(before: _Rows, now: _Rows) -> dict[tuple[str, str], list[str]]:
    """Return the lines of each new operation or, if it only vanished, its line in the baseline.

    The sequences of operations of both sides are aligned; an operation without a counterpart is new
    or gone. A ``clone`` added next to an equal one leaves open which of the two is new: it is the
    one at a line that no line of the baseline became, else the first.
    """
    sides = [[replace(row, line="") for row in rows] for rows in (before, now)]
    moved: dict[str, Counter[str]] = {}
    gone: dict[tuple[str, str], str] = {}
    new: dict[tuple[str, str], str] = {}
    matcher = SequenceMatcher(None, sides[0], sides[1], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            for old, row in zip(before[i1:i2], now[j1:j2], strict=True):
                moved.setdefault(old.line, Counter())[row.line] += 1
            continue
        for rows, lines_of_side in ((before[i1:i2], gone), (now[j1:j2], new)):
            for row in rows:
                lines_of_side.setdefault(_key(row), row.line)
    new_line = {line: lines.most_common(1)[0][0] for line, lines in moved.items()}
    kept = {(_key(row), new_line.get(row.line)) for row in before}
    lost = {key for key, line in kept if line is None}
    added: dict[tuple[str, str], list[str]] = {}  # lines that no line of the baseline became
    for row in now:
        if _key(row) not in lost and (_key(row), row.line) not in kept:
            added.setdefault(_key(row), []).append(row.line)
    return {key: [line] for key, line in {**gone, **new}.items()} | added


def _bytes(results: Mapping[Result, int]) -> int:
    return sum(
        times * _BYTES.get(dtype, 1) * math.prod(map(int, filter(None, shape.split("×"))))
        for (dtype, shape), times in results.items()
    )


def _amount_text(value: int, written: Callable[[int], str], less: str) -> str:
    return f"{written(abs(value))} {'more' if value > 0 else less}"


def _results_text(results: Mapping[Result, int], sizes: Mapping[str, int]) -> str:
    """Return ``float32 1024×1024 (N×N)``, largest first; N×N only if no other size equals N."""
    n, width = sizes.get("N"), math.prod(sizes.get(name, 1) for name in "hd")
    others = {size for name, size in sizes.items() if name != "N"} | {width, 1}
    square = [] if n in others else [str(n)] * 2
    largest = sorted(results, key=lambda result: -_bytes({result: 1}))
    texts = [
        f"{dtype} {shape}".strip() + (" (N×N)" if shape.split("×")[-2:] == square else "")
        for dtype, shape in largest
    ]
    more = [f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join([*texts[:_SHOWN], *more])


#: How much a change adds to a metric. FLOPs by kind (additions …) are not known by operation.
AMOUNTS: Mapping[str, Callable[[Change], int]] = {
    "bytes_moved": lambda change: change.bytes_moved,
    "peak_bytes": lambda change: change.extra_bytes,
    "parameters": lambda _: 0,
    "dispatched_operations": lambda change: change.times,
    "uncounted_operations": lambda change: change.times if not change.flops else 0,
    "unknown_scratch": lambda change: change.times,
}
#: Metrics that are sums over operations: the share of each line is known.
_SUMS = {*AMOUNTS, "flops"} - {"peak_bytes", "parameters"}
Lines = dict[str, list[Change]]


def causes(
    records: Sequence[CheckRecord], before: Mapping[str, Counted], after: Mapping[str, Counted],
    common: str | None = None,
) -> list[Cause]:  # fmt: skip
    """Return the causes of all differences in ``records``, worst first.

    ``before`` and ``after`` map each case to the counts of the two sides. Times with the reason
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
            everything = [change for each in changed_lines.values() for change in each]
            names = _names(everything if line == TOGETHER else changed_lines.get(line, ()))
            key = _cause_key(part, _path(line, case), names)
            operations, parts = groups.setdefault(key, ({}, []))
            operations |= dict.fromkeys(names)
            parts.append(part)
    if len({place for place, *_ in groups} - {""}) > 1 and (TOGETHER,) in groups:
        groups[TOGETHER,][0].clear()  # each line tells its own operations

    def badness(cause: Cause) -> tuple[int, bool, float]:
        most = max((high for _, high in cause.metrics.values() if high is not None), default=0.0)
        return rules.WORST_FIRST.index(cause.verdict), cause.place == TOGETHER, -most

    return sorted((_cause(place, *cause) for (place, *_), cause in groups.items()), key=badness)


def _cause_key(part: CheckRecord, place: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the key of a cause: its line, else its operations, else verdict and reason."""
    if place or names:
        return (place,) if place else ("", *names)
    numbers = part.metric == TIME or part.verdict in (rules.REGRESSED, rules.IMPROVED)
    return ("", part.verdict, part.metric if numbers else part.why)


def _cause(place: str, operations: Mapping[str, None], parts: Sequence[CheckRecord]) -> Cause:
    """Return the cause of these records, with each metric's least and greatest ratio."""
    metrics: dict[str, list[float | None]] = {}
    for part in parts:
        if part.metric != WHOLE and part.verdict != rules.OK:
            ratios = [x for x in (part.ratio, *metrics.get(part.metric, ())) if x is not None]
            metrics[part.metric] = [min(ratios, default=None), max(ratios, default=None)]
    named = operations or place == TOGETHER
    why = [part.why for part in parts if part.metric.startswith(FORMULA) or not named]
    if len(parts) == 1:
        why = [rules.time_text(parts[0]) if parts[0].metric == TIME else "", *why]
    return Cause(
        rules.worst(part.verdict for part in parts), place, [*operations], metrics,
        [*dict.fromkeys(filter(None, why))], [*dict.fromkeys(part.case for part in parts)],
    )  # fmt: skip


def _changes_by_line(changes: Sequence[Change]) -> Lines:
    """Return changes by line.

    A cast back, or an operation in another format, counts at the line of the upcast before it.
    """
    lines = Lines()
    wide: str | None = None
    for change in changes:
        opens = change.upcast and (wide is None or (change.casts and change.part == "forward"))
        wide = change.line if opens else wide
        follows = wide is not None and (change.casts or change.format)
        lines.setdefault(str(wide) if follows else change.line, []).append(change)
    # views of older layouts have no line: they belong to the other changes
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
    amount_of = AMOUNTS.get(name, attrgetter("flops"))
    amounts = {line: n for line, each in lines.items() if (n := sum(map(amount_of, each)))}
    if len(amounts) > 1 and amount and before and record.metric in _SUMS:
        for line, n in amounts.items():
            verdict = rules.REGRESSED if n > 0 else rules.IMPROVED
            yield line, replace(record, ratio=1 + n / float(before), verdict=verdict)
        return
    along = [line for line, n in amounts.items() if n * amount > 0] or [*amounts] or [*lines]
    if name not in AMOUNTS and name != "flops":  # a kind of FLOPs: of the line that has most
        along = [max(along, key=lambda line: abs(amounts.get(line, 0)))]
    yield along[0] if len(along) == 1 else TOGETHER, record


def _names(changes: Sequence[Change]) -> list[str]:
    """Return names of operations: without views and backward ones unless there is nothing else."""
    work = [change for change in changes if change.is_work] or changes
    forward = [change for change in work if change.part != "backward"]
    return [change.name for change in forward] or [f"{change.name} (backward)" for change in work]


def _path(line: str, case: str) -> str:
    """Return a line as ``src/my.py:15``: its file with the folders that the case's name has."""
    file, _, number = line.rpartition(":")
    stem, is_file, _ = case.partition(".py:")
    path = Path(f"{stem}.py")
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{path}:{number}" if is_file and file == path.name else line
