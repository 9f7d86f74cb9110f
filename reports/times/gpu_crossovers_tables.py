"""The rows of ``gpu_crossovers.py``, and the page and figures they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, isnan, log, nan
from pathlib import Path
from typing import Any

from times.crossovers_tables import Crossing, crossings_table, errors_table


@dataclass(frozen=True)
class Curve:
    """A point of a measured curve: the median of its calls."""

    case: str
    phase: str
    mechanism: str
    seq_len: int
    seconds: float


@dataclass(frozen=True)
class Fused:
    """A layer against fused attention; ``nan`` where there is no crossing."""

    case: str
    phase: str
    verdict: str
    measured: float
    low: float
    high: float
    longest: int
    calls: int
    predicted: float = nan
    predicted_low: float = nan
    predicted_high: float = nan
    predicted_verdict: str = ""
    predicted_to: int = 0


@dataclass(frozen=True)
class TimedPoint:
    """A layer's predicted and measured seconds."""

    mechanism: str
    phase: str
    seq_len: int
    dtype: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Factor between both, above or below, minus one."""
        return exp(abs(log(self.predicted_s / self.measured_s))) - 1


def page(
    folder: Path, known: Mapping[str, Any], crossings: Sequence[Crossing], fused: Sequence[Fused],
    points: Sequence[TimedPoint], curves: Sequence[Curve],
) -> None:  # fmt: skip
    """The page and its figures."""
    calibrations = len(list(folder.glob("device_*.json")))
    lines = [f"# {known['name']}: crossovers in time", "", *_how(folder, known), ""]
    lines += ["![crossovers](crossovers.png)", ""]
    for dtype in dict.fromkeys(row.case.rsplit(", ", 1)[1] for row in crossings):
        same_format = [row for row in crossings if row.case.endswith(f", {dtype}")]
        lines += [f"## Direct against efficient TaylorShift, forward, {dtype}", ""]
        lines += [*crossings_table(same_format, calibrations), ""]
        lines += [*errors_table(same_format, law=True), ""]
    lines += ["## Against fused attention: layers of 16 heads of 64, one sequence", ""]
    lines += [f"- {_sentence(row)}" for row in fused]
    lines += ["", "![times of layers](layers.png)", "", *_points(points)]
    (folder / "crossovers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw_crossings(folder / "crossovers.png", crossings)
    _draw_layers(folder / "layers.png", curves, fused)


def _how(folder: Path, known: Mapping[str, Any]) -> list[str]:
    """How the page was made."""
    notes = folder / "measured.md"
    said = (
        "Written by `python reports/run.py times/gpu_crossovers --predict` of what `python "
        "reports/run.py times/gpu_crossovers calibrate taylor fused points again` measured; all "
        "numbers in "
        f"the CSV files beside it. {known['source']}. Times are the device's own, launches "
        "hidden, by CUDA events, the cache flushed before each call. FLOPs are where both forms "
        "have as many; intervals are of 95 %."
    )
    return [said] + (["", notes.read_text(encoding="utf-8").strip()] if notes.exists() else [])


def _sentence(row: Fused) -> str:
    """Whether a layer ever overtakes fused attention, and from where."""
    name, dtype = row.case.split(", ")
    said = {
        "crosses": f"faster from {row.measured:,.0f} tokens on ({_ends(row.low, row.high)})",
        "never": f"not faster at any length up to {row.longest:,} tokens",
        "always": f"faster at all lengths up to {row.longest:,} tokens",
        "several": "the order changes several times, the last time at "
        f"{row.measured:,.0f} tokens ({_ends(row.low, row.high)})",
        "not measured": "not measured",
    }[row.verdict]
    sentences = {
        "crosses": f"from {row.predicted:,.0f} ({_ends(row.predicted_low, row.predicted_high)})",
        "never": f"never up to {row.predicted_to:,}",
        "always": "always",
        "several": f"several crossings, the last at {row.predicted:,.0f}",
    }.get(row.predicted_verdict, "nothing")
    return f"**{name}**, {row.phase}, {dtype}: {said}; predicted: {sentences}."


def _ends(low: float, high: float) -> str:
    """An interval, of which an end may not be known."""
    if isnan(low):
        return f"up to {high:,.0f}"
    return f"{low:,.0f} to {high:,.0f}" if not isnan(high) else f"{low:,.0f} and more"


def _points(points: Sequence[TimedPoint]) -> list[str]:
    """How far predictions of single layers are off."""
    if not points:
        return []
    errors = sorted(point.error for point in points)
    tenth = errors[int(0.9 * len(errors))]
    worst = sorted(points, key=lambda point: -point.error)[:8]
    texts = ", ".join(
        f"{x.mechanism} {x.phase} {x.dtype} at {x.seq_len:,} ({1e6 * x.predicted_s:,.0f} against "
        f"{1e6 * x.measured_s:,.0f} µs)" for x in worst
    )  # fmt: skip
    said = (
        f"{len(points)} points: median error {errors[len(errors) // 2]:.1%}, nine in ten within "
        f"{tenth:.0%}. Farthest off: {texts}."
    )
    return ["## Single layers of 8 heads of 64: predicted against measured", "", said]


def _draw_crossings(to: Path, rows: Sequence[Crossing]) -> None:
    """Predicted over measured crossings."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(4.2, 3.6), layout="constrained")
    dtypes = list(dict.fromkeys(row.case.rsplit(", ", 1)[1] for row in rows))
    for dtype, marker in zip(dtypes, "os", strict=False):
        measured = [
            row for row in rows if row.case.endswith(f", {dtype}") and not isnan(row.measured)
        ]
        places = [r.measured for r in measured], [r.predicted for r in measured]
        axes.loglog(*places, marker, ms=4, label=dtype)
    timed = [row for row in rows if not isnan(row.measured)]
    axes.loglog([r.measured for r in timed], [r.formula for r in timed], "x", ms=4, color="0.6",
                label="where FLOPs are equal")  # fmt: skip
    ends = min(r.measured for r in timed) / 1.5, max(r.measured for r in timed) * 1.5
    axes.loglog(ends, ends, color="0.7", lw=0.8, zorder=0)
    axes.set(xlabel="measured crossing, tokens", ylabel="predicted crossing, tokens")
    axes.set_title("Direct against efficient TaylorShift", fontsize=9)
    axes.legend(fontsize=7)
    figure.savefig(to, dpi=160)
    plt.close(figure)


