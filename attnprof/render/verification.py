"""Printed formulas beside ours on the terminal: the verdicts, then each formula's own block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from attnprof.record import Report, VerificationRecord
from attnprof.render.derivation import name_of, shape_text, shapes_text, value_text
from attnprof.render.terminal import is_narrow, new_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Columns of the Markdown table.
PAGE = (
    "of", "scope", "phase", "causal", "quantity", "where", "up_to", "printed", "ours", "verdict",
    "why", "domain", "skipped",
)  # fmt: skip


def verification_tables(report: Report) -> list[RenderableType]:
    """An overview where there are several formulas, then a block a formula."""
    records = [record for record in report.records if isinstance(record, VerificationRecord)]
    blocks: list[RenderableType] = [_overview(records)] if len(records) > 1 else []
    for place, record in enumerate(records, start=1):
        number = f"{place}. " if len(records) > 1 else ""
        blocks += [Text(f"{number}{_title(record)}", style="bold"), _formulas(record)]
        blocks += [Padding(Text(line), (0, 0, 0, 1)) for line in _lines(record)]
        blocks.append("")
    return blocks


def verification_page(report: Report) -> str:
    """A Markdown table of the verdicts; JSON and CSV have the rest."""
    from attnprof.render.markdown import render_markdown

    return render_markdown(report, PAGE)


def _title(record: VerificationRecord) -> str:
    causal = "causal " if record.causal else ""
    scope = f" {record.scope}" if record.scope else ""
    return f"{record.of}{scope}: {name_of(record.quantity)}, {causal}{record.phase}"


def _overview(records: Sequence[VerificationRecord]) -> Table:
    table = new_table()
    for name in ("row", "of", "phase", "quantity", "printed", "verdict"):
        table.add_column(name, justify="right" if name == "row" else "left", overflow="fold")
    for place, record in enumerate(records, start=1):
        cells = (record.of, record.phase, record.quantity, record.printed, _verdict(record))
        table.add_row(*map(Text, (str(place), *cells)))
    return table


def _verdict(record: VerificationRecord) -> str:
    if record.verdict is None:
        return "not compared"
    return record.verdict if record.up_to == "exact" else f"{record.verdict} ({record.up_to})"


def _formulas(record: VerificationRecord) -> Table:
    table = new_table()
    table.add_column("")
    table.add_column("formula", overflow="fold")
    for shape in record.values:
        table.add_column(shape_text(shape["sizes"]), justify="right", overflow="fold")
    short = is_narrow()
    for title, name in (("printed", "printed"), (record.kind, "ours")):
        numbers = [value_text(shape[name], record.quantity, short=short) for shape in record.values]
        table.add_row(*map(Text, (title, getattr(record, name) or "no formula", *numbers)))
    return table


def _lines(record: VerificationRecord) -> Iterator[str]:
    why = f": {record.why}" if record.why else ""
    yield f"{_verdict(record)}{why}{record.skipped or ''}"
    if record.verdict is None:
        return
    if record.leading_agrees is not None and record.up_to == "exact":
        same = "the same" if record.leading_agrees else f"{record.leading_ours} against printed "
        yield f"leading terms: {same}{'' if record.leading_agrees else record.leading_printed}"
    if record.where:
        yield f"where {', '.join(f'{name} = {meaning}' for name, meaning in record.where.items())}"
    yield from _found(record.domain, record.verified_at, record.method)
    yield from (f"note: {line}" for line in record.notes)


def _found(
    domain: Sequence[str], verified_at: Sequence[Mapping[str, Any]], method: str | None
) -> Iterator[str]:
    if domain:
        yield f"ours holds for: {'; '.join(domain)}"
    if verified_at:
        yield f"ours is {method}; runs agree at {shapes_text(verified_at)}"
