"""TaylorShift's figures (004): time and memory of one head and of an encoder over length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor, log2
from typing import TYPE_CHECKING, Any

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots.documents.taylorshift_sizes import draw_errors, draw_norms
from attnprof.render.plots.style import (
    BLACK,
    COLOURS,
    GREY,
    NORMAL,
    PAGE_WIDTH,
    SMALL,
    caption,
    label_panels,
    new_figure,
    power_ticks,
    short_count,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
MIB = 2**20
#: Panels of Figure 1: field, what its axis says, divisor, and the marks' names and letters.
PANELS = (
    ("time_s", "time [s]", 1, {"N0": "$N_0$", "N0hat": "$\\hat{N}_0$"}),
    ("peak_bytes", "peak memory [MiB]", MIB, {"N1": "$N_1$", "N1hat": "$\\hat{N}_1$"}),
)
#: What is predicted is dashed and hollow, what is measured solid and filled.
PREDICTED: dict[str, Any] = {
    "linestyle": (0, (4, 2)),
    "markerfacecolor": "none",
    "markersize": 6.5,
}
MEASURED: dict[str, Any] = {"linestyle": "-", "markerfacecolor": BLACK, "markersize": 3.5}
DOTTED = (0, (1, 1.5))


def draw_heads(data: FigureData) -> Figure:
    """Figure 1: a column a head width, time above memory, crossovers marked."""
    widths = list(dict.fromkeys(row["d"] for row in data.rows))
    figure = new_figure(PAGE_WIDTH, 3.9)
    grid = figure.subplots(2, len(widths), squeeze=False, sharex="col", sharey="row")
    for line, (field, label, unit, names) in zip(grid, PANELS, strict=True):
        for axes, d in zip(line, widths, strict=True):
            _logarithmic(axes)
            _forms(axes, [row for row in data.rows if row["d"] == d], field, unit)
            _marks(axes, [m for m in data.facts["marks"] if m["d"] == d], names, field, unit)
        line[0].set_ylabel(label)
        low, high = line[0].get_ylim()
        line[0].set_ylim(low, high * (high / low) ** 0.27)  # room for the crossovers' values
    for axes, d in zip(grid[0], widths, strict=True):
        axes.set_title(f"d = {d}", fontsize=NORMAL)
    for axes in grid[-1]:
        axes.set_xlabel("sequence length $N$")
        _powers_of_two(axes, 3)
    _legend(figure, list(_head_entries()))
    caption(
        figure,
        "One head, batch 1, forward, float32. Time: median processor time of one thread on a CPU, "
        "both forms in turns, with its 95 % interval; it steps up where tensors outgrow what the "
        "allocator keeps between calls. Memory: the allocator's peak. Dotted: a parabola "
        "(direct) and a line (efficient) fitted to the times.",
    )
    return figure


def _forms(axes: Axes, rows: Rows, field: str, unit: float) -> None:
    for form in dict.fromkeys(row["form"] for row in rows):
        own = [row for row in rows if row["form"] == form and row[field] is not None]
        more = [row for row in own if row["extrapolated"] and field == "time_s"]
        known = [row for row in own if row not in more]
        lengths = [row["seq_len"] for row in known]
        axes.plot(lengths, [row[field] / unit for row in known], color=COLOURS[form],
                  marker=".", markersize=3, linewidth=1.0)  # fmt: skip
        if field == "time_s":
            axes.fill_between(lengths, [row["time_low_s"] for row in known],
                              [row["time_high_s"] for row in known], color=COLOURS[form],
                              alpha=0.25, linewidth=0)  # fmt: skip
        axes.plot([row["seq_len"] for row in more], [row[field] / unit for row in more],
                  color=COLOURS[form], linestyle=DOTTED, linewidth=1.0)  # fmt: skip


def _marks(axes: Axes, marks: Rows, names: Mapping[str, str], field: str, unit: float) -> None:
    """Crossovers: a line at each length, a mark on the direct form's curve, and their values."""
    lines = []
    for mark in marks:
        if mark["field"] != field:
            continue
        look = PREDICTED if mark["name"] in ("N0", "N1") else MEASURED
        axes.axvline(mark["seq_len"], color=GREY, linewidth=0.6, linestyle=look["linestyle"])
        if mark["value"] is not None:
            axes.plot([mark["seq_len"]], [mark["value"] / unit], marker="o", zorder=5,
                      markeredgecolor=BLACK, markeredgewidth=0.8, **look)  # fmt: skip
        about = "\\approx" if mark["extrapolated"] else "="
        lines.append(f"{names[mark['name']]} ${about}$ {short_count(round(mark['seq_len']))}")
    axes.text(0.05, 0.98, "\n".join(lines), transform=axes.transAxes, fontsize=SMALL - 0.5,
              va="top", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
              zorder=6)  # fmt: skip


def _head_entries() -> Iterator[dict[str, Any]]:
    for form in ("taylor-direct", "taylor-efficient"):
        yield {"color": COLOURS[form], "marker": ".", "label": form}
    for word, look in (("crossover of the printed counts", PREDICTED), ("measured", MEASURED)):
        yield {"color": GREY, "marker": "o", "markeredgecolor": BLACK, "linewidth": 0.8,
               "label": word, **look}  # fmt: skip
    yield {"color": GREY, "linestyle": DOTTED, "label": "extrapolated"}


