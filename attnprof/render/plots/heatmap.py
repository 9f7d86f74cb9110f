"""Draw ratio heatmaps over sequence length and model width, a panel a head count."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnprof.record import Report
from attnprof.render.plots import style
from attnprof.render.plots.series import PHASES, PanelGrid
from attnprof.render.plots.ticks import inches, round_numbers, short_size
from attnprof.units import plural, quantity_text

#: Ratios that differ by more than this are drawn on a logarithmic colour scale.
WIDE = 8.0


@dataclass(frozen=True)
class Scale:
    """A map from ratios to colours: light where A costs more; two-sided if each wins somewhere."""

    low: float
    high: float

    @classmethod
    def of(cls, ratios: np.ndarray) -> "Scale":
        """Return the scale from the smallest to the largest ratio, widened if they are equal."""
        valid = ratios[np.isfinite(ratios) & (ratios > 0)]
        low, high = (float(valid.min()), float(valid.max())) if valid.size else (1.0, 1.0)
        same = high <= low * (1 + 1e-9)
        return cls(low / 1.05, high * 1.05) if same else cls(low, high)

    @property
    def two_sided(self) -> bool:
        """Return whether each mechanism is cheaper somewhere, by more than rounding."""
        return self.low < 0.98 and self.high > 1.02

    @property
    def wide(self) -> bool:
        """Return whether the scale is logarithmic."""
        return self.high / self.low > WIDE

    def norm(self) -> Any:
        """Return matplotlib's norm; both sides of 1 get colours of the same depth."""
        from matplotlib.colors import LogNorm, Normalize

        if self.two_sided:
            far = max(self.high, 1 / self.low)
            return LogNorm(1 / far, far)
        return (LogNorm if self.wide else Normalize)(self.low, self.high)

    def levels(self) -> list[float]:
        """Return round ratios inside the scale; with 1, if it is two-sided."""
        from matplotlib.ticker import MaxNLocator

        evenly = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values
        ratios = [float(v) for v in (round_numbers if self.wide else evenly)(self.low, self.high)]
        one = [1.0] * (self.two_sided and all(abs(v - 1) > 1e-9 for v in ratios))
        return [v for v in sorted([*ratios, *one]) if self.low < v < self.high]

    @property
    def colours(self) -> str:
        """Return the colour map's name; colour-blind readers can use either."""
        return "PuOr" if self.two_sided else "viridis"

    def ink(self) -> Callable[[float], str]:
        """Return a function from a ratio to black or white, whichever is legible on its colour."""
        from matplotlib import colormaps

        norm, shades, weights = self.norm(), colormaps[self.colours], (0.3, 0.59, 0.11)
        return lambda ratio: "white" if np.dot(shades(norm(ratio))[:3], weights) < 0.5 else "black"

    def numbers(self, axes: style.Axes, table: np.ndarray) -> None:
        """Write the ratio in each cell."""
        ink = self.ink()
        for row, column in np.argwhere(np.isfinite(table)):
            ratio = float(table[row, column])
            look = {"fontsize": style.SMALL, "color": ink(ratio), **style.CENTRED}
            axes.text(column, row, f"{ratio:.3g}", **look)

    def contours(self, axes: style.Axes, table: np.ndarray) -> None:
        """Draw lines of equal ratio with their value, equal cost heavy; hatch ratios below 1."""
        valid = table[np.isfinite(table)]
        if min(table.shape) < 3 or not valid.size:
            return
        # on a logarithmic scale, lines between cells are interpolated by the logarithm too
        forth, back = (np.log, np.exp) if self.wide else (np.asarray, float)
        heights = np.ma.masked_invalid(forth(table))
        if self.two_sided:  # without colour, too, it shows who is cheaper where
            axes.contourf(heights, [-np.inf, forth(1.0)], colors="none", hatches=["////"])
        levels = [v for v in self.levels() if valid.min() < v < valid.max()]
        if len(levels) > (4 if style.narrow() else 7):
            levels = [level for level in levels if abs(level - 1) < 1e-9 or level in levels[::2]]
        if levels:
            widths = [1.3 if abs(v - 1) < 1e-9 else 0.6 for v in levels]
            drawn = axes.contour(heights, forth(levels), colors=[*map(self.ink(), levels)],
                                 linewidths=widths, linestyles="solid")  # fmt: skip
            look = {"fontsize": style.SMALL, "inline_spacing": 2}
            axes.clabel(drawn, fmt=lambda v: f"{back(v):.4g}", **look)

    def hatched(self, panels: Sequence[style.Axes]) -> bool:
        """Return whether ratios below 1 are hatched, as cells are too small for numbers."""
        return self.two_sided and any(axes.collections[1:] for axes in panels)


