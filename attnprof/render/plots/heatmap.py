"""Ratio heatmaps over sequence length and model width, a panel a head count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attnprof.record import ColumnarRecords, Report
from attnprof.render.plots.ratios import Scale
from attnprof.render.plots.style import (
    NORMAL,
    PAGE_WIDTH,
    caption,
    new_figure,
    power_ticks,
)

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = {
    "train": "a training step",
    "forward": "a forward pass",
    "backward": "a backward pass",
    "decode": "a decoding step",
}
QUANTITIES = {
    "flops": "FLOPs",
    "matmul_flops": "matrix-product FLOPs",
    "macs": "multiply-accumulates",
    "bytes_moved": "bytes moved",
    "peak_bytes": "peak bytes",
    "peak_entries": "peak entries",
}


@dataclass(frozen=True)
class Axis:
    """Sizes along an axis, and where they lie: by their logarithm unless evenly spaced."""

    sizes: list[int]
    even: bool

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Axis:
        """Sorted; evenly spaced if all steps are the same and there are three or more sizes."""
        ordered = sorted(set(sizes))
        steps = {b - a for a, b in pairwise(ordered)}
        return cls(ordered, len(ordered) > 2 and len(steps) == 1)

    def places(self, sizes: Sequence[int]) -> np.ndarray:
        """Coordinates of some sizes."""
        import numpy as np

        values = np.asarray(sizes, dtype=float)
        return values if self.even else np.log2(values)

    def ticks(self) -> tuple[list[float], list[str]]:
        """Coordinates and labels of a few round sizes."""
        import math

        if self.even:
            from matplotlib.ticker import MaxNLocator

            low, high = self.sizes[0], self.sizes[-1]
            found = MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(low, high)
            inside = [float(tick) for tick in found if low <= tick <= high]
            return inside, [f"{tick:.0f}" for tick in inside]
        low = math.ceil(math.log2(self.sizes[0]))
        high = math.floor(math.log2(self.sizes[-1]))
        if high < low:  # no power of two lies between
            return list(self.places(self.sizes)), [str(size) for size in self.sizes]
        exponents, labels = power_ticks(low, high)
        return [float(exponent) for exponent in exponents], labels


def edges(centres: np.ndarray) -> np.ndarray:
    """Borders of cells around their centres, half-way to the neighbours."""
    import numpy as np

    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middle[0], 2 * centres[-1] - middle[-1]
    return np.concatenate([[first], middle, [last]])


def draw_heatmap(report: Report) -> Figure:
    """The figure: one panel a head count, one colour scale for all."""
    import numpy as np

    fields = {name: _values(report, name) for name in ("seq_len", "d_model", "num_heads", "ratio")}
    heads = list(dict.fromkeys(fields["num_heads"]))
    rows, columns = Axis.of(fields["seq_len"]), Axis.of(fields["d_model"])
    ratios = np.array(fields["ratio"], dtype=float)
    scale = Scale.of(ratios)
    width, height, shape = _layout(len(heads))
    figure = new_figure(width, height)
    grid = figure.subplots(*shape, squeeze=False, sharex=True, sharey=True)
    flat = list(grid.ravel())
    own = np.array(fields["num_heads"])
    where = (
        np.searchsorted(rows.sizes, fields["seq_len"]),
        np.searchsorted(columns.sizes, fields["d_model"]),
    )
    mesh: Any = None
    for axes, count in zip(flat, heads, strict=False):
        table = np.full((len(rows.sizes), len(columns.sizes)), np.nan)
        here = own == count
        table[where[0][here], where[1][here]] = ratios[here]
        mesh = _panel(axes, table, rows, columns, scale)
        axes.set_title(_title(report, count, "\n" if shape[1] > 2 else " · "), fontsize=NORMAL)
    for axes in flat[len(heads) :]:
        axes.set_visible(False)
    _label(grid)
    bar = figure.colorbar(mesh, ax=flat[: len(heads)], aspect=32, pad=0.015)
    bar.set_label(_unit(report, ",\n" if height < 3.6 else ", "), fontsize=NORMAL)
    bar.outline.set_linewidth(0.6)
    scale.tick(bar)
    caption(figure, _caption(report))
    return figure


def _values(report: Report, name: str) -> list[Any]:
    if isinstance(report.records, ColumnarRecords):
        return report.records.column(name)
    return [getattr(record, name) for record in report.records]


def _layout(panels: int) -> tuple[float, float, tuple[int, int]]:
    """Inches and rows × columns for a number of panels."""
    columns = {1: 1, 2: 2, 3: 3, 4: 2}.get(panels, 3 if panels <= 9 else 4)
    rows = -(-panels // columns)
    if panels == 1:
        return 4.2, 3.5, (1, 1)
    side = (PAGE_WIDTH - 1.1) / columns
    return (
        PAGE_WIDTH,
        rows * (side * 0.86 + (0.37 if columns > 2 else 0.25)) + 0.55,
        (rows, columns),
    )


def _panel(axes: Axes, table: np.ndarray, rows: Axis, columns: Axis, scale: Scale) -> Any:
    """One head count's cells; a width with no values is left out and shows the grey ground."""
    import numpy as np

    known = np.isfinite(table).any(axis=0)
    y = rows.places(rows.sizes)
    x_all = columns.places(columns.sizes)
    axes.set_facecolor("0.88")
    for spine in axes.spines.values():
        spine.set_visible(False)
    x, shown = (x_all[known], table[:, known]) if known.any() else (x_all, table)
    mesh = axes.pcolormesh(
        edges(x), edges(y), np.ma.masked_invalid(shown), cmap=scale.colours, norm=scale.norm(),
        # thousands of vector rectangles would make a file that no reader opens
        rasterized=shown.size > 4096,
    )  # fmt: skip
    scale.contours(axes, x, y, shown)
    for axis, size in ((axes.xaxis, columns), (axes.yaxis, rows)):
        places, labels = size.ticks()
        axis.set_ticks(places, labels)
    axes.set_xlim(*edges(x_all)[[0, -1]].tolist())
    axes.set_ylim(*edges(y)[[0, -1]].tolist())
    axes.tick_params(length=2)
    return mesh


