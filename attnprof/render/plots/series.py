"""Results as curves: which records belong to one line, how it is called; time and memory so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style
from attnprof.render.plots.style import MIB

Records = Sequence[Any]
#: What may tell curves apart beside the mechanism, in the order a label names it, and its words.
_FIELDS = {
    "params": "", "phase": "{}", "causal": "", "dtype": "{}", "batch_size": "batch {}",
    "d_model": "d_model {}", "num_heads": "heads {}", "scope": "{}", "device": "{}",
    "seq_len": "{} tokens",
}  # fmt: skip
#: Line styles of the curves of one mechanism, in order; markers with them.
STYLES: tuple[tuple[Any, str], ...] = (
    ("-", "o"), ((0, (4, 1.5)), "s"), ((0, (1, 1)), "^"), ((0, (4, 1, 1, 1)), "D"), ("-", "v"),
    ((0, (4, 1.5)), "P"), ((0, (1, 1)), "X"), ((0, (4, 1, 1, 1)), "<"),
)  # fmt: skip

#: More crossings than this are not named in the figure.
MOST_NAMED = 6
#: Settings that a caption names where all records share them, and their words.
SETTINGS = {
    "scope": "scope", "phase": "phase", "batch_size": "batch", "d_model": "d_model",
    "num_heads": "heads", "dtype": "", "device": "on",
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One curve: its mechanism, label and look, and its records by the axis' value."""

    mechanism: str
    label: str
    look: Mapping[str, Any]
    records: tuple[Any, ...]

    def points(self, axis: str, field: str, unit: float = 1) -> tuple[list[float], list[float]]:
        """Where the field has a value, in this unit."""
        known = [r for r in self.records if getattr(r, field) is not None]
        return [getattr(r, axis) for r in known], [getattr(r, field) / unit for r in known]


def series_of(records: Records, axis: str, without: Sequence[str] = ()) -> list[Series]:
    """Curves over ``axis`` (``seq_len``, ``d_model``, ``num_heads``); labels say what differs.

    Records that differ only in fields ``without`` are points of one curve.
    """
    fields = [name for name in _FIELDS if name != axis and name not in without]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for record in records:
        # a module's own arguments are lists
        params = tuple(sorted((key, str(item)) for key, item in record.params.items()))
        told = (params if name == "params" else getattr(record, name) for name in fields)
        groups.setdefault((record.mechanism, *told), []).append(record)
    names, *columns = zip(*groups, strict=True)
    # parameters tell curves apart within a mechanism only
    varying = {
        field for field, its in zip(fields, columns, strict=True)
        if (len({*zip(names, its, strict=True)}) > len({*names}) if field == "params"
            else len({*its}) > 1)
    }  # fmt: skip
    settings, colour = varying_params(records), style.colours(names)
    found: list[Series] = []
    for (name, *values), members in groups.items():
        differs = {field: v for field, v in zip(fields, values, strict=True) if field in varying}
        place = sum(series.mechanism == name for series in found)
        line, marker = STYLES[place % len(STYLES)]
        look = {"color": colour[name], "linestyle": line, "marker": marker}
        ordered = tuple(sorted(members, key=lambda r: getattr(r, axis)))
        found.append(Series(name, _label(name, differs, settings[name]), look, ordered))
    return found


