"""``attnprof plot``: figures from the results of ``sweep`` and ``profile``."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from typer import Argument

from attnprof.cli import options as opt
from attnprof.cli.measurement import calibrated
from attnprof.cli.request import parse_set
from attnprof.device.ceilings import RATES, is_ceiling
from attnprof.errors import RequestError, closest
from attnprof.record import ProfileRecord, Report
from attnprof.record.files import REPORT_LIMIT
from attnprof.record.recognition import is_journal
from attnprof.render.plots import style
from attnprof.render.plots.series import FIELDS

#: Message on the files that can be plotted.
DRAWN = "plot draws the results of sweep (.jsonl) and of profile --format json"


def plot(
    results: list[Path] = Argument(
        metavar="RESULTS...", help="Files of sweep (.jsonl) or profile (.json)."
    ),
    *,
    output: Path = opt.flag(
        "FIGURE", "PNG, SVG or PDF.", "--output", "-o", default=Path("results.png")
    ),
    kind: str = opt.flag(
        "KIND", "growth (time and memory over length), surface (FLOPs over length and width, "
        "against the first mechanism's), surface3d (the FLOPs themselves), width or heads (costs "
        "over them), roofline, pareto (error over time).", default="growth",
    ),
    where: list[str] | None = opt.flag(
        "K=V", "Draw only results of these sizes, mechanisms or parameters, like num_heads=4,8; "
        "repeatable.",
    ),
    ceilings: Path | None = opt.flag("FILE", "For roofline: what calibrate --calibration wrote."),
    size: opt.SizeOption = "page",
    force: opt.ForceOption = False,
) -> None:  # fmt: skip
    """Draw figures from the results of sweep and profile.

    What varies beside an axis (widths, heads, devices of several files) has a panel each.

    Examples:
      attnprof plot sweep.jsonl -o growth.png
      attnprof plot sweep.jsonl --kind pareto --where seq_len=1024 -o pareto.svg
      attnprof plot laptop.jsonl server.jsonl --kind growth
    """
    from attnprof.render.plots.results import KINDS, draw_results

    opt.ensure_writable(output, force=force)
    style.check_figure_path(output)
    opt.one_of(kind, KINDS, "--kind")
    reports = [load(path) for path in results]
    if not any(report.of(ProfileRecord) for report in reports):
        raise RequestError(f"{', '.join(map(str, results))}: no measured points; {DRAWN}")
    reports = _select_points(reports, where)
    facts: dict[str, Any] = {}
    if kind == "growth":
        from attnprof.measure.sweep import curve_crossings

        facts = {"crossings": curve_crossings(reports)}
    elif kind == "roofline":
        facts = {"ceilings": _ceilings(reports, calibrated(ceilings))}
    with opt.working(f"drawing {output}"):
        style.plot(output, partial(draw_results, **facts), reports, kind, size=size)
    opt.note(f"wrote {output}")


def _select_points(reports: Sequence[Report], where: list[str] | None) -> list[Report]:
    """Return the reports with only the points whose fields or parameters have these values."""
    selected = list(reports)
    points = [point for report in reports for point in report.of(ProfileRecord)]
    params = dict.fromkeys(name for point in points for name in point.params)
    for name, value in parse_set(where, "--where").items():
        if name not in params and not hasattr(points[0], name):
            known = [*(field for field in FIELDS if hasattr(points[0], field)), *params]
            near = closest(name, ["mechanism", "head_dim", *known])
            raise RequestError(f"--where {name}={value}: results have no {name}; {near}")
        wanted = {text.strip().lower() for text in value.split(",")}
        present: dict[str, None] = {}
        for place, report in enumerate(selected):
            texts = {id(r): str(r.params.get(name, getattr(r, name, "unknown")))
                    for r in report.of(ProfileRecord)}  # fmt: skip
            present |= dict.fromkeys(texts.values())
            records = [r for r in report.records if texts.get(id(r), "").lower() in wanted]
            selected[place] = replace(report, records=records)
        if missing := sorted(wanted - {text.lower() for text in present}):
            raise RequestError(
                f"--where {name}={value}: no result has {name}={missing[0]}; it is "
                f"{' or '.join(present)} here"
            )
    return selected


def load(path: Path) -> Report:
    """Return the report of a results file of sweep or profile; RequestError for another file."""
    if path.suffix == ".jsonl" or is_journal(path):
        from attnprof.measure.sweep import load_results

        return load_results(path)
    try:
        return Report.load(path, REPORT_LIMIT)
    except RequestError as error:
        journal = path.parent / f"{path.stem}.jsonl"  # sweep -o FILE.csv writes both
        hint = f"; type {journal}" if journal.is_file() else ""
        raise RequestError(f"{error}; {DRAWN}{hint}") from error


def _ceilings(reports: list[Report], path: Path | None) -> list[dict[str, Any]]:
    """Return the devices' ceilings: of the file, else of the results, else of this machine."""
    from attnprof.device.calibration import with_roofline

    ceilings = {}
    for report in reports:
        roofline = report.summary.get("roofline")
        if path is not None or not is_ceiling(roofline, {"device": str, **RATES}):
            roofline = with_roofline(report, path).summary.get("roofline")
        if isinstance(roofline, dict):
            ceilings[roofline["device"]] = roofline
    return list(ceilings.values())