def draw_encoders(data: FigureData) -> Figure:
    """Figure 2: memory and time of three encoders, and the efficient one's share of both."""
    figure = new_figure(PAGE_WIDTH, 2.7)
    memory, time, ratio = figure.subplots(1, 3)
    for axes, name, field, unit in (
        (memory, "memory", "peak_bytes", MIB),
        (time, "time", "time_s", 1),
    ):
        _encoder_curves(axes, data.rows, field, unit)
        _encoder_crossovers(axes, data.facts, name)
    memory.set_ylabel("peak memory [MiB]")
    time.set_ylabel("time [s]")
    _ratios(ratio, data)
    for axes in (memory, time, ratio):
        axes.set_xlabel("sequence length $N$")
        axes.set_xlim(0, 1.03 * max(row["seq_len"] for row in data.rows))
    label_panels((memory, time, ratio))
    entries = [{"color": COLOURS[m], "marker": ".", "label": m}
               for m in dict.fromkeys(row["mechanism"] for row in data.rows)]  # fmt: skip
    for word, look in (("crossover as printed", PREDICTED), ("measured", MEASURED)):
        entries.append({"color": GREY, "linestyle": look["linestyle"], "linewidth": 0.8,
                        "label": word})  # fmt: skip
    _legend(figure, entries)
    model = data.facts["model"]
    caption(
        figure,
        f"Pre-norm encoder, {model['depth']} layers, d_model {model['d_model']}, "
        f"{model['num_heads']} heads (d = {model['head_dim']}), MLP ratio {model['mlp_ratio']}, "
        "batch 1, forward, float32, without weights and input. Time: median processor time of "
        "one thread on a CPU, encoders in turns. (c): efficient by standard; squares as printed.",
    )
    return figure


def _encoder_curves(axes: Axes, rows: Rows, field: str, unit: float) -> None:
    widths = (2.6, 1.2, 1.2)  # the first may lie under the second
    names = dict.fromkeys(row["mechanism"] for row in rows)
    for mechanism, width in zip(names, widths, strict=True):
        own = [row for row in rows if row["mechanism"] == mechanism]
        axes.plot([row["seq_len"] for row in own], [row[field] / unit for row in own],
                  color=COLOURS[mechanism], marker=".", markersize=3.5,
                  linewidth=width)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.grid(visible=True)


def _encoder_crossovers(axes: Axes, facts: Mapping[str, Any], name: str) -> None:
    found = ((facts["printed"]["crossovers"][name], PREDICTED), (facts["ours"][name], MEASURED))
    known = [(length, look) for length, look in found if length is not None]
    for length, look in known:
        first = length == min(n for n, _ in known)  # its number stands to the left
        axes.axvline(length, color=GREY, linewidth=0.8, linestyle=look["linestyle"])
        axes.annotate(f"{length:.0f}", (length, 1), xycoords=("data", "axes fraction"),
                      xytext=(-2 if first else 2, -1), textcoords="offset points",
                      fontsize=SMALL - 0.5, color=GREY, va="top",
                      ha="right" if first else "left")  # fmt: skip


def _ratios(axes: Axes, data: FigureData) -> None:
    own = [row for row in data.rows if row["mechanism"] == "taylor-efficient"]
    lengths = [row["seq_len"] for row in own]
    for field, word, line in (("memory_ratio", "memory", "-"), ("time_ratio", "time", (0, (3, 1)))):
        axes.plot(lengths, [row[field] for row in own], color=COLOURS["taylor-efficient"],
                  marker=".", markersize=3.5, linestyle=line, label=word)  # fmt: skip
    shares = {int(n): share for n, share in data.facts["printed"]["memory_shares"].items()}
    axes.plot(list(shares), list(shares.values()), marker="s", markersize=4, linestyle="none",
              color=BLACK, markerfacecolor="white", label="memory, printed", zorder=5)  # fmt: skip
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.set_yscale("log")
    _plain_ticks(axes, (0.1, 0.2, 0.35, 0.5, 1, 2, 5, 10))
    axes.set_ylabel("efficient / standard")
    axes.grid(visible=True)
    axes.legend(loc="upper right")


def _plain_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    low, high = axes.get_ylim()
    axes.minorticks_off()
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(low, high)


def _logarithmic(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(visible=True)
    axes.tick_params(length=2)
    axes.minorticks_off()


def _powers_of_two(axes: Axes, most: int) -> None:
    """A few lengths written out; beyond 8192 as powers."""
    low, high = (log2(end) for end in axes.get_xlim())
    exponents, labels = power_ticks(ceil(low), floor(high), most)
    axes.set_xticks([2.0**e for e in exponents], labels)


def _legend(figure: Figure, entries: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], **{"linewidth": 1.0, **entry}) for entry in entries]
    figure.legend(handles=marks, loc="outside upper center", ncols=len(marks), handlelength=2.6,
                  columnspacing=1.4)  # fmt: skip


DRAWINGS: dict[str, Callable[[FigureData], Figure]] = {
    "1": draw_heads,
    "2": draw_encoders,
    "4": draw_norms,
    "5": draw_errors,
}
