"""Draw error against cost, a panel an input or facet; and document 003's experiment."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnprof.record import DistillRecord, Report, TradeoffRecord
from attnprof.record.escapes import figure_text
from attnprof.render.plots import series, style, ticks
from attnprof.render.plots.facets import Records
from attnprof.render.plots.series import Multiples
from attnprof.render.tables.tradeoff import SETTINGS

#: Distances below this are rounding.
EXACT = 1e-9
#: The cost's field, axis label and unit, by its name in ``--over``.
AXES = {
    "flops": ("flops", "FLOPs", ""), "time": ("median_s", "median time", "s"),
    "memory": ("peak_bytes", "peak memory", "B"),
}  # fmt: skip


def draw_pareto(
    records: Records, cost: tuple[str, str, str], error: str, *, named: bool = True,
    hollow: Callable[[Any], bool] = lambda _: False, told: Sequence[str] = (),
) -> style.Figure:  # fmt: skip
    """Return error over cost, a panel a facet, a line a mechanism through its settings.

    ``named`` writes the settings beside the points; ``hollow`` chooses points to draw empty.
    ``told`` are more parts of the caption.
    """
    field, label, unit = cost
    drawn, settings = Multiples(records, by_params=False), series.varying_params(records)
    errors = [getattr(r, error) for r in records]
    inexact = [value for value in errors if value > EXACT]
    low, high = min(inexact, default=1.0) / 1.5, max(inexact, default=1.0) * 1.5
    strip = low / (high / low) ** 0.2
    exact = math.sqrt(strip * low)  # the height at which these stand
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
                said = figure_text(", ".join(str(value) for value in values if value is not None))
                style.write_beside(axes, said, point, (3, 3), color=curve.look["color"])
        steps = zip(*front(best), strict=True)
        axes.step(*steps, where="post", color=style.GREY, linewidth=0.8, zorder=1)
    first = drawn.grid.panels[0][0]
    series.value_axes(first, ticks.with_prefix(unit), ticks.plain)
    some = ticks.round_numbers(low, high, lambda its: len(its) < 5) if inexact else []
    first.set_ylim(strip, high)
    first.set_yticks([exact, *some], ["exact", *map(ticks.plain, some)])
    drawn.grid.label(label, "distance")
    beside = "; ".join(
        f"{name}: {', '.join(params)}" for name, params in settings.items() if params
    )
    return drawn.finished(
        f"Distance from softmax attention over {label.replace('median ', '')}", "",
        "steps: no other point is both cheaper and nearer" * (len(records) > 1),
        f"{'numbers at points' if named else 'lines'} are of {beside}" if beside else "", *told,
        **({} if beside else {"linestyle": "none"}),
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
    cost = AXES[report.summary.get("over", "flops")]
    records = [r for r in report.of(TradeoffRecord) if r.skipped is None]
    records = [r for r in records if getattr(r, cost[0]) is not None]
    series.need(records, "no mechanism was compared, or none was timed")
    others = [r for r in records if r.relation in ("another", "untrained")]
    return draw_pareto(
        records, cost, "error_relative", named=False,
        hollow=lambda record: record in others,
        told=("empty: another function, or untrained" * bool(others),),
    )  # fmt: skip


#: Name and unit of each panel, by field.
PANELS: Mapping[str, tuple[str, str]] = {
    "cross_entropy": ("cross-entropy [nats]", ""), "mse_teacher": ("MSE to the teacher", ""),
    "median_s": ("time", "s"),
}  # fmt: skip
SHORT = {"fair": "fair", "printed": "as printed"}


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
        _panel(axes, of_setting, field, tokens, models, looks)
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


def _panel(
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
