"""`attnprof plot`: figures from any results file."""

from pathlib import Path
from typing import Any

from typer import Argument, Option

from attnprof.cli.options import ForceOption, SizeOption, ensure_writable, note, one_of
from attnprof.errors import RequestError
from attnprof.record import ProfileRecord, Report
from attnprof.record.files import REPORT_LIMIT
from attnprof.record.recognition import is_journal
from attnprof.render.plots.results import KINDS, plot_results
from attnprof.render.plots.style import check_figure_path


def plot(
    results: list[Path] = Argument(
        metavar="RESULTS...", help="Files of sweep (.jsonl) or profile (.json)."
    ),
    *,
    output: Path = Option(
        Path("results.png"), "--output", "-o", metavar="FIGURE", help="PNG, SVG or PDF."
    ),
    kind: str = Option(
        "growth", metavar="KIND",
        help="growth (time and memory over length), surface or width or heads (FLOPs over "
        "them), roofline, pareto (error over time).",
    ),
    ceilings: Path | None = Option(
        None, metavar="FILE", help="For roofline: what calibrate --file wrote."
    ),
    size: SizeOption = "page",
    force: ForceOption = False,
) -> None:  # fmt: skip
    """Draw figures from the results of sweep and profile.

    Several files, of other devices, are drawn in one figure.

    Examples:
      attnprof plot sweep.jsonl -o growth.png
      attnprof plot sweep.jsonl --kind pareto -o pareto.svg
      attnprof plot laptop.jsonl server.jsonl --kind growth
    """
    ensure_writable(output, force=force)
    check_figure_path(output)
    one_of(kind, KINDS, "--kind")
    reports = [load(path) for path in results]
    if not any(report.of(ProfileRecord) for report in reports):
        raise RequestError(
            f"{', '.join(map(str, results))}: no measured points; plot draws the results of sweep "
            "and profile --format json"
        )
    known: dict[str, Any] = {}
    if kind == "growth":
        from attnprof.measure.sweep.results import curve_crossings

        known = {"crossings": curve_crossings(reports)}
    elif kind == "roofline":
        known = {"ceilings": _ceilings(reports, ceilings)}
    plot_results(reports, output, kind, size, **known)
    note(f"wrote {output}")


def load(path: Path) -> Report:
    """A results file of either kind; :class:`RequestError` for another one."""
    if path.suffix == ".jsonl" or is_journal(path):
        from attnprof.measure.sweep.results import load_results

        return load_results(path)
    return Report.load(path, REPORT_LIMIT)


def _ceilings(reports: list[Report], path: Path | None) -> list[dict[str, Any]]:
    """What the devices can do: as the results say, else as is known of them here."""
    from attnprof.device.roofline import RATES, is_ceiling, with_roofline

    found = {}
    for report in reports:
        told = report.summary.get("roofline")
        if not is_ceiling(told, {"device": str, **RATES}):
            told = with_roofline(report, path).summary.get("roofline")
        if isinstance(told, dict):
            found[told["device"]] = told
    return list(found.values())
