"""Printed formulas beside ours on the terminal: the verdicts, then each formula's own block."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from attnprof.record import Report, VerificationRecord
from attnprof.render.formats import render_markdown
from attnprof.render.tables.derive import shape_text, verified_text
from attnprof.render.terminal import FittedTable, new_table, quantity_text, quantity_value

#: Columns of the Markdown table.
PAGE = (
    "place", "of", "scope", "phase", "causal", "quantity", "where", "up_to", "printed", "ours",
    "verdict", "why", "domain", "skipped",
)  # fmt: skip

#: Characters of a formula that are shown; JSON and CSV have all.
READABLE, BRIEF = 240, 60


def tables(report: Report) -> Iterator[RenderableType]:
    """A block a formula; of several an overview, and blocks of those that do not match."""
    records = report.of(VerificationRecord)
    several = len(records) > 1
    if several:
        yield _overview(records)
    for row, record in enumerate(records, start=1):
        if several and record.verdict == "match":
            continue
        number = f"{row}. " if several else ""
        place = f"{record.place}: " if record.place else ""
        scope = f" {record.scope}" if record.scope else ""
        what = f"{quantity_text(record.quantity)}, {'causal ' * record.causal}{record.phase}"
        yield Text(f"{number}{place}{record.of}{scope}, {what}", style="bold")
        yield _formulas(record)
        yield from (Padding(Text(line), (0, 0, 0, 1)) for line in _lines(record))
        yield ""


def page(report: Report, **_how: object) -> str:
    """A Markdown table of the verdicts; JSON and CSV have the rest."""
    records = [replace(r, ours=_shown(r.ours)) for r in report.of(VerificationRecord)]
    return render_markdown(replace(report, records=records), PAGE)


def _shown(formula: str | None, most: int = READABLE) -> str:
    """A formula, cut where it is longer than one can read."""
    if formula is None:
        return "no formula"
    return formula if len(formula) <= most else f"{formula[:most]} …"


def _overview(records: Sequence[VerificationRecord]) -> FittedTable:
    placed = any(record.place for record in records)
    names = ["row", "place" if placed else "of", "quantity", "printed", "ours", "verdict"]
    table = new_table(*names, right=["row"], fold=names)
    for row, record in enumerate(records, start=1):
        where = record.place if placed else f"{record.of}, {record.phase}"
        ours = _shown(record.ours, BRIEF)
        if record.up_to == "order" and record.leading_ours:
            ours = record.leading_ours
        table.add_row(str(row), where, record.quantity, record.printed, ours, _verdict(record))
    return table


def _verdict(record: VerificationRecord) -> str:
    if record.verdict is None:
        return "not compared"
    return record.verdict if record.up_to == "exact" else f"{record.verdict} ({record.up_to})"


def _formulas(record: VerificationRecord) -> FittedTable:
    shapes = [shape_text(shape["sizes"]) for shape in record.values]
    table = new_table("", "formula", *shapes, right=shapes, fold=["formula"])
    for title, name in (("printed", "printed"), (record.kind, "ours")):
        numbers = (quantity_value(shape[name], record.quantity) for shape in record.values)
        table.add_row(title, _shown(getattr(record, name)), *numbers)
    return table


def _lines(record: VerificationRecord) -> Iterator[str]:
    why = record.why or record.skipped
    yield f"{_verdict(record)}: {why}" if why else _verdict(record)
    if record.verdict is None:
        return
    if record.leading_agrees is not None and record.up_to == "exact":
        same = "the same" if record.leading_agrees else f"{record.leading_ours} against printed "
        yield f"leading terms: {same}{'' if record.leading_agrees else record.leading_printed}"
    if record.where:
        yield f"where {', '.join(f'{name} = {meaning}' for name, meaning in record.where.items())}"
    if record.domain:
        yield f"ours holds for: {'; '.join(record.domain)}"
    if record.verified_at:
        yield f"ours is {record.method}; runs agree at {verified_text(record.verified_at)}"
    yield from (f"note: {line}" for line in record.notes)
