"""Draw models side by side: the cache and FLOPs a token, over the context."""

from typing import Any

from attnprof.errors import RequestError
from attnprof.record import ComparedRecord, Report
from attnprof.render.plots import style, ticks


def draw_comparison(report: Report) -> style.Figure:
    """Return the cache and a prompt's FLOPs a token over its length, a curve a model."""
    summary = report.summary
    caches = [(x["model"], x["cache"]["seq_len"], x["cache"]["bytes"])
              for x in summary["curves"] if x["cache"]]  # fmt: skip
    flops = [(x["model"], x["flops"]["seq_len"], x["flops"]["flops_per_token"])
             for x in summary["curves"] if x["flops"]]  # fmt: skip
    panels = {"cache": caches, "prompt": flops}
    if not any(panels.values()):
        raise RequestError(
            "--plot: no model has a formula in N, and so no curve over length: leave out --limit "
            "or --plot"
        )
    looks = style.looks(summary["models"])
    figure = style.new_figure(2.0)
    drawn = {name: curves for name, curves in panels.items() if curves}
    axes = style.split(figure, len(drawn), 2.1)
    for panel, (name, curves) in zip(axes, drawn.items(), strict=True):
        _panel(panel, name, curves, looks)
    marks = [{**looks[model], "label": model} for model in summary["models"]]
    style.legend(figure, marks, title="Cache and FLOPs over the context")
    views = {row.view for row in report.of(ComparedRecord)}
    missing = [x["model"] for x in summary["curves"] if not (x["cache"] or x["flops"])]
    style.caption(
        figure, f"derived from each model's code, view {', '.join(sorted(views))}", "one input",
        f"no formula in N: {', '.join(missing)}" * bool(missing),
    )  # fmt: skip
    return figure


def _panel(axes: style.Axes, name: str, curves: list[Any], looks: Any) -> None:
    """Draw a panel's curves, with a mark at every eighth length."""
    values = [value for *_, own in curves for value in own]
    unit, said = ticks.unit_of(values, "B") if name == "cache" else (1, "")
    for model, lengths, own in curves:
        axes.plot(lengths, [value / unit for value in own], markevery=8, **looks[model])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("context [tokens]")
    ticks.mark_values(axes.xaxis, ticks.with_prefix())
    ticks.mark_values(axes.yaxis, ticks.plain if name == "cache" else ticks.with_prefix())
    axes.set_ylabel(f"cache {said}" if name == "cache" else "FLOPs a prompt's token")
    axes.grid(visible=True)
