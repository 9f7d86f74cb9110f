"""Values of many runs as small multiples, with the levels between change points."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from attnprof.record import HistoryRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style
from attnprof.render.plots.series import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
#: More panels than this nobody reads; those with change points come first.
MOST = 24
#: An axis shows this share of the values' size at least, so that what is flat looks flat.
LEAST_SPAN = 0.2
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "[s]"), (1e-3, "[ms]"), (1e-6, "[µs]")),
    "B": ((2**30, "[GiB]"), (2**20, "[MiB]"), (2**10, "[KiB]"), (1.0, "[B]")),
    "": ((1e12, "[10¹²]"), (1e9, "[10⁹]"), (1e6, "[10⁶]"), (1e3, "[10³]"), (1.0, "")),
}


def draw_history(report: Report) -> Figure:
    """A panel a case and metric (and machine, for times), over the runs in their order."""
    records = report.of(HistoryRecord)
    need(records, "the history has no values")
    groups: dict[tuple[str, str, str], list[HistoryRecord]] = {}
    for record in records:
        groups.setdefault((record.case, record.metric, record.machine), []).append(record)
    series = _drawn(list(groups.values()))
    rows = -(-len(series) // COLUMNS)
    figure = style.new_figure(style.PAGE_WIDTH, 0.5 + 1.55 * rows)
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    several = len({r.machine for r in records if r.machine}) > 1
    for axes, members in zip(panels, series, strict=False):
        _draw(axes, members, max(r.run for r in records), several)
    for axes in panels[len(series) :]:
        axes.set_axis_off()
    left, of = len(groups) - len(series), len(groups)
    more = f"{left} of {of} series are not drawn; those that changed come first." if left else ""
    style.caption(
        figure,
        "Dots: runs in their order; lines: medians between change points; dashed: where a level "
        f"begins, with its ratio to the one before and its commit. {more}",
    )
    return figure


def _drawn(groups: Sequence[list[HistoryRecord]]) -> list[list[HistoryRecord]]:
    """What changed, then times that did not; counts that never changed where there is no other."""
    changed = [members for members in groups if any(r.change_point for r in members)]
    flat = [members for members in groups if members not in changed]
    times = [members for members in flat if members[0].unit == "s"]
    return ([*changed, *times] or flat)[:MOST]


def _draw(axes: Axes, members: Sequence[HistoryRecord], runs: int, several: bool) -> None:
    numbers = [r.run for r in members]
    unit, title = _unit(members)
    axes.plot(numbers, [r.value / unit for r in members], ".", color=style.GREY, markersize=3.5)
    for level in _levels(members):
        ends = [level[0].run - 0.4, level[-1].run + 0.4]
        axes.plot(ends, [level[0].level / unit] * 2, color=style.BLUE, linewidth=1.5)
    _frame(axes, [r.value / unit for r in members], runs)
    for record in members:
        if record.change_point:
            _mark(axes, record, runs)
    case = fill(members[0].case.replace("[", " ["), 40, max_lines=2, placeholder=" …")
    where = f", {members[0].machine}" if several and members[0].machine else ""
    lines = [figure_text(line) for line in case.split("\n")]
    lines.append(figure_text(f"{members[0].metric} {title}{where}"))
    axes.set_title("\n".join(lines), fontsize=style.SMALL - 1, loc="left")


def _unit(members: Sequence[HistoryRecord]) -> tuple[float, str]:
    """What to divide by so that an axis has short numbers, and how that is called."""
    largest = max(r.value for r in members)
    units = UNITS.get(members[0].unit, UNITS[""])
    return next(((size, name) for size, name in units if largest >= size), units[-1])


def _levels(members: Sequence[HistoryRecord]) -> list[list[HistoryRecord]]:
    found: list[list[HistoryRecord]] = []
    for record in members:
        if record.change_point or not found:
            found.append([])
        found[-1].append(record)
    return found


def _frame(axes: Axes, values: Sequence[float], runs: int) -> None:
    """The same runs in every panel; a value axis with room above for what the marks say."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(values), max(values)
    span = max(high - low, LEAST_SPAN * high, 1e-12)
    middle = (low + high) / 2
    axes.set_ylim(max(0.0, middle - 0.65 * span), middle + 0.85 * span)
    axes.set_xlim(0.4, runs + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.tick_params(labelsize=style.SMALL - 1)


def _mark(axes: Axes, record: HistoryRecord, runs: int) -> None:
    ratio = record.ratio
    shade = style.GREEN if ratio is not None and ratio < 1 else style.VERMILION
    axes.axvline(record.run - 0.5, color=shade, linestyle=(0, (3, 2)), linewidth=0.9)
    late = record.run > runs / 2
    said = " ".join(part for part in (f"{ratio:.3g}×" if ratio else "", record.commit[:7]) if part)
    axes.annotate(
        figure_text(said), (record.run - 0.5, 1.0), xycoords=("data", "axes fraction"),
        fontsize=style.SMALL - 1, color=style.BLACK, va="top", ha="right" if late else "left",
        xytext=(-2 if late else 2, -1), textcoords="offset points",
    )  # fmt: skip
