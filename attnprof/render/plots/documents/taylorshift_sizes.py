"""TaylorShift's Figures 4 and 5 (004): sizes of intermediate results, and the laws' errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    NORMAL,
    ORANGE,
    PAGE_WIDTH,
    VERMILION,
    caption,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
#: Head widths by colour and marker, in order.
LOOKS = ((BLUE, "o"), (GREEN, "s"), (ORANGE, "^"), (VERMILION, "D"))
PRINTED, DOTTED = (0, (4, 2)), (0, (1, 1.5))
#: Expressions as the document sets them.
TITLES = {
    "A_mod": "$A_\\mathrm{mod}$",
    "(QK^T)^2 V": "$(QK^\\top)^{\\odot 2}\\,V$",
    "QK^T V": "$QK^\\top V$",
    "Y_denom": "$Y_\\mathrm{denom}$",
    "Y": "$Y$",
}
#: Table 1's laws as they are set.
LAWS = {
    "(N+1)/sqrt(d)": "$(N+1)/\\sqrt{d}$",
    "N/d": "$N/d$",
    "sqrt(N)*(4*d+1)/(4*d)": "$\\sqrt{N}\\,(4d+1)/4d$",
    "N*(d+2)/(2*d)": "$N(d+2)/2d$",
    "N*(2*d + 1)/(2*d)": "$N(2d+1)/2d$",
    "sqrt(d/N)": "$\\sqrt{d/N}$",
}


def draw_norms(data: FigureData) -> Figure:
    """Figure 4: a panel an expression, sampled norms on the lines of the laws."""
    figure, panels, spare = _panels(data, "mean norm")
    for axes, rows in panels:
        for d, (colour, marker) in _looks(rows):
            own = [row for row in rows if row["d"] == d]
            _line(axes, _of(own, "normal"), "law", colour, "-")
            _line(axes, _of(own, "normal"), "law_printed", colour, PRINTED)
            for kind, face in (("sphere", "white"), ("normal", colour)):
                _points(axes, _of(own, kind), "norm", colour, marker, face)
    _key(spare, data.rows, (
        {"linestyle": "-", "label": "root mean square, $V$ of variance 1"},
        {"linestyle": PRINTED, "label": "Table 1's law, as printed"},
        {"marker": "o", "linestyle": "none", "label": "sampled, $V$ of variance 1"},
        {"marker": "o", "linestyle": "none", "markerfacecolor": "white",
         "label": "sampled, rows of $V$ on the sphere"},
    ))  # fmt: skip
    caption(figure, "Rows of Q and K are random unit vectors, V has a column of ones in front; "
            "titles: Table 1. " + _sampling(data.rows))  # fmt: skip
    return figure


def draw_errors(data: FigureData) -> Figure:
    """Figure 5: the same panels, relative errors of the laws with the samples' standard errors."""
    figure, panels, spare = _panels(data, "relative error of the law")
    for axes, rows in panels:
        corrected = rows[0]["expression"] in data.facts["corrected"]
        for d, (colour, marker) in _looks(rows):
            own = [row for row in rows if row["d"] == d]
            for kind, face in (("sphere", "white"), ("normal", colour)):
                _errors(axes, _of(own, kind), "error_printed", (colour, marker, face), PRINTED)
            if corrected:
                _errors(axes, _of(own, "normal"), "error", (colour, marker, colour), "-")
        axes.axhline(data.facts["granted"], color=BLACK, linewidth=0.8, linestyle=DOTTED)
    texts = [f"{LAWS.get(text, text)} for {TITLES.get(name, name)}"
             for name, text in data.facts["corrected"].items()]  # fmt: skip
    _key(spare, data.rows, (
        {"linestyle": PRINTED, "label": "Table 1's law, as printed"},
        *({"linestyle": "-", "label": text} for text in texts),
        {"marker": "o", "linestyle": "none", "label": "$V$ of variance 1"},
        {"marker": "o", "linestyle": "none", "markerfacecolor": "white",
         "label": "rows of $V$ on the sphere"},
        {"color": BLACK, "linestyle": DOTTED, "linewidth": 0.8,
         "label": f"{data.facts['granted']:.0%}: what is granted for large $N$"},
    ))  # fmt: skip
    caption(figure, "|law / sampled mean - 1| with the standard error of the mean; titles: "
            "Table 1. " + _sampling(data.rows))  # fmt: skip
    return figure


