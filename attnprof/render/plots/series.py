"""Group results into curves, and draw them over an axis as small multiples under one legend.

A facet is a panel for each combination of the fields that vary and are no axis. :class:`Multiples`
makes facets, panels and curves of records; :func:`draw_over` and :func:`draw_growth` draw them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style, ticks
from attnprof.units import grouped, plural

Records = Sequence[Any]

#: Fields in which points of one mechanism differ besides parameters, with their text in titles.
FIELDS: Mapping[str, Callable[[Any], str]] = {
    "phase": str, "causal": lambda value: "causal" if value else "not causal",
    "compiled": lambda value: "compiled" if value else "not compiled", "dtype": str,
    "scope": "scope {}".format, "device": str, "batch_size": "batch {:,}".format,
    "d_model": "d_model {:,}".format, "num_heads": partial(plural, noun="head"),
    "seq_len": partial(plural, noun="token"), "input": "{} input".format,
    "norms": "norms: {}".format,
}  # fmt: skip
#: Inches of a panel's width, less where there are more rows than these, and of a row's height.
LEAST, NARROWEST, ROWS, ROW, LOWEST, LOWEST_3D = 1.55, 1.05, 8, 1.6, 1.0, 1.8
#: The words for a phase in titles.
PHASES = {
    "train": "a training step", "forward": "a forward pass", "backward": "a backward pass",
    "decode": "a decoding step",
}  # fmt: skip
#: A panel's field, its unit as a divisor, and the formatter of its ticks.
Panel = tuple[str, float, ticks.Label]
#: Caption for the crosses of :func:`rug`.
CROSS = "×:\xa0no result (OOM: out of memory)"


def facets(records: Records, *axes: str) -> list[tuple[str, Records]]:
    """Return the records of each panel after a title with the values that set them apart.

    Panels differ in all fields that vary and are no axis. If none does, one panel has no title.
    """
    fields = [f for f in FIELDS if f not in axes and len(_values(records, f)) > 1]
    groups = grouped(records, lambda record: tuple(getattr(record, field) for field in fields))
    ordered = sorted(groups, key=lambda values: [(v is not None, v) for v in values])
    return [(", ".join(map(_field_text, fields, values)), groups[values]) for values in ordered]


def _values(records: Records, field: str) -> set[Any]:
    return {getattr(record, field, None) for record in records}


def _field_text(field: str, value: Any) -> str:
    return f"{field} unknown" if value is None else FIELDS[field](value)


def fewer(records: Records, *axes: str) -> str:
    """Return the flag that picks one value of the field that varies most: ``--where dtype=…``."""
    field = max((f for f in FIELDS if f not in axes), key=lambda f: len(_values(records, f)))
    flag = f"--{field} " if field in ("input", "norms") else f"--where {field}="
    return f"{flag}{getattr(records[0], field)}"


def shared(records: Records) -> str:
    """Return the fields that all these records share, in words for a caption."""
    values = {field: _values(records, field) for field in FIELDS}
    same = {field: next(iter(each)) for field, each in values.items() if len(each) == 1}
    return ", ".join(_field_text(f, v) for f, v in same.items() if v is not None and v is not False)


class PanelGrid:
    """The panels of a figure, one for each facet and quantity; a quantity's axes are shared.

    Facets are columns and quantities rows, in as many blocks as the width needs; a single facet
    has its quantities side by side. Rows end after a multiple of ``period``, by default the number
    of values of the field that varies last. ``options`` is for 3-D panels.
    Raises RequestError if a page does not hold them, with ``less`` as an example of fewer.
    """

    def __init__(
        self, titles: Sequence[str], quantities: int = 1, *, less: str, period: int = 0,
        least: float = LEAST, square: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        count, one = len(titles) * quantities, len(titles) == 1
        last = period or len({title.rpartition(", ")[2] for title in titles})
        columns = style.abreast(quantities) if one else style.abreast(len(titles), least)
        if not (one or style.narrow()) and len(titles) / columns * quantities > ROWS:
            columns = style.abreast(len(titles), NARROWEST)
        columns = columns // last * last or columns
        rows = -(-count // columns) if one else -(-len(titles) // columns) * quantities
        low = LOWEST_3D if options else LOWEST
        style.check_rows(rows, low, less)
        self.figure = style.new_figure(0.35)
        side = self.figure.get_figwidth() / columns
        most = min(3.2, 0.8 * side) if square else 2.6 if one or options else ROW
        height = max(low, min(most, 8.5 / rows))
        self.figure.set_figheight(0.35 + rows * height)
        spec = self.figure.add_gridspec(rows, columns)
        places = [
            [divmod(row, columns) if one else (place // columns * quantities + row, place % columns)
             for row in range(quantities)]
            for place in range(len(titles))
        ]  # fmt: skip
        self.panels: list[list[style.Axes]] = [
            [self.figure.add_subplot(spec[spot], **options) for spot in spots] for spots in places
        ]
        first = self.panels[0]
        cells = {spot for spots in places for spot in spots}
        letters, lines = int((side - 0.25) * 16), 0
        for title, spots, panels in zip(titles, places, self.panels, strict=True):
            # in lines that are broken after commas
            whole = figure_text(title).replace(" ", "\xa0").replace(",\xa0", ", ")
            panels[0].set_title(style.in_lines(whole, letters), fontsize=style.SMALL)
            lines = max(lines, panels[0].get_title().count("\n"))
            for (row, column), axes, top in zip(spots, panels, first * (not options), strict=False):
                axes.sharex(first[0])
                axes.sharey(top)
                axes.grid(visible=True)
                below = (row + 1, column) in cells
                axes.tick_params(length=2, labelbottom=not below, labelleft=one or column == 0)
        style.grow(self.figure, lines * rows // quantities)

    def label(self, x: str, *ys: str) -> None:
        """Write the names of the axes at the panels that show the axes' numbers."""
        for axes, y in (pair for row in self.panels for pair in zip(row, ys, strict=True)):
            for axis, label, at in ((axes.xaxis, x, "labelbottom"), (axes.yaxis, y, "labelleft")):
                short = ticks.inches(axis) * 16.2 < len(label)
                text = "\n".join(label.rsplit(" ", 1)) if short else label
                axis.set_label_text(text * axis.get_tick_params()[at])


