"""The tables of ``attnprof compare``: one a length, the winner marked in each column."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import CompareRecord, Report
from attnprof.render.terminal import (
    is_narrow,
    new_table,
    quantity_text,
    quantity_value,
    workload_text,
)

WON = "*"
CAPTION = (
    f"{WON} lowest of its column. FLOPs as executed, masked entries included; operations as "
    "defined (002: k-1 additions a dot product). Peak: increment over what was live before "
    "the call. State: what a decoder keeps after this many tokens."
)
#: Columns that fit a terminal of 80 characters; the others follow in a second table.
NARROW_COLUMNS = 4


def tables(report: Report, quantities: Sequence[str]) -> Iterator[RenderableType]:
    """A block a length, of the quantities that are known of any mechanism."""
    for _, group in groupby(report.of(CompareRecord), key=lambda record: record.seq_len):
        rows = list(group)
        yield Text(workload_text(rows[0]), style="bold")
        names = [name for name in quantities if any(getattr(r, name) is not None for r in rows)]
        at_once = NARROW_COLUMNS if is_narrow() else max(1, len(names))
        for first in range(0, len(names), at_once):
            some = names[first : first + at_once]
            heads = ["state" if name == "state_bytes" else quantity_text(name) for name in some]
            cells = (
                [r.mechanism, *(_cell(r, name) for name in some)] for r in rows if not r.skipped
            )
            yield new_table("mechanism", *heads, rows=cells, right=heads, fold=["mechanism"])
        if refused := [f" skipped: {row.skipped}" for row in rows if row.skipped]:
            yield Text("\n".join([*refused, ""]))
    yield Text(CAPTION, style="dim")


def _cell(row: CompareRecord, name: str) -> RenderableType:
    text = quantity_value(getattr(row, name), name)
    won = name in row.wins.split(",")
    return Text(f"{text} {WON if won else ' '}", style="bold green" if won else "")
