"""Measures what a journal does not have yet: in processes of their own, here, or on workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.batch import measure_apart, point_environment
from attnprof.measure.environment import command_line
from attnprof.measure.point import blank, spent_s, tried_point
from attnprof.measure.request import PointRequest
from attnprof.measure.sweep.journal import Journal
from attnprof.measure.sweep.plan import key_of


@dataclass(frozen=True)
class Task:
    """One process's measurement of one point."""

    key: str
    point: PointRequest
    process: int


@dataclass(frozen=True)
class SweepOptions:
    """How points are measured: ``limit_s`` a process may take, ``memory_limit`` bytes it may map.

    ``apart`` False measures in this process. ``try_all`` also starts points that do not fit by
    the closed form. ``command`` is what a user typed for it, which a worker cannot know.
    """

    apart: bool = True
    limit_s: float | None = None
    memory_limit: int | None = None
    try_all: bool = False
    command: str | None = None


Entry = dict[str, Any]
#: Called before each task: how many are done, how many there are, which is next.
Progress = Callable[[int, int, Task], None]
#: Runs tasks somewhere; results come back in any order.
Executor = Callable[[Sequence[Task], SweepOptions], Iterable[tuple[Task, Entry]]]


def here(tasks: Sequence[Task], options: SweepOptions) -> Iterator[tuple[Task, Entry]]:
    """One task after the other, on this machine."""
    for task in tasks:
        yield task, measured(task, options)


def measured(task: Task, options: SweepOptions) -> Entry:
    """A task's entry: the record, whatever happened, and what it was measured on."""
    start = time.perf_counter()
    try:
        if options.apart:
            record = measure_apart(
                task.point, options.limit_s, options.memory_limit, try_all=options.try_all
            )
        else:
            record = tried_point(task.point, options.memory_limit, try_all=options.try_all)
    except (RequestError, CannotRunError) as error:
        record = blank(task.point, str(error))
    environment = point_environment(task.point)
    environment["command"] = options.command or environment["command"]
    if record.skipped is None:
        rest = time.perf_counter() - start - spent_s(record)
        record = replace(record, overhead_s=(record.overhead_s or 0.0) + rest)
    return {"process": task.process, "record": asdict(record), "environment": environment}


def tasks_of(points: Iterable[PointRequest], processes: int = 1) -> list[Task]:
    """All points once, then all of them again: processes of one point are apart in time."""
    turns = product(range(processes), points)
    return [Task(key_of(point, process), point, process) for process, point in turns]


def sweep(
    tasks: Sequence[Task],
    path: Path,
    options: SweepOptions,
    executor: Executor | None = None,
    on_progress: Progress | None = None,
) -> int:
    """Measure what the file lacks and append it; how many were measured now.

    Raises :class:`RequestError` for a file that is no journal or is being written,
    :class:`CannotRunError` when the disk is full.
    """
    options = replace(options, command=options.command or command_line(sys.argv))
    with Journal(path) as journal:
        left = [task for task in tasks if task.key not in journal.done]
        done = len(tasks) - len(left)
        if on_progress and left:
            on_progress(done, len(tasks), left[0])
        for count, (task, entry) in enumerate((executor or here)(left, options), 1):
            journal.append(task.key, entry)
            if on_progress and count < len(left):
                on_progress(done + count, len(tasks), left[count])
    return len(left)


def on_workers(
    tasks: Sequence[Task], options: SweepOptions, *, workers: int = 0, scheduler: str | None = None
) -> Iterator[tuple[Task, Entry]]:
    """On ``workers`` processes of this machine, or on those of a running ``scheduler``.

    A worker measures one task at a time: two at once would disturb each other. Nothing is lost
    when one dies. Raises :class:`CannotRunError` where Dask is not installed or the scheduler does
    not answer.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise CannotRunError(
            "workers need Dask: pip install 'attnprof[cluster]' (or leave --workers out)"
        ) from error
    with _client(distributed, workers, scheduler) as client:
        futures = {
            client.submit(
                measured, task, options, key=task.key, pure=False, resources={"device": 1}
            ): task
            for task in tasks
        }
        for future in distributed.as_completed(futures):
            task = futures[future]
            try:
                yield task, future.result()
            except Exception as error:  # noqa: BLE001 - whatever a remote machine says is a reason
                reason = f"its worker failed: {type(error).__name__}: {str(error)[:160]}"
                record = asdict(blank(task.point, reason))
                yield task, {"process": task.process, "record": record, "environment": {}}


def _client(distributed: Any, workers: int, scheduler: str | None) -> Any:
    if scheduler is None:
        cluster = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, resources={"device": 1},
            dashboard_address=":0", silence_logs=50,
        )  # fmt: skip
        return distributed.Client(cluster)
    try:
        return distributed.Client(scheduler, timeout=10)
    except OSError as error:
        raise CannotRunError(
            f"no Dask scheduler answers at {scheduler}: start one with 'dask scheduler' "
            "and workers with 'dask worker ADDRESS --nthreads 1 --resources device=1'"
        ) from error
