"""The figure of ``attnprof tradeoff --distill``: every model at both lengths, a panel a number."""

from collections.abc import Mapping, Sequence

from attnprof.record import DistillRecord, Report
from attnprof.render.plots import series, style, ticks
from attnprof.render.tables.tradeoff import SETTINGS

#: What has a panel, by its field: its name, and whether all values are above zero.
PANELS: Mapping[str, tuple[str, str]] = {
    "cross_entropy": ("cross-entropy [nats]", ""), "mse_teacher": ("MSE to the teacher", ""),
    "median_s": ("time", "s"),
}  # fmt: skip
SHORT = {"fair": "fair", "printed": "as printed"}


def draw_distilled(report: Report) -> style.Figure:
    """A row a setting, a column a number, a mark a model: full at the trained length."""
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
        own = [r for r in records if r.setting == setting]
        _panel(axes, own, field, tokens, models, looks)
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
