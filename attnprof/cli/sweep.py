"""``attnprof sweep`` measures grids into a file that can be resumed; ``plot`` draws such files."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument

from attnprof.cli import options as opt
from attnprof.cli.measurement import Measurement, Points, grids_from_file, set_wait_policy
from attnprof.cli.options import working
from attnprof.cli.request import parse_bytes, parse_set
from attnprof.device.ceilings import RATES, is_ceiling
from attnprof.errors import CannotRunError, RequestError
from attnprof.record import ProfileRecord, Report, write_whole
from attnprof.record.files import REPORT_LIMIT
from attnprof.record.recognition import is_journal, reading_back
from attnprof.render.plots import style
from attnprof.units import format_time

if TYPE_CHECKING:
    from attnprof.measure.sweep import Executor, SweepOptions, Task

EXAMPLE = "attnprof sweep --attention standard,linear --seq 128:4096:x2 -o sweep.jsonl"


@dataclass(frozen=True, kw_only=True)
class SweptPoints(Points):
    """A grid that also varies the scope and the mask."""

    scope: str | None = opt.flag("NAMES", "core, layer (default) or core,layer.")
    causal: str = opt.flag("no|yes|both", "Tokens see only those before them.", default="no")


@dataclass(frozen=True, kw_only=True)
class Running:
    """Flags for how long, where and with which extras points are measured."""

    limit: float | None = opt.flag("SECONDS", "Stop a point after so long.")
    memory_limit: str | None = opt.flag("SIZE", "Memory a point may take: 2GiB.")
    try_all: bool = opt.switch("--try-all", "Try points, too, that should not fit.")
    processes: int = opt.whole(1, "--processes", "Processes that measure each point, in turns.", 1)
    in_process: bool = opt.switch("--in-process", "No process for each point: faster.")
    counts: bool = opt.switch("--counts", "Count by torch's counter and fvcore, too.")
    error: bool = opt.switch("--error", "The error against softmax attention, too.")
    workers: int = opt.whole(0, "--workers", "Local workers of Dask (extra: cluster).", 0)
    scheduler: str | None = opt.flag("ADDRESS", "A running Dask scheduler.")


def sweep(
    grid: Path | None = opt.flag("FILE", "A TOML file of grids."),
    *,
    points: SweptPoints,
    measurement: Measurement,
    output: Path = opt.flag(
        "FILE", "Results, a line each (.jsonl); FILE.csv: a table, too.",
        "--output", "-o", default=Path("sweep.jsonl"),
    ),
    running: Running,
    to: opt.ToStdout,
) -> int:  # fmt: skip
    """Measure many mechanisms and sizes into one file.

    Points are added as they are measured: run the same command again, and it resumes.

    Examples:
      attnprof sweep -a standard,linear --seq 128:4096:x2 -o sweep.jsonl
      attnprof sweep -a sdpa --seq 1024,2048 --phase train --processes 3
      attnprof sweep --grid grid.toml -o sweep.csv
    """
    set_wait_policy(measurement.wait_policy)
    files = _Files(output, force=to.force)
    if grid is None:
        points.need("sweep", f"(or --grid FILE): type {EXAMPLE}")
        grids = [points.grid(points.causal)]
    elif flags := points.flags():
        raise RequestError(f"--grid {grid} says which points; leave out {', '.join(flags)}")
    else:
        grids = grids_from_file(grid)
    from attnprof.device.calibration import with_roofline
    from attnprof.measure.sweep import SweepOptions, locally, on_workers, points_of, tasks_of

    planned = points_of(
        grids, counts=running.counts, error=running.error, limit_s=running.limit,
        **measurement.terms(),
    )  # fmt: skip
    options = SweepOptions(
        not running.in_process,
        running.limit,
        parse_bytes(running.memory_limit, "--memory-limit"),
        running.try_all,
    )
    elsewhere = partial(on_workers, workers=running.workers, scheduler=running.scheduler)
    executor = elsewhere if running.workers or running.scheduler else locally
    report = _run(tasks_of(planned, running.processes), files, options, executor)
    to.deliver(with_roofline(report))
    return 0 if report.summary["measured"] else CannotRunError.exit_code


def _run(
    tasks: "list[Task]", files: "_Files", options: "SweepOptions", executor: "Executor"
) -> Report:
    from attnprof.measure.sweep import load_results
    from attnprof.measure.sweep import sweep as run_sweep

    if files.overwritten:  # now that the request is known to be right
        write_whole(files.journal, "")
    torn = files.torn_lines()
    with working("measuring") as progress:

        def on_progress(done: int, total: int, task: "Task") -> None:
            files.write(at_most_every_s=2.0)
            progress.tell(f"measuring {task.point.title}", done, total)

        new = run_sweep(tasks, files.journal, options, executor, on_progress)
    opt.note(f"{files.journal}: {new} measured now, {len(tasks) - new} there before")
    for path in sorted(files.torn_lines() - torn):
        opt.note(f"the last line was torn, its point was measured again; it is kept in {path}")
    with reading_back():
        report = load_results(files.journal)
    files.write()
    spent = report.summary["time"]
    measured, overhead = (format_time(spent[name] or 0.0) for name in ("measured_s", "overhead_s"))
    rest = "".join(
        f", {words} {format_time(seconds)}"
        for words, name in (("compiling", "compile_s"), ("process starts", "start_s"))
        if (seconds := spent[name])
    )
    share = spent["overhead_share"] or 0.0
    opt.note(f"measuring {measured}, overhead {overhead} ({share:.1%} of both){rest}")
    return report


class _Files:
    """A sweep's journal and, if asked for, a CSV beside it: whole, and seconds behind at most."""

    def __init__(self, output: Path, *, force: bool) -> None:
        from attnprof.measure.journal import check_journal

        self.wanted = output if output.suffix.lower() == ".csv" else None
        self.journal = output.with_suffix(".jsonl") if self.wanted else output
        self._written = time.monotonic()
        opt.ensure_writable(self.journal, force=force, extended=True)
        opt.ensure_writable(self.wanted, force=force)
        self.overwritten = force and not is_journal(self.journal)
        if not self.overwritten:
            check_journal(self.journal)

    def torn_lines(self) -> set[Path]:
        """Return the files that torn last lines were moved to."""
        name = f"{self.journal.name}.torn"
        return {path for path in self.journal.parent.iterdir() if path.name.startswith(name)}

    def write(self, at_most_every_s: float = 0.0) -> None:
        """Write the CSV from the journal, unless it was written within ``at_most_every_s``."""
        if self.wanted is None or time.monotonic() - self._written < at_most_every_s:
            return
        from attnprof.measure.sweep import load_results
        from attnprof.render.formats import render_csv

        if self.journal.exists():
            with reading_back():
                results = load_results(self.journal)
            write_whole(self.wanted, render_csv(results))
        self._written = time.monotonic()


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
    known: dict[str, Any] = {}
    if kind == "growth":
        from attnprof.measure.sweep import curve_crossings

        known = {"crossings": curve_crossings(reports)}
    elif kind == "roofline":
        known = {"ceilings": _ceilings(reports, ceilings)}
    with working(f"drawing {output}"):
        style.plot(output, partial(draw_results, **known), reports, kind, size=size)
    opt.note(f"wrote {output}")


