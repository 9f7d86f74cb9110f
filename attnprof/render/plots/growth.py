"""Time and memory against sequence length: intervals, ends, and where curves cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnprof.render.plots import style
from attnprof.render.plots.series import (
    Records,
    Series,
    draw_curve,
    length_axis,
    need,
    series_legend,
    series_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIB = 2**20
#: More crossings than this are not named in the figure.
MOST_NAMED = 6


def draw_growth(records: Records, crossings: Sequence[tuple[float, float]] = ()) -> Figure:
    """Median time with its interval, and peak memory (points measured, line predicted).

    ``crossings`` are lengths and times at which two of the curves cross.
    """
    need([r for r in records if r.median_s or r.peak_bytes_predicted], "no record has a time")
    found = series_of(records, "seq_len")
    figure = style.new_figure(style.PAGE_WIDTH, 3.4)
    time, memory = figure.subplots(1, 2)
    for series in found:
        _times(time, series)
        _peaks(memory, series)
    for axes, label in ((time, "median time [s]"), (memory, "peak memory [MiB]")):
        length_axis(axes, [record.seq_len for record in records])
        axes.set_ylabel(label)
    _cross(time, sorted(crossings))
    series_legend(figure, found)
    style.caption(figure, _told(records))
    return figure


def _times(axes: Axes, series: Series) -> None:
    timed = [(r.seq_len, r.median_s, r.ci_low_s, r.ci_high_s) for r in series.records if r.median_s]
    below = [max(0.0, time - (low or time)) for _, time, low, _ in timed]
    above = [max(0.0, (high or time) - time) for _, time, _, high in timed]
    points = [(length, time) for length, time, _, _ in timed]
    axes.errorbar(
        [length for length, _ in points], [time for _, time in points], [below, above],
        markersize=3, capsize=2, elinewidth=0.8, **series.look,
    )  # fmt: skip
    _ends(axes, series, points)


def _peaks(axes: Axes, series: Series) -> None:
    predicted = series.points("seq_len", "peak_bytes_predicted", MIB)
    draw_curve(axes, series, predicted, marker="", linewidth=1.0)
    measured = series.points("seq_len", "peak_bytes_measured", MIB)
    draw_curve(axes, series, measured, linestyle="none")
    _ends(axes, series, list(zip(*measured, strict=True)))


def _ends(axes: Axes, series: Series, points: Sequence[tuple[float, float]]) -> None:
    """A cross after the last point where the next length could not run, with the reason's word."""
    failed = [r for r in series.records if r.skipped and points and r.seq_len > points[-1][0]]
    if not failed:
        return
    (length, height), shade = points[-1], series.look["color"]
    axes.annotate(
        _word(failed[0].skipped), (length, height), xytext=(0, 6), color=shade,
        textcoords="offset points", fontsize=style.SMALL - 1, ha="center",
    )  # fmt: skip
    axes.plot([length], [height], marker="x", markersize=7, color=shade, markeredgewidth=1.4)


def _word(reason: str) -> str:
    if "memory" in reason or "does not fit" in reason:
        return "OOM"
    return "no result" if "no result" in reason else "ends"


def _cross(axes: Axes, crossings: Sequence[tuple[float, float]]) -> None:
    for length, height in crossings:
        axes.plot([length], [height], marker="o", markersize=6, markerfacecolor="none",
                  markeredgecolor="black", markeredgewidth=0.9, zorder=6)  # fmt: skip
    if 0 < len(crossings) <= MOST_NAMED:
        lengths = ", ".join(style.short_count(round(length)) for length, _ in crossings)
        axes.text(0.03, 0.97, f"curves cross at {lengths}", transform=axes.transAxes,
                  fontsize=style.SMALL, va="top", color=style.GREY)  # fmt: skip


def _told(records: Records) -> str:
    words = {"scope": "scope", "phase": "phase", "batch_size": "batch", "d_model": "d_model",
             "num_heads": "heads", "dtype": "", "device": "on"}  # fmt: skip
    same = [
        f"{word} {getattr(records[0], name)}".strip()
        for name, word in words.items()
        if len({str(getattr(r, name)) for r in records}) == 1
    ]
    ends = " Crosses: the next length could not run." if any(r.skipped for r in records) else ""
    return (
        f"{', '.join(same)}. Bars: 95 % interval of the median. Memory: line by the closed form, "
        f"points by the allocator. Circles: curves cross.{ends}"
    )