def size_ticks(sizes: Sequence[int], room: float) -> tuple[list[float], list[str]]:
    """Return positions and labels of as many sizes as fit; round ones if all are near."""
    from matplotlib.ticker import MaxNLocator

    steps = {b - a for a, b in pairwise(sizes)}
    if len(steps) == 1 and len(sizes) > 6:
        ticks = MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(sizes[0], sizes[-1])
        inside = [float(tick) for tick in ticks if sizes[0] <= tick <= sizes[-1]]
        return [(tick - sizes[0]) / min(steps) for tick in inside], [f"{t:.0f}" for t in inside]
    step = -(-len(sizes) // max(1, min(8, int(room))))
    return list(map(float, range(0, len(sizes), step))), list(map(short_size, sizes[::step]))


def draw_heatmap(report: Report) -> style.Figure:
    """Return the figure: one panel a head count, one colour scale for all."""
    values, cells = report.summary, report.to_frame()
    heads = list(dict.fromkeys(cells["num_heads"]))
    rows, columns = sorted(set(cells["seq_len"])), sorted(set(cells["d_model"]))
    scale = Scale.of(cells["ratio"].to_numpy(dtype=float))
    least = 1.5 if style.narrow() else 3.0 if len(heads) in (2, 4) else 1.7
    titles = [_title(report, h) for h in heads]
    grid = PanelGrid(titles, less="--heads 1,2,4,8", period=1, least=least, square=True)
    panels = [axes for (axes,) in grid.panels]
    for axes, count in zip(panels, heads, strict=True):
        shown = cells[cells["num_heads"] == count]
        table = shown.pivot(index="seq_len", columns="d_model", values="ratio")
        table = table.reindex(index=rows, columns=columns)
        mesh = draw_cells(axes, table.to_numpy(dtype=float), rows, columns, scale)
    grid.label("model width d_model", "sequence length")
    a, b = values["mechanism_a"], values["mechanism_b"]
    named = f"{quantity_text(values['quantity'])} of {PHASES[values['phase']]}: {a} / {b}"
    style.title(grid.figure, named[0].upper() + named[1:])
    colour_bar(panels, mesh, scale)
    sources = " and ".join(dict.fromkeys(filter(None, (values["source_a"], values["source_b"]))))
    style.caption(
        grid.figure,
        f"{values['kind']} ({sources})" if sources else values["kind"],
        f"scope {values['scope']}",
        "causal" * values["causal"],
        f"mean and max: how much more {a} costs than {b}",
        f"hatched: {a} costs less" * scale.hatched(panels),
        "crossed out: heads do not divide d_model" * bool(values["not_divisible_d_model"]),
    )
    return grid.figure


def colour_bar(panels: Sequence[style.Axes], mesh: Any, scale: Scale) -> None:
    """Draw the colour bar with round ratios, right of the panels or, if narrow, below them."""
    below, (width, height) = style.narrow(), mesh.figure.get_size_inches()
    style.grow(mesh.figure, 4 * below)
    where: dict[str, Any] = {"location": "bottom", "pad": 0.02} if below else {"pad": 0.015}
    where["aspect"] = 8 * (width if below else height)
    bar = mesh.figure.colorbar(mesh, ax=list(panels), **where)
    bar.set_label("ratio", fontsize=style.NORMAL)
    bar.outline.set_linewidth(0.6)
    bar.minorticks_off()
    levels = scale.levels()
    bar.set_ticks(levels, labels=[f"{level:.4g}×" for level in levels])
    (bar.ax.set_xlim if below else bar.ax.set_ylim)(scale.low, scale.high)
    bar.ax.tick_params(length=2)


def draw_cells(
    axes: style.Axes, table: np.ndarray, rows: Sequence[int], columns: Sequence[int], scale: Scale
) -> Any:
    """Draw a panel's cells, grey and crossed out where there is no value."""
    height, width = table.shape
    axes.patch.set(facecolor="0.88", edgecolor="0.6", hatch="xxx")
    axes.spines[:].set_visible(False)
    mesh = axes.pcolormesh(
        np.arange(width + 1) - 0.5, np.arange(height + 1) - 0.5, np.ma.masked_invalid(table),
        norm=scale.norm(), cmap=scale.colours,
        # cells overlap by a hair: a viewer that smooths their edges shows no ground between them
        edgecolors="face", linewidth=0.3,
        # thousands of vector rectangles would make a file that no reader opens
        rasterized=table.size > 4096,
    )  # fmt: skip
    across, up = inches(axes.xaxis), inches(axes.yaxis)
    if width * 0.32 < across and height * 0.15 < up:
        scale.numbers(axes, table)
    else:
        scale.contours(axes, table)
    widest = max(len(short_size(size)) for size in columns)
    axes.xaxis.set_ticks(*size_ticks(columns, across / (0.065 * (1 + widest))))
    axes.yaxis.set_ticks(*size_ticks(rows, up / 0.15))
    axes.set(xlim=(-0.5, width - 0.5), ylim=(-0.5, height - 0.5))
    axes.tick_params(length=2)
    return mesh


def _title(report: Report, heads: int) -> str:
    mean, largest = (report.summary[f"{it}_excess_percent"][str(heads)] for it in ("mean", "max"))
    if mean is None:
        return f"{plural(heads, 'head')}, no values"
    percents = (f"{value:+,.{2 if abs(value) < 1000 else 0}f} %" for value in (mean, largest))
    return f"{plural(heads, 'head')}, mean {', max '.join(percents)}"