def _select_points(reports: Sequence[Report], where: list[str] | None) -> list[Report]:
    """Return reports with those points whose fields or parameters have the asked values."""
    kept = list(reports)
    for name, value in parse_set(where, "--where").items():
        wanted = {text.strip().lower() for text in value.split(",")}
        there: dict[str, None] = {}
        for place, report in enumerate(kept):
            texts = {id(r): str(r.params.get(name, getattr(r, name, "unknown")))
                    for r in report.of(ProfileRecord)}  # fmt: skip
            there |= dict.fromkeys(texts.values())
            records = [r for r in report.records if texts.get(id(r), "").lower() in wanted]
            kept[place] = replace(report, records=records)
        if not any(report.records for report in kept):
            raise RequestError(
                f"--where {name}={value}: no result has that; {name} is {' or '.join(there)} here"
            )
    return kept


def load(path: Path) -> Report:
    """Return the report of a results file of sweep or profile; RequestError for another file."""
    if path.suffix == ".jsonl" or is_journal(path):
        from attnprof.measure.sweep import load_results

        return load_results(path)
    try:
        return Report.load(path, REPORT_LIMIT)
    except RequestError as error:
        raise RequestError(f"{error}; {DRAWN}") from error


def _ceilings(reports: list[Report], path: Path | None) -> list[dict[str, Any]]:
    """Return the devices' ceilings: from the results, else from this machine's calibration."""
    from attnprof.device.calibration import with_roofline

    ceilings = {}
    for report in reports:
        roofline = report.summary.get("roofline")
        if not is_ceiling(roofline, {"device": str, **RATES}):
            roofline = with_roofline(report, path).summary.get("roofline")
        if isinstance(roofline, dict):
            ceilings[roofline["device"]] = roofline
    return list(ceilings.values())
