"""Time and memory against sequence length: intervals, ends, and where curves cross."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.render.plots.series import Series, need, series_of
from attnprof.render.plots.style import (
    GREY,
    PAGE_WIDTH,
    SMALL,
    caption,
    colours,
    new_figure,
    power_ticks,
    short_count,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIB = 2**20
#: More crossings than this are not named in the figure.
MOST_NAMED = 6


def draw_growth(
    records: Sequence[Any],
    devices: Mapping[int, str] | None = None,
    crossings: Sequence[tuple[float, float]] = (),
) -> Figure:
    """Median time with its interval, and peak memory (points measured, line predicted).

    ``crossings`` are lengths and times at which two of the curves cross.
    """
    need([r for r in records if r.median_s or r.peak_bytes_predicted], "no record has a time")
    found = series_of(records, "seq_len", devices)
    colour = colours([series.mechanism for series in found])
    figure = new_figure(PAGE_WIDTH, 3.4)
    time, memory = figure.subplots(1, 2)
    for series in found:
        shade = colour[series.mechanism]
        _times(time, series, shade)
        _peaks(memory, series, shade)
    time.set_ylabel("median time [s]")
    memory.set_ylabel("peak memory [MiB]")
    for axes in (time, memory):
        length_axis(axes, [record.seq_len for record in records])
    for length, height in crossings:
        time.plot([length], [height], marker="o", markersize=6, markerfacecolor="none",
                  markeredgecolor="black", markeredgewidth=0.9, zorder=6)  # fmt: skip
    _name(time, crossings)
    legend(figure, found, colour)
    caption(figure, _caption(records))
    return figure


def _times(axes: Axes, series: Series, shade: str) -> None:
    timed = [r for r in series.records if r.median_s]
    line, marker = series.style
    lengths = [r.seq_len for r in timed]
    below = [max(0.0, r.median_s - (r.ci_low_s or r.median_s)) for r in timed]
    above = [max(0.0, (r.ci_high_s or r.median_s) - r.median_s) for r in timed]
    axes.errorbar(
        lengths, [r.median_s for r in timed], [below, above], color=shade, linestyle=line,
        marker=marker, markersize=3, capsize=2, elinewidth=0.8,
    )  # fmt: skip
    _ends(axes, series, shade, [(r.seq_len, r.median_s) for r in timed])


def _peaks(axes: Axes, series: Series, shade: str) -> None:
    line, marker = series.style
    lengths, predicted = series.points("seq_len", "peak_bytes_predicted")
    axes.plot(lengths, [x / MIB for x in predicted], color=shade, linestyle=line, linewidth=1.0)
    lengths, measured = series.points("seq_len", "peak_bytes_measured")
    axes.plot(
        lengths, [x / MIB for x in measured], color=shade, linestyle="none", marker=marker,
        markersize=3,
    )  # fmt: skip
    _ends(axes, series, shade, [(n, x / MIB) for n, x in zip(lengths, measured, strict=True)])


def _ends(axes: Axes, series: Series, shade: str, points: Sequence[tuple[float, float]]) -> None:
    """A cross after the last point where the next length could not run, with the reason's word."""
    failed = [r for r in series.records if r.skipped and points and r.seq_len > points[-1][0]]
    if not failed:
        return
    length, height = points[-1]
    axes.annotate(
        _word(failed[0].skipped), (length, height), xytext=(0, 6), textcoords="offset points",
        fontsize=SMALL - 1, color=shade, ha="center",
    )  # fmt: skip
    axes.plot([length], [height], marker="x", markersize=7, color=shade, markeredgewidth=1.4)


def _word(reason: str) -> str:
    if "memory" in reason or "does not fit" in reason:
        return "OOM"
    return "no result" if "no result" in reason else "ends"


def _name(axes: Axes, crossings: Sequence[tuple[float, float]]) -> None:
    if not crossings or len(crossings) > MOST_NAMED:
        return
    lengths = ", ".join(short_count(round(length)) for length, _ in sorted(crossings))
    axes.text(0.03, 0.97, f"curves cross at {lengths}", transform=axes.transAxes, fontsize=SMALL,
              va="top", color=GREY)  # fmt: skip


def draw_curve(
    axes: Axes, series: Series, shade: str, points: tuple[list[float], list[float]],
    width: float | None = None,
) -> None:  # fmt: skip
    """One curve in its own line style, with its marker at every point."""
    line, marker = series.style
    axes.plot(*points, color=shade, linestyle=line, marker=marker, markersize=3, linewidth=width)


def length_axis(axes: Axes, lengths: Sequence[int], label: str = "sequence length") -> None:
    """Both axes logarithmic; a few powers of two below."""
    axes.set_xscale("log", base=2)
    if axes.dataLim.y1 > 0:
        axes.set_yscale("log")  # else there is nothing that could be drawn so
    axes.grid(visible=True)
    axes.minorticks_off()
    low, high = math.floor(math.log2(min(lengths))), math.ceil(math.log2(max(lengths)))
    exponents, labels = power_ticks(low, max(high, low + 1))
    axes.set_xticks([2.0**e for e in exponents], labels)
    axes.set_xlim(min(lengths) / 1.25, max(lengths) * 1.6)
    axes.set_xlabel(label)


def legend(figure: Figure, found: Sequence[Series], colour: Mapping[str, str]) -> None:
    """One entry a curve, above the panels."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=colour[s.mechanism], linestyle=s.style[0], marker=s.style[1],
               markersize=3, label=s.label)
        for s in found
    ]  # fmt: skip
    letters = max(len(s.label) for s in found) + 9  # the line and the gap between columns
    columns = max(1, min(len(marks), 4, int(figure.get_figwidth() * 15 / letters)))
    figure.legend(handles=marks, loc="outside upper center", ncols=columns, handlelength=3)


def _caption(records: Sequence[Any]) -> str:
    first = records[0]
    same = [
        f"{word} {getattr(first, name)}"
        for name, word in (("scope", "scope"), ("phase", "phase"), ("batch_size", "batch"),
                           ("d_model", "d_model"), ("num_heads", "heads"), ("dtype", ""),
                           ("device", "on"))
        if len({str(getattr(r, name)) for r in records}) == 1
    ]  # fmt: skip
    ends = " Crosses: the next length could not run." if any(r.skipped for r in records) else ""
    return (
        f"{', '.join(text.strip() for text in same)}. Bars: 95 % interval of the median. Memory: "
        f"line by the closed form, points by the allocator. Circles: curves cross.{ends}"
    )
