"""003's figures: growth by family, heads, projections, and the quoted results beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots.growth import MIB, length_axis
from attnprof.render.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PAGE_WIDTH,
    SKY,
    SMALL,
    VERMILION,
    caption,
    colours,
    label_panels,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
GIGA = 1e9
MARKERS = "os^Dv"
#: A variant often lies on another curve: that shows between the dashes.
_DASHES: Mapping[bool, Any] = {False: "-", True: (0, (3, 3))}
#: Quantity of the line, quantity of the points, what divides both, the axis's label, its title.
PANELS = (
    ("flops", "matmul_flops_counted", 1.0, "FLOPs", "operations"),
    ("peak_bytes", "peak_bytes_measured", float(MIB), "peak memory [MiB]", "memory"),
    (None, "median_s", 1e-3, "processor time [ms]", "time"),
)


def draw_family(data: FigureData) -> Figure:
    """Operations, memory and time by length, standard attention in black."""
    from matplotlib.lines import Line2D

    figure = new_figure(PAGE_WIDTH, 3.2)
    panels = figure.subplots(1, 3)
    shades = colours([str(row["mechanism"]) for row in data.rows])
    styles = dict(zip(shades, MARKERS, strict=False))
    for axes, (line, dots, unit, label, title) in zip(panels, PANELS, strict=True):
        for name, shade in shades.items():
            rows = [row for row in data.rows if row["mechanism"] == name]
            _line(axes, rows, line, unit, shade)
            _dots(axes, rows, dots, unit, shade, styles[name])
        length_axis(axes, _lengths(data.rows, line or dots), "sequence length N")
        axes.set_ylabel(label)
        axes.set_title(title)
    label_panels(panels)
    handles = [
        Line2D([], [], color=shade, marker=styles[name], markersize=3,
               label=f"{name}: $N^{{{data.facts['exponents'][name]['flops']:.2f}}}$")
        for name, shade in shades.items()
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 3))
    caption(
        figure,
        f"One head of width {data.facts['head_dim']}, no projections. Lines: closed forms "
        "(exponent: of the operations). Points: products counted by torch, the allocator's peak, "
        "processor time on one thread with the 95 % interval of its median.",
    )
    return figure


def _lengths(rows: Rows, quantity: str | None) -> list[int]:
    return [row["seq_len"] for row in rows if quantity is None or row[quantity]]


def _line(axes: Axes, rows: Rows, quantity: str | None, unit: float, shade: str) -> None:
    if quantity:
        lengths = [row["seq_len"] for row in rows]
        values = [row[quantity] / unit for row in rows]
        variant = " " in str(rows[0]["mechanism"])
        axes.plot(lengths, values, color=shade, linewidth=1.1, linestyle=_DASHES[variant])


def _dots(
    axes: Axes, rows: Rows, quantity: str | None, unit: float, shade: str, marker: str
) -> None:
    known = [row for row in rows if quantity and row[quantity]]
    if not known or quantity is None:
        return
    values = [row[quantity] / unit for row in known]
    lengths = [row["seq_len"] for row in known]
    if quantity != "median_s":
        axes.plot(lengths, values, color=shade, marker=marker, markersize=3, linestyle="none")
        return
    below = [value - row["ci_low_s"] / unit for value, row in zip(values, known, strict=True)]
    above = [row["ci_high_s"] / unit - value for value, row in zip(values, known, strict=True)]
    axes.errorbar(
        lengths, values, [below, above], color=shade, marker=marker, markersize=3, capsize=2,
        elinewidth=0.8, linewidth=0.8,
    )  # fmt: skip


def draw_projections(data: FigureData) -> Figure:
    """FLOPs of the three products, and of the attention that follows."""
    figure = new_figure(PAGE_WIDTH * 0.55, 2.9)
    axes = figure.subplots()
    lengths = [row["seq_len"] for row in data.rows]
    single = [row["queries"] for row in data.rows]
    three = [sum(row[name] for name in ("queries", "keys", "values")) for row in data.rows]
    attention = [row["attention"] for row in data.rows]
    axes.plot(lengths, single, color=SKY, marker="s", markersize=3, label="one of Q, K, V: $N$")
    axes.plot(lengths, three, color=BLUE, marker="o", markersize=3, label="Q, K and V: $N$")
    axes.plot(lengths, attention, color="black", marker="^", markersize=3,
              label="their attention: $N^2$")  # fmt: skip
    length_axis(axes, lengths, "sequence length N")
    axes.set_ylabel("FLOPs")
    axes.legend(loc="upper left")
    caption(
        figure,
        f"Closed forms, width {data.facts['d_model']}, one head. From "
        f"{data.facts['attention_above_from']:,} tokens on, of those drawn, the attention costs "
        "more than the three products.",
    )
    return figure


def draw_heads(data: FigureData) -> Figure:
    """FLOPs of a layer by part, and its peak memory, by number of heads."""
    figure = new_figure(PAGE_WIDTH, 2.9)
    work, memory = figure.subplots(1, 2)
    names = [str(row["num_heads"]) for row in data.rows]
    below = [0.0] * len(names)
    parts = (("projections", SKY), ("scores and values", BLUE), ("softmax", VERMILION))
    for part, shade in parts:
        heights = [row[part] / GIGA for row in data.rows]
        work.bar(names, heights, 0.6, below, color=shade, label=part)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    work.set_ylabel("GFLOPs of a layer")
    figure.legend(loc="outside upper center", ncols=3)
    peaks = [row["peak_bytes"] / MIB for row in data.rows]
    chosen = str(data.facts["printed"])
    shades = [GREEN if name == chosen else GREY for name in names]
    memory.bar(names, peaks, 0.6, color=shades)
    memory.set_ylabel("peak memory [MiB]")
    for axes in (work, memory):
        axes.set_xlabel("number of heads H")
        axes.grid(visible=True, axis="y")
    label_panels([work, memory])
    caption(
        figure,
        f"Closed forms, {data.facts['seq_len']:,} tokens, width {data.facts['d_model']}. Green: "
        f"the H = {chosen} that is drawn in the document.",
    )
    return figure


def draw_results(data: FigureData) -> Figure:
    """Losses, ratios and seconds: printed ones hatched, ours plain."""
    figure = new_figure(PAGE_WIDTH, 2.9)
    losses, ratios, times = figure.subplots(1, 3)
    _bars(losses, data.rows, "final_true_ce", ORANGE, hatch="//")
    losses.axhline(data.facts["uniform_guess"], color="black", linestyle=":", linewidth=0.9)
    losses.text(0.98, data.facts["uniform_guess"], "all tokens alike ", va="bottom", ha="right",
                transform=losses.get_yaxis_transform(), fontsize=SMALL)  # fmt: skip
    losses.set_ylabel("final cross-entropy [nats]")
    _bars(ratios, data.rows, "generalization_ratio", ORANGE, hatch="//")
    for place, row in enumerate(data.rows):
        if row["failed"]:
            ratios.text(
                place, 0.02, "failed", rotation=90, va="bottom", ha="center", fontsize=SMALL
            )
    ratios.set_ylabel("test error / training error")
    _bars(times, data.rows, "relative_printed", ORANGE, hatch="//", shift=-0.2, label="printed")
    _bars(times, data.rows, "relative", BLUE, shift=0.2, label="measured here")
    times.set_ylabel("forward pass, Performer = 1")
    label_panels([losses, ratios, times])
    figure.legend(*times.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    caption(
        figure,
        "Printed values as far as the text quotes them (its device is not named); a missing bar "
        "was not quoted. (b): smaller is better. (c) measured: processor time of one sequence on "
        "one thread, from the parts of each model.",
    )
    return figure


def _bars(
    axes: Axes, rows: Rows, quantity: str, shade: str, *, hatch: str = "", shift: float = 0.0,
    label: str | None = None,
) -> None:  # fmt: skip
    known = [(place, row[quantity]) for place, row in enumerate(rows) if row[quantity] is not None]
    axes.bar(
        [place + shift for place, _ in known], [value for _, value in known],
        0.4 if shift else 0.6, color=shade, hatch=hatch, edgecolor="white", label=label,
    )  # fmt: skip
    axes.set_xticks(range(len(rows)), [str(row["model"]) for row in rows], rotation=30, ha="right")
    axes.set_xlim(-0.6, len(rows) - 0.4)


DRAWINGS: dict[str, Callable[[FigureData], Figure]] = {
    "B": draw_projections,
    "C": draw_heads,
    "D": draw_family,
    "E": draw_family,
    "F": draw_family,
    "G": draw_family,
    "Z": draw_results,
}
