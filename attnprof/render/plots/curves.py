"""Curves: mechanisms over length, heads or ranks, where they cross, results over runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, product
from textwrap import fill
from typing import Any

from attnprof.record import CrossoverRecord, HistoryRecord, Report
from attnprof.record.crossovers import fixed_size_of, places_of
from attnprof.record.escapes import figure_text
from attnprof.record.kinds import CompareRecord, HeadsRecord, RanksRecord
from attnprof.render.plots import series, style, ticks
from attnprof.units import NAMES, grouped, joined, plural, quantity_text, words_of

#: The marks of :data:`style.MARKS`, in text.
GLYPHS = {"published": "○", "formula": "◆", "derived": "□", "predicted": "▽", "measured": "△"}
_Curve = Mapping[str, Any]
#: A panel and the strip below it.
_Pair = tuple[style.Axes, style.Axes]
#: Names of the crossovers in document 004: N_0 of FLOPs, N_1 of memory.
SYMBOLS = {"flops": "N_0", "memory": "N_1"}
UNITS = {"entries": " [entries]", "bytes": " [B]", "s": " [s]"}
#: Rows of panels that a page holds; those with change points come first.
ROWS = 6
#: An axis spans at least this share of its values, so that a constant looks constant.
LEAST_SPAN = 0.2


def draw_compare(report: Report) -> style.Figure:
    """Return FLOPs and peak memory over length, a line a mechanism, without skipped ones."""
    records = [record for record in report.of(CompareRecord) if record.skipped is None]
    series.need(records, "no mechanism can do what is asked")
    lengths = {record.seq_len for record in records}
    series.need([*lengths][1:], "one sequence length; type several, like --seq 1024:131072:x2")
    unit, memory = series.peak_memory(records, "peak_bytes")
    panels = {"FLOPs": ("flops", 1.0, ticks.with_prefix()),
              memory: ("peak_bytes", unit, ticks.plain)}  # fmt: skip
    what, basis = "FLOPs and peak memory", "by the closed forms"
    return series.draw_over(records, "seq_len", "sequence length", what, panels, basis)


def draw_derive(report: Report) -> style.Figure:
    """Return FLOPs, bytes moved and peak memory over length, a line a phase."""
    curves: Sequence[_Curve] = report.summary.get("curves", ())
    series.need(curves, "no formula in N")
    quantities = list(dict.fromkeys(curve["quantity"] for curve in curves))
    looks = style.looks([curve["phase"] for curve in curves])
    figure = style.new_figure(2.0)
    for axes, quantity in zip(style.split(figure, len(quantities)), quantities, strict=True):
        lines: list[ticks.Line] = [
            (curve["seq_len"], curve["value"], {**looks[curve["phase"]], "markevery": 4})
            for curve in curves if curve["quantity"] == quantity
        ]  # fmt: skip
        unit = "" if quantity == "flops" else "B"
        ticks.draw_lines(axes, lines, "sequence length", quantity_text(quantity), unit)
        lengths = [length for places, *_ in lines for length in places]
        ticks.length_axis(axes, lengths, ticks.plain if unit else ticks.with_prefix())
    what = joined(map(quantity_text, quantities))
    title = f"{what} of {report.summary['name']} over sequence length"
    style.draw_legend(figure, looks, (), title, marked=False)
    sizes = [", ".join(f"{name} = {size}" for name, size in c["sizes"].items()) for c in curves]
    basis = f"derived from the code, {report.summary['dtype']}"
    style.caption(figure, basis, " or ".join(dict.fromkeys(sizes)))
    return figure


def draw_crossover(report: Report) -> style.Figure:
    """Return both costs over length, a panel a head width, metric and unit.

    Below each panel is the ratio. Over another axis: over its values, a panel a length.
    """
    curves: Sequence[_Curve] = report.summary["curves"]
    units = list(dict.fromkeys((c["metric"], c["unit"]) for c in curves))
    widths = list(dict.fromkeys(map(fixed_size_of, curves)))
    kinds, records = [c["kind"] for c in curves], report.of(CrossoverRecord)
    over = records[0].over
    looks = style.looks([c["mechanism"] for c in curves], kinds)
    figure, grid = _make_panels(units, widths, over)
    for place, (main, strip) in grid.items():
        panel_curves, ratios = (
            [c for c in each if (c["metric"], c["unit"], fixed_size_of(c)) == place]
            for each in (curves, report.summary.get("ratios", ()))
        )
        panel_records = [r for r in records if (r.metric, r.unit, r.fixed_size) == place]
        _draw_curves(strip, ratios, {})
        _draw_curves(main, panel_curves, looks)
        _mark_crossings((main, strip), panel_curves, panel_records)
        _write_crossings(main, panel_records, SYMBOLS.get(place[0], "N") if over == "seq" else "x")
    most = max(len(axes.texts[0].get_text().splitlines()) for axes, _ in grid.values())
    for main, strip in grid.values():
        if main.get_autoscaley_on():  # off: a panel with the same scale has set it
            ticks.mark_values(main.yaxis, ticks.with_prefix(), above=(most + 0.5) * 0.13)
        ticks.mark_values(strip.xaxis, ticks.plain)
        ticks.mark_values(strip.yaxis, "{:g}×".format)
    what = joined(dict.fromkeys(words_of(metric)[2] for metric, _ in units))
    what = f"{what[0].upper()}{what[1:]} of {' and '.join(looks)}"
    title = f"{what} over {_axis(over)}, and where they are equal"
    style.draw_legend(figure, looks, kinds, title, marked=True)
    notes = [f"scope {r.scope}, phase {r.phase}{', causal' * r.causal}" for r in records[:1]]
    model = [f"model {name}" for name in [report.summary.get("model")] if name]
    style.caption(figure, f"ratio: {' / '.join(looks)}", *model, *notes, style.sources_of(records))
    return figure


def _axis(over: str) -> str:
    """Return the words for the axis that curves run over."""
    return "sequence length" if over == "seq" else NAMES.get(over, over).removeprefix("the ")


def _make_panels(
    units: Sequence[tuple[str, str]], widths: Sequence[int], over: str
) -> tuple[style.Figure, dict[tuple[str, str, int], _Pair]]:
    """Return a figure with a panel and a strip for the ratio for each (metric, unit, width).

    Widths stand side by side on one scale; if there is only one, units do.
    """
    several = len(widths) > 1
    least = 1.5 if not several else 1.05 if style.narrow() else 1.35
    columns = style.abreast(len(widths if several else units), least)
    blocks = -(-len(widths if several else units) // columns)
    rows = blocks * len(units) if several else blocks
    low = 1.55  # inches of a panel and its strip
    style.check_rows(rows, low, "--d 16,32,64")
    figure = style.new_figure(0.3 + (max(low, min(2.0, 8 / rows)) if several else 2.4) * rows)
    spec = figure.add_gridspec(2 * rows, columns, height_ratios=[5, 2] * rows)
    panels: dict[tuple[str, str, int], _Pair] = {}
    label = _axis(over)
    if over == "seq" and figure.get_figwidth() / columns < 1.3:
        label = "tokens"
    for place, (unit, d) in enumerate(product(units, widths)):
        block, nth = divmod(place, len(widths)) if several else (0, place)
        row, column = block * blocks + nth // columns, nth % columns
        one, two = panels.get((*unit, widths[0]), (None, None)) if several else (None, None)
        main = figure.add_subplot(spec[2 * row, column], sharey=one)
        strip = figure.add_subplot(spec[2 * row + 1, column], sharex=main, sharey=two)
        panels[*unit, d] = main, strip
        main.set_title(f"d = {d}" if over == "seq" else f"{d:,} tokens")
        left = not several or column == 0
        for axes in (main, strip):
            axes.set(xscale="log", yscale="log")
            axes.grid(visible=True)
            axes.tick_params(length=2, labelbottom=axes is strip, labelleft=left)
        strip.axhline(1, color="black", linewidth=0.8)
        noun = words_of(unit[0])[2].removeprefix("memory ")
        name = f"{noun}{UNITS.get(unit[1], '')}"
        name = name.replace(" [", "\n[" if rows > 3 else " [")
        main.set_ylabel(name * left)
        strip.set_ylabel("ratio" * (column == 0))
        strip.set_xlabel(label * (row == rows - 1 or not several))
    return figure, panels


def _draw_curves(
    axes: style.Axes, curves: Sequence[_Curve], looks: Mapping[str, style.Look]
) -> None:
    """Draw costs in their mechanisms' looks, or ratios in grey, over the whole axis."""
    for curve in curves:
        colour = looks.get(curve.get("mechanism", ""), {"color": style.GREY})
        look = {"linestyle": style.LINES.get(curve["kind"], "-"), **colour}
        every = max(1, len(curve["value"]) // 8)
        axes.plot(places_of(curve), curve["value"], **look, markevery=every)
    lengths = [n for curve in curves for n in places_of(curve)]
    if lengths and min(lengths) < max(lengths):
        axes.set_xlim(min(lengths), max(lengths))


def _mark_crossings(
    panels: _Pair, curves: Sequence[_Curve], records: Sequence[CrossoverRecord]
) -> None:
    """Draw a marker on each crossover inside the panels, and a vertical line through both."""
    for record in records:
        line = style.LINES.get(record.kind, "-")
        look = {"marker": "o", "markersize": 5.5, **style.MARKS.get(record.kind, {})}
        for length in record.all_crossings:
            height = _value_at(curves, record.kind, length)
            for axes, at in zip(panels, (height, 1.0), strict=True) if height else ():
                axes.plot([length], [at], color="black", markeredgewidth=0.9, zorder=5, **look)
                axes.axvline(length, color=style.GREY, linewidth=0.5, linestyle=line)


def _write_crossings(axes: style.Axes, records: Sequence[CrossoverRecord], symbol: str) -> None:
    """Write the crossovers' values in a corner of the panel, after the mark of their kind."""
    lines = []
    for record in records:
        values = ", ".join(map(style.short_count, record.all_crossings))
        none = "not known" if record.skipped else "no crossover"
        glyph = GLYPHS.get(record.kind, record.kind)
        lines.append(f"{glyph} {f'${symbol}$ = {values}' if values else none}")
    style.write_in_corner(axes, "\n".join(lines), **style.ON_WHITE)


def _value_at(curves: Sequence[_Curve], kind: str, length: float) -> float | None:
    """Return a curve's value at a length, interpolated on logarithms; None outside the curve."""
    import numpy as np

    for curve in curves:
        places = places_of(curve)
        if curve["kind"] == kind and places[0] <= length <= places[-1]:
            points = (np.log(np.asarray(xs, dtype=float)) for xs in (places, curve["value"]))
            return float(np.exp(np.interp(np.log(length), *points)))
    return None


def draw_heads(report: Report) -> style.Figure:
    """Return cost against the number of heads: a panel a quantity, a line a mechanism and kind."""
    records = [record for record in report.of(HeadsRecord) if record.value is not None]
    quantities = list(dict.fromkeys(record.quantity for record in records))
    kinds, heads = ([getattr(r, name) for r in records] for name in ("kind", "num_heads"))
    figure = style.new_figure(2.5)
    looks = style.looks([record.mechanism for record in records], kinds)
    panels = style.split(figure, len(quantities), 3.0)
    optimum = ""
    for axes, quantity in zip(panels, quantities, strict=True):
        counted = [record for record in records if record.quantity == quantity]
        lines = grouped(counted, lambda record: (record.mechanism, record.kind))
        for (name, kind), line in lines.items():
            points = sorted((record.num_heads, record.value or 0) for record in line)
            look = {"linestyle": style.LINES.get(kind, "-"), **looks[name]}
            axes.plot(*zip(*points, strict=True), **look)
        axes.set(
            xlabel="number of heads", ylabel="FLOPs" if quantity == "flops" else "memory [entries]"
        )
        ticks.length_axis(axes, heads, ticks.with_prefix())
        if quantity == "flops":
            optimum = _optimum(axes, report, heads)
    width = report.summary.get("d_model") or records[0].num_heads * records[0].head_dim
    nouns = ["FLOPs" if name == "flops" else "memory" for name in quantities]
    title = f"{joined(nouns)} over the number of heads, d_model {width}"
    style.draw_legend(figure, looks, kinds, title, marked=False)
    best = [f"{one['mechanism']} with {plural(one['best_divisor'], 'head')}"
            for one in report.summary.get("optima", ())
            if (one["quantity"], one["kind"]) == ("flops", kinds[-1])]  # fmt: skip
    style.caption(
        figure,
        str(report.summary.get("conditions", "")),
        f"fewest FLOPs ({kinds[-1]}): {', '.join(best)}" if best else "",
        optimum,
        style.sources_of(records),
    )
    return figure


def _optimum(axes: style.Axes, report: Report, heads: Sequence[int]) -> str:
    """Draw a line at the real optimum of the FLOPs, if it is inside; return what it is."""
    best, width = (report.summary.get(f"optimum_{name}") for name in ("num_heads", "head_dim"))
    if not isinstance(best, int | float):
        return ""
    # the label of the curve whose optimum the report has
    labels = [
        f" ({figure_text(entry['mechanism'])}, {entry['kind']})"
        for entry in report.summary.get("optima", ())
        if entry["quantity"] == "flops" and entry["optimum_num_heads"] == best
    ]
    where = ", the dotted line"
    if min(heads) <= best <= max(heads):
        axes.axvline(best, color=style.GREY, linewidth=0.8, linestyle=":")
    else:
        where = f", {'right' if best > max(heads) else 'left'} of every divisor"
    size = f"{style.short_count(best)} heads of width {width:.6g}"
    return f"real optimum{''.join(labels[:1])}: {size}{where}"


def draw_history(report: Report) -> style.Figure:
    """Return a panel a case and metric (and machine, for times), over the runs in order."""
    records = report.of(HistoryRecord)
    series.need(records, "the history has no values")
    groups = grouped(records, lambda record: (record.case, record.metric, record.machine))
    # series with changes first, then other times; constant counts only if there is nothing else
    changed = [group for group in groups.values() if any(r.change_point for r in group)]
    flat = [group for group in groups.values() if group not in changed]
    drawn = [*changed, *(group for group in flat if group[0].unit == "s")] or flat
    del drawn[ROWS * style.abreast(99, 2.2) :]
    figure = style.new_figure(1.6)
    panels = style.split(figure, len(drawn), 2.2)
    style.title(figure, "What was measured over the runs, and where its level changed")
    several = len({r.machine for r in records if r.machine}) > 1
    runs = max(r.run for r in records)
    for axes, members in zip(panels, drawn, strict=True):
        _draw_levels(axes, members, runs, several)
    for axes in panels[-style.abreast(len(drawn), 2.2) :]:  # with no panel below
        axes.set_xlabel("run")
    left, count = len(groups) - len(drawn), len(groups)
    more = f"{left} of {count} series are not drawn; those that changed come first." if left else ""
    style.caption(
        figure,
        "Dots: runs in their order; lines: medians between change points; dashed: where a level "
        f"begins, with its ratio to the one before and its commit. {more}",
    )
    return figure


def _draw_levels(
    axes: style.Axes, members: Sequence[HistoryRecord], runs: int, several: bool
) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = [r.run for r in members]
    unit, title = ticks.unit_of((r.value for r in members), members[0].unit)
    values = [r.value / unit for r in members]
    axes.plot(numbers, values, ".", color=style.GREY, markersize=3.5)
    level_of = accumulate(int(r.change_point) for r in members)
    for _, level in groupby(zip(level_of, members, strict=True), key=lambda pair: pair[0]):
        shown = [record for _, record in level]
        ends = [shown[0].run - 0.4, shown[-1].run + 0.4]
        axes.plot(ends, [shown[0].level / unit] * 2, color=style.BLUE, linewidth=1.5)
    # the same runs in every panel, and room above for the marks' labels
    low, high = min(values), max(values)
    span, middle = max(high - low, LEAST_SPAN * high) or 1.0, (low + high) / 2
    axes.set_ylim(max(0.0, middle - 0.65 * span), middle + 0.85 * span)
    axes.set_xlim(0.4, runs + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    for record in members:
        if record.change_point:
            _mark(axes, record, runs)
    case = fill(members[0].case.replace("[", " ["), 40, max_lines=2, placeholder=" …")
    where = f", {members[0].machine}" if several and members[0].machine else ""
    lines = [*case.split("\n"), f"{members[0].metric} {title}{where}"]
    axes.set_title("\n".join(map(figure_text, lines)), fontsize=style.SMALL, loc="left")


def _mark(axes: style.Axes, record: HistoryRecord, runs: int) -> None:
    ratio = record.ratio
    shade = style.GREEN if ratio is not None and ratio < 1 else style.VERMILION
    axes.axvline(record.run - 0.5, color=shade, linestyle=(0, (3, 2)), linewidth=0.9)
    text = " ".join(filter(None, (f"{ratio:.3g}×" if ratio else "", record.commit[:7])))
    style.write_on_top(axes, figure_text(text), record.run - 0.5, left=record.run > runs / 2)


def draw_cost(report: Report) -> style.Figure:
    """Return the bytes that a rank sends over length or ranks, a line a mechanism and method."""
    records = [record for record in report.of(RanksRecord) if record.skipped is None]
    series.need(records, "no mechanism's tokens can be shared")
    counts = sorted({record.ranks for record in records})
    axis = "seq_len" if len({record.seq_len for record in records}) > 1 else "ranks"
    by_count = axis == "seq_len" and len(counts) > 1
    series.need(counts[1:] if axis == "ranks" else records,
                "one length and one number of ranks; type several of either")  # fmt: skip
    curves = [
        replace(record, mechanism=f"{record.mechanism}, {record.method}"
                + f", {plural(record.ranks, 'rank')}" * by_count)
        for record in records
    ]  # fmt: skip
    label = {"seq_len": "sequence length", "ranks": "number of ranks"}[axis]
    unit, name = ticks.unit_of([record.bytes_sent or 0 for record in records], "B")
    panels = {f"sent {name}": ("bytes_sent", unit, ticks.plain)}
    captions = [plural(counts[0], "rank")] if len(counts) == 1 else []
    what = "Bytes that a rank sends in a layer"
    return series.draw_over(curves, axis, label, what, panels, *captions, "by the closed forms")
