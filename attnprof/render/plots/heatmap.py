"""Ratio heatmaps over sequence length and model width, a panel a head count."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnprof.record import Report
from attnprof.render.plots import style
from attnprof.render.plots.ticks import inches, round_numbers, short_size

PHASES = {
    "train": "a training step", "forward": "a forward pass", "backward": "a backward pass",
    "decode": "a decoding step",
}  # fmt: skip
QUANTITIES = {
    "flops": "FLOPs", "matmul_flops": "matrix-product FLOPs", "peak_bytes": "peak memory",
    "macs": "multiply-accumulates",
}  # fmt: skip
#: Ratios that differ by more than this are drawn on a logarithmic colour scale.
WIDE = 8.0


@dataclass(frozen=True)
class Scale:
    """How a ratio becomes a colour: light is dear for A; two-sided where each wins somewhere."""

    low: float
    high: float

    @classmethod
    def of(cls, ratios: np.ndarray) -> "Scale":
        """From the smallest to the largest ratio; a little room where all are the same."""
        known = ratios[np.isfinite(ratios) & (ratios > 0)]
        low, high = (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)
        same = high <= low * (1 + 1e-9)
        return cls(low / 1.05, high * 1.05) if same else cls(low, high)

    @property
    def two_sided(self) -> bool:
        """Whether each of the two is cheaper somewhere, by more than a hair."""
        return self.low < 0.98 and self.high > 1.02

    @property
    def wide(self) -> bool:
        """Whether the scale is logarithmic."""
        return self.high / self.low > WIDE

    def norm(self) -> Any:
        """Matplotlib's norm; around 1 the two sides are given the same depth."""
        from matplotlib.colors import LogNorm, Normalize

        if self.two_sided:
            far = max(self.high, 1 / self.low)
            return LogNorm(1 / far, far)
        return (LogNorm if self.wide else Normalize)(self.low, self.high)

    def levels(self) -> list[float]:
        """Round ratios inside the scale; 1 among them where the two sides meet."""
        from matplotlib.ticker import MaxNLocator

        evenly = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values
        found = [float(v) for v in (round_numbers if self.wide else evenly)(self.low, self.high)]
        if self.two_sided and not any(abs(v - 1) < 1e-9 for v in found):
            found.append(1.0)
        return [v for v in sorted(found) if self.low < v < self.high]

    def numbers(self, axes: style.Axes, x: np.ndarray, y: np.ndarray, table: np.ndarray) -> None:
        """The ratio in each cell."""
        norm = self.norm()
        for row, column in np.argwhere(np.isfinite(table)):
            ratio = float(table[row, column])
            depth = float(norm(ratio))
            dark = abs(depth - 0.5) > 0.3 if self.two_sided else depth < 0.55
            axes.text(
                x[column], y[row], f"{ratio:.3g}", ha="center", va="center", fontsize=style.SMALL,
                color="white" if dark else "black",
            )  # fmt: skip

    def contours(self, axes: style.Axes, x: np.ndarray, y: np.ndarray, table: np.ndarray) -> None:
        """Lines of equal ratio with their value; the line of equal cost is the heavy one."""
        known = table[np.isfinite(table)]
        levels = [v for v in self.levels() if known.size and known.min() < v < known.max()]
        if min(table.shape) < 3 or not levels:
            return
        if style.narrow() and not self.wide:
            levels = [level for level in levels if abs(level - 1) < 1e-9 or level in levels[::2]]
        norm = self.norm()
        shades = ["black" if self.two_sided or norm(v) > 0.55 else "white" for v in levels]
        widths = [1.3 if abs(v - 1) < 1e-9 else 0.6 for v in levels]
        # on a logarithmic scale, lines between cells are interpolated by the logarithm too
        forth, back = (np.log, np.exp) if self.wide else (np.asarray, float)
        heights = np.ma.masked_invalid(forth(table))
        drawn = axes.contour(x, y, heights, forth(levels), colors=shades, linewidths=widths)
        if self.two_sided:  # without colour, too, it shows who is cheaper where
            axes.contourf(x, y, heights, [-np.inf, forth(1.0)], colors="none", hatches=["////"])
        axes.clabel(drawn, fontsize=style.SMALL, fmt=lambda v: f"{back(v):.4g}", inline_spacing=2)


