"""A report as JSON: integers exact, NaN and infinities as null."""

from __future__ import annotations

from attnprof.record import Report


def render_json(report: Report) -> str:
    """The report's JSON text with a newline at its end."""
    return report.to_json()
