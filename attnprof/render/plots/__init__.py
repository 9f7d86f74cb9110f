"""Draw figures from reports: :func:`plot_report` to a file, :func:`report_figure` for a page.

matplotlib is imported when the first figure is drawn.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from attnprof.record import Report
from attnprof.render.plots.style import Figure, inline_figure, plot

#: The descriptions of the figures on commands' pages.
DESCRIPTIONS = {
    "compare": "FLOPs and peak memory over sequence length, a line a mechanism",
    "derive": "FLOPs, bytes moved and peak memory over sequence length, a line a phase",
    "fit": "What one rank holds, part by part, against the memory",
    "model": "Each part's share of FLOPs over sequence length, a panel a phase, and the cache",
    "model --compare": "The cache and FLOPs a token over the context, a line a model",
    "sweep": "Median time and peak memory over sequence length, a line a mechanism",
}
#: The modules of commands' drawings; ``curves`` has the rest.
_MODULES = {"heatmap": "heatmap", "tradeoff": "results", "model": "models", "fit": "models"}


def plot_report(report: Report, path: str | Path, size: str = "page") -> None:
    """Draw a report of a command that has ``--plot``.

    A PNG, SVG or PDF; ``size`` is ``page`` (7 inches wide) or ``column`` (3.3 inches).

    Raises :class:`attnprof.errors.RequestError` for another suffix or an unwritable path.
    """
    plot(path, _drawing(report), report, size=size)


def report_figure(report: Report) -> str | None:
    """Return the figure of a report's page as an element; None if its command has none.

    Raises :class:`attnprof.errors.RequestError` where the report has nothing to draw.
    """
    if report.command not in DESCRIPTIONS:
        return None
    if report.command == "sweep":
        from attnprof.render.plots.results import draw_results

        return inline_figure(draw_results, [report], name="growth")
    return inline_figure(_drawing(report), report, name="figure")


def _drawing(report: Report) -> Callable[[Report], Figure]:
    """Return the function that draws a report of a command."""
    command = report.command.split()[0]
    module = import_module(f"attnprof.render.plots.{_MODULES.get(command, 'curves')}")
    draw: Callable[[Report], Figure] = getattr(module, f"draw_{command}")
    return draw
