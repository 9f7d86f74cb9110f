"""Figures of measured results, by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.record import ProfileRecord, Report
from attnprof.render.plots.growth import draw_growth
from attnprof.render.plots.rooflines import draw_pareto, draw_roofline
from attnprof.render.plots.style import plot
from attnprof.render.plots.widths import draw_heads, draw_surface, draw_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAW: Mapping[str, Callable[..., Figure]] = {
    "growth": draw_growth, "surface": draw_surface, "width": draw_width, "heads": draw_heads,
    "roofline": draw_roofline, "pareto": draw_pareto,
}  # fmt: skip
KINDS = tuple(_DRAW)


def plot_results(
    reports: Sequence[Report], path: str | Path, kind: str = "growth", **known: Any
) -> None:
    """Draw profile or sweep reports in one figure; PNG, SVG or PDF by the suffix.

    ``known`` are the ``crossings`` of a figure of growth, and the ``ceilings`` of a roofline.
    Raises :class:`attnprof.errors.RequestError` for another suffix, an unwritable path, and
    results that lack what the kind shows.
    """
    plot(path, partial(draw_results, **known), reports, kind)


def draw_results(reports: Sequence[Report], kind: str = "growth", **known: Any) -> Figure:
    """The figure of a kind."""
    records = [record for report in reports for record in report.of(ProfileRecord)]
    return _DRAW[kind](records, _devices(reports), **known)


def _devices(reports: Sequence[Report]) -> dict[int, str]:
    """The device's own name for each record, by identity, where reports are from several."""
    names = [str(report.environment.get("device_name") or "") for report in reports]
    if len(set(names)) < 2:
        return {}
    return {
        id(record): name
        for report, name in zip(reports, names, strict=True)
        for record in report.records
    }
