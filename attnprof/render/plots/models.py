"""Draw whole models: a model's shares of FLOPs by part, several side by side, a rank's memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.errors import RequestError
from attnprof.record import ComparedRecord, FitRecord, Report
from attnprof.render.plots import style, ticks
from attnprof.units import format_bytes

#: Parts in the order in which they lie on each other.
COLOURS = {
    "attention": style.VERMILION, "mlp": style.BLUE, "head": style.GREEN,
    "embedding": style.SKY, "norm": style.ORANGE, "other": style.GREY,
}  # fmt: skip
#: A curve's name in a comparison's summary, its field, the axis' name and unit.
_OVER_CONTEXT = (
    ("cache", "bytes", "cache", "B"), ("flops", "flops_per_token", "FLOPs a prompt's token", ""),
)  # fmt: skip
GIB = 2**30


def draw_model(report: Report) -> style.Figure:
    """Return the parts' shares of FLOPs, a panel a phase, then the cache; else RequestError."""
    if report.command == "model --compare":
        return draw_comparison(report)
    summary = report.summary
    shares, cache = summary["curves"]["shares"], summary["curves"]["cache"]
    if not shares and not cache:
        phases = summary.get("phases", {}).values() if "N" in summary.get("at", ()) else ()
        missing = "; ".join(phase.get("missing") or "" for phase in phases)
        why = filter(None, missing.split("; "))
        raise RequestError(
            f"--plot: {summary['name']} has no formula in N, and so no figure over length: "
            f"{'; '.join(dict.fromkeys(why)) or 'its inputs have one size; leave out --plot'}"
        )
    figure = style.new_figure(2.0)
    panels = style.split(figure, len(shares) + bool(cache), 2.1)
    for axes, (phase, curve) in zip(panels, shares.items(), strict=False):
        _shares(axes, curve["seq_len"], curve["parts"])
        axes.set_title(phase, fontsize=style.SMALL)
    if cache:
        line = (cache["seq_len"], cache["bytes"], {"color": style.BLACK})
        ticks.draw_lines(panels[-1], [line], "sequence length", "held after N tokens", "B")
        panels[-1].set_title("cache", fontsize=style.SMALL)
    shown = {part for curve in shares.values() for part in curve["parts"]}
    marks = [
        {"color": colour, "marker": "s", "linestyle": "none", "label": part}
        for part, colour in COLOURS.items() if part in shown
    ]  # fmt: skip
    batch = next(curve["batch_size"] for curve in (*shares.values(), cache) if curve)
    style.legend(figure, marks, title=f"{summary['name']}: share of FLOPs by part")
    style.caption(figure, f"derived from the model's code, {summary['dtype']}, batch {batch}")
    return figure


def _shares(axes: style.Axes, lengths: Sequence[int], parts: Mapping[str, Any]) -> None:
    order = [part for part in COLOURS if part in parts]
    whole = [sum(values) or 1 for values in zip(*parts.values(), strict=True)]
    stacked = [[100 * x / y for x, y in zip(parts[p], whole, strict=True)] for p in order]
    axes.stackplot(lengths, *stacked, colors=[COLOURS[part] for part in order], linewidth=0)
    axes.set(xscale="log", xlabel="sequence length", ylabel="share of FLOPs [%]")
    axes.set(xlim=(lengths[0], lengths[-1]), ylim=(0, 100))
    ticks.mark_values(axes.xaxis, ticks.plain)


def draw_comparison(report: Report) -> style.Figure:
    """Return the cache and a prompt's FLOPs a token over its length, a curve a model."""
    summary = report.summary
    curves = summary["curves"]
    drawn = [names for names in _OVER_CONTEXT if any(curve[names[0]] for curve in curves)]
    if not drawn:
        raise RequestError(
            "--plot: no model has a formula in N, and so no curve over length: leave out --limit "
            "or --plot"
        )
    looks = style.looks(summary["models"])
    figure = style.new_figure(2.0)
    for axes, (name, field, label, unit) in zip(
        style.split(figure, len(drawn), 2.1), drawn, strict=True
    ):
        lines = [
            (curve[name]["seq_len"], curve[name][field], {**looks[curve["model"]], "markevery": 8})
            for curve in curves if curve[name]
        ]  # fmt: skip
        ticks.draw_lines(axes, lines, "context [tokens]", label, unit)
    marks = [{**looks[model], "label": model} for model in summary["models"]]
    style.legend(figure, marks, title="Cache and FLOPs over the context")
    views = {row.view for row in report.of(ComparedRecord)}
    missing = [x["model"] for x in curves if not (x["cache"] or x["flops"])]
    style.caption(
        figure, f"derived from each model's code, view {', '.join(sorted(views))}", "one input",
        f"no formula in N: {', '.join(missing)}" * bool(missing),
    )  # fmt: skip
    return figure


def draw_fit(report: Report) -> style.Figure:
    """Return the parts of a rank's bytes end to end, and a line where the memory ends."""
    summary = report.summary
    parts = [row for row in report.of(FitRecord) if row.part != "total" and row.bytes]
    figure = style.new_figure(1.1)
    axes = figure.subplots()
    start, marks = 0.0, list[dict[str, Any]]()
    for place, row in enumerate(parts):
        colour = style.PALETTE[place % len(style.PALETTE)]
        axes.barh([0], [row.bytes / GIB], left=start, height=0.6, color=colour)
        start += row.bytes / GIB
        label = f"{row.part} {format_bytes(row.bytes)}"
        marks.append({"color": colour, "marker": "s", "linestyle": "none", "label": label})
    memory = summary["memory_bytes"]
    axes.axvline(memory / GIB, color=style.BLACK, linewidth=1.5)
    label = f"memory {format_bytes(memory)}"
    marks.append({"color": style.BLACK, "label": label})
    axes.set_yticks([])
    axes.set_xlabel("GiB on one rank")
    style.legend(figure, marks, title=f"{summary['name']}, {summary['dtype']}")
    return figure
