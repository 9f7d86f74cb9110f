"""The figure of ``attnprof tradeoff``: error against cost, a panel an input."""

from attnprof.record import Report, TradeoffRecord
from attnprof.render.plots import series, style, ticks
from attnprof.render.plots.distill import draw_distilled
from attnprof.render.plots.pareto import Axis, draw_pareto

#: What may be the cost, by its name in ``--over``.
AXES = {
    "flops": ("flops", "FLOPs", ""), "time": ("median_s", "median time", "s"),
    "memory": ("peak_bytes", "peak memory", "B"),
}  # fmt: skip


def draw_tradeoff(report: Report) -> style.Figure:
    """Error of the output over FLOPs, or what ``over`` in the summary says; or 003's experiment."""
    if report.command != "tradeoff":
        return draw_distilled(report)
    field, label, unit = AXES[report.summary.get("over", "flops")]
    records = [r for r in report.of(TradeoffRecord) if r.skipped is None]
    records = [r for r in records if getattr(r, field) is not None]
    series.need(records, "no mechanism was compared, or none was timed")
    others = [r for r in records if r.relation in ("another", "untrained")]
    return draw_pareto(
        records, Axis(field, label, ticks.with_prefix(unit)), "error_relative", named=False,
        hollow=lambda record: record in others,
        told=("empty: another function, or untrained" * bool(others),),
    )  # fmt: skip