@dataclass(frozen=True)
class Axis:
    """Sizes along an axis, and where they lie: by their logarithm unless evenly spaced."""

    sizes: list[int]
    even: bool

    @classmethod
    def of(cls, sizes: Sequence[int]) -> "Axis":
        """Sorted; evenly spaced if all steps are the same and there are three or more sizes."""
        ordered = sorted(set(sizes))
        steps = {b - a for a, b in pairwise(ordered)}
        return cls(ordered, len(ordered) > 2 and len(steps) == 1)

    def places(self) -> np.ndarray:
        """Coordinates of the sizes."""
        values = np.asarray(self.sizes, dtype=float)
        return values if self.even else np.log2(values)

    def ticks(self) -> tuple[list[float], list[str]]:
        """Coordinates and labels of a few round sizes."""
        from matplotlib.ticker import MaxNLocator

        low, high = self.sizes[0], self.sizes[-1]
        if self.even and len(self.sizes) > 6:
            found = MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(low, high)
            inside = [float(tick) for tick in found if low <= tick <= high]
            return inside, [f"{tick:.0f}" for tick in inside]
        step = -(-len(self.sizes) // 6)
        return list(self.places()[::step]), list(map(short_size, self.sizes[::step]))


def edges(centres: np.ndarray) -> np.ndarray:
    """Borders of cells around their centres, half-way to the neighbours."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middle[0], 2 * centres[-1] - middle[-1]
    return np.concatenate([[first], middle, [last]])


def draw_heatmap(report: Report) -> style.Figure:
    """The figure: one panel a head count, one colour scale for all."""
    its, cells = report.summary, report.to_frame()
    heads = list(dict.fromkeys(cells["num_heads"]))
    rows, columns = Axis.of(cells["seq_len"]), Axis.of(cells["d_model"])
    scale = Scale.of(cells["ratio"].to_numpy(dtype=float))
    figure, panels, lines = _panels(len(heads))
    for axes, count in zip(panels, heads, strict=True):
        own = cells[cells["num_heads"] == count]
        table = own.pivot(index="seq_len", columns="d_model", values="ratio")
        table = table.reindex(index=rows.sizes, columns=columns.sizes)
        mesh = draw_cells(axes, table.to_numpy(dtype=float), rows, columns, scale)
        axes.set_title(_title(report, count, lines))
    a, b = its["mechanism_a"], its["mechanism_b"]
    quantity = QUANTITIES.get(its["quantity"], its["quantity"].replace("_", " "))
    style.title(figure, f"{quantity} of {PHASES.get(its['phase'], its['phase'])}: {a} / {b}")
    colour_bar(panels, mesh, scale, f"{quantity}, {a} / {b}")
    sources = " and ".join(dict.fromkeys(filter(None, (its["source_a"], its["source_b"]))))
    style.caption(
        figure,
        f"{its['kind']} ({sources})" if sources else its["kind"],
        f"scope {its['scope']}",
        "causal" * its["causal"],
        f"excess = 100·({a} / {b} − 1)",
        # contours are drawn where numbers have no room
        f"hatched: {a} costs less" * (scale.two_sided and len(panels[0].collections) > 1),
        "grey: heads do not divide d_model" * bool(its["not_divisible_d_model"]),
    )
    return figure


def _panels(count: int) -> tuple[style.Figure, list[style.Axes], int]:
    """The figure, a panel a head count, and the lines for which the title of each has room."""
    columns = style.abreast({1: 1, 2: 2, 4: 2}.get(count, 3 if count <= 9 else 4), 1.5)
    rows, figure = -(-count // columns), style.new_figure(1.0)
    side = min(3.6, (figure.get_figwidth() - 0.6) / columns)
    lines = 1 if side > 2.4 else 2 if side > 1.8 else 3
    figure.set_figheight(rows * (side * 0.8 + lines * 0.14) + 1.0 + 0.8 * style.narrow())
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[max(0, count - columns) : count]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("model width d_model")
    for axes in panels[::columns]:
        axes.set_ylabel("sequence length")
    return figure, panels[:count], lines


def colour_bar(panels: Sequence[style.Axes], mesh: Any, scale: Scale, label: str) -> None:
    """Beside the panels, below them in a column; its ticks are round ratios."""
    below = style.narrow()
    where = {"location": "bottom", "pad": 0.02} if below else {"pad": 0.015}
    bar = mesh.figure.colorbar(mesh, ax=list(panels), aspect=32, **where)
    bar.set_label(label, fontsize=style.NORMAL)
    bar.outline.set_linewidth(0.6)
    bar.minorticks_off()
    levels = scale.levels()
    bar.set_ticks(levels, labels=[f"{level:.4g}×" for level in levels])
    (bar.ax.set_xlim if below else bar.ax.set_ylim)(scale.low, scale.high)
    bar.ax.tick_params(length=2)


def draw_cells(axes: style.Axes, table: np.ndarray, rows: Axis, columns: Axis, scale: Scale) -> Any:
    """One head count's cells; a width with no values is left out and shows the grey ground."""
    known = np.isfinite(table).any(axis=0)
    x_all, y = columns.places(), rows.places()
    axes.set_facecolor("0.88")
    axes.spines[:].set_visible(False)
    x, shown = (x_all[known], table[:, known]) if known.any() else (x_all, table)
    mesh = axes.pcolormesh(
        edges(x), edges(y), np.ma.masked_invalid(shown), norm=scale.norm(),
        # maps that colour-blind readers can use
        cmap="PuOr" if scale.two_sided else "viridis",
        # cells overlap by a hair: a viewer that smooths their edges shows no ground between them
        edgecolors="face", linewidth=0.3,
        # thousands of vector rectangles would make a file that no reader opens
        rasterized=shown.size > 4096,
    )  # fmt: skip
    if shown.shape[1] * 0.32 < inches(axes.xaxis) and shown.shape[0] * 0.15 < inches(axes.yaxis):
        scale.numbers(axes, x, y, shown)
    else:
        scale.contours(axes, x, y, shown)
    axes.xaxis.set_ticks(*columns.ticks())
    axes.yaxis.set_ticks(*rows.ticks())
    axes.set_xlim(*edges(x_all)[[0, -1]].tolist())
    axes.set_ylim(*edges(y)[[0, -1]].tolist())
    axes.tick_params(length=2)
    return mesh


def _title(report: Report, heads: int, lines: int) -> str:
    name = f"{heads} head{'s' * (heads > 1)}"
    mean, largest = (report.summary[f"{it}_excess_percent"][str(heads)] for it in ("mean", "max"))
    if mean is None:
        return f"{name} · no values"
    told = (f"{value:+,.{2 if abs(value) < 1000 else 0}f} %" for value in (mean, largest))
    between = ": " if lines == 1 else "\n"
    return f"{name}{between}mean {(', max ' if lines < 3 else between + 'max ').join(told)}"