@dataclass(frozen=True)
class Series:
    """One curve: its mechanism, label and look, and its records in the axis' order."""

    mechanism: str
    label: str
    look: Mapping[str, Any]
    records: tuple[Any, ...]

    def points(self, axis: str, field: str, unit: float = 1) -> tuple[list[float], list[float]]:
        """Return positions and values in this unit; NaN, which breaks the line, for none."""
        values = [getattr(r, field) for r in self.records]
        scaled = [math.nan if value is None else value / unit for value in values]
        return [getattr(r, axis) for r in self.records], scaled

    def within(self, shown: Records) -> "Series":
        """Return the part of the curve that a facet of these records shows."""
        ids = set(map(id, shown))
        return replace(self, records=tuple(r for r in self.records if id(r) in ids))


def series_of(records: Records, axis: str, *, by_params: bool = True) -> list[Series]:
    """Return a curve a mechanism, over ``axis`` (``seq_len``, ``d_model``, ``num_heads``).

    With ``by_params`` there is one for each of its settings, which its label names.
    """
    settings, groups = varying_params(records), dict[str, list[Any]]()
    for record in records:
        names = settings[record.mechanism] if by_params else ()
        words = [f"{key}={record.params[key]}" for key in names if key in record.params]
        groups.setdefault(", ".join([record.mechanism, *words]), []).append(record)
    looks = style.looks({label: group[0].mechanism for label, group in groups.items()})
    return [
        Series(group[0].mechanism, label, looks[label],
               tuple(sorted(group, key=lambda record: getattr(record, axis))))
        for label, group in groups.items()
    ]  # fmt: skip


