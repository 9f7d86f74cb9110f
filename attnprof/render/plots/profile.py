"""Measured time and memory against sequence length, beside what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.record import Report
from attnprof.render.plots.save import check_figure_path, save_figure
from attnprof.render.plots.style import (
    LINES,
    PAGE_WIDTH,
    caption,
    colours,
    draw_legend,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIB = 2**20


def plot_profile(report: Report, path: str | Path) -> None:
    """Draw a profile or sweep report; PNG, SVG or PDF by the suffix.

    Raises :class:`attnprof.errors.RequestError` for another suffix or an unwritable path.
    """
    check_figure_path(path)
    with styled():
        save_figure(draw_profile(report), path)


def draw_profile(report: Report) -> Figure:
    """The figure: median time with its confidence interval, and peak memory, log-log."""
    records: Sequence[Any] = report.records
    colour = colours([record.mechanism for record in records])
    figure = new_figure(PAGE_WIDTH, 3.2)
    time, memory = figure.subplots(1, 2)
    for name, shade in colour.items():
        here = sorted((r for r in records if r.mechanism == name), key=lambda r: r.seq_len)
        _time(time, [r for r in here if r.median_s is not None], shade)
        for field, kind in (
            ("peak_bytes_measured", "measured"),
            ("peak_bytes_predicted", "formula"),
        ):
            _memory(memory, here, field, kind, shade)
    time.set_ylabel("median time [s]")
    memory.set_ylabel("peak memory [MiB]")
    for axes in (time, memory):
        _axes(axes, [record.seq_len for record in records])
    draw_legend(figure, colour, [])
    caption(figure, _caption(records))
    return figure


def _time(axes: Axes, records: Sequence[Any], shade: str) -> None:
    lengths = [record.seq_len for record in records]
    medians = [record.median_s for record in records]
    below = [max(0.0, r.median_s - (r.ci_low_s or r.median_s)) for r in records]
    above = [max(0.0, (r.ci_high_s or r.median_s) - r.median_s) for r in records]
    axes.errorbar(
        lengths, medians, [below, above], color=shade, marker=".", capsize=2, elinewidth=0.8
    )


def _memory(axes: Axes, records: Sequence[Any], field: str, kind: str, shade: str) -> None:
    """Measured peaks are points, predicted ones the line they should lie on."""
    points = [(r.seq_len, getattr(r, field) / MIB) for r in records if getattr(r, field)]
    if not points:
        return
    line = "none" if kind == "measured" else LINES["formula"]
    axes.plot(
        [x for x, _ in points], [y for _, y in points], color=shade, linestyle=line,
        marker="o" if kind == "measured" else "none", markersize=3.5,
    )  # fmt: skip


def _axes(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(length=2)
    axes.set_xlabel("sequence length")
    every = sorted(set(lengths))
    shown = every[:: max(1, -(-len(every) // 8))]
    axes.set_xticks(shown, [str(length) for length in shown])


def _caption(records: Sequence[Any]) -> str:
    first = records[0]
    parts = [
        f"d_model = {first.d_model}", f"{first.num_heads} heads", f"batch {first.batch_size}",
        first.dtype, first.device, f"phase {first.phase}", *(["causal"] if first.causal else []),
        "bars: confidence interval of the median",
        "memory: line predicted, points measured",
    ]  # fmt: skip
    return " · ".join(parts)
