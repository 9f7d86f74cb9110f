"""Results as curves: which records belong to one line, how it is called; time and memory so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style, ticks
from attnprof.render.plots.facets import PanelGrid, Records, alike, facets, shared
from attnprof.render.plots.heatmap import PHASES
from attnprof.render.plots.style import MIB

#: Line and marker of the curves of a figure, in order: each differs from the others in grey.
STYLES: tuple[tuple[Any, str], ...] = (
    ("-", "o"), ((0, (4, 1.5)), "s"), ((0, (1, 1)), "^"), ((0, (4, 1, 1, 1)), "D"), ("-", "v"),
    ((0, (4, 1.5)), "P"), ((0, (1, 1)), "X"), ((0, (4, 1, 1, 1)), "<"),
)  # fmt: skip
#: Points from one line of notes at the top of a panel to the next.
LINE = 8.5
#: What a caption says of the crosses of :func:`rug`.
CROSS = "×: no result (OOM: out of memory)"


@dataclass(frozen=True)
class Series:
    """One curve: its mechanism, label and look, and its records by the axis' value."""

    mechanism: str
    label: str
    look: Mapping[str, Any]
    records: tuple[Any, ...]

    def points(self, axis: str, field: str, unit: float = 1) -> tuple[list[float], list[float]]:
        """Values in this unit; NaN, which breaks the line, where there is none."""
        values = [getattr(r, field) for r in self.records]
        scaled = [math.nan if value is None else value / unit for value in values]
        return [getattr(r, axis) for r in self.records], scaled

    def within(self, shown: Records) -> "Series":
        """The part of it that a facet of these records shows."""
        its = set(map(id, shown))
        return replace(self, records=tuple(r for r in self.records if id(r) in its))


def series_of(records: Records, axis: str, *, by_params: bool = True) -> list[Series]:
    """A curve a mechanism, over ``axis`` (``seq_len``, ``d_model``, ``num_heads``).

    One for each of its parameters' settings, which its label says, unless not ``by_params``.
    """
    settings, colour = varying_params(records), style.colours([r.mechanism for r in records])
    groups: dict[str, list[Any]] = {}
    for record in records:
        told = settings[record.mechanism] if by_params else ()
        words = [f"{key}={record.params[key]}" for key in told if key in record.params]
        groups.setdefault(figure_text(", ".join([record.mechanism, *words])), []).append(record)
    found = []
    for place, (label, members) in enumerate(groups.items()):
        name, (line, marker) = members[0].mechanism, STYLES[place % len(STYLES)]
        look = {"color": colour[name], "linestyle": line, "marker": marker, "markersize": 3}
        ordered = sorted(members, key=lambda r: getattr(r, axis))
        found.append(Series(name, label, look, tuple(ordered)))
    return found


