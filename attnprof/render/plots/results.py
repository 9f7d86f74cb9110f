"""Draw measured results by kind: over width and heads, under a roofline, error against cost.

:func:`draw_results` is the entry point for ``plot``. Error against cost is also the figure of
``tradeoff``, a panel an input, and of document 003's experiment (:func:`draw_tradeoff`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnprof.errors import RequestError
from attnprof.record import DistillRecord, ProfileRecord, Report, TradeoffRecord
from attnprof.record.escapes import figure_text
from attnprof.record.report import by_device
from attnprof.render.plots import series, style, ticks
from attnprof.render.plots.heatmap import Scale, colour_bar, draw_cells
from attnprof.render.tables.measured import SETTINGS
from attnprof.units import format_rate

Ceiling = Mapping[str, Any]
#: Axes of a surface, and how they are swept.
_AXES = {"seq_len": "--seq 64:1024:x2", "d_model": "--d-model 64:1024:x2"}
#: Name and unit of each panel, by field.
PANELS: Mapping[str, tuple[str, str]] = {
    "cross_entropy": ("cross-entropy [nats]", ""), "mse_teacher": ("MSE to the teacher", ""),
    "median_s": ("time", "s"),
}  # fmt: skip
SHORT = {"fair": "fair", "printed": "as printed"}


def draw_results(reports: Sequence[Report], kind: str = "growth", **facts: Any) -> style.Figure:
    """Return one figure of profile or sweep reports; several devices each by its name.

    ``facts`` are the ``crossings`` of a figure of growth, and the ``ceilings`` of a roofline.
    Raises :class:`attnprof.errors.RequestError` if the results lack the fields of this kind.
    """
    records = by_device(reports, ProfileRecord)
    points: dict[Any, ProfileRecord] = {}
    for record in records:
        conditions = (getattr(record, field, None) for field in series.FIELDS)
        point = (record.mechanism, str(record.params), *conditions)
        if points.setdefault(point, record) is not record:
            raise RequestError(
                f"two results for one point ({record.mechanism}, {series.shared([record])}): "
                "plot files that do not repeat points, each file in a figure of its own"
            )
    return _DRAW[kind](records, **facts)


def _width(records: series.Records) -> style.Figure:
    """Return FLOPs over the model width: document 000's Figure 2."""
    valid = _with_flops(records, {"d_model": "--d-model 64:1024:x2"})
    panels = {"FLOPs (formula)": ("flops_formula", 1.0, ticks.with_prefix())}
    return series.draw_over(valid, "d_model", "model width d_model", "FLOPs", panels)


def _heads(records: series.Records) -> style.Figure:
    """Return FLOPs, time and memory over the number of heads, as in TaylorShift's Table 6."""
    valid = _with_flops(records, {"num_heads": "--heads 1,2,4,8,16"})
    unit, memory = series.peak_memory(valid, "peak_bytes_measured")
    panels = {"FLOPs (formula)": ("flops_formula", 1.0, ticks.with_prefix()),
              "median time": ("median_s", 1.0, ticks.with_prefix("s")),
              memory: ("peak_bytes_measured", unit, ticks.plain)}  # fmt: skip
    what = "FLOPs, time and memory"
    return series.draw_over(valid, "num_heads", "number of heads", what, panels)


def _table(records: series.Records, lengths: Sequence[int], widths: Sequence[int]) -> Any:
    """Return FLOPs by width, in rows by length; NaN where a point is missing."""
    import numpy as np

    flops = {(r.seq_len, r.d_model): float(r.flops_formula) for r in records}
    return np.array([[flops.get((n, w), math.nan) for w in widths] for n in lengths])


