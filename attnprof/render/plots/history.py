"""Draw the values of many runs as small multiples, with the levels between change points."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from textwrap import fill

from attnprof.record import HistoryRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style
from attnprof.render.plots.series import need
from attnprof.render.plots.ticks import unit_of

#: Rows of panels that a page holds; those with change points come first.
ROWS = 6
#: An axis shows this share of the values' size at least, so that what is flat looks flat.
LEAST_SPAN = 0.2


def draw_history(report: Report) -> style.Figure:
    """Return a panel a case and metric (and machine, for times), over the runs in order."""
    records = report.of(HistoryRecord)
    need(records, "the history has no values")
    groups: dict[tuple[str, str, str], list[HistoryRecord]] = {}
    for record in records:
        groups.setdefault((record.case, record.metric, record.machine), []).append(record)
    # what changed, then times that did not; counts that never did where there is no other
    changed = [its for its in groups.values() if any(r.change_point for r in its)]
    flat = [its for its in groups.values() if its not in changed]
    series = [*changed, *(its for its in flat if its[0].unit == "s")] or flat
    del series[ROWS * style.abreast(99, 2.2) :]
    figure = style.new_figure(1.6)
    panels = style.split(figure, len(series), 2.2)
    style.title(figure, "What was measured over the runs, and where its level changed")
    several = len({r.machine for r in records if r.machine}) > 1
    runs = max(r.run for r in records)
    for axes, members in zip(panels, series, strict=True):
        _draw(axes, members, runs, several)
    left, of = len(groups) - len(series), len(groups)
    more = f"{left} of {of} series are not drawn; those that changed come first." if left else ""
    style.caption(
        figure,
        "Dots: runs in their order; lines: medians between change points; dashed: where a level "
        f"begins, with its ratio to the one before and its commit. {more}",
    )
    return figure


def _draw(axes: style.Axes, members: Sequence[HistoryRecord], runs: int, several: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = [r.run for r in members]
    unit, title = unit_of((r.value for r in members), members[0].unit)
    values = [r.value / unit for r in members]
    axes.plot(numbers, values, ".", color=style.GREY, markersize=3.5)
    level_of = accumulate(int(r.change_point) for r in members)
    for _, level in groupby(zip(level_of, members, strict=True), key=lambda pair: pair[0]):
        own = [record for _, record in level]
        ends = [own[0].run - 0.4, own[-1].run + 0.4]
        axes.plot(ends, [own[0].level / unit] * 2, color=style.BLUE, linewidth=1.5)
    # the same runs in every panel, and room above for what the marks say
    low, high = min(values), max(values)
    span, middle = max(high - low, LEAST_SPAN * high, 1e-12), (low + high) / 2
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
    said = " ".join(part for part in (f"{ratio:.3g}×" if ratio else "", record.commit[:7]) if part)
    style.write_on_top(axes, figure_text(said), record.run - 0.5, left=record.run > runs / 2)
