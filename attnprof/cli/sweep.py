"""`attnprof sweep`: grids of measurements into one file that can be resumed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.cli import options as opt
from attnprof.cli import sweep_options as of
from attnprof.cli.options import Format
from attnprof.cli.output import deliver, ensure_writable, note
from attnprof.cli.profile_tables import tables
from attnprof.cli.progress import progress_bar
from attnprof.errors import CannotRunError, RequestError
from attnprof.record import write_whole
from attnprof.record.destinations import reading_back
from attnprof.record.recognition import is_journal
from attnprof.units import format_time

if TYPE_CHECKING:
    from attnprof.measure.sweep.runner import Engine, Task, Terms
    from attnprof.record import Report

EXAMPLE = "attnprof sweep --attention standard,linear --seq 128:4096:x2 -o sweep.jsonl"


def sweep(
    grid: of.GridOption = None,
    *,
    attention: opt.AttentionOption = None,
    seq: opt.SeqOption = None,
    d_model: of.DModelsOption = None,
    heads: of.HeadsOption = None,
    batch: of.BatchesOption = None,
    scope: of.ScopesOption = None,
    phase: of.PhasesOption = None,
    dtype: of.DtypesOption = None,
    device: of.DevicesOption = None,
    causal: of.CausalsOption = "no",
    settings: opt.SetOption = None,
    args: opt.ArgOption = None,
    inputs: opt.InputOption = None,
    output: of.ResultsOption = Path("sweep.jsonl"),
    samples: of.SamplesOption = 20,
    min_time: of.MinTimeOption = 0.5,
    max_time: of.MaxTimeOption = 5.0,
    spread: of.SpreadOption = 0.05,
    limit: of.LimitOption = None,
    memory_limit: of.MemoryLimitOption = None,
    try_all: of.TryAllOption = False,
    processes: of.ProcessesOption = 1,
    in_process: of.InProcessOption = False,
    counts: of.CountsOption = False,
    error: of.ErrorOption = False,
    check: of.CheckOption = True,
    compiled: of.CompileOption = False,
    workers: of.WorkersOption = 0,
    scheduler: of.SchedulerOption = None,
    threads: of.ThreadsOption = None,
    seed: of.SeedOption = 0,
    fmt: opt.FormatOption = Format.TABLE,
    force: opt.ForceOption = False,
) -> int:
    """Measure every combination of mechanisms and sizes into a file; run again to resume.

    Example: attnprof sweep --attention standard,linear --seq 128:4096:x2 -o sweep.jsonl
    """
    texts = {"attention": attention, "seq": seq, "d_model": d_model, "heads": heads,
             "batch": batch, "scope": scope, "phase": phase, "dtype": dtype,
             "device": device}  # fmt: skip
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    files = _Files(output, force=force)
    from attnprof.measure.request import Budget
    from attnprof.measure.sweep.plan import points_of
    from attnprof.measure.sweep.runner import Terms, tasks_of

    grids = _grids(grid, texts, causal, (settings or [], args or [], inputs or []))
    budget = Budget(samples, min_time, max_time, spread=spread)
    points = points_of(grids, budget, seed=seed, threads=threads, counts=counts, check=check,
                       compiled=compiled, error=error, limit_s=limit)  # fmt: skip
    terms = Terms(not in_process, limit, parse_bytes(memory_limit), try_all)
    found = _run(tasks_of(points, processes), files, terms, _engine(workers, scheduler))
    from attnprof.device.roofline import with_roofline

    deliver(with_roofline(found), fmt, None, tables)
    return 0 if found.summary["measured"] else CannotRunError.exit_code


def _grids(
    path: Path | None, texts: dict[str, Any], causal: str, lists: tuple[list[str], ...]
) -> list[Any]:
    from attnprof.cli.grid import grid_from_flags, grids_from_file

    flags = [f"--{key.replace('_', '-')}" for key, text in texts.items() if text is not None]
    flags += [
        flag for flag, given in zip(("--set", "--arg", "--input"), lists, strict=True) if given
    ]
    if path is not None:
        if flags:
            raise RequestError(f"--grid {path} says which points; leave out {', '.join(flags)}")
        return grids_from_file(path)
    for key in ("attention", "seq"):
        if texts[key] is None:
            raise RequestError(f"sweep needs --{key} (or --grid FILE): type {EXAMPLE}")
    return [grid_from_flags(texts, causal, *lists)]


def _engine(workers: int, scheduler: str | None) -> Engine:
    from attnprof.measure.sweep.runner import Here

    if not workers and scheduler is None:
        return Here()
    from attnprof.measure.sweep.cluster import DaskEngine

    return DaskEngine(workers, scheduler)


def _run(tasks: list[Task], files: _Files, terms: Terms, engine: Engine) -> Report:
    from attnprof.measure.sweep.results import load_results
    from attnprof.measure.sweep.runner import sweep as run_sweep

    files.begin()
    with progress_bar(len(tasks), "sweep") as show:

        def on_progress(done: int, _: int, task: Task) -> None:
            files.follow()
            if show is not None:
                show(done, f"{task.point.mechanism}, {task.point.seq_len} tokens")

        new = run_sweep(tasks, files.journal, terms, engine, on_progress)
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
        from attnprof.render.csv import render_csv

        if self.journal.exists():
            with reading_back():
                found = load_results(self.journal)
            write_whole(self.wanted, render_csv(found))
        self._written = time.monotonic()


def _time_line(spent: Mapping[str, float | None]) -> str:
    """Where the time went, of all points in the file."""
    measured, overhead, share, compiling, starts = (
        spent[name] or 0.0
        for name in ("measured_s", "overhead_s", "overhead_share", "compile_s", "start_s")
    )
    rest = "".join(
        f", {name} {format_time(seconds)}"
        for name, seconds in (("compiling", compiling), ("process starts", starts))
        if seconds
    )
    return (
        f"measuring {format_time(measured)}, overhead {format_time(overhead)} "
        f"({share:.1%} of both){rest}"
    )


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str | None) -> int | None:
    """``2GiB``, ``500MB`` or a number of bytes; None stays None."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not found:
        raise RequestError(f"--memory-limit {text}: type a size like 2GiB or 500MB")
    return int(float(found[1]) * _UNITS[found[2] or ""])