def _surface(records: series.Records) -> style.Figure:
    """Return FLOPs over length and width as multiples of the first mechanism's, a panel each."""
    import numpy as np

    valid = _with_flops(records, _AXES)
    curves = series.series_of(valid, "seq_len")
    base, *others = sorted(curves, key=lambda curve: curve.mechanism != "standard")
    series.need(others, "a ratio needs two mechanisms; sweep several, like --attention "
                "standard,linear, or type --kind surface3d")  # fmt: skip
    if any(curve.mechanism == base.mechanism for curve in others):
        name = series.varying_params(valid)[base.mechanism][0]
        value = base.records[0].params.get(name)
        raise RequestError(f"several {base.mechanism} to compare with, which differ in {name}: "
                           f"choose one, like --where {name}={value}")  # fmt: skip
    lengths, widths = (sorted({getattr(r, f) for r in valid}) for f in _AXES)
    titles, tables = [], []
    for title, shown in series.facets(valid, *_AXES):
        for curve in others:
            values, base_values = (
                _table(each.within(shown).records, lengths, widths) for each in (curve, base)
            )
            tables.append(values / base_values)
            titles.append(", ".join(filter(None, (curve.label, title))))
    grid = series.PanelGrid(titles, period=len(others), less=series.fewer(valid, *_AXES))
    scale = Scale.of(np.array(tables))
    for (axes,), table in zip(grid.panels, tables, strict=True):
        mesh = draw_cells(axes, table, lengths, widths, scale)
    grid.label("model width d_model", "sequence length")
    panels = [axes for (axes,) in grid.panels]
    colour_bar(panels, mesh, scale)
    style.title(grid.figure, f"FLOPs of {series.pass_text(valid)} relative to {base.label}, over "
                "sequence length and model width")  # fmt: skip
    missing = "crossed out: no result" * bool(np.isnan(tables).any())
    hatched = f"hatched: fewer than {base.label}" * scale.hatched(panels)
    style.caption(grid.figure, series.shared(valid), "FLOPs by the closed forms", hatched, missing)
    return grid.figure


def _surface3d(records: series.Records) -> style.Figure:
    """Return FLOPs over length and width, a surface a mechanism: document 000's Figure 4."""
    import numpy as np

    valid = _with_flops(records, _AXES)
    lengths, widths = (sorted({getattr(r, f) for r in valid}) for f in _AXES)
    x, y = np.meshgrid(np.log2(lengths), np.log2(widths), indexing="ij")
    drawn = series.Multiples(valid, *_AXES, least=2.3, projection="3d", computed_zorder=False)
    logs = [math.log10(r.flops_formula) for r in valid]
    decades = range(math.floor(min(logs)), math.ceil(max(logs)) + 1)
    axes: Any
    for curves, (axes,) in drawn.parts:
        for curve in curves:
            look = {key: curve.look[key] for key in ("color", "linestyle")}
            z = np.log10(_table(curve.records, lengths, widths))
            axes.plot_wireframe(x, y, z, linewidth=0.9, clip_on=False, **look)
        for name, sizes in (("x", lengths), ("y", widths)):
            few = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
            getattr(axes, f"set_{name}ticks")(np.log2(few), list(map(ticks.short_size, few)))
        axes.set_zticks(list(decades), [ticks.with_prefix()(10.0**e) for e in decades])
        style.set_3d_view(axes, "sequence length", "model width", "")
    over = "over sequence length and model width"
    return drawn.finished("FLOPs", over, "FLOPs by the closed forms", marker="")


def _with_flops(records: series.Records, axes: Mapping[str, str]) -> series.Records:
    """Return records that have FLOPs; RequestError unless each axis has several values."""
    valid = [r for r in records if r.flops_formula and all(getattr(r, f) for f in axes)]
    series.need(valid, f"no record has FLOPs and {' and '.join(axes)}")
    for field, example in axes.items():
        if len({getattr(r, field) for r in valid}) < 2:
            raise RequestError(f"the results have one {field} only: sweep several, like {example}")
    return valid


def _roofline(records: series.Records, ceilings: Sequence[Ceiling] = ()) -> style.Figure:
    """Return FLOP/s against FLOPs a byte, a point a length, under the device's ceilings.

    ``ceilings`` have ``device``, ``flops_per_s`` by format, ``bytes_per_s`` and ``source``.
    """
    if not ceilings:
        raise RequestError("no ceilings known for the device of these results: run attnprof "
                           "calibrate there, then plot")  # fmt: skip
    valid = [r for r in records if r.flops_per_s and r.arithmetic_intensity]
    series.need(valid, "no record has a rate")
    drawn, reach = series.Multiples(valid, "seq_len"), [r.arithmetic_intensity for r in valid]
    one = len({record.device for record in valid}) == 1  # whose name records need not have
    for curves, (axes,) in drawn.parts:
        for curve in curves:
            points = curve.points("arithmetic_intensity", "flops_per_s")
            axes.plot(*points, **{**curve.look, "linewidth": 0.7})
        here = [record for curve in curves for record in curve.records]
        for ceiling in [c for c in ceilings if one or c["device"] == here[0].device]:
            formats = list(dict.fromkeys(record.dtype for record in here))
            _roof(axes, ceiling, formats, (min(reach) / 2, max(reach) * 4))
    first = drawn.grid.panels[0][0]
    ticks.value_axes(first, ticks.plain, ticks.with_prefix("FLOP/s"), above=0.15)
    drawn.grid.label("FLOPs per byte", "achieved rate")
    limits = [f"{c['device']}, {format_rate(c['bytes_per_s'], 'B/s')}: {c['source']}"
              for c in ceilings]  # fmt: skip
    return drawn.finished(
        "Rate", "under the device's limits", "each point a sequence length",
        "FLOPs and bytes by the closed forms", "; ".join(limits),
    )  # fmt: skip