def _panels(data: FigureData, label: str) -> tuple[Figure, list[tuple[Axes, Rows]], Axes]:
    """A figure with a log-log panel for each expression, and one left over."""
    figure = new_figure(PAGE_WIDTH, 4.3)
    *used, spare = figure.subplots(2, 3, sharex=True).flat
    spare.set_axis_off()
    panels: list[tuple[Axes, Rows]] = []
    for letter, axes, (name, law) in zip("abcde", used, data.facts["laws"].items(), strict=True):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=True)
        axes.minorticks_off()
        axes.set_ylabel(label)
        axes.set_xlabel("sequence length $N$")
        axes.tick_params(labelbottom=True)
        title = f"({letter})  {TITLES.get(name, name)}:  {LAWS.get(law, law)}"
        axes.set_title(title, loc="left", fontsize=NORMAL)
        panels.append((axes, [row for row in data.rows if row["expression"] == name]))
    return figure, panels, spare


def _looks(rows: Rows) -> list[tuple[int, tuple[str, str]]]:
    return list(zip(dict.fromkeys(row["d"] for row in rows), LOOKS, strict=False))


def _of(rows: Rows, kind: str) -> Rows:
    return [row for row in rows if row["values"] == kind]


def _line(axes: Axes, rows: Rows, field: str, colour: str, line: Any) -> None:
    axes.plot([row["seq_len"] for row in rows], [row[field] for row in rows], color=colour,
              linestyle=line, linewidth=0.9)  # fmt: skip


def _points(axes: Axes, rows: Rows, field: str, colour: str, marker: str, face: str) -> None:
    axes.plot([row["seq_len"] for row in rows], [row[field] for row in rows], color=colour,
              linestyle="none", marker=marker, markersize=3, markerfacecolor=face,
              markeredgewidth=0.7)  # fmt: skip


def _errors(axes: Axes, rows: Rows, field: str, look: tuple[str, str, str], line: Any) -> None:
    """A curve with the samples' standard errors; downwards where they end above zero."""
    colour, marker, face = look
    lengths, values = [row["seq_len"] for row in rows], [row[field] for row in rows]
    bars = [row["sampling_error"] for row in rows]
    below = [bar if bar < value else 0 for bar, value in zip(bars, values, strict=True)]
    axes.errorbar(lengths, values, [below, bars], color=colour, linestyle="none",
                  elinewidth=0.6)  # fmt: skip
    _line(axes, rows, field, colour, line)
    _points(axes, rows, field, colour, marker, face)


def _key(axes: Axes, rows: Rows, entries: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], color=colour, marker=marker, markersize=4, linestyle="none",
                    label=f"d = {d}") for d, (colour, marker) in _looks(rows)]  # fmt: skip
    plain = {"color": GREY, "linewidth": 0.9, "markersize": 3.5}
    marks += [Line2D([], [], **{**plain, **entry}) for entry in entries]
    axes.legend(handles=marks, loc="center left", bbox_to_anchor=(-0.05, 0.5), handlelength=2.4)


def _sampling(rows: Rows) -> str:
    """How many rows and matrices the means are of."""
    sampled = [row["draws"] * row["queries"] for row in rows if row["expression"] != "A_mod"]
    draws = [row["draws"] for row in rows if row["expression"] == "A_mod"]
    return (
        f"Means of at least {min(sampled):,} rows; of {min(draws)} to {max(draws)} matrices for "
        "$A_\\mathrm{mod}$ (Frobenius norm)."
    )