def _title(report: Report, heads: int, between: str) -> str:
    name = "1 head" if heads == 1 else f"{heads} heads"
    mean = report.summary["mean_excess_percent"][str(heads)]
    largest = report.summary["max_excess_percent"][str(heads)]
    if mean is None:
        return f"{name} · no values"
    return f"{name}{between}mean {_percent(mean)}, max {_percent(largest)}"


def _percent(value: float) -> str:
    return f"{value:+,.2f} %" if abs(value) < 1000 else f"{value:+,.0f} %"


def _label(grid: Any) -> None:
    for axes in grid[-1]:
        axes.set_xlabel("model width d_model")
    for axes in grid[:, 0]:
        axes.set_ylabel("sequence length")


def _unit(report: Report, between: str) -> str:
    summary = report.summary
    quantity = QUANTITIES.get(summary["quantity"], summary["quantity"].replace("_", " "))
    phase = PHASES.get(summary["phase"], summary["phase"])
    return f"{summary['mechanism_a']} / {summary['mechanism_b']}{between}{quantity} of {phase}"


def _caption(report: Report) -> str:
    summary = report.summary
    sources = dict.fromkeys(s for s in (summary["source_a"], summary["source_b"]) if s)
    origin = f" ({' and '.join(sources)})" if sources else ""
    parts = [
        f"{summary['kind']}{origin}",
        f"scope {summary['scope']}",
        *(["causal"] if summary["causal"] else []),
        f"excess = 100·({summary['mechanism_a']} / {summary['mechanism_b']} − 1)",
    ]
    if summary["not_divisible_d_model"]:
        parts.append("grey: heads do not divide d_model")
    return " · ".join(parts)