def varying_params(records: Records) -> dict[str, list[str]]:
    """Return by mechanism the parameters in which its records differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for record in records:
        of_mechanism = values.setdefault(record.mechanism, {})
        for name, value in record.params.items():
            of_mechanism.setdefault(name, set()).add(str(value))
    return {
        name: [key for key, texts in of_mechanism.items() if len(texts) > 1]
        for name, of_mechanism in values.items()
    }


def need(records: Sequence[Any], why: str) -> None:
    """Raise RequestError if there is nothing to draw."""
    if not records:
        raise RequestError(f"nothing to draw: {why}")


class Multiples:
    """Small multiples of curves, a facet for every field that varies and is no axis.

    ``parts`` pairs each facet's part of the curves with its panels; ``options`` is for the panels.
    """

    def __init__(
        self, records: Records, *axes: str, quantities: int = 1, by_params: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        self.records, shown = records, facets(records, *axes)
        self.curves = series_of(records, (*axes, "seq_len")[0], by_params=by_params)
        less = fewer(records, *axes)
        self.grid = PanelGrid([title for title, _ in shown], quantities, less=less, **options)
        inside = ([curve.within(facet) for curve in self.curves] for _, facet in shown)
        self.parts = list(zip(inside, self.grid.panels, strict=True))

    def finished(self, what: str, over: str, *captions: str, **look: Any) -> style.Figure:
        """Return the figure with a title, a legend of curves, and a caption."""
        figure = self.grid.figure
        looks = {curve.label: {**curve.look, **look} for curve in self.curves}
        title = f"{what} of {pass_text(self.records)} {over}".strip() + ", by mechanism"
        style.draw_legend(figure, looks, (), title, marked=False)
        style.caption(figure, shared(self.records), *captions)
        return figure


def pass_text(records: Records) -> str:
    """Return the words for the records' phase in a title: ``a forward pass``."""
    phases = {record.phase for record in records}
    return PHASES.get(phases.pop(), "a pass") if len(phases) == 1 else "a pass"


def draw_growth(
    records: Records, crossings: Sequence[tuple[Any, float, float]] = ()
) -> style.Figure:
    """Return median time with its interval, and peak memory (dots measured, line predicted).

    ``crossings`` of two curves of times are a record of one, the length and the time.
    """
    need([r for r in records if r.median_s or r.peak_bytes_predicted], "no record has a time")
    drawn, lines = Multiples(records, "seq_len", quantities=2), [0, 0]
    lengths = [record.seq_len for record in records]
    unit, memory_label = peak_memory(records, "peak_bytes_predicted", "peak_bytes_measured")
    for curves, (time, memory) in drawn.parts:
        for curve in curves:
            _draw_times(time, curve)
            predicted = curve.points("seq_len", "peak_bytes_predicted", unit)
            memory.plot(*predicted, **{**curve.look, "marker": "", "linewidth": 1.0})
            measured = curve.points("seq_len", "peak_bytes_measured", unit)
            memory.plot(*measured, **{**curve.look, "linestyle": "none"})
        one = next(curve.records[0] for curve in curves if curve.records)
        used = _draw_crossings(
            time, sorted(xy for at, *xy in crossings if len(facets([at, one], "seq_len")) == 1)
        )
        ends = (rug(axes, curves, "seq_len", lengths, n) for axes, n in ((time, used), (memory, 0)))
        lines = list(map(max, lines, ends))
    labels = (ticks.with_prefix("s"), ticks.plain)
    for axes, label, room in zip(drawn.grid.panels[0], labels, lines, strict=True):
        ticks.length_axis(axes, lengths, label, room)
    drawn.grid.label("sequence length", "median time", memory_label)
    return drawn.finished(
        "Time and peak memory", "over sequence length",
        "bars: 95\xa0% interval of the median" * any(r.ci_low_s for r in records),
        "memory lines: by the closed form" * (len(set(lengths)) > 1),
        "memory points: by the allocator" * any(r.peak_bytes_measured for r in records),
        "○ N: sequence lengths at which the curves of two mechanisms cross" * bool(crossings),
        CROSS * any(r.skipped for r in records),
    )  # fmt: skip


def draw_over(
    records: Records, axis: str, label: str, what: str, panels: Mapping[str, Panel], *captions: str
) -> style.Figure:
    """Return a panel a field over the axis, a curve a mechanism."""
    drawn, lines = Multiples(records, axis, quantities=len(panels)), [0] * len(panels)
    sizes = [getattr(record, axis) for record in records]
    for curves, row in drawn.parts:
        for place, (axes, (field, unit, _)) in enumerate(zip(row, panels.values(), strict=True)):
            for curve in curves:
                axes.plot(*curve.points(axis, field, unit), **curve.look)
            if field != "flops_formula":
                lines[place] = max(lines[place], rug(axes, curves, axis, sizes))
    for axes, (*_, written), room in zip(drawn.grid.panels[0], panels.values(), lines, strict=True):
        ticks.length_axis(axes, sizes, written, room)
    drawn.grid.label(label, *panels)
    over = f"over {label}".replace("over number", "over the number")
    return drawn.finished(what, over, *captions, CROSS * any(lines))