def varying_params(records: Records) -> dict[str, list[str]]:
    """By mechanism, the parameters in which its records differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for record in records:
        own = values.setdefault(record.mechanism, {})
        for name, value in record.params.items():
            own.setdefault(name, set()).add(str(value))
    return {name: [k for k, its in own.items() if len(its) > 1] for name, own in values.items()}


def need(records: Sequence[Any], why: str) -> None:
    """RequestError where there is nothing to draw."""
    if not records:
        raise RequestError(f"nothing to draw: {why}")


def log_log(axes: style.Axes) -> None:
    """Both axes logarithmic, where there is something that can be drawn so."""
    for name in "xy":
        shared = getattr(axes, f"get_shared_{name}_axes")().get_siblings(axes)
        ends = [getattr(each.dataLim, f"{name}1") for each in shared]
        getattr(axes, f"set_{name}scale")("log" if max(ends) > 0 else "linear")


def length_axis(
    axes: style.Axes, lengths: Sequence[int], written: ticks.Written = ticks.plain, lines: int = 0
) -> None:
    """Both axes logarithmic: sizes below, round numbers left, room for lines of notes on top."""
    log_log(axes)
    axes.grid(visible=True)
    axes.set_xlim(min(lengths) / 1.25, max(lengths) * 1.25)
    ticks.mark_sizes(axes.xaxis, lengths)
    if axes.get_yscale() == "linear":
        axes.set_yticks([])  # there are no values
    else:
        ticks.mark_values(axes.yaxis, written, above=lines * LINE / 60)


def value_axes(axes: style.Axes, x: ticks.Written, y: ticks.Written) -> None:
    """Both axes logarithmic, with round numbers as these functions write them."""
    log_log(axes)
    ticks.mark_values(axes.xaxis, x)
    ticks.mark_values(axes.yaxis, y)


class Multiples:
    """Small multiples of curves, a facet for what varies beside these axes.

    ``parts`` are each facet's own part of the curves, and its panels; ``how`` is for these.
    """

    def __init__(
        self, records: Records, *axes: str, quantities: int = 1, by_params: bool = True, **how: Any
    ) -> None:
        self.records, shown = records, facets(records, *axes)
        self.curves = series_of(records, (*axes, "seq_len")[0], by_params=by_params)
        self.grid = PanelGrid([title for title, _ in shown], quantities, **how)
        inside = ([curve.within(own) for curve in self.curves] for _, own in shown)
        self.parts = list(zip(inside, self.grid.panels, strict=True))

    def finished(self, what: str, over: str, *told: str, **look: Any) -> style.Figure:
        """With a title, one entry a curve above the panels, and a caption of what all share."""
        figure = self.grid.figure
        looks = [{**curve.look, "label": curve.label, **look} for curve in self.curves]
        title = f"{what} of {a_pass(self.records)} {over}".strip() + ", by mechanism"
        style.legend(figure, looks, 8, title, handlelength=3)
        style.caption(figure, shared(self.records), *told)
        return figure


def a_pass(records: Records) -> str:
    """What was run, as a title says it."""
    phases = {record.phase for record in records}
    return PHASES.get(phases.pop(), "a pass") if len(phases) == 1 else "a pass"


def draw_growth(
    records: Records, crossings: Sequence[tuple[Any, float, float]] = ()
) -> style.Figure:
    """Median time with its interval, and peak memory (points measured, line predicted).

    ``crossings`` of two curves of times are a record of one, the length and the time.
    """
    need([r for r in records if r.median_s or r.peak_bytes_predicted], "no record has a time")
    drawn, lines = Multiples(records, "seq_len", quantities=2), [0, 0]
    lengths = [record.seq_len for record in records]
    for curves, (time, memory) in drawn.parts:
        for curve in curves:
            _times(time, curve)
            predicted = curve.points("seq_len", "peak_bytes_predicted", MIB)
            memory.plot(*predicted, **{**curve.look, "marker": "", "linewidth": 1.0})
            measured = curve.points("seq_len", "peak_bytes_measured", MIB)
            memory.plot(*measured, **{**curve.look, "linestyle": "none"})
        one = next(curve.records[0] for curve in curves if curve.records)
        used = _crossings(time, sorted(its for at, *its in crossings if alike(at, one, "seq_len")))
        ends = (rug(axes, curves, "seq_len", lengths, n) for axes, n in ((time, used), (memory, 0)))
        lines = list(map(max, lines, ends))
    written = (ticks.with_prefix("s"), ticks.plain)
    for axes, how, room in zip(drawn.grid.panels[0], written, lines, strict=True):
        length_axis(axes, lengths, how, room)
    drawn.grid.label("sequence length", "median time", "peak memory [MiB]")
    return drawn.finished(
        "Time and peak memory", "over sequence length", "bars: 95 % interval of the median",
        "memory: line by the closed form, points by the allocator",
        "○ N: sequence lengths at which the curves of two mechanisms cross" * bool(crossings),
        CROSS * any(r.skipped for r in records),
    )  # fmt: skip


def _times(axes: style.Axes, curve: Series) -> None:
    lengths, times = curve.points("seq_len", "median_s")
    ends = [
        [abs(t - (getattr(r, end) or t)) for r, t in zip(curve.records, times, strict=True)]
        for end in ("ci_low_s", "ci_high_s")
    ]
    axes.errorbar(lengths, times, ends, capsize=2, elinewidth=0.8, **curve.look)


def _crossings(axes: style.Axes, points: Sequence[Sequence[float]]) -> int:
    """A circle on each, their lengths on top of the panel; how many lines that takes."""
    for point in points:
        axes.plot(*point, "o", markersize=6, mfc="none", mec="black", zorder=6)
    lengths = list(dict.fromkeys(f"{n:,.0f}" for n, _ in points))
    letters = int(ticks.inches(axes.xaxis) * 17)
    lines = wrap(f"○ N = {', '.join(lengths)}", letters) if points else []
    if len(lines) > 2:
        lines = wrap(f"○ N = {lengths[0]} to {lengths[-1]}, {len(points)} crossings", letters)
    note_line(axes, "\n".join(lines), 0, linespacing=LINE / style.SMALL)
    return len(lines)


def note_line(axes: style.Axes, text: str, line: int, **look: Any) -> None:
    """A text at the top of a panel, so many lines down."""
    how = {"va": "top", "xycoords": "axes fraction", "color": style.GREY, **look}
    style.beside(axes, text, (0.02, 1), (0, -line * LINE - 1), **how)


def rug(
    axes: style.Axes, curves: Sequence[Series], axis: str, sizes: Sequence[int], line: int = 0
) -> int:
    """Below so many lines: crosses where curves lack results, and why; how many lines there are."""
    from matplotlib.transforms import ScaledTranslation

    low, high = (math.log(end) for end in (min(sizes) / 1.25, max(sizes) * 1.25))
    figure: Any = axes.figure
    for curve in curves:
        failed = [record for record in curve.records if record.skipped]
        if not failed:
            continue
        places = [getattr(record, axis) for record in failed]
        told = any(words in failed[0].skipped for words in ("memory", "does not fit"))
        text = f"{curve.label}: {'OOM' if told else 'no result'}"
        note_line(axes, text, line, color=curve.look["color"])
        # beside each other where there is room
        reach = (len(text) + 2) / 17 / ticks.inches(axes.xaxis)
        line += (math.log(min(places)) - low) / (high - low) < reach
        down = ScaledTranslation(0, -(line + 0.5) * LINE / 72, figure.dpi_scale_trans)
        axes.plot(
            places, [1.0] * len(places), marker="x", markersize=4.5, linestyle="none",
            color=curve.look["color"], markeredgewidth=1.2,
            transform=axes.get_xaxis_transform() + down,
        )  # fmt: skip
        line += 1
    return line
