"""Fill the explorer's page: one HTML file with everything in it, which asks the network nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnprof.render.formats import filled

_PARTS = {
    "plot_style": "uplot/uPlot.min.css", "plot_script": "uplot/uPlot.iife.min.js",
    "plot_licence": "uplot/LICENSE", "style": "explorer.css", "script": "explorer.js",
}  # fmt: skip


def render_explorer(data: Mapping[str, Any], version: str) -> str:
    """Return the page of the data that :func:`attnprof.crossovers.explorer.page_data` returns."""
    folder = Path(__file__).parent / "templates"
    parts = {name: (folder / file).read_text(encoding="utf-8") for name, file in _PARTS.items()}
    return filled("explorer.html", {}, **parts, **data, version=version)
