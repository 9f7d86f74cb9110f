"""TaylorShift's figures (004): time and memory over length; sizes of results, errors of laws."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log2
from typing import Any

from attnprof.papers.regenerated import Values
from attnprof.render.plots import style, ticks
from attnprof.render.plots.documents import Rows, curve, drawing, of
from attnprof.render.plots.style import MIB, Axes, Figure

#: Dashes of printed curves, and of additional ones.
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
#: Panels of Figure 1: field, axis label, divisor, and the marks' names and letters.
PANELS = (
    ("time_s", "time [s]", 1,
     {"N0": "$N_0$", "N0hat": "$\\hat{N}_0$", "N0hat_default": "by default"}),
    ("peak_bytes", "peak memory [MiB]", MIB, {"N1": "$N_1$", "N1hat": "$\\hat{N}_1$"}),
)  # fmt: skip
#: Predicted marks are dashed and hollow, measured ones solid and filled.
LOOKS: dict[str, dict[str, Any]] = {
    "predicted": {"linestyle": PRINTED, "markerfacecolor": "none", "markersize": 6.5},
    "measured": {"linestyle": "-", "markerfacecolor": style.BLACK, "markersize": 3.5},
    "by default": {"linestyle": DOTTED, "markerfacecolor": "white", "markersize": 3.5},
}
#: The mechanisms' curves, which differ without colour, too.
FORMS: dict[str, dict[str, Any]] = {
    name: {"color": style.COLOURS[name], "marker": marker, "markersize": 2.5}
    for name, marker in zip(("standard", "taylor-direct", "taylor-efficient"), "s^o", strict=True)
}
#: Looks of times by the allocator's setting, and of a crossover by its name.
SETTINGS: dict[str, dict[str, Any]] = {
    "kept": {"linewidth": 1.0},
    "default": {"linewidth": 0.9, "linestyle": DOTTED, "marker": "none"},
}
_LOOK_OF = {"N0": "predicted", "N1": "predicted", "N0hat_default": "by default"}


def draw_norms(figure: Figure, data: Values) -> str:
    """Draw Figure 4: a panel an expression, sampled norms on the lines of the laws."""
    panels, spare = _panels(figure, data, "mean norm")
    for axes, rows in panels:
        for d, look in _looks(rows):
            exact = of(rows, d=d, values="normal")
            for field, line in (("law", "-"), ("law_printed", PRINTED)):
                axes.plot(*curve(exact, field), color=look["color"], linestyle=line, linewidth=0.9)
            for sampled, points in _samples(rows, d, look):
                axes.plot(*curve(sampled, "norm"), linestyle="none", **points)
    _key(spare, data["rows"], (
        {"linestyle": "-", "label": "root mean square, $V$ of variance 1"}, _AS_PRINTED,
        {**_POINT, "label": "sampled, $V$ of variance 1"},
        {**_POINT, "markerfacecolor": "white", "label": "sampled, rows of $V$ on the sphere"},
    ))  # fmt: skip
    caption = "Rows of Q and K are random unit vectors, V has a column of ones in front; titles: "
    return f"{caption}Table 1. {_sampling(data['rows'])}"


def draw_errors(figure: Figure, data: Values) -> str:
    """Draw Figure 5: the same panels, relative errors of the laws with standard errors."""
    panels, spare = _panels(figure, data, "relative error of the law")
    corrected, granted = data["facts"]["corrected"], data["facts"]["granted"]
    for axes, rows in panels:
        for d, look in _looks(rows):
            for sampled, points in _samples(rows, d, look):
                _errors(axes, sampled, "error_printed", PRINTED, points)
            if rows[0]["expression"] in corrected:
                _errors(axes, of(rows, d=d, values="normal"), "error", "-", look)
        axes.axhline(granted, color=style.BLACK, linewidth=0.8, linestyle=DOTTED)
    laws = [f"{LAWS.get(law, law)} for {TITLES.get(name, name)}" for name, law in corrected.items()]
    _key(spare, data["rows"], (
        _AS_PRINTED, *({"linestyle": "-", "label": text} for text in laws),
        {**_POINT, "label": "$V$ of variance 1"},
        {**_POINT, "markerfacecolor": "white", "label": "rows of $V$ on the sphere"},
        {"color": style.BLACK, "linestyle": DOTTED, "linewidth": 0.8,
         "label": f"{granted:.0%}: what is granted for large $N$"},
    ))  # fmt: skip
    caption = "|law / sampled mean - 1| with the standard error of the mean; titles: Table 1."
    return f"{caption} {_sampling(data['rows'])}"


def _panels(figure: Figure, data: Values, label: str) -> tuple[list[tuple[Axes, Rows]], Axes]:
    """Return a log-log panel for each expression with its rows, and a spare one for the key."""
    *used, spare = style.split(figure, 6, sharex=True)
    spare.set_axis_off()
    panels: list[tuple[Axes, Rows]] = []
    for letter, axes, (name, law) in zip("abcde", used, data["facts"]["laws"].items(), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="sequence length $N$", ylabel=label)
        axes.grid(visible=True)
        axes.minorticks_off()
        axes.tick_params(labelbottom=True)
        title = f"({letter})  {TITLES.get(name, name)}:  {LAWS.get(law, law)}"
        axes.set_title(title, loc="left", fontsize=style.NORMAL)
        panels.append((axes, of(data["rows"], expression=name)))
    return panels, spare


def _looks(rows: Rows) -> list[tuple[int, dict[str, Any]]]:
    """Return each head width with the look of its points."""
    widths = dict.fromkeys(row["d"] for row in rows)
    return [
        (d, {"color": colour, "marker": marker, "markersize": 3, "markeredgewidth": 0.7})
        for d, (colour, marker) in zip(widths, WIDTH_LOOKS, strict=False)
    ]


def _samples(rows: Rows, d: int, look: Mapping[str, Any]) -> list[tuple[Rows, dict[str, Any]]]:
    """Return the rows of both ways of sampling V, with the looks of their points."""
    faces = {"sphere": "white", "normal": look["color"]}
    return [
        (of(rows, d=d, values=kind), {**look, "markerfacecolor": face})
        for kind, face in faces.items()
    ]


def _errors(axes: Axes, rows: Rows, field: str, line: Any, look: Mapping[str, Any]) -> None:
    """Draw a curve with standard errors; a bar that would reach zero has no lower half."""
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
    """Return how many rows and matrices were averaged."""
    sampled = [row["draws"] * row["queries"] for row in rows if row["expression"] != "A_mod"]
    draws = [row["draws"] for row in of(rows, expression="A_mod")]
    return (
        f"Means of at least {min(sampled):,} rows; of {min(draws)} to {max(draws)} matrices for "
        "A_mod (Frobenius norm)."
    )


def draw_heads(figure: Figure, data: Values) -> str:
    """Draw Figure 1: a column a head width, time above memory, crossovers marked."""
    widths = data["facts"]["widths"]
    if style.narrow():  # a row a head width
        figure.set_figheight(0.8 + 1.5 * len(widths))
        grid = figure.subplots(len(widths), 2, squeeze=False, sharex="row", sharey="col").T
    else:
        grid = figure.subplots(2, len(widths), squeeze=False, sharex="col", sharey="row")
    for line, (field, label, unit, names) in zip(grid, PANELS, strict=True):
        for axes, d in zip(line, widths, strict=True):
            axes.set(xscale="log", yscale="log")
            axes.grid(visible=True)
            _forms(axes, of(data["rows"], d=d), field, unit)
            _marks(axes, of(data["facts"]["marks"], d=d, field=field), names, unit,
                   data["facts"]["longest"][d])  # fmt: skip
        line[0].set_ylabel(label)
        written = ticks.plain if unit == MIB else ticks.with_prefix("s")
        ticks.mark_values(line[0].yaxis, written, above=0.13 * len(names))
    for axes, d in zip(grid[0], widths, strict=True):
        axes.set_title(f"d = {d}", fontsize=style.NORMAL)
    for axes in grid[:, -1] if style.narrow() else grid[-1]:
        axes.set_xlabel("sequence length $N$")
    for axes in grid[-1]:
        low, high = (log2(end) for end in axes.get_xlim())
        ticks.mark_sizes(axes.xaxis, [2**e for e in range(ceil(low), floor(high) + 1)])
    marks = [{"marker": "o", "markeredgecolor": style.BLACK, **look} for look in LOOKS.values()]
    forms = ("taylor-direct", "taylor-efficient")
    _legend(figure, forms, "crossover of the printed counts", marks)
    return (
        "One head, batch 1, forward, float32. Time: median processor time of one thread, both "
        "forms in turns; solid: freed memory is kept, dotted: the allocator's defaults, with page "
        "faults. Lengths as the search of the crossing chose them; no crossing is continued to. "
        f"Memory: the allocator's peak. {_machine(data['facts'])}"
    )


def _machine(facts: Mapping[str, Any]) -> str:
    where = facts["where"]
    return f"{where['device_name']}, {where['cores']} cores, torch {where['torch']}."


def _forms(axes: Axes, rows: Rows, field: str, unit: float) -> None:
    for form in dict.fromkeys(row["form"] for row in rows):
        of_form = of(rows, form=form)
        for setting, look in SETTINGS.items():
            if field == "time_s" or setting == "kept":
                points = curve(of(of_form, allocator=setting), field, unit)
                axes.plot(*points, **{**FORMS[form], **look})


def _marks(axes: Axes, marks: Rows, names: Mapping[str, str], unit: float, longest: int) -> None:
    """Draw crossovers: a line at each length, a mark on the direct form's curve, their values."""
    lines = []
    for mark in marks:
        look = LOOKS[_LOOK_OF.get(mark["name"], "measured")]
        if mark["seq_len"] is None:
            lines.append(f"{names[mark['name']]} $>$ {style.short_count(longest)}")
            continue
        axes.axvline(mark["seq_len"], color=style.GREY, linewidth=0.6, linestyle=look["linestyle"])
        if mark["value"] is not None:
            axes.plot([mark["seq_len"]], [mark["value"] / unit], marker="o", zorder=5,
                      markeredgecolor=style.BLACK, markeredgewidth=0.8, **look)  # fmt: skip
        lines.append(f"{names[mark['name']]} $=$ {style.short_count(round(mark['seq_len']))}")
    style.write_in_corner(axes, "\n".join(lines), 0.05, 0.98, **style.ON_WHITE)