def _roof(axes: style.Axes, ceiling: Ceiling, formats: Sequence[str], ends: style.Place) -> None:
    """Draw the memory's slope and a flat line a number format."""
    grey, speed = style.GREY, ceiling["bytes_per_s"]
    for dtype in filter(ceiling["flops_per_s"].get, formats):
        rate = ceiling["flops_per_s"][dtype]
        xs = [ends[0], rate / speed, max(ends[1], 2 * rate / speed)]
        axes.plot(xs, [min(rate, x * speed) for x in xs], color=grey, linewidth=1.0, zorder=1)
        text = f"{figure_text(dtype)} {format_rate(rate)}"
        style.write_beside(axes, text, (xs[2], rate), (0, 3), ha="right", color=grey)


def _pareto(records: series.Records) -> style.Figure:
    """Return error against time, each point labelled with its parameters."""
    valid = [r for r in records if r.median_s and r.error is not None]
    series.need(valid, "no record has an error beside its time: measure with sweep --error")
    return draw_pareto(valid, COSTS["time"], "error")


_DRAW: Mapping[str, Callable[..., style.Figure]] = {
    "growth": series.draw_growth, "surface": _surface, "surface3d": _surface3d, "width": _width,
    "heads": _heads, "roofline": _roofline, "pareto": _pareto,
}  # fmt: skip
KINDS = tuple(_DRAW)


#: Distances below this are rounding.
EXACT = 1e-9
#: The cost's field, axis label and unit, by its name in ``--over``.
COSTS = {
    "flops": ("flops", "FLOPs", ""), "time": ("median_s", "median time", "s"),
    "memory": ("peak_bytes", "peak memory", "B"),
}  # fmt: skip


def draw_pareto(
    records: series.Records, cost: tuple[str, str, str], error: str, *, named: bool = True,
    hollow: Callable[[Any], bool] = lambda _: False, captions: Sequence[str] = (),
) -> style.Figure:  # fmt: skip
    """Return error over cost, a panel a facet, a line a mechanism through its settings.

    ``named`` writes the settings beside the points; ``hollow`` chooses points to draw empty.
    ``captions`` are more parts of the caption.
    """
    field, label, unit = cost
    drawn, settings = series.Multiples(records, by_params=False), series.varying_params(records)
    errors = [getattr(r, error) for r in records]
    inexact = [value for value in errors if value > EXACT]
    low, high = min(inexact, default=1.0) / 1.5, max(inexact, default=1.0) * 1.5
    strip = low / (high / low) ** 0.2
    exact = math.sqrt(strip * low)  # the height of points without an error
    for curves, (axes,) in drawn.parts:
        axes.axhspan(strip, low, color="0.93", zorder=0)
        best: list[tuple[float, float]] = []
        for curve in curves:
            shown = sorted(curve.records, key=lambda record: getattr(record, field))
            heights = [value if (value := getattr(r, error)) > EXACT else exact for r in shown]
            points = list(zip([getattr(r, field) for r in shown], heights, strict=True))
            if not points:
                continue
            best += points
            fill = {"markerfacecolor": "white"} if any(map(hollow, shown)) else {}
            axes.plot(*zip(*points, strict=True), **{**curve.look, "linewidth": 0.6, **fill})
            for point, record in zip(points, shown, strict=True) if named else ():
                values = [record.params.get(name) for name in settings[record.mechanism]]
                text = figure_text(", ".join(str(value) for value in values if value is not None))
                style.write_beside(axes, text, point, (3, 3), color=curve.look["color"])
        steps = zip(*front(best), strict=True)
        axes.step(*steps, where="post", color=style.GREY, linewidth=0.8, zorder=1)
    first = drawn.grid.panels[0][0]
    ticks.value_axes(first, ticks.with_prefix(unit), ticks.plain)
    marks = ticks.round_numbers(low, high, lambda numbers: len(numbers) < 5) if inexact else []
    first.set_ylim(strip, high)
    first.set_yticks([exact, *marks], ["exact", *map(ticks.plain, marks)])
    drawn.grid.label(label, "distance")
    numbers = "; ".join(
        f"{name}: {', '.join(params)}" for name, params in settings.items() if params
    )
    return drawn.finished(
        f"Distance from softmax attention over {label.replace('median ', '')}", "",
        "steps: no other point is both cheaper and nearer" * (len(records) > 1),
        f"{'numbers at points' if named else 'lines'} are of {numbers}" if numbers else "",
        *captions, **({} if numbers else {"linestyle": "none"}),
    )  # fmt: skip


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point beats in both values."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not best or y < best[-1][1]:
            best.append((x, y))
    return best


