"""Measures what a journal does not have yet: in processes of their own, here, or on workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.batch import point_environment
from attnprof.measure.environment import command_line
from attnprof.measure.isolation import measure_apart
from attnprof.measure.point import blank, fit, measure_point, predict_point, spent_s
from attnprof.measure.request import PointRequest
from attnprof.measure.sweep.journal import Journal
from attnprof.measure.sweep.plan import key_of
from attnprof.record import ProfileRecord


@dataclass(frozen=True)
class Task:
    """One process's measurement of one point."""

    key: str
    point: PointRequest
    process: int


@dataclass(frozen=True)
class Terms:
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


class Engine(Protocol):
    """Runs tasks somewhere; results come back in any order."""

    def run(self, tasks: Sequence[Task], terms: Terms) -> Iterator[tuple[Task, Entry]]:
        """Each task's entry as it is done."""
        ...


class Here:
    """One task after the other, on this machine."""

    def run(self, tasks: Sequence[Task], terms: Terms) -> Iterator[tuple[Task, Entry]]:
        """Each task's entry, in order."""
        for task in tasks:
            yield task, measured(task, terms)


def measured(task: Task, terms: Terms) -> Entry:
    """A task's entry: the record, whatever happened, and what it was measured on."""
    start = time.perf_counter()
    try:
        record = _record(task.point, terms)
    except (RequestError, CannotRunError) as error:
        record = blank(task.point, str(error))
    environment = point_environment(task.point)
    environment["command"] = terms.command or environment["command"]
    if record.skipped is None:
        rest = time.perf_counter() - start - spent_s(record)
        record = replace(record, overhead_s=(record.overhead_s or 0.0) + rest)
    return {"process": task.process, "record": asdict(record), "environment": environment}


def _record(point: PointRequest, terms: Terms) -> ProfileRecord:
    if terms.apart:
        return measure_apart(point, terms.limit_s, terms.memory_limit, try_all=terms.try_all)
    reason, _ = fit(point, terms.memory_limit)
    if reason and not terms.try_all:
        return replace(predict_point(point), skipped=reason)
    return measure_point(point)


def tasks_of(points: Iterable[PointRequest], processes: int = 1) -> list[Task]:
    """All points once, then all of them again: processes of one point are apart in time."""
    listed = list(points)
    return [
        Task(key_of(point, process), point, process)
        for process in range(processes)
        for point in listed
    ]


def sweep(
    tasks: Sequence[Task],
    path: Path,
    terms: Terms,
    engine: Engine | None = None,
    on_progress: Progress | None = None,
) -> int:
    """Measure what the file lacks and append it; how many were measured now.

    Raises :class:`RequestError` for a file that is no journal or is being written,
    :class:`CannotRunError` when the disk is full.
    """
    terms = replace(terms, command=terms.command or command_line(sys.argv))
    with Journal(path) as journal:
        left = [task for task in tasks if task.key not in journal.done]
        done = len(tasks) - len(left)
        if on_progress and left:
            on_progress(done, len(tasks), left[0])
        for count, (task, entry) in enumerate((engine or Here()).run(left, terms), 1):
            journal.append(task.key, entry)
            if on_progress and count < len(left):
                on_progress(done + count, len(tasks), left[count])
    return len(left)
