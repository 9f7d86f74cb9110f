"""``attnprof sweep``: measure grids of points into a file that can be resumed."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnprof.cli import options as opt
from attnprof.cli.measurement import Measurement, Points, grids_from_file, set_wait_policy
from attnprof.cli.request import parse_bytes
from attnprof.errors import CannotRunError, RequestError
from attnprof.record import ProfileRecord, Report, write_whole
from attnprof.record.recognition import is_journal, reading_back
from attnprof.units import format_time, joined

if TYPE_CHECKING:
    from attnprof.measure.request import PointRequest
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
    memory_limit = parse_bytes(running.memory_limit, "--memory-limit")
    options = SweepOptions(not running.in_process, running.limit, memory_limit, running.try_all)
    elsewhere = partial(on_workers, workers=running.workers, scheduler=running.scheduler)
    executor = elsewhere if running.workers or running.scheduler else locally
    report = _run(tasks_of(planned, running.processes), files, options, executor)
    to.deliver(with_roofline(report))
    return 0 if report.summary["measured"] else CannotRunError.exit_code


def _run(
    tasks: "list[Task]", files: "_Files", options: "SweepOptions", executor: "Executor"
) -> Report:
    """Measure the tasks that the journal lacks; return the report of all, with notes on stderr."""
    from attnprof.measure.sweep import load_results
    from attnprof.measure.sweep import sweep as run_sweep

    if files.overwritten:  # now that the request is known to be right
        write_whole(files.journal, "")
    torn, lacking = files.torn_lines(), files.lacking(tasks[0].point)
    with opt.working("measuring") as progress:

        def on_progress(done: int, total: int, task: "Task") -> None:
            files.write(at_most_every_s=2.0)
            progress.tell(f"measuring {task.point.title}", done, total)

        new = run_sweep(tasks, files.journal, options, executor, on_progress)
    opt.note(f"{files.journal}: {new} measured now, {len(tasks) - new} there before")
    if lacking and new < len(tasks):
        opt.note(
            f"those there before were measured without {joined(lacking)}, and stay so: another "
            "--output has it of all"
        )
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
    """A sweep's journal and, if asked for, a CSV with it: whole, and seconds behind at most."""

    def __init__(self, output: Path, *, force: bool) -> None:
        from attnprof.measure.journal import check_journal

        self.csv = output if output.suffix.lower() == ".csv" else None
        self.journal = output.with_suffix(".jsonl") if self.csv else output
        self._written = time.monotonic()
        opt.ensure_writable(self.journal, force=force, extended=True)
        opt.ensure_writable(self.csv, force=force)
        self.overwritten = force and not is_journal(self.journal)
        if not self.overwritten:
            check_journal(self.journal)

    def torn_lines(self) -> set[Path]:
        """Return the files that torn last lines were moved to."""
        name = f"{self.journal.name}.torn"
        return {path for path in self.journal.parent.iterdir() if path.name.startswith(name)}

    def lacking(self, point: "PointRequest") -> list[str]:
        """Return the flags of a point that no measured point of the journal was measured with."""
        from attnprof.measure.sweep import load_results

        if not self.journal.exists():
            return []
        with reading_back():
            records = load_results(self.journal).of(ProfileRecord)
        measured = [record for record in records if record.skipped is None]
        wanted = {"counts": "flops_torch", "error": "error"}
        return [
            f"--{flag}" for flag, field in wanted.items()
            if getattr(point, flag) and all(getattr(one, field) is None for one in measured)
        ]  # fmt: skip

    def write(self, at_most_every_s: float = 0.0) -> None:
        """Write the CSV from the journal, unless it was written within ``at_most_every_s``."""
        if self.csv is None or time.monotonic() - self._written < at_most_every_s:
            return
        from attnprof.device.calibration import with_roofline
        from attnprof.measure.sweep import load_results
        from attnprof.render.formats import render_csv

        if self.journal.exists():
            with reading_back():
                results = with_roofline(load_results(self.journal))
            write_whole(self.csv, render_csv(results))
        self._written = time.monotonic()