def draw_tradeoff(report: Report) -> style.Figure:
    """Return error over FLOPs, or over ``over`` in the summary; or 003's experiment."""
    if report.command != "tradeoff":
        return _draw_distilled(report)
    cost = COSTS[report.summary.get("over", "flops")]
    records = [r for r in report.of(TradeoffRecord)
               if r.skipped is None and getattr(r, cost[0]) is not None]  # fmt: skip
    series.need(records, "no mechanism was compared, or none was timed")
    others = [r for r in records if r.relation in ("another", "untrained")]
    return draw_pareto(
        records, cost, "error_relative", named=False,
        hollow=lambda record: record in others,
        captions=("empty: another function, or untrained" * bool(others),),
    )  # fmt: skip


def _draw_distilled(report: Report) -> style.Figure:
    """Return a row a setting, a column a number, a mark a model.

    Marks are full at the trained length.
    """
    records = report.of(DistillRecord)
    series.need([r for r in records if r.cross_entropy is not None], "no model was trained")
    models = list(dict.fromkeys(record.model for record in records))
    looks = style.looks(models)
    tokens = report.summary["scale"]["tokens"]
    shown = [name for name in PANELS if any(getattr(r, name) is not None for r in records)]
    settings = [name for name in SETTINGS if any(r.setting == name for r in records)]
    figure = style.new_figure(1.9)
    panels = style.split(figure, len(shown) * len(settings), 1.5)
    places = [(setting, field) for setting in settings for field in shown]
    for axes, (setting, field) in zip(panels, places, strict=True):
        of_setting = [r for r in records if r.setting == setting]
        _draw_students(axes, of_setting, field, tokens, models, looks)
        axes.set_title(f"{SHORT[setting]}: {PANELS[field][0]}", fontsize=style.SMALL)
    marks = [
        {"color": style.GREY, "marker": "o", "linestyle": "none", "label": f"{tokens} tokens"},
        {"color": style.GREY, "marker": "o", "linestyle": "none", "label": f"{2 * tokens} tokens",
         "markerfacecolor": "white"},
    ]  # fmt: skip
    title = "Document 003's experiment: students of standard attention, also at twice the length"
    style.legend(figure, marks, title=title)
    seeds = max(record.seeds for record in records)
    style.caption(
        figure, "trained to the same loss, steps and batches (fair), or as the listing does",
        f"median of {seeds} seeds, bars: least to largest" * (seeds > 1),
        "MSE of the teacher is 0: not shown", "no mark: the model cannot run at that length",
    )  # fmt: skip
    return figure


def _draw_students(
    axes: style.Axes, records: Sequence[DistillRecord], field: str, tokens: int,
    models: Sequence[str], looks: Mapping[str, style.Look],
) -> None:  # fmt: skip
    for record in records:
        value = getattr(record, field)
        if not value:
            continue
        long = record.seq_len > tokens
        x = models.index(record.model) + (0.15 if long else -0.15)
        fill = {"markerfacecolor": "white"} if long else {}
        look = {"color": looks[record.model]["color"], "linestyle": "none", **fill}
        if field == "cross_entropy" and record.seeds > 1:
            ends = [[value - (record.cross_entropy_low or value)],
                    [(record.cross_entropy_high or value) - value]]  # fmt: skip
            axes.errorbar([x], [value], ends, marker="o", markersize=4, capsize=2, **look)
        else:
            axes.plot([x], [value], marker="o", markersize=4, **look)
    axes.set_yscale("log" if axes.lines or axes.containers else "linear")
    axes.margins(y=0.15)
    if axes.get_yscale() == "log":
        unit = PANELS[field][1]
        ticks.mark_values(axes.yaxis, ticks.with_prefix(unit) if unit else ticks.plain)
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.set_xticks(range(len(models)), models, rotation=40, ha="right")
    axes.grid(visible=True, axis="y")
