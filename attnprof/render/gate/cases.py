"""A report of ``check`` by case, worst first: what every output says alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.gate.sentences import TIME
from attnprof.gate.verdicts import NOT_COMPARABLE, OK, REGRESSED, VERDICTS, WORST_FIRST, worst
from attnprof.record import CheckRecord, Report
from attnprof.units import format_value

#: Sentences of a kind that are told; a suite may have one for every case.
MOST = 6


@dataclass(frozen=True)
class CaseRows:
    """One case: its records, worst first."""

    name: str
    records: Sequence[CheckRecord]

    @property
    def verdict(self) -> str:
        """The worst of its records'."""
        return worst(record.verdict for record in self.records)

    @property
    def time(self) -> CheckRecord | None:
        """The record of its time, where it was timed."""
        return next((record for record in self.records if record.metric == TIME), None)

    @property
    def place(self) -> str:
        """The line of code of its worst record that knows one."""
        return next((record.place for record in self.records if record.place), "")


def by_case(report: Report) -> list[CaseRows]:
    """The report's cases, worst first, else in the order they were checked."""
    groups: dict[str, list[CheckRecord]] = {}
    for record in report.records:
        assert isinstance(record, CheckRecord)
        groups.setdefault(record.case, []).append(record)
    cases = [CaseRows(name, sorted(rows, key=_badness)) for name, rows in groups.items()]
    return sorted(cases, key=lambda case: _badness(case.records[0]))


def _badness(record: CheckRecord) -> tuple[int, float]:
    ratio = record.ratio if record.verdict == REGRESSED else None
    return WORST_FIRST.index(record.verdict), -(ratio or 0.0)


def named(case: CaseRows, report: Report) -> list[CheckRecord]:
    """The records of a case that have something to tell.

    Times that are not comparable for the reason the whole report has are told once, above.
    """
    common = report.summary.get("not_comparable")
    return [
        record
        for record in case.records
        if (record.verdict != OK or (record.why and record.metric != TIME))
        and not (record.verdict == NOT_COMPARABLE and common and record.why in ("", common))
    ]


def counts_text(report: Report) -> str:
    """``metrics of 3 cases: 2 regressed, 1 inconclusive, 30 ok``, the report's own numbers."""
    counts: Mapping[str, int] = report.summary.get("counts") or {}
    found = [f"{counts[verdict]} {verdict}" for verdict in WORST_FIRST if counts.get(verdict)]
    cases = len({getattr(record, "case", None) for record in report.records})
    said = f"metrics of {cases} case{'s' if cases != 1 else ''}"
    return f"{said}: {', '.join(found)}" if found else "nothing was checked"


def verdict_of(report: Report) -> str:
    """The report's verdict, as its summary says it."""
    told = str(report.summary.get("verdict") or "")
    return told if told in VERDICTS else worst(case.verdict for case in by_case(report))


def sides_text(report: Report) -> str:
    """``current against origin/main``: what was compared with what."""
    head = report.summary.get("head") or "this code"
    return f"{head} against {report.summary.get('base') or 'the baseline'}"


def notes_of(report: Report) -> list[str]:
    """What holds for the whole run: how it was judged, why not, and how well it could see."""
    summary = report.summary
    notes = [_judged(summary)]
    if summary.get("not_comparable"):
        notes.append(f"times are not comparable: {summary['not_comparable']}")
    for name in ("notes", "power"):
        texts = [str(text) for text in summary.get(name) or ()]
        more = [f"… and {len(texts) - MOST} more, in the JSON"] if len(texts) > MOST else []
        notes += [*texts[:MOST], *more]
    return [text for text in notes if text]


def _judged(summary: Mapping[str, Any]) -> str:
    parts = [f"rule {summary['rule']}"] if summary.get("rule") else []
    if summary.get("inconclusive"):
        parts.append(f"inconclusive: {summary['inconclusive']}")
    if summary.get("noise") is not None:
        parts.append(f"noise {format_value(summary['noise'], 'percent')}")
    if summary.get("spent_s") is not None:
        budget = summary.get("budget_s")
        of = f" of {budget:.0f} s" if budget is not None else ""
        parts.append(f"{summary['spent_s']:.0f} s{of} spent")
    if summary.get("exit_code") is not None:
        parts.append(f"exit code {summary['exit_code']}")
    return ", ".join(parts)
