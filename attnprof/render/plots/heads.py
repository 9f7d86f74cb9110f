"""Cost against the number of heads at a fixed model width, with the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnprof.record import Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots.style import (
    GREY,
    LINES,
    PAGE_WIDTH,
    SMALL,
    caption,
    colours,
    draw_legend,
    new_figure,
    short_count,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "flops": "FLOPs",
    "matmul_flops": "matrix-product FLOPs",
    "peak_entries": "memory [entries]",
    "entries": "memory [entries]",
    "peak_bytes": "memory [B]",
}


def draw_heads(report: Report) -> Figure:
    """The figure: a panel a quantity, a line a mechanism and kind."""
    records: Sequence[Any] = [record for record in report.records if record.value is not None]  # type: ignore[attr-defined] # a heads report holds HeadsRecords
    quantities = list(dict.fromkeys(record.quantity for record in records))
    colour = colours([record.mechanism for record in records])
    figure = new_figure(PAGE_WIDTH if len(quantities) > 1 else 4.2, 3.3)
    grid = figure.subplots(1, len(quantities), squeeze=False)[0]
    for axes, quantity in zip(grid, quantities, strict=True):
        _panel(axes, [record for record in records if record.quantity == quantity], colour)
        axes.set_ylabel(TITLES.get(quantity, quantity.replace("_", " ")))
        if quantity == "flops":
            _optimum(axes, report, records)
    draw_legend(figure, colour, [record.kind for record in records])
    caption(figure, _caption(report, records))
    return figure


def _panel(axes: Axes, records: Sequence[Any], colour: dict[str, str]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(visible=True)
    axes.minorticks_off()
    for mechanism, kind in dict.fromkeys((record.mechanism, record.kind) for record in records):
        points = sorted(
            (r.num_heads, r.value) for r in records if (r.mechanism, r.kind) == (mechanism, kind)
        )
        axes.plot(
            [heads for heads, _ in points], [value for _, value in points], marker=".",
            markersize=4, color=colour[mechanism], linestyle=LINES.get(kind, "-"),
        )  # fmt: skip
    heads = sorted({record.num_heads for record in records})
    shown = heads[:: -(-len(heads) // 9)]
    axes.set_xticks(shown, [str(count) for count in shown])
    axes.tick_params(length=2)
    axes.set_xlabel("number of heads")


def _optimum(axes: Axes, report: Report, records: Sequence[Any]) -> None:
    """The real optimum of the FLOPs: a line inside the range, else an arrow towards it."""
    best = report.summary.get("optimum_num_heads")
    if not isinstance(best, int | float):
        return
    width = report.summary.get("optimum_head_dim")
    heads = [record.num_heads for record in records]
    text = f"{_whose(report, best)}real optimum: {short_count(best)} heads"
    if isinstance(width, int | float):
        text += f"\nof width d = {width:.6g}"
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.28)  # room above the curves
    inside = min(heads) <= best <= max(heads)
    if inside:
        axes.axvline(best, color=GREY, linewidth=0.8, linestyle=":")
    side, place, align = ("right", 0.97, "right") if best > max(heads) else ("left", 0.03, "left")
    if not inside:
        text += f",\n{side} of every divisor"
        beyond = 1.0 if side == "right" else 0.0
        axes.annotate(
            "", (beyond, 0.76), (beyond - 0.14 if side == "right" else 0.14, 0.76),
            xycoords="axes fraction", arrowprops={"arrowstyle": "->", "color": "black", "lw": 0.9},
        )  # fmt: skip
    axes.text(
        place, 0.98, text, transform=axes.transAxes, ha=align, va="top", fontsize=SMALL,
        linespacing=1.25,
    )  # fmt: skip


def _whose(report: Report, best: float) -> str:
    """Which of the curves has this optimum, where the report says it."""
    for entry in report.summary.get("optima", ()):
        if entry["quantity"] == "flops" and entry["optimum_num_heads"] == best:
            return f"{figure_text(entry['mechanism'])}, {entry['kind']}:\n"
    return ""


def _caption(report: Report, records: Sequence[Any]) -> str:
    sources = dict.fromkeys(record.source for record in records if record.source)
    summary = report.summary
    width = summary.get("d_model") or (records[0].num_heads * records[0].head_dim if records else 0)
    parts = [f"d_model = {width}"]
    if summary.get("seq_len"):
        parts.append(f"sequence length {summary['seq_len']}")
    if isinstance(summary.get("best_divisor"), int):
        parts.append(f"best divisor: {summary['best_divisor']} heads")
    if sources:
        parts.append(f"published: {', '.join(sources)}")
    return " · ".join(parts)
