"""TaylorShift's figures (004): time and memory of one head and of an encoder over length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log2
from typing import TYPE_CHECKING, Any

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots import style
from attnprof.render.plots.documents import Rows, curve, of
from attnprof.render.plots.documents.taylorshift_sizes import draw_errors, draw_norms
from attnprof.render.plots.growth import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Panels of Figure 1: field, what its axis says, divisor, and the marks' names and letters.
PANELS = (
    ("time_s", "time [s]", 1, {"N0": "$N_0$", "N0hat": "$\\hat{N}_0$"}),
    ("peak_bytes", "peak memory [MiB]", MIB, {"N1": "$N_1$", "N1hat": "$\\hat{N}_1$"}),
)
#: What is predicted is dashed and hollow, what is measured solid and filled.
LOOKS: dict[str, dict[str, Any]] = {
    "predicted": {"linestyle": (0, (4, 2)), "markerfacecolor": "none", "markersize": 6.5},
    "measured": {"linestyle": "-", "markerfacecolor": style.BLACK, "markersize": 3.5},
}
DOTTED = (0, (1, 1.5))


def draw_heads(data: FigureData) -> Figure:
    """Figure 1: a column a head width, time above memory, crossovers marked."""
    widths = list(dict.fromkeys(row["d"] for row in data.rows))
    figure = style.new_figure(style.PAGE_WIDTH, 3.9)
    grid = figure.subplots(2, len(widths), squeeze=False, sharex="col", sharey="row")
    for line, (field, label, unit, names) in zip(grid, PANELS, strict=True):
        for axes, d in zip(line, widths, strict=True):
            style.log_axes(axes)
            _forms(axes, of(data.rows, d=d), field, unit)
            _marks(axes, of(data.facts["marks"], d=d, field=field), names, unit)
        line[0].set_ylabel(label)
        style.headroom(line[0], 0.27)
    for axes, d in zip(grid[0], widths, strict=True):
        axes.set_title(f"d = {d}", fontsize=style.NORMAL)
    for axes in grid[-1]:
        axes.set_xlabel("sequence length $N$")
        low, high = (log2(end) for end in axes.get_xlim())
        exponents, labels = style.power_ticks(ceil(low), floor(high), 3)
        axes.set_xticks([2.0**e for e in exponents], labels)
    ring = {"marker": "o", "markeredgecolor": style.BLACK}
    entries = [
        *_entries(("taylor-direct", "taylor-efficient"), "crossover of the printed counts", ring),
        {"color": style.GREY, "linestyle": DOTTED, "label": "extrapolated"},
    ]
    _legend(figure, entries)
    style.caption(
        figure,
        "One head, batch 1, forward, float32. Time: median processor time of one thread on a CPU, "
        "both forms in turns, with its 95 % interval; it steps up where tensors outgrow what the "
        "allocator keeps between calls. Memory: the allocator's peak. Dotted: a parabola "
        "(direct) and a line (efficient) fitted to the times.",
    )
    return figure


def _forms(axes: Axes, rows: Rows, field: str, unit: float) -> None:
    for form in dict.fromkeys(row["form"] for row in rows):
        own, shade = of(rows, form=form), style.COLOURS[form]
        more = of(own, extrapolated=True) if field == "time_s" else []
        known = [row for row in own if row not in more]
        axes.plot(*curve(known, field, unit), color=shade, marker=".", markersize=3, linewidth=1.0)
        if field == "time_s":
            lengths, low = curve(known, "time_low_s")
            _, high = curve(known, "time_high_s")
            axes.fill_between(lengths, low, high, color=shade, alpha=0.25, linewidth=0)
        axes.plot(*curve(more, field, unit), color=shade, linestyle=DOTTED, linewidth=1.0)


def _marks(axes: Axes, marks: Rows, names: Mapping[str, str], unit: float) -> None:
    """Crossovers: a line at each length, a mark on the direct form's curve, and their values."""
    lines = []
    for mark in marks:
        look = LOOKS["predicted" if mark["name"] in ("N0", "N1") else "measured"]
        axes.axvline(mark["seq_len"], color=style.GREY, linewidth=0.6, linestyle=look["linestyle"])
        if mark["value"] is not None:
            axes.plot([mark["seq_len"]], [mark["value"] / unit], marker="o", zorder=5,
                      markeredgecolor=style.BLACK, markeredgewidth=0.8, **look)  # fmt: skip
        about = "\\approx" if mark["extrapolated"] else "="
        lines.append(f"{names[mark['name']]} ${about}$ {style.short_count(round(mark['seq_len']))}")
    axes.text(0.05, 0.98, "\n".join(lines), transform=axes.transAxes, fontsize=style.SMALL - 0.5,
              va="top", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
              zorder=6)  # fmt: skip


