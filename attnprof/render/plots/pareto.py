"""Error against cost, the best ones joined; exact ones in a strip below, without an error."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.record.escapes import figure_text
from attnprof.render.plots import series, style, ticks
from attnprof.render.plots.facets import Records
from attnprof.render.plots.series import Multiples

#: Distances below this are rounding.
EXACT = 1e-9


@dataclass(frozen=True)
class Axis:
    """A field that is a cost, how its axis is called, and how its ticks are written."""

    field: str
    label: str
    written: ticks.Label


def draw_pareto(
    records: Records, cost: Axis, error: str, *, named: bool = True,
    hollow: Callable[[Any], bool] = lambda _: False, told: Sequence[str] = (),
) -> style.Figure:  # fmt: skip
    """A panel a facet, a line a mechanism from point to point of its parameters.

    ``named`` writes these beside each point; points of what is ``hollow`` are empty. ``told`` is
    said in the caption, too.
    """
    drawn, settings = Multiples(records, by_params=False), series.varying_params(records)
    errors = [getattr(r, error) for r in records]
    inexact = [value for value in errors if value > EXACT]
    low, high = min(inexact, default=1.0) / 1.5, max(inexact, default=1.0) * 1.5
    strip = low / (high / low) ** 0.2
    exact = math.sqrt(strip * low)  # the height at which these stand
    for curves, (axes,) in drawn.parts:
        axes.axhspan(strip, low, color="0.93", zorder=0)
        best: list[tuple[float, float]] = []
        for curve in curves:
            shown = sorted(curve.records, key=lambda record: getattr(record, cost.field))
            heights = [value if (value := getattr(r, error)) > EXACT else exact for r in shown]
            points = list(zip([getattr(r, cost.field) for r in shown], heights, strict=True))
            if not points:
                continue
            best += points
            fill = {"markerfacecolor": "white"} if any(map(hollow, shown)) else {}
            axes.plot(*zip(*points, strict=True), **{**curve.look, "linewidth": 0.6, **fill})
            for point, record in zip(points, shown, strict=True) if named else ():
                values = [record.params.get(name) for name in settings[record.mechanism]]
                said = figure_text(", ".join(str(value) for value in values if value is not None))
                style.beside(axes, said, point, (3, 3), color=curve.look["color"])
        steps = zip(*front(best), strict=True)
        axes.step(*steps, where="post", color=style.GREY, linewidth=0.8, zorder=1)
    first = drawn.grid.panels[0][0]
    series.value_axes(first, cost.written, ticks.plain)
    some = ticks.round_numbers(low, high, lambda its: len(its) < 5) if inexact else []
    first.set_ylim(strip, high)
    first.set_yticks([exact, *some], ["exact", *map(ticks.plain, some)])
    drawn.grid.label(cost.label, "distance")
    beside = "; ".join(
        f"{name}: {', '.join(params)}" for name, params in settings.items() if params
    )
    return drawn.finished(
        f"Distance from softmax attention over {cost.label.replace('median ', '')}", "",
        "steps: no other point is both cheaper and nearer" * (len(records) > 1),
        f"{'numbers at points' if named else 'lines'} are of {beside}" if beside else "", *told,
        **({} if beside else {"linestyle": "none"}),
    )  # fmt: skip


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other one beats in both."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found