def varying_params(records: Records) -> dict[str, list[str]]:
    """By mechanism, the parameters in which its records differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for record in records:
        own = values.setdefault(record.mechanism, {})
        for name, value in record.params.items():
            own.setdefault(name, set()).add(str(value))
    return {name: [k for k, its in own.items() if len(its) > 1] for name, own in values.items()}


def _label(mechanism: str, told: Mapping[str, Any], settings: Sequence[str]) -> str:
    words = [mechanism]
    for name, value in told.items():
        if name == "params":
            words += [f"{k}={v}" for k, v in value if k in settings]
        elif name == "causal":
            words += ["causal"] if value else []
        else:
            words.append(_FIELDS[name].format(value))
    return figure_text(", ".join(words))


def need(records: Sequence[Any], why: str) -> None:
    """RequestError where there is nothing to draw."""
    if not records:
        raise RequestError(f"nothing to draw: {why}")


def draw_curve(axes: style.Axes, series: Series, points: Sequence[Any], **look: Any) -> None:
    """One curve in its own style, with its marker at every point."""
    axes.plot(*points, **{"markersize": 3, **series.look, **look})


def length_axis(axes: style.Axes, lengths: Sequence[int], label: str = "sequence length") -> None:
    """Both axes logarithmic; a few powers of two below."""
    axes.set_xscale("log", base=2)
    if axes.dataLim.y1 > 0:
        axes.set_yscale("log")  # else there is nothing that could be drawn so
    axes.grid(visible=True)
    axes.minorticks_off()
    low, high = math.floor(math.log2(min(lengths))), math.ceil(math.log2(max(lengths)))
    axes.set_xticks(*style.power_ticks(low, max(high, low + 1)))
    axes.set_xlim(min(lengths) / 1.25, max(lengths) * 1.6)
    axes.set_xlabel(label)


def series_legend(figure: style.Figure, found: Sequence[Series]) -> None:
    """One entry a curve, above the panels."""
    letters = max(len(s.label) for s in found) + 9  # the line and the gap between columns
    columns = max(1, min(4, int(figure.get_figwidth() * 15 / letters)))
    looks = [{**s.look, "markersize": 3, "label": s.label} for s in found]
    style.legend(figure, looks, columns, handlelength=3)


def draw_growth(records: Records, crossings: Sequence[tuple[float, float]] = ()) -> style.Figure:
    """Median time with its interval, and peak memory (points measured, line predicted).

    ``crossings`` are lengths and times at which two of the curves cross.
    """
    need([r for r in records if r.median_s or r.peak_bytes_predicted], "no record has a time")
    found = series_of(records, "seq_len")
    figure = style.new_figure(3.4)
    time, memory = figure.subplots(1, 2)
    for curve in found:
        _times(time, curve)
        predicted = curve.points("seq_len", "peak_bytes_predicted", MIB)
        draw_curve(memory, curve, predicted, marker="", linewidth=1.0)
        measured = curve.points("seq_len", "peak_bytes_measured", MIB)
        draw_curve(memory, curve, measured, linestyle="none")
        _ends(memory, curve, *measured)
    for axes, label in ((time, "median time [s]"), (memory, "peak memory [MiB]")):
        length_axis(axes, [record.seq_len for record in records])
        axes.set_ylabel(label)
    for length, height in sorted(crossings):
        time.plot(
            [length],
            [height],
            marker="o",
            markersize=6,
            markerfacecolor="none",
            markeredgecolor="black",
            markeredgewidth=0.9,
            zorder=6,
        )
    if 0 < len(crossings) <= MOST_NAMED:
        lengths = ", ".join(style.short_count(round(length)) for length, _ in sorted(crossings))
        style.in_corner(time, f"curves cross at {lengths}", color=style.GREY)
    series_legend(figure, found)
    same = [
        f"{word} {getattr(records[0], name)}".strip() for name, word in SETTINGS.items()
        if len({str(getattr(r, name)) for r in records}) == 1
    ]  # fmt: skip
    ends = " Crosses: the next length could not run." if any(r.skipped for r in records) else ""
    style.caption(
        figure,
        f"{', '.join(same)}. Bars: 95 % interval of the median. Memory: line by the closed "
        f"form, points by the allocator. Circles: curves cross.{ends}",
    )
    return figure


def _times(axes: style.Axes, curve: Series) -> None:
    timed = [(r.seq_len, r.median_s, r.ci_low_s, r.ci_high_s) for r in curve.records if r.median_s]
    below = [max(0.0, time - (low or time)) for _, time, low, _ in timed]
    above = [max(0.0, (high or time) - time) for _, time, _, high in timed]
    lengths, times = [length for length, *_ in timed], [time for _, time, *_ in timed]
    axes.errorbar(
        lengths, times, [below, above], markersize=3, capsize=2, elinewidth=0.8, **curve.look
    )
    _ends(axes, curve, lengths, times)


def _ends(
    axes: style.Axes, curve: Series, lengths: Sequence[float], heights: Sequence[float]
) -> None:
    """A cross after the last point where the next length could not run, with the reason's word."""
    failed = [r.skipped for r in curve.records if r.skipped and lengths and r.seq_len > lengths[-1]]
    if not failed:
        return
    word = "no result" if "no result" in failed[0] else "ends"
    if "memory" in failed[0] or "does not fit" in failed[0]:
        word = "OOM"
    last, shade = (lengths[-1], heights[-1]), curve.look["color"]
    style.beside(axes, word, last, (0, 6), color=shade, ha="center")
    axes.plot(*last, marker="x", markersize=7, color=shade, markeredgewidth=1.4)