def peak_memory(records: Records, *fields: str) -> tuple[float, str]:
    """Return the unit in bytes for the middle of these fields' values, and the axis' label."""
    values = [value for r in records for field in fields if (value := getattr(r, field))] or [1]
    unit, name = ticks.unit_of([4 * math.sqrt(min(values) * max(values))], "B")
    return unit, f"peak memory {name}"


def _draw_times(axes: style.Axes, curve: Series) -> None:
    lengths, times = curve.points("seq_len", "median_s")
    ends = [
        [abs(t - (getattr(r, end) or t)) for r, t in zip(curve.records, times, strict=True)]
        for end in ("ci_low_s", "ci_high_s")
    ]
    axes.errorbar(lengths, times, ends, capsize=2, elinewidth=0.8, **curve.look)


def _draw_crossings(axes: style.Axes, points: Sequence[Sequence[float]]) -> int:
    """Circle the crossings and note their lengths on top; return the lines that this takes."""
    for point in points:
        axes.plot(*point, "o", markersize=6, mfc="none", mec="black", zorder=6)
    lengths = list(dict.fromkeys(f"{n:,.0f}" for n, _ in points))
    if not points:
        return 0
    text = f"○ N = {', '.join(lengths)}"
    if style.in_lines(text, letters(axes)).count("\n") > 1:
        text = f"○ N = {lengths[0]} to {lengths[-1]}, {len(points)}\xa0crossings"
    return note(axes, text)


def letters(axes: style.Axes) -> int:
    """Return how many letters fit in a line of a panel."""
    return max(12, int(ticks.inches(axes.xaxis) * 17))


def note(axes: style.Axes, text: str, line: int = 0, color: str = style.GREY) -> int:
    """Write a text at the top of a panel, ``line`` lines down; return the lines that it takes."""
    look: dict[str, Any] = {"va": "top", "xycoords": "axes fraction", "color": color}
    text, look["linespacing"] = style.in_lines(text, letters(axes)), ticks.LINE / style.SMALL
    style.write_beside(axes, text, (0.02, 1), (0, -line * ticks.LINE - 1), in_layout=False, **look)
    return 1 + text.count("\n")


def rug(
    axes: style.Axes, curves: Sequence[Series], axis: str, sizes: Sequence[int], line: int = 0
) -> int:
    """Mark with crosses where curves lack results, ``line`` lines down, and note why.

    Returns the number of lines then used.
    """
    from matplotlib.transforms import ScaledTranslation

    low, high = map(math.log, ticks.padded_range(sizes))
    figure: Any = axes.figure
    for curve in curves:
        failed = [record for record in curve.records if record.skipped]
        if not failed:
            continue
        places = [getattr(record, axis) for record in failed]
        says_memory = any(words in failed[0].skipped for words in ("memory", "does not fit"))
        most = 2 * letters(axes) - 14  # two lines; the legend has the whole name
        name = curve.label if len(curve.label) <= most else curve.label.rpartition(":")[2]
        name = name if len(name) <= most else f"{name[:most]}…"
        text = figure_text(f"{name}: {'OOM' if says_memory else 'no result'}")
        line += note(axes, text, line, curve.look["color"]) - 1
        # on the same line where there is room
        reach = (len(text) + 2) / letters(axes)
        line += (math.log(min(places)) - low) / (high - low) < reach
        down = ScaledTranslation(0, -(line + 0.5) * ticks.LINE / 72, figure.dpi_scale_trans)
        axes.plot(
            places, [1.0] * len(places), marker="x", markersize=4.5, linestyle="none",
            color=curve.look["color"], markeredgewidth=1.2,
            transform=axes.get_xaxis_transform() + down,
        )  # fmt: skip
        line += 1
    return line
