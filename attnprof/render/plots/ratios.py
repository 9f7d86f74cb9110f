"""How a ratio becomes a colour, and which round ratios are written on the map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnprof.render.plots.style import SMALL

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

#: Ratios that differ by more than this are drawn on a logarithmic colour scale.
WIDE = 8.0


@dataclass(frozen=True)
class Scale:
    """Colours of ratios: light is dear for A; two-sided around 1 where each wins somewhere."""

    low: float
    high: float

    @classmethod
    def of(cls, ratios: np.ndarray) -> Scale:
        """From the smallest to the largest ratio; a little room where all are the same."""
        import numpy as np

        known = ratios[np.isfinite(ratios) & (ratios > 0)]
        low, high = (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)
        if high <= low * (1 + 1e-9):
            return cls(low / 1.05, high * 1.05)
        return cls(low, high)

    @property
    def two_sided(self) -> bool:
        """Whether each of the two is cheaper somewhere, by more than a hair."""
        return self.low < 0.98 and self.high > 1.02

    @property
    def wide(self) -> bool:
        """Whether the scale is logarithmic."""
        return self.high / self.low > WIDE

    @property
    def colours(self) -> str:
        """A colour map that colour-blind readers can use."""
        return "PuOr" if self.two_sided else "viridis"

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

        if self.wide:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            step = max(1, (last - first) // 5)
            found = [10.0**e for e in range(first, last + 1) if e % step == 0]
            if last - first <= 2:
                found = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
        else:
            found = [
                float(v)
                for v in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)
            ]
        if self.two_sided and not any(abs(v - 1) < 1e-9 for v in found):
            found.append(1.0)
        return [v for v in sorted(found) if self.low < v < self.high]

    def tick(self, bar: Any) -> None:
        """Round ratios on the colour bar, written out."""
        levels = self.levels()
        bar.ax.minorticks_off()
        bar.set_ticks(levels, labels=[f"{level:.4g}" for level in levels])
        bar.ax.set_ylim(self.low, self.high)
        bar.ax.tick_params(length=2)

    def contours(self, axes: Axes, x: np.ndarray, y: np.ndarray, table: np.ndarray) -> None:
        """Lines of equal ratio with their value; the line of equal cost is the heavy one."""
        import numpy as np

        known = table[np.isfinite(table)]
        levels = [v for v in self.levels() if known.size and known.min() < v < known.max()]
        if min(table.shape) < 3 or not levels:
            return
        norm = self.norm()
        dark = [
            self.two_sided or float(norm(level)) > 0.55  # black on light colours, white on dark
            for level in levels
        ]
        # on a logarithmic scale, lines between cells are interpolated by the logarithm too
        forth, back = (np.log, np.exp) if self.wide else (np.asarray, float)
        drawn = axes.contour(
            x, y, np.ma.masked_invalid(forth(table)), forth(levels),
            colors=["black" if black else "white" for black in dark],
            linewidths=[1.3 if abs(v - 1) < 1e-9 else 0.6 for v in levels],
        )  # fmt: skip
        axes.clabel(drawn, fontsize=SMALL - 1, fmt=lambda v: f"{back(v):.4g}", inline_spacing=2)