def draw_encoders(data: FigureData) -> Figure:
    """Figure 2: memory and time of three encoders, and the efficient one's share of both."""
    figure = style.new_figure(style.PAGE_WIDTH, 2.7)
    panels = memory, time, ratio = figure.subplots(1, 3)
    names = list(dict.fromkeys(row["mechanism"] for row in data.rows))
    for axes, name, field, label, unit in (
        (memory, "memory", "peak_bytes", "peak memory [MiB]", MIB),
        (time, "time", "time_s", "time [s]", 1),
    ):
        for mechanism, width in zip(names, (2.6, 1.2, 1.2), strict=True):  # one may lie under two
            own = curve(of(data.rows, mechanism=mechanism), field, unit)
            axes.plot(*own, color=style.COLOURS[mechanism], marker=".", markersize=3.5,
                      linewidth=width)  # fmt: skip
        axes.set(ylim=(0, None), ylabel=label)
        axes.grid(visible=True)
        _encoder_crossovers(axes, data.facts, name)
    _ratios(ratio, data)
    for axes in panels:
        axes.set_xlabel("sequence length $N$")
        axes.set_xlim(0, 1.03 * max(row["seq_len"] for row in data.rows))
    style.label_panels(panels)
    _legend(figure, _entries(names, "crossover as printed", None))
    model = data.facts["model"]
    style.caption(
        figure,
        f"Pre-norm encoder, {model['depth']} layers, d_model {model['d_model']}, "
        f"{model['num_heads']} heads (d = {model['head_dim']}), MLP ratio {model['mlp_ratio']}, "
        "batch 1, forward, float32, without weights and input. Time: median processor time of "
        "one thread on a CPU, encoders in turns. (c): efficient by standard; squares as printed.",
    )
    return figure


def _encoder_crossovers(axes: Axes, facts: Mapping[str, Any], name: str) -> None:
    found = {"predicted": facts["printed"]["crossovers"][name], "measured": facts["ours"][name]}
    known = {look: length for look, length in found.items() if length is not None}
    for look, length in known.items():
        first = length == min(known.values())  # its number stands to the left
        axes.axvline(length, color=style.GREY, linewidth=0.8, linestyle=LOOKS[look]["linestyle"])
        axes.annotate(
            f"{length:.0f}", (length, 1), xycoords=("data", "axes fraction"), color=style.GREY,
            xytext=(-2 if first else 2, -1), textcoords="offset points", va="top",
            ha="right" if first else "left", fontsize=style.SMALL - 0.5,
        )  # fmt: skip


def _ratios(axes: Axes, data: FigureData) -> None:
    own, shade = of(data.rows, mechanism="taylor-efficient"), style.COLOURS["taylor-efficient"]
    for word, line in (("memory", "-"), ("time", (0, (3, 1)))):
        axes.plot(*curve(own, f"{word}_ratio"), color=shade, marker=".", markersize=3.5,
                  linestyle=line, label=word)  # fmt: skip
    shares = {int(n): share for n, share in data.facts["printed"]["memory_shares"].items()}
    axes.plot(list(shares), list(shares.values()), marker="s", markersize=4, linestyle="none",
              color=style.BLACK, markerfacecolor="white", label="memory, printed",
              zorder=5)  # fmt: skip
    axes.axhline(1, color=style.GREY, linewidth=0.8)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.minorticks_off()
    ticks = (0.1, 0.2, 0.35, 0.5, 1, 2, 5, 10)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(ylim=(low, high), ylabel="efficient / standard")
    axes.grid(visible=True)
    axes.legend(loc="upper right")


def _entries(
    names: Sequence[str], printed: str, ring: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """What a legend names: mechanisms, then lines of crossovers, with their marks where drawn."""
    found: list[dict[str, Any]] = [
        {"color": style.COLOURS[name], "marker": ".", "label": name} for name in names
    ]
    for label, look in zip((printed, "measured"), LOOKS.values(), strict=True):
        marked = {**ring, **look} if ring else {"linestyle": look["linestyle"]}
        found.append({"color": style.GREY, "linewidth": 0.8, "label": label, **marked})
    return found


def _legend(figure: Figure, entries: Sequence[Mapping[str, Any]]) -> None:
    looks = [{"linewidth": 1.0, **entry} for entry in entries]
    style.legend(figure, looks, len(looks), handlelength=2.6, columnspacing=1.4)


DRAWINGS: dict[str, Callable[[FigureData], Figure]] = {
    "1": draw_heads,
    "2": draw_encoders,
    "4": draw_norms,
    "5": draw_errors,
}
