"""`attnprof sweep`: grids of measurements into one file that can be resumed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli.options import Format
from attnprof.cli.output import deliver, note
from attnprof.cli.profile import tables
from attnprof.cli.progress import progress_bar
from attnprof.errors import CannotRunError, RequestError

if TYPE_CHECKING:
    from attnprof.measure.sweep.runner import Engine, Task, Terms
    from attnprof.record import Report

EXAMPLE = "attnprof sweep --attention standard,linear --seq 128:4096:x2 -o sweep.jsonl"


def sweep(
    grid: Annotated[
        Path | None, Option("--grid", metavar="FILE", help="A TOML file with [[grid]] tables.")
    ] = None,
    *,
    attention: opt.AttentionOption = None,
    seq: opt.SeqOption = None,
    d_model: Annotated[
        str | None, Option("--d-model", metavar="SIZES", help="Model widths (default 512).")
    ] = None,
    heads: Annotated[
        str | None, Option("--heads", metavar="SIZES", help="Head counts (default 8).")
    ] = None,
    batch: Annotated[str | None, Option("--batch", metavar="SIZES", help="Batch sizes.")] = None,
    scope: Annotated[str | None, Option("--scope", metavar="NAMES", help="core, layer.")] = None,
    phase: Annotated[str | None, Option("--phase", metavar="NAMES", help="Phases.")] = None,
    dtype: Annotated[str | None, Option("--dtype", metavar="NAMES", help="Formats.")] = None,
    device: Annotated[str | None, Option("--device", metavar="NAMES", help="Devices.")] = None,
    causal: Annotated[str, Option("--causal", metavar="no|yes|both", help="Masks.")] = "no",
    settings: opt.SetOption = None,
    output: Annotated[
        Path, Option("--output", "-o", metavar="FILE", help="The results file; it is resumed.")
    ] = Path("sweep.jsonl"),
    samples: Annotated[int, Option(help="Times to take in a process.")] = 20,
    min_time: Annotated[float, Option(help="Seconds a point is timed for at least.")] = 0.5,
    max_time: Annotated[float, Option(help="Seconds after which its timing ends.")] = 5.0,
    limit: Annotated[
        float | None, Option("--limit", metavar="SECONDS", help="A point's process ends after.")
    ] = None,
    memory_limit: Annotated[
        str | None, Option("--memory-limit", metavar="SIZE", help="Memory a point may map: 2GiB.")
    ] = None,
    try_all: Annotated[
        bool, Option("--try-all", help="Also start points that do not fit by the closed form.")
    ] = False,
    processes: Annotated[int, Option(min=1, help="Processes a point is measured in.")] = 1,
    in_process: Annotated[
        bool, Option("--in-process", help="No process of its own for each point: faster.")
    ] = False,
    workers: Annotated[
        int, Option("--workers", min=0, help="Local workers of a Dask cluster (extra: cluster).")
    ] = 0,
    scheduler: Annotated[
        str | None, Option("--scheduler", metavar="ADDRESS", help="A running Dask scheduler.")
    ] = None,
    threads: Annotated[int | None, Option(help="Compute threads (default: torch's).")] = None,
    seed: Annotated[int, Option(help="Seed of weights and inputs.", min=0, max=2**63 - 1)] = 0,
    fmt: opt.FormatOption = Format.TABLE,
) -> int:
    """Measure every combination of mechanisms and sizes into a file; run again to resume.

    Example: attnprof sweep --attention standard,linear --seq 128:4096:x2 -o sweep.jsonl
    """
    texts = {"attention": attention, "seq": seq, "d_model": d_model, "heads": heads,
             "batch": batch, "scope": scope, "phase": phase, "dtype": dtype,
             "device": device}  # fmt: skip
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from attnprof.measure.request import Budget
    from attnprof.measure.sweep.plan import points_of
    from attnprof.measure.sweep.runner import Terms, tasks_of

    grids = _grids(grid, texts, causal, settings or [])
    points = points_of(grids, Budget(samples, min_time, max_time), seed=seed, threads=threads)
    terms = Terms(not in_process, limit, parse_bytes(memory_limit), try_all)
    found = _run(tasks_of(points, processes), output, terms, _engine(workers, scheduler))
    deliver(found, fmt, None, tables)
    return 0 if found.summary["measured"] else CannotRunError.exit_code


def _grids(path: Path | None, texts: dict[str, Any], causal: str, settings: list[str]) -> list[Any]:
    from attnprof.cli.grid import grid_from_flags, grids_from_file

    flags = [f"--{key.replace('_', '-')}" for key, text in texts.items() if text is not None]
    if path is not None:
        if flags:
            raise RequestError(f"--grid {path} says which points; leave out {', '.join(flags)}")
        return grids_from_file(path)
    for key in ("attention", "seq"):
        if texts[key] is None:
            raise RequestError(f"sweep needs --{key} (or --grid FILE): type {EXAMPLE}")
    return [grid_from_flags(texts, causal, settings)]


def _engine(workers: int, scheduler: str | None) -> Engine:
    from attnprof.measure.sweep.runner import Here

    if not workers and scheduler is None:
        return Here()
    from attnprof.measure.sweep.cluster import DaskEngine

    return DaskEngine(workers, scheduler)


def _run(tasks: list[Task], output: Path, terms: Terms, engine: Engine) -> Report:
    from attnprof.measure.sweep.results import load_results
    from attnprof.measure.sweep.runner import sweep as run_sweep

    with progress_bar(len(tasks), "sweep") as show:

        def on_progress(done: int, _: int, task: Task) -> None:
            if show is not None:
                show(done, f"{task.point.mechanism}, {task.point.seq_len} tokens")

        new = run_sweep(tasks, output, terms, engine, on_progress)
    kept = len(tasks) - new
    note(f"{output}: {new} measured now, {kept} there before")
    return load_results(output)


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str | None) -> int | None:
    """``2GiB``, ``500MB`` or a number of bytes; None stays None."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not found:
        raise RequestError(f"--memory-limit {text}: type a size like 2GiB or 500MB")
    return int(float(found[1]) * _UNITS[found[2] or ""])
