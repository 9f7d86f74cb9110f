"""The tables of ``attnprof compare``: one a length, the winner marked in each column."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import CompareRecord, Report
from attnprof.render.fitted import FittedTable
from attnprof.render.terminal import answer_line, quantity_value, workload_text
from attnprof.units import quantity_text

WON = "*"
CAPTION = (
    f"{WON} marks the lowest of a column. FLOPs and bytes are those of the code as it runs, "
    "operations those of the definition. Peak memory is the most that a call allocates at once; "
    "state is what a decoder keeps after so many tokens."
)


def tables(report: Report, quantities: Sequence[str]) -> Iterator[RenderableType]:
    """A block a length."""
    yield from answer_line(report)
    for _, group in groupby(report.of(CompareRecord), key=lambda record: record.seq_len):
        rows = list(group)
        yield Text(workload_text(rows[0]), style="bold")
        heads = ["state" if name == "state_bytes" else quantity_text(name) for name in quantities]
        ran = [row for row in rows if not row.skipped]
        cells = ([Text(r.mechanism), *(_cell(r, name, ran) for name in quantities)] for r in ran)
        yield FittedTable("mechanism", *heads, rows=cells, right=heads)
        if refused := [f" skipped: {row.skipped}" for row in rows if row.skipped]:
            yield Text("\n".join([*refused, ""]))
    yield Text(CAPTION, style="dim")


def _cell(row: CompareRecord, name: str, rows: Sequence[CompareRecord]) -> Text:
    """A value, marked where it is the lowest and can be told from the others as they are shown."""
    text = quantity_value(getattr(row, name), name)
    others = {quantity_value(getattr(r, name), name) for r in rows}
    won = name in row.wins.split(",") and len(others) > 1
    return Text(f"{text} {WON if won else ' '}", style="bold green" if won else "")
