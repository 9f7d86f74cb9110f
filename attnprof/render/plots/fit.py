"""Draw what a rank of a model holds, as one bar beside the memory."""

from typing import Any

from attnprof.record import FitRecord, Report
from attnprof.render.plots import style
from attnprof.units import format_bytes

GIB = 2**30


def draw_fit(report: Report) -> style.Figure:
    """Return the parts of a rank's bytes end to end, and a line where the memory ends."""
    summary = report.summary
    parts = [row for row in report.of(FitRecord) if row.part != "total" and row.bytes]
    figure = style.new_figure(1.1)
    axes = figure.subplots()
    start, marks = 0.0, list[dict[str, Any]]()
    for place, row in enumerate(parts):
        colour = style.PALETTE[place % len(style.PALETTE)]
        axes.barh([0], [row.bytes / GIB], left=start, height=0.6, color=colour)
        start += row.bytes / GIB
        label = f"{row.part} {format_bytes(row.bytes)}"
        marks.append({"color": colour, "marker": "s", "linestyle": "none", "label": label})
    memory = summary["memory_bytes"]
    axes.axvline(memory / GIB, color=style.BLACK, linewidth=1.5)
    label = f"memory {format_bytes(memory)}"
    marks.append({"color": style.BLACK, "label": label})
    axes.set_yticks([])
    axes.set_xlabel("GiB on one rank")
    style.legend(figure, marks, title=f"{summary['name']}, {summary['dtype']}")
    return figure
