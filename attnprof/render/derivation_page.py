"""A derivation as a Markdown page: formulas, conditions, then operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attnprof.record import DeriveRecord, Report
from attnprof.record.escaping import markdown_code, markdown_text
from attnprof.record.recognition import mark
from attnprof.render.derivation import (
    calls_text,
    how_found,
    name_of,
    peak_lines,
    shape_text,
    shapes_text,
    value_text,
)
from attnprof.units import format_bytes


def derivation_page(report: Report) -> str:
    """The whole page."""
    return "\n".join([*_page(report), "", mark("derive")]) + "\n"


def _page(report: Report) -> Iterator[str]:
    summary = report.summary
    yield f"# {markdown_text(summary['name'])}\n"
    yield f"Inputs: {_codes(summary['inputs'])}; {summary['dtype']}."
    yield f"Symbols: {_codes(summary['symbols'])}."
    if summary["at"]:
        yield f"Values at {shape_text(summary['at'])}."
    for line in summary["notes"]:
        yield f"\n{markdown_text(_capital(line))}."
    records = [record for record in report.records if isinstance(record, DeriveRecord)]
    for phase, found in summary["phases"].items():
        yield f"\n## {phase}\n"
        yield from _formulas([record for record in records if record.phase == phase])
        yield ""
        yield from _how(found)
        yield from _lines(found)
        yield from _steps(found)


def _formulas(rows: Sequence[DeriveRecord]) -> Iterator[str]:
    yield "| quantity | formula | value |"
    yield "| --- | --- | ---: |"
    for row in rows:
        bound = "at least " if row.bound != "exact" else ""
        formula = markdown_code(row.expression) if row.expression is not None else "no formula"
        value = "" if row.value is None else value_text(row.value, row.quantity)
        yield f"| {name_of(row.quantity)} | {bound}{formula} | {value} |"


def _how(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"- Holds for: {_codes(found['domain']) or 'all sizes'}"
    yield f"- Method: {markdown_text(how_found(found))}"
    if found["verified_at"] and found["method"] != "counted":
        yield f"- Verified by runs at {shapes_text(found['verified_at'])}"
    if found["uncounted"]:
        names = markdown_text(", ".join(found["uncounted"]))
        yield f"- Not counted: {names}; totals are lower bounds"
    yield from (f"- Note: {markdown_text(line)}" for line in dict.fromkeys(found["notes"]))
    peak = found.get("peak", {})
    if len(peak.get("regimes", ())) > 1:
        yield "- The peak is the largest of:"
        for regime in peak["regimes"]:
            value = "" if regime["value"] is None else f" = {format_bytes(regime['value'])}"
            yield f"  - {markdown_code(regime['expression'])}{value}"
    yield from (f"- {markdown_text(_capital(line))}" for line in peak_lines(peak))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    if not found.get("lines"):
        return
    yield "\n### By line\n"
    yield "| line | operations | FLOPs | bytes |"
    yield "| --- | ---: | --- | --- |"
    for row in found["lines"]:
        if (row["flops"], row["bytes_moved"]) == ("0", "0"):
            continue
        flops, moved = markdown_code(row["flops"]), markdown_code(row["bytes_moved"])
        line = markdown_text(row["line"] or "between lines")
        yield f"| {line} | {calls_text([row])} | {flops} | {moved} |"


def _steps(found: Mapping[str, Any]) -> Iterator[str]:
    if not found.get("steps"):
        return
    yield "\n### Operation by operation\n"
    rows = [row for row in found["steps"] if any(row[name] != "0" for name in _COSTS)]
    yield f"Views ({len(found['steps']) - len(rows)}), which cost nothing, are left out.\n"
    held = ("allocates", "frees_before")
    shown = [name for name in ("bytes_moved", *held) if any(row[name] != "0" for row in rows)]
    heads = ["line", "part", "operation", "FLOPs", *(_HEADS[name] for name in shown)]
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join(['---'] * len(heads))} |"
    for row in rows:
        flops = "not counted" if row["uncounted"] else _size(row["flops"])
        line, part, operation = (markdown_text(row[n]) for n in ("line", "part", "operation"))
        several = "" if row["calls"] == 1 else f" ×{calls_text([row])}"
        cells = (line, part, f"{operation}{several}", flops)
        yield f"| {' | '.join((*cells, *(_size(row[name]) for name in shown)))} |"


_HEADS = {"bytes_moved": "bytes", "allocates": "allocates", "frees_before": "freed before"}
_COSTS = ("flops", "bytes_moved", "allocates", "frees_before")


def _size(size: str) -> str:
    return "" if size == "0" else markdown_code(size)


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(markdown_code, texts))


def _capital(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}"