def _draw_layers(to: Path, curves: Sequence[Curve], fused: Sequence[Fused]) -> None:
    """Measured times of layers over length, a panel a phase."""
    layers = [row for row in curves if row.case in {x.case for x in fused}]
    phases = list(dict.fromkeys(row.phase for row in layers))
    dtypes = list(dict.fromkeys(row.case.split(", ")[1] for row in layers))
    if not phases:
        return
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        len(dtypes), len(phases), figsize=(3.6 * len(phases), 2.8 * len(dtypes)),
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for (row, dtype), (column, phase) in product(enumerate(dtypes), enumerate(phases)):
        axes, times = panels[row][column], dict[str, dict[int, float]]()
        for one in layers:
            if one.phase == phase and one.case.endswith(f", {dtype}"):
                times.setdefault(one.mechanism, {})[one.seq_len] = one.seconds
        for name, seconds in sorted(times.items(), key=lambda item: item[0] != "sdpa"):
            lengths = sorted(n for n in seconds if n >= 64)
            style = {"color": "k", "lw": 1.6} if name == "sdpa" else {"lw": 1.1}
            axes.loglog(lengths, [1e3 * seconds[n] for n in lengths], label=name, **style)
        axes.set(xlabel="tokens", ylabel="ms", title=f"{phase}, {dtype}")
        axes.legend(fontsize=7)
    figure.suptitle("Layers of 16 heads of 64", fontsize=9)
    figure.savefig(to, dpi=160)
    plt.close(figure)
