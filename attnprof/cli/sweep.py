"""`attnprof sweep`: grids of measurements into one file that can be resumed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli.measurement import Measurement, Points, grids_from_file
from attnprof.cli.output import deliver, ensure_writable, note
from attnprof.errors import CannotRunError, RequestError
from attnprof.record import Report, write_whole
from attnprof.record.destinations import reading_back
from attnprof.record.recognition import is_journal
from attnprof.render.progress import progress_bar
from attnprof.units import format_time

if TYPE_CHECKING:
    from attnprof.measure.sweep.runner import Executor, SweepOptions, Task

EXAMPLE = "attnprof sweep --attention standard,linear --seq 128:4096:x2 -o sweep.jsonl"


@dataclass(frozen=True, kw_only=True)
class SweptPoints(Points):
    """A grid of which the scope and the mask are axes, too."""

    scope: str | None = Option(None, metavar="NAMES", help="core, layer (default) or both.")
    causal: str = Option("no", metavar="no|yes|both", help="Whether token t sees tokens 1 to t.")


@dataclass(frozen=True, kw_only=True)
class Running:
    """How long, where and with what else points are measured."""

    limit: float | None = Option(None, metavar="SECONDS", help="After these a process is stopped.")
    memory_limit: str | None = Option(None, metavar="SIZE", help="What a point may map: 2GiB.")
    try_all: bool = Option(
        False, "--try-all", help="Also start points that do not fit by the closed form."
    )
    processes: int = Option(1, min=1, help="Processes a point is measured in, taking turns.")
    in_process: bool = Option(
        False, "--in-process", help="No process of its own for each point: faster."
    )
    counts: bool = Option(
        False, "--counts", help="Ask torch's counter and fvcore at every point, too."
    )
    error: bool = Option(
        False, "--error", help="How far the output is from softmax attention's, too."
    )
    workers: int = Option(0, min=0, help="Local workers of a Dask cluster (extra: cluster).")
    scheduler: str | None = Option(None, metavar="ADDRESS", help="A running Dask scheduler.")


def sweep(
    grid: Path | None = Option(None, metavar="FILE", help="A TOML file of grids."),
    *,
    points: SweptPoints,
    measurement: Measurement,
    output: Path = Option(
        Path("sweep.jsonl"), "--output", "-o", metavar="FILE",
        help="Results, a line each (.jsonl); FILE.csv: a table, too.",
    ),
    running: Running,
    fmt: opt.FormatOption = opt.Format.TABLE,
    force: opt.ForceOption = False,
) -> int:  # fmt: skip
    """Measure every combination of mechanisms and sizes into a file; run again to resume.

    Example: attnprof sweep --attention standard,linear --seq 128:4096:x2 -o sweep.jsonl
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    files = _Files(output, force=force)
    from attnprof.device.roofline import with_roofline
    from attnprof.measure.sweep.plan import points_of
    from attnprof.measure.sweep.runner import SweepOptions, here, on_workers, tasks_of

    planned = points_of(
        _grids(grid, points), measurement.budget(), counts=running.counts, error=running.error,
        limit_s=running.limit, **measurement.terms(),
    )  # fmt: skip
    options = SweepOptions(
        not running.in_process, running.limit, parse_bytes(running.memory_limit), running.try_all
    )
    workers, scheduler = running.workers, running.scheduler
    elsewhere = partial(on_workers, workers=workers, scheduler=scheduler)
    executor = elsewhere if workers or scheduler else here
    found = _run(tasks_of(planned, running.processes), files, options, executor)
    deliver(with_roofline(found), fmt, None)
    return 0 if found.summary["measured"] else CannotRunError.exit_code


def _grids(path: Path | None, points: SweptPoints) -> list[Any]:
    if path is None:
        points.need("sweep", f"(or --grid FILE): type {EXAMPLE}")
        return [points.grid(points.causal)]
    if flags := points.flags():
        raise RequestError(f"--grid {path} says which points; leave out {', '.join(flags)}")
    return grids_from_file(path)


def _run(tasks: list[Task], files: _Files, options: SweepOptions, executor: Executor) -> Report:
    from attnprof.measure.sweep.results import load_results
    from attnprof.measure.sweep.runner import sweep as run_sweep

    files.begin()
    with progress_bar(len(tasks), "sweep") as show:

        def on_progress(done: int, _: int, task: Task) -> None:
            files.follow()
            if show is not None:
                show(done, task)

        new = run_sweep(tasks, files.journal, options, executor, on_progress)
    kept = len(tasks) - new
    note(f"{files.journal}: {new} measured now, {kept} there before")
    files.tell_torn()
    with reading_back():
        report = load_results(files.journal)
    files.write()
    note(_time_line(report.summary["time"]))
    return report


class _Files:
    """The journal, and where asked for a CSV beside it: always whole, at most seconds late.

    Raises :class:`RequestError` where one of them is somebody's, or cannot be written.
    """

    EVERY_S = 2.0

    def __init__(self, output: Path, *, force: bool) -> None:
        from attnprof.measure.sweep.journal import check_journal

        self.wanted = output if output.suffix.lower() == ".csv" else None
        self.journal = output.with_suffix(".jsonl") if self.wanted else output
        self._written = time.monotonic()
        ensure_writable(self.journal, force=force, extended=True)
        ensure_writable(self.wanted, force=force)
        self._overwritten = force and not is_journal(self.journal)
        if not self._overwritten:
            check_journal(self.journal)
        self._torn = self._torn_lines()

    def begin(self) -> None:
        """Empty what is to be overwritten, now that the request is known to be right."""
        if self._overwritten:
            write_whole(self.journal, "")

    def tell_torn(self) -> None:
        """Say where a torn last line was moved to."""
        for path in sorted(self._torn_lines() - self._torn):
            note(f"the last line was torn, its point was measured again; it is kept in {path}")

    def _torn_lines(self) -> set[Path]:
        name = f"{self.journal.name}.torn"
        return {path for path in self.journal.parent.iterdir() if path.name.startswith(name)}

    def follow(self) -> None:
        """Write it again if the last time is a while ago."""
        if self.wanted and time.monotonic() - self._written > self.EVERY_S:
            self.write()

    def write(self) -> None:
        """The journal's records as they are now."""
        if self.wanted is None:
            return
        from attnprof.measure.sweep.results import load_results
        from attnprof.render.formats import render_csv

        if self.journal.exists():
            with reading_back():
                found = load_results(self.journal)
            write_whole(self.wanted, render_csv(found))
        self._written = time.monotonic()


def _time_line(spent: Mapping[str, float | None]) -> str:
    """Where the time went, of all points in the file."""
    measured, overhead = (format_time(spent[name] or 0.0) for name in ("measured_s", "overhead_s"))
    rest = "".join(
        f", {words} {format_time(seconds)}"
        for words, name in (("compiling", "compile_s"), ("process starts", "start_s"))
        if (seconds := spent[name])
    )
    share = spent["overhead_share"] or 0.0
    return f"measuring {measured}, overhead {overhead} ({share:.1%} of both){rest}"


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str | None) -> int | None:
    """``2GiB``, ``500MB`` or a number of bytes; None stays None."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not found:
        raise RequestError(f"--memory-limit {text}: type a size like 2GiB or 500MB")
    return int(float(found[1]) * _UNITS[found[2] or ""])
