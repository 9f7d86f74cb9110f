"""The table of ``attnprof heatmap``: mean and maximum excess, a line a head count."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import HeatmapRecord, Report
from attnprof.render.fitted import FittedTable
from attnprof.render.terminal import answer_line
from attnprof.units import MISSING, format_value, quantity_text


def tables(report: Report) -> list[RenderableType]:
    """The title, the table, and what it means."""
    summary = report.summary
    sources = dict.fromkeys(s for s in (summary["source_a"], summary["source_b"]) if s)
    headings = ("heads", "mean excess [%]", "max excess [%]", "max at seq", "max at d_model")
    table = FittedTable(*headings, right=headings)
    for heads, mean in summary["mean_excess_percent"].items():
        where: dict[str, Any] = summary["max_at"][heads] or {}
        percents = (mean, summary["max_excess_percent"][heads])
        shown = (MISSING if value is None else f"{value:,.2f}" for value in percents)
        sizes = (format_value(where.get(name), "count") for name in ("seq_len", "d_model"))
        table.add_row(heads, *shown, *sizes)
    title = (
        f"{summary['mechanism_a']} / {summary['mechanism_b']}: "
        f"{quantity_text(summary['quantity'])}, {summary['scope']}, {summary['phase']}"
        f"{', causal' * summary['causal']}, {summary['kind']}"
        f"{f' ({chr(44).join(sources)})' if sources else ''}"
    )
    first, last = (report.of(HeatmapRecord)[end] for end in (0, -1))
    meaning = (
        f"Excess: how much more {summary['mechanism_a']} needs than {summary['mechanism_b']}, over "
        f"{summary['cells'] - summary['null_cells']:,} combinations of "
        f"{first.seq_len:,} to {last.seq_len:,} tokens, widths {first.d_model:,} to "
        f"{last.d_model:,} and the heads above."
    )
    return [*answer_line(report), Text(title, style="bold"), table, Text(meaning, style="dim")]
