"""The figure of ``attnprof model``: shares of parts over length, growth of the cache."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.errors import RequestError
from attnprof.record import Report
from attnprof.render.plots import style, ticks

#: Parts in the order in which they lie on each other.
COLOURS = {
    "attention": style.VERMILION, "mlp": style.BLUE, "head": style.GREEN,
    "embedding": style.SKY, "norm": style.ORANGE, "other": style.GREY,
}  # fmt: skip


def draw_model(report: Report) -> style.Figure:
    """Return the parts' shares of FLOPs, a panel a phase, then the cache; else RequestError."""
    summary = report.summary
    shares, cache = summary["curves"]["shares"], summary["curves"]["cache"]
    if not shares and not cache:
        phases = summary.get("phases", {}).values()
        why = [own["missing"] for own in phases if own.get("missing") and "N" in summary["at"]]
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
        _cache(panels[-1], cache["seq_len"], cache["bytes"])
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlabel("sequence length")
        ticks.mark_values(axes.xaxis, ticks.plain)
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
    axes.set_xlim(lengths[0], lengths[-1])
    axes.set_ylim(0, 100)
    axes.set_ylabel("share of FLOPs [%]")


def _cache(axes: style.Axes, lengths: Sequence[int], held: Sequence[int]) -> None:
    unit, said = ticks.unit_of([max(held)], "B")
    axes.plot(lengths, [value / unit for value in held], color=style.BLACK)
    axes.set_yscale("log")
    ticks.mark_values(axes.yaxis, ticks.plain)
    axes.set_title("cache", fontsize=style.SMALL)
    axes.set_ylabel(f"held after N tokens {said}")
    axes.grid(visible=True)
