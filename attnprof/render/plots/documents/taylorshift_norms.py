"""TaylorShift's Figures 4 and 5 (004): sizes of intermediate results, and the laws' errors."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots import style
from attnprof.render.plots.documents import Rows, curve, of
from attnprof.render.plots.style import Axes, Figure

#: Dashes of what is printed, and of what stands beside the rest.
PRINTED, DOTTED = (0, (4, 2)), (0, (1, 1.5))
#: Head widths by colour and marker, in order.
WIDTH_LOOKS = ((style.BLUE, "o"), (style.GREEN, "s"), (style.ORANGE, "^"), (style.VERMILION, "D"))
_POINT = {"marker": "o", "linestyle": "none"}
_AS_PRINTED = {"linestyle": PRINTED, "label": "Table 1's law, as printed"}
#: Expressions as the document sets them.
TITLES = {
    "A_mod": "$A_\\mathrm{mod}$", "(QK^T)^2 V": "$(QK^\\top)^{\\odot 2}\\,V$",
    "QK^T V": "$QK^\\top V$", "Y_denom": "$Y_\\mathrm{denom}$", "Y": "$Y$",
}  # fmt: skip
#: Table 1's laws as they are set.
LAWS = {
    "(N+1)/sqrt(d)": "$(N+1)/\\sqrt{d}$", "N/d": "$N/d$", "sqrt(d/N)": "$\\sqrt{d/N}$",
    "sqrt(N)*(4*d+1)/(4*d)": "$\\sqrt{N}\\,(4d+1)/4d$",
    "N*(d+2)/(2*d)": "$N(d+2)/2d$", "N*(2*d + 1)/(2*d)": "$N(2d+1)/2d$",
}  # fmt: skip


def draw_norms(figure: Figure, data: FigureData) -> str:
    """Figure 4: a panel an expression, sampled norms on the lines of the laws."""
    panels, spare = _panels(figure, data, "mean norm")
    for axes, rows in panels:
        for d, look in _looks(rows):
            exact = of(rows, d=d, values="normal")
            for field, line in (("law", "-"), ("law_printed", PRINTED)):
                axes.plot(*curve(exact, field), color=look["color"], linestyle=line, linewidth=0.9)
            for own, points in _samples(rows, d, look):
                axes.plot(*curve(own, "norm"), linestyle="none", **points)
    _key(spare, data.rows, (
        {"linestyle": "-", "label": "root mean square, $V$ of variance 1"}, _AS_PRINTED,
        {**_POINT, "label": "sampled, $V$ of variance 1"},
        {**_POINT, "markerfacecolor": "white", "label": "sampled, rows of $V$ on the sphere"},
    ))  # fmt: skip
    told = "Rows of Q and K are random unit vectors, V has a column of ones in front; titles: "
    return f"{told}Table 1. {_sampling(data.rows)}"


def draw_errors(figure: Figure, data: FigureData) -> str:
    """Figure 5: the same panels, relative errors of the laws with the samples' standard errors."""
    panels, spare = _panels(figure, data, "relative error of the law")
    corrected, granted = data.facts["corrected"], data.facts["granted"]
    for axes, rows in panels:
        for d, look in _looks(rows):
            for own, points in _samples(rows, d, look):
                _errors(axes, own, "error_printed", PRINTED, points)
            if rows[0]["expression"] in corrected:
                _errors(axes, of(rows, d=d, values="normal"), "error", "-", look)
        axes.axhline(granted, color=style.BLACK, linewidth=0.8, linestyle=DOTTED)
    laws = [f"{LAWS.get(law, law)} for {TITLES.get(name, name)}" for name, law in corrected.items()]
    _key(spare, data.rows, (
        _AS_PRINTED, *({"linestyle": "-", "label": text} for text in laws),
        {**_POINT, "label": "$V$ of variance 1"},
        {**_POINT, "markerfacecolor": "white", "label": "rows of $V$ on the sphere"},
        {"color": style.BLACK, "linestyle": DOTTED, "linewidth": 0.8,
         "label": f"{granted:.0%}: what is granted for large $N$"},
    ))  # fmt: skip
    told = "|law / sampled mean - 1| with the standard error of the mean; titles: Table 1."
    return f"{told} {_sampling(data.rows)}"


def _panels(figure: Figure, data: FigureData, label: str) -> tuple[list[tuple[Axes, Rows]], Axes]:
    """A log-log panel for each expression with its rows, and one left over."""
    *used, spare = style.split(figure, 6, sharex=True)
    spare.set_axis_off()
    panels: list[tuple[Axes, Rows]] = []
    for letter, axes, (name, law) in zip("abcde", used, data.facts["laws"].items(), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="sequence length $N$", ylabel=label)
        axes.grid(visible=True)
        axes.minorticks_off()
        axes.tick_params(labelbottom=True)
        title = f"({letter})  {TITLES.get(name, name)}:  {LAWS.get(law, law)}"
        axes.set_title(title, loc="left", fontsize=style.NORMAL)
        panels.append((axes, of(data.rows, expression=name)))
    return panels, spare


def _looks(rows: Rows) -> list[tuple[int, dict[str, Any]]]:
    """Each head width with the look of its points."""
    widths = dict.fromkeys(row["d"] for row in rows)
    return [
        (d, {"color": colour, "marker": marker, "markersize": 3, "markeredgewidth": 0.7})
        for d, (colour, marker) in zip(widths, WIDTH_LOOKS, strict=False)
    ]


def _samples(rows: Rows, d: int, look: Mapping[str, Any]) -> list[tuple[Rows, dict[str, Any]]]:
    """Both ways of sampling V, and the looks of their points."""
    faces = {"sphere": "white", "normal": look["color"]}
    return [
        (of(rows, d=d, values=kind), {**look, "markerfacecolor": face})
        for kind, face in faces.items()
    ]


def _errors(axes: Axes, rows: Rows, field: str, line: Any, look: Mapping[str, Any]) -> None:
    """A curve with the samples' standard errors; downwards where they end above zero."""
    lengths, values = curve(rows, field)
    bars = [row["sampling_error"] for row in rows]
    below = [bar if bar < value else 0 for bar, value in zip(bars, values, strict=True)]
    axes.errorbar(
        lengths, values, [below, bars], linestyle=line, linewidth=0.9, elinewidth=0.6, **look
    )


def _key(axes: Axes, rows: Rows, entries: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], linestyle="none", label=f"d = {d}", **{**look, "markersize": 4})
        for d, look in _looks(rows)
    ]
    plain = {"color": style.GREY, "linewidth": 0.9, "markersize": 3.5}
    marks += [Line2D([], [], **{**plain, **entry}) for entry in entries]
    axes.legend(handles=marks, loc="center left", bbox_to_anchor=(-0.05, 0.5), handlelength=2.4)


def _sampling(rows: Rows) -> str:
    """How many rows and matrices the means are of."""
    sampled = [row["draws"] * row["queries"] for row in rows if row["expression"] != "A_mod"]
    draws = [row["draws"] for row in of(rows, expression="A_mod")]
    return (
        f"Means of at least {min(sampled):,} rows; of {min(draws)} to {max(draws)} matrices for "
        "A_mod (Frobenius norm)."
    )
