"""Tables of ``attnprof model --compare``: a row a model."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import ComparedRecord, Report
from attnprof.render.terminal import FittedTable, Hanging, floor, quantity_value
from attnprof.units import MISSING

#: Columns: the heading, and the phase and quantity of its numbers.
_COLUMNS = {
    "params": ("", "parameters"), "active": ("", "active_parameters"),
    "cache": ("decode", "cache_bytes"), "cache a token": ("decode", "cache_bytes_per_token"),
    "FLOPs a token": ("prefill", "flops_per_token"),
    "decode bytes": ("decode", "bytes_moved"),
}  # fmt: skip


def comparison_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the table of models, and their notes."""
    summary = report.summary
    rows = {(row.model, row.phase, row.quantity): row for row in report.of(ComparedRecord)}
    sizes = ", ".join(f"{name}={size:,}" for name, size in summary["at"].items() if size)
    formats = summary["dtypes"]
    same = len({*formats.values()}) == 1
    title = f"models side by side: {sizes}{', ' + next(iter(formats.values())) if same else ''}"
    table = FittedTable("model", "format", *_COLUMNS, title=title, right=[*_COLUMNS])
    for model in summary["models"]:
        cells = []
        for phase, quantity in _COLUMNS.values():
            row = rows.get((model, phase, quantity))
            known = row is not None and row.value is not None
            cells.append(
                f"{floor(row.bound)}{quantity_value(row.value, quantity)}"
                if row is not None and known else MISSING
            )  # fmt: skip
        table.add_row(model, "" if same else formats[model], *cells)
    yield table
    views = {row.view for row in report.of(ComparedRecord)}
    yield Hanging(
        f"view: {', '.join(sorted(views))}; active: parameters that a token meets; cache: after N "
        "tokens, and what one more adds to it; FLOPs a token: of a prompt; decode: one token after "
        "N - 1 others"
    )
    yield from (Hanging(Text(note)) for note in summary["notes"])
