"""Logarithmic axes and their ticks: a few round numbers, written plainly."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from attnprof.render.plots.style import Axes, Look

#: A function from a number to its tick's label; a line's positions, its values and its look.
Label = Callable[[float], str]
Line = tuple[Sequence[int], Sequence[float], Look]
#: Points from one line of notes at the top of a panel to the next.
LINE = 8.5
#: By unit, (divisor, label) pairs; numbers of at least the divisor use it.
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "[s]"), (1e-3, "[ms]"), (1e-6, "[µs]")),
    "B": ((2**40, "[TiB]"), (2**30, "[GiB]"), (2**20, "[MiB]"), (2**10, "[KiB]"), (1.0, "[B]")),
    "": ((1e12, "[10¹²]"), (1e9, "[10⁹]"), (1e6, "[10⁶]"), (1e3, "[10³]"), (1.0, "")),
}

#: Fewer ticks than this are too few to read a scale.
_FEW = 3


def unit_of(values: Iterable[float | None], unit: str) -> tuple[float, str]:
    """Return the divisor that gives an axis short numbers, and its name: ``(2**20, "[MiB]")``."""
    largest, units = max(filter(None, values), default=1.0), UNITS.get(unit, UNITS[""])
    return next((pair for pair in units if largest >= pair[0]), units[-1])


def round_numbers(
    low: float, high: float, fits: Callable[[list[float]], bool] = lambda numbers: len(numbers) < 9
) -> list[float]:
    """Return round numbers of a range: 1, 2 and 5 in every decade, or every few decades.

    The most that fit; evenly spaced ones if the range holds fewer than three round ones.
    """
    from matplotlib.ticker import MaxNLocator

    def inside(values: Iterable[float]) -> list[float]:
        return [float(v) for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = inside(step * 10.0**e for e in decades for step in (1, 2, 5))
    if len(fine) < _FEW:
        ticks = (MaxNLocator(n, steps=[1, 2, 5, 10]).tick_values(low, high) for n in (5, 4, 3))
        numbers = [even for even in map(inside, ticks) if len(even) >= len(fine) and fits(even)]
        return max(numbers, key=len, default=fine)
    whole = inside(10.0**e for e in decades)
    coarser = whole if len(whole) > 1 else fine
    tried = (fine, *(coarser[::step] for step in range(1, len(coarser))))
    return next((numbers for numbers in tried if fits(numbers)), [fine[0], fine[-1]])


def plain(value: float) -> str:
    """Return a number without an exponent: ``0.05``, ``20,000``."""
    return f"{value:,.10f}".rstrip("0").rstrip(".")


def with_prefix(unit: str = "") -> Any:
    """Return a formatter of a unit's numbers with its prefix: ``200 µs``, ``5 G``."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit)


def inches(axis: Any) -> float:
    """Return about how long an axis is drawn."""
    box, dpi = axis.axes.bbox, axis.axes.figure.dpi
    return float((box.width if axis.axis_name == "x" else box.height) / dpi)


def mark_values(axis: Any, written: Label, above: float = 0.0) -> None:
    """Set ticks of a logarithmic axis at round numbers, as many as have room.

    ``above`` are inches that stay free above a y-axis' values, for notes.
    """
    low, high = axis.get_view_interval()
    share = min(0.6, above / inches(axis))

    def half(value: float) -> float:  # of the inches that its label takes
        return 0.03 * len(written(value)) + 0.05 if axis.axis_name == "x" else 0.075

    def fits(numbers: list[float]) -> bool:
        room = inches(axis) * (1 - share) / math.log(high / low)
        return all(math.log(b / a) * room > half(a) + half(b) for a, b in pairwise(numbers))

    values = round_numbers(low, high, fits)
    if above:
        axis.axes.set_ylim(low, high * (high / low) ** (share / (1 - share)))
    axis.set_ticks(values, labels=list(map(written, values)))
    axis.set_ticks([], minor=True)


def short_size(size: int) -> str:
    """Return a size for a tick: ``512``, ``4096``, ``16k`` (of 1,024), ``2M``."""
    if size < 10_000:
        return str(size)
    for unit, letter in ((2**20, "M"), (2**10, "k")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size:,}"


def mark_sizes(axis: Any, sizes: Iterable[int]) -> None:
    """Set ticks of a logarithmic x-axis at the sizes that have room, the largest first."""
    low, high = axis.get_view_interval()
    inch, shown = math.log(high / low) / inches(axis), list[int]()
    for size in sorted(set(sizes), reverse=True):
        room = inch * 0.065 * (1 + len(short_size(size)))
        if not shown or math.log(shown[-1] / size) >= room:
            shown.append(size)
    axis.set_ticks(shown, labels=list(map(short_size, shown)))
    axis.set_ticks([], minor=True)


def log_log(axes: Axes) -> None:
    """Make both axes logarithmic, unless an axis has no positive value."""
    for name in "xy":
        shared = getattr(axes, f"get_shared_{name}_axes")().get_siblings(axes)
        ends = [getattr(each.dataLim, f"{name}1") for each in shared]
        getattr(axes, f"set_{name}scale")("log" if max(ends) > 0 else "linear")


def length_axis(axes: Axes, lengths: Sequence[int], written: Label, lines: int = 0) -> None:
    """Set both axes logarithmic: sizes below, round numbers left, room for notes on top."""
    log_log(axes)
    axes.grid(visible=True)
    axes.set_xlim(*padded_range(lengths))
    mark_sizes(axes.xaxis, lengths)
    if axes.get_yscale() == "linear":
        axes.set_yticks([])  # there are no values
    else:
        mark_values(axes.yaxis, written, above=lines * LINE / 60)


def draw_lines(axes: Axes, lines: Sequence[Line], x: str, y: str, unit: str) -> None:
    """Draw lines on logarithmic axes with these names; bytes (``unit`` is "B") in a short unit."""
    values = [value for _, heights, _ in lines for value in heights]
    divisor, name = unit_of([median(values)], unit) if unit else (1.0, "")
    for places, heights, look in lines:
        axes.plot(places, [height / divisor for height in heights], **look)
    axes.set(xlabel=x, ylabel=f"{y} {name}".strip())
    axes.grid(visible=True)
    value_axes(axes, plain, plain if unit else with_prefix())


def padded_range(sizes: Sequence[int]) -> tuple[float, float]:
    """Return the range of a logarithmic axis of these sizes, with a margin."""
    margin = (max(sizes) / min(sizes)) ** 0.07 if max(sizes) > min(sizes) else 1.25
    return min(sizes) / margin, max(sizes) * margin


def value_axes(axes: Axes, x: Label, y: Label, above: float = 0.0) -> None:
    """Set both axes logarithmic, with round numbers as ``x`` and ``y`` write them."""
    log_log(axes)
    mark_values(axes.xaxis, x)
    mark_values(axes.yaxis, y, above)
