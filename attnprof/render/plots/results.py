"""Figures of measured results, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.record import ProfileRecord, Report
from attnprof.render.plots.growth import draw_growth
from attnprof.render.plots.rooflines import draw_pareto, draw_roofline
from attnprof.render.plots.save import check_figure_path, save_figure
from attnprof.render.plots.style import styled
from attnprof.render.plots.widths import draw_heads, draw_surface, draw_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("growth", "surface", "width", "heads", "roofline", "pareto")
_DRAW = {
    "growth": draw_growth, "surface": draw_surface, "width": draw_width, "heads": draw_heads,
    "pareto": draw_pareto,
}  # fmt: skip


def plot_results(
    reports: Sequence[Report],
    path: str | Path,
    kind: str = "growth",
    ceilings: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Draw profile or sweep reports in one figure; PNG, SVG or PDF by the suffix.

    ``ceilings`` are for the roofline. Raises :class:`attnprof.errors.RequestError` for another
    suffix, an unwritable path, and results that lack what the kind shows.
    """
    check_figure_path(path)
    with styled():
        save_figure(draw_results(reports, kind, ceilings), path)


def draw_results(
    reports: Sequence[Report], kind: str = "growth", ceilings: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """The figure of a kind."""
    records = [r for report in reports for r in report.records if isinstance(r, ProfileRecord)]
    devices = _devices(reports)
    if kind == "roofline":
        return draw_roofline(records, devices, ceilings)
    return _DRAW[kind](records, devices)


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
