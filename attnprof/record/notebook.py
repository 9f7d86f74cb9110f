"""Show results in notebooks: as a table in HTML, as a data frame."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.record.base import Record
from attnprof.record.escapes import visible
from attnprof.units import MISSING, format_value, is_numeric

#: Rows of a report that are shown, and characters of a list in a cell.
MOST, LONG = 60, 60


def html_table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Iterable[Any]], title: str,
    notes: Iterable[str],
) -> str:  # fmt: skip
    """Return an HTML table with short numbers, each column by its heading and format.

    The format ``code`` is for formulas.
    """
    head = "".join(f"<th>{_safe(name)}</th>" for name, _ in columns)
    formats = [fmt for _, fmt in columns]
    body = "".join(f"<tr>{''.join(map(_cell, row, formats))}</tr>\n" for row in rows)
    below = "".join(f"<div>{_safe(note)}</div>\n" for note in notes)
    return (
        f"<table>\n<caption>{_safe(title)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n{below}"
    )


def _safe(text: str) -> str:
    from html import escape

    return escape(visible(text))


def _cell(value: Any, fmt: str) -> str:
    if fmt == "code":
        return f"<td><code>{_safe(str(value))}</code></td>"
    side = "right" if is_numeric(fmt) else "left"
    return f'<td style="text-align: {side}">{_safe(format_value(value, fmt, short=True))}</td>'


def records_html(command: str, records: Sequence[Record]) -> str:
    """Return the first records as HTML; shared and long values are listed below the table."""
    shown = [records[place] for place in range(min(len(records), MOST))]
    columns, kept, shared, long = [], [], [], []
    for name, meta in type(shown[0]).columns() if shown else ():
        values, fmt = [getattr(record, name) for record in shown], meta["format"]
        texts = [format_value(value, fmt, short=True) for value in values]
        if {*texts} <= {"", MISSING}:
            continue
        if any(isinstance(value, list | dict) for value in values) and max(map(len, texts)) > LONG:
            long.append(name)
        elif len(shown) > 1 and all(value == values[0] for value in values):
            shared.append(f"{name}: {texts[0]}")
        else:
            columns.append((str(meta.get("title") or name), fmt))
            kept.append(texts)
    title = f"{command}: {len(records):,} record{'s' * (len(records) != 1)}"
    more = [f"{len(records) - MOST:,} more records"] * (len(records) > MOST)
    notes = [
        ", ".join(shared),
        f"see to_frame() for {', '.join([*more, *long])}" * bool(more or long),
    ]
    return html_table(columns, zip(*kept, strict=True), title, filter(None, notes))


def stage_row(stage: Any, held: Any) -> dict[str, Any]:
    """Return a stage of a cost table as one row."""
    counts = {name: getattr(stage.cost, name) for name in (*stage.cost.__slots__, "flops")}
    own = ("name", "part", "shape", "allocates", "frees", "workspace")
    return {**{name: getattr(stage, name) for name in own}, **counts, "held": held}


def stages_html(table: Any) -> str:
    """Return a cost table by stage, with its total; formulas where sizes are symbols."""
    rows = [(s.name, s.shape, s.cost, held) for s, held in zip(table, table.live(), strict=True)]
    rows.append(("total", (), table.total, table.peak()))
    plain = isinstance(rows[-1][2].flops + rows[-1][3], int | float)
    count, size = ("count", "bytes") if plain else ("code", "code")
    columns = [("stage", "text"), ("shape", "text"), ("FLOPs", count), ("bytes moved", size),
               ("bytes held", size)]  # fmt: skip
    cells = (
        (name, "×".join(map(str, shape)), cost.flops, cost.bytes_moved, held)
        for name, shape, cost, held in rows
    )
    told = f"{table.parameters:,} parameters; the total's bytes held are the peak"
    return html_table(columns, cells, "Cost by stage", [told, *table.notes])


def data_frame(columns: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> Any:
    """Return a pandas DataFrame; :class:`CannotRunError` where pandas is missing."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise CannotRunError("to_frame() needs pandas: pip install pandas") from error
    return pd.DataFrame(columns)
