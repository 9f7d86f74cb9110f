"""Draw figures from reports; matplotlib is imported when the first one is drawn."""

from importlib import import_module
from pathlib import Path

from attnprof.record import Report
from attnprof.render.plots.style import plot


def plot_report(report: Report, path: str | Path, size: str = "page") -> None:
    """Draw a report of a command that has ``--plot``, but for those of papers and sweeps.

    A PNG, SVG or PDF; ``size`` is ``page`` (7 inches wide) or ``column`` (3.3 inches).

    Raises :class:`attnprof.errors.RequestError` for another suffix or an unwritable path.
    """
    command = report.command.split()[0]
    name = {"heatmap": "heatmap", "tradeoff": "tradeoff", "cost": "ranks"}.get(command, "curves")
    module = import_module(f"attnprof.render.plots.{name}")
    plot(path, getattr(module, f"draw_{command}"), report, size=size)
