"""Printed formulas beside ours on the terminal: the verdicts, then each formula's own block."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import Report, VerificationRecord
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.formats import render_markdown
from attnprof.render.formulas import FormulaText
from attnprof.render.tables.derive import verified_text
from attnprof.render.terminal import quantity_value
from attnprof.units import format_count, quantity_text

#: Columns of the Markdown table.
PAGE = (
    "place", "of", "scope", "phase", "causal", "quantity", "where", "up_to", "printed", "ours",
    "verdict", "why", "domain", "skipped",
)  # fmt: skip

#: Characters of a formula that are shown; JSON and CSV have all.
READABLE, BRIEF = 240, 60
#: What our formula is by its kind.
_OURS = {"formula": "ours (closed form)", "derived": "ours (from the code)"}


def tables(report: Report) -> Iterator[RenderableType]:
    """A block a formula; of several an overview, and blocks of those that do not match."""
    records = report.of(VerificationRecord)
    several = len(records) > 1
    if several:
        if answer := report.summary.get("answer"):
            yield Text(f"{str(answer)[:1].upper()}{str(answer)[1:]}.", style="bold")
        yield _overview(records)
    for row, record in enumerate(records, start=1):
        if several and record.verdict == "match":
            continue
        number = f"{row}. " if several else ""
        place = f"{record.place}: " if record.place else ""
        scope = f" {record.scope}" if record.scope else ""
        what = f"{quantity_text(record.quantity)}, {'causal ' * record.causal}{record.phase}"
        title = f"{number}{place}{record.of}{scope}, {what}: {_verdict(record)}"
        yield Text(title, style="bold")
        same = "the printed formula grows like ours"
        same = same if record.up_to == "order" else "both are the same"
        why = record.why or record.skipped or same
        yield from (Hanging(f"{why[:1].upper()}{why[1:]}."), "")
        sides = {"printed": record.printed, _OURS.get(record.kind, record.kind): record.ours}
        rows = ((title, _shown(formula)) for title, formula in sides.items())
        yield FittedTable("", "formula", rows=rows)
        if record.values:
            yield _values(record)
        yield from map(Hanging, _lines(record))
        yield ""


def page(report: Report, **_how: object) -> str:
    """A Markdown table of the verdicts; JSON and CSV have the rest."""
    records = [replace(r, ours=_shown(r.ours).plain) for r in report.of(VerificationRecord)]
    return render_markdown(replace(report, records=records), PAGE)


def _shown(formula: str | None, most: int = READABLE) -> FormulaText:
    return FormulaText.brief("no formula" if formula is None else formula, most)


def _overview(records: Sequence[VerificationRecord]) -> FittedTable:
    placed = any(record.place for record in records)
    several = ["quantity"] * (len({record.quantity for record in records}) > 1)
    names = ["row", "place" if placed else "of", *several, "printed", "ours", "verdict"]
    table = FittedTable(*names, right=["row"])
    for row, record in enumerate(records, start=1):
        where = record.place if placed else f"{record.of}, {record.phase}"
        quantity = [quantity_text(record.quantity)] * len(several)
        leading = record.leading_ours if record.up_to == "order" else None
        sides = FormulaText(record.printed), _shown(leading or record.ours, BRIEF)
        table.add_row(str(row), where, *quantity, *sides, _verdict(record))
    return table


def _verdict(record: VerificationRecord) -> str:
    if record.verdict is None:
        return "not compared"
    return record.verdict if record.up_to == "exact" else f"{record.verdict} ({record.up_to})"


def _values(record: VerificationRecord) -> FittedTable:
    """Both at a few sizes."""
    sizes, sides = record.values[0]["sizes"], ("printed", "ours")
    rows = ([*map(format_count, shape["sizes"].values()),
             *(quantity_value(shape[name], record.quantity) for name in sides)]
            for shape in record.values)  # fmt: skip
    return FittedTable(*sizes, *sides, rows=rows, right=[*sizes, *sides], keys=len(sizes))


def _lines(record: VerificationRecord) -> Iterator[str]:
    if record.verdict is None:
        return
    if record.leading_agrees is not None and record.up_to == "exact":
        ours, printed = record.leading_ours, record.leading_printed
        others = "the same" if record.leading_agrees else f"ours {ours}, printed {printed}"
        yield f"leading terms: {others}"
    if record.where:
        yield f"where {', '.join(f'{name} = {meaning}' for name, meaning in record.where.items())}"
    if record.domain:
        yield f"our formula holds for {'; '.join(record.domain)}"
    if record.verified_at:
        runs = verified_text(record.verified_at)
        yield f"our formula ({record.method}) agrees with runs of the code at {runs}"
    yield from (f"note: {line}" for line in record.notes)