def draw_encoders(figure: Figure, data: Values) -> str:
    """Draw Figure 2: memory and time of three encoders, and the efficient one's ratio."""
    panels = memory, time, ratio = style.split(figure, 3)
    names = list(dict.fromkeys(row["mechanism"] for row in data["rows"]))
    for axes, name, field, label, unit in (
        (memory, "memory", "peak_bytes", "peak memory [MiB]", MIB),
        (time, "time", "time_s", "time [s]", 1),
    ):
        for mechanism, width in zip(names, (2.6, 1.2, 1.2), strict=True):  # one may lie under two
            for setting, look in SETTINGS.items():
                if setting == "kept" or field == "time_s":
                    rows = of(data["rows"], mechanism=mechanism, allocator=setting)
                    wide = {"linewidth": width} if setting == "kept" else {}
                    axes.plot(*curve(rows, field, unit), **{**FORMS[mechanism], **look, **wide})
        axes.set(ylim=(0, None), ylabel=label)
        axes.grid(visible=True)
        _encoder_crossovers(axes, data["facts"], name)
    _ratios(ratio, data)
    for axes in panels:
        axes.set_xlabel("sequence length $N$")
        axes.set_xlim(0, 1.03 * max(row["seq_len"] for row in data["rows"]))
    style.label_panels(panels)
    lines = [{"linestyle": look["linestyle"]} for look in LOOKS.values()]
    _legend(figure, names, "crossover as printed", lines)
    model = data["facts"]["model"]
    return (
        f"Pre-norm encoder, {model['depth']} layers, d_model {model['d_model']}, "
        f"{model['num_heads']} heads (d = {model['head_dim']}), MLP ratio {model['mlp_ratio']}, "
        "batch 1, forward, float32, without weights and input. Time: median processor time of one "
        "thread, encoders in turns; solid: freed memory is kept, dotted: the allocator's defaults. "
        f"(c): efficient by standard, kept; squares as printed. {_machine(data['facts'])}"
    )


def _encoder_crossovers(axes: Axes, facts: Mapping[str, Any], name: str) -> None:
    lengths = {"predicted": facts["printed"]["crossovers"][name], "measured": facts["ours"][name]}
    if name == "time":
        lengths["by default"] = facts["ours"]["time_default"]
    finite = {look: length for look, length in lengths.items() if length is not None}
    for look, length in finite.items():
        axes.axvline(length, color=style.GREY, linewidth=0.8, linestyle=LOOKS[look]["linestyle"])
        if look != "by default" or length == max(finite.values()):
            left = length == min(finite.values())
            style.write_on_top(axes, f"{length:.0f}", length, left=left, color=style.GREY)


def _ratios(axes: Axes, data: Values) -> None:
    kept = of(data["rows"], mechanism="taylor-efficient", allocator="kept")
    look = FORMS["taylor-efficient"]
    for word, line in (("memory", "-"), ("time", (0, (3, 1)))):
        axes.plot(*curve(kept, f"{word}_ratio"), linestyle=line, label=word, **look)
    shares = {int(n): share for n, share in data["facts"]["printed"]["memory_shares"].items()}
    axes.plot(list(shares), list(shares.values()), marker="s", markersize=4, linestyle="none",
              color=style.BLACK, markerfacecolor="white", label="memory, printed",
              zorder=5)  # fmt: skip
    axes.axhline(1, color=style.GREY, linewidth=0.8)
    axes.set_yscale("log")
    ticks.mark_values(axes.yaxis, ticks.plain)
    axes.set_ylabel("efficient / standard")
    axes.grid(visible=True)
    axes.legend(loc="upper right")


def _legend(
    figure: Figure, names: Sequence[str], printed: str, crossovers: Rows, *more: Mapping[str, Any]
) -> None:
    """Draw a legend of mechanisms, then of printed and measured crossovers with these looks."""
    handles = [{"label": name, **FORMS[name]} for name in names]
    labels = printed, "measured", "measured, by default"
    met = [
        {"color": style.GREY, "linewidth": 0.8, "label": label, **look}
        for label, look in zip(labels, crossovers, strict=True)
    ]
    looks = [{"linewidth": 1.0, **entry} for entry in (*handles, *met, *more)]
    style.legend(figure, looks, handlelength=2.6, columnspacing=1.4)


DRAWINGS = {
    "1": drawing(3.2, draw_heads), "2": drawing(2.0, draw_encoders), "4": drawing(1.9, draw_norms),
    "5": drawing(1.9, draw_errors),
}  # fmt: skip
