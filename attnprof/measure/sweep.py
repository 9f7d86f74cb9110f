"""Measure many points, over hours and machines, into one file that survives interruptions.

Grids become points; those that the file lacks are measured, here or on workers; in the report the
processes of one point are joined into one record.
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

from attnprof.errors import CannotRunError, NotFoundError, RequestError
from attnprof.measure.batch import answer, measure_apart, plan_points, point_environment
from attnprof.measure.environment import command_line, joined_conditions
from attnprof.measure.journal import Journal, read
from attnprof.measure.point import blank, spent_s, tried_point, with_times
from attnprof.measure.request import Budget, PointRequest, configured, is_module
from attnprof.measure.statistics import estimate_over_processes
from attnprof.processes import forks
from attnprof.processes.pool import run_apart
from attnprof.record import ProfileRecord, Report
from attnprof.record.report import by_device, object_in, restored
from attnprof.workload import Workload

#: Fields that do not make a point a different one, such as how long it is measured.
_NOT_IN_KEY = frozenset({"budget", "counts", "error", "check"})


@dataclass(frozen=True)
class Grid:
    """All combinations of lists of values; ``params`` maps a parameter to its values.

    A parameter goes to every mechanism that has it, as ``--set`` does; ``args`` and ``inputs`` to
    every user's module, as ``--arg`` and ``--input`` do.
    """

    attention: Sequence[str]
    seq_len: Sequence[int]
    d_model: Sequence[int] = (512,)
    num_heads: Sequence[int] = (8,)
    batch_size: Sequence[int] = (1,)
    dtype: Sequence[str] = ("float32",)
    phase: Sequence[str] = ("forward",)
    device: Sequence[str] = ("auto",)
    causal: Sequence[bool] = (False,)
    scope: Sequence[str] = ("layer",)
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    args: Sequence[str] = ()
    inputs: Sequence[str] = ()


def points_of(
    grids: Sequence[Grid], budget: Budget, *, counts: bool = False, limit_s: float | None = None,
    **more: Any,
) -> list[PointRequest]:  # fmt: skip
    """Return every point once, mechanisms innermost: points near in time share a size.

    ``more`` are other fields of :class:`PointRequest`. User code is never run in this process:
    whether a name is a module is asked in another one, within ``limit_s`` seconds each. Raises
    :class:`RequestError` where heads do not divide a width, or a value is unknown.
    """
    planned: dict[str, PointRequest] = {}
    is_own = partial(is_module_apart, limit_s=limit_s)
    for grid in grids:
        for values in product(*grid.params.values()):
            settings = dict(zip(grid.params, values, strict=True))
            chosen = configured(grid.attention, settings, grid.args, grid.inputs, is_own)
            named = dict(zip(grid.attention, chosen, strict=True))
            for scope, device in product(grid.scope, grid.device):
                points = plan_points(
                    named, [*_workloads(grid)], scope=scope, device=device, budget=budget,
                    counts=counts, **more,
                )  # fmt: skip
                planned.update({key_of(point): point for point in points})
    return list(planned.values())


def _workloads(grid: Grid) -> Iterator[Workload]:
    """Yield all combinations of sizes, formats and phases, in the order of the grid."""
    for dtype, phase, causal, batch, width, heads, n in product(
        grid.dtype, grid.phase, grid.causal, grid.batch_size, grid.d_model, grid.num_heads,
        grid.seq_len,
    ):  # fmt: skip
        if width % heads:
            raise RequestError(
                f"{heads} heads do not divide d_model {width}: give grids of their own for other "
                "widths, or heads that divide all of them"
            )
        yield Workload(n, heads, width // heads, batch, causal=causal, phase=phase, dtype=dtype)


def key_of(point: PointRequest, process: int = 0) -> str:
    """Return the key of a point and process, the same in every run: ``linear-64-0f3a…/0``."""
    plain = {k: v for k, v in point.to_dict().items() if k not in _NOT_IN_KEY}
    if not point.compiled:  # as it was before there was a choice: older files are resumed
        del plain["compiled"]
    text = json.dumps(plain, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{point.mechanism}-{point.seq_len}-{digest}/{process}"


#: Seconds an import may take, unless said otherwise.
LIMIT_S = 120.0


@cache
def is_module_apart(name: str, limit_s: float | None = None) -> bool:
    """Ask :func:`attnprof.measure.request.is_module` in a process of its own.

    Code that does not import counts as a module: its points, each tried apart, report the error.
    Raises :class:`RequestError` if the name is malformed or leads to nothing.
    """
    if ":" not in name:
        return False
    import_module("torch")  # once, here: most modules import it

    def ask() -> tuple[bool, str, str]:
        forks.limit_memory()
        try:
            return is_module(name), "", ""
        except RequestError as error:
            if error.__cause__ and not isinstance(error, NotFoundError):
                return True, "", ""
            return True, type(error).__name__, str(error)

    outcome = run_apart(ask, LIMIT_S if limit_s is None else limit_s)
    module, error, message = outcome.value if outcome.has_value else (True, "", "")
    if error:
        raise NotFoundError(message) if error == NotFoundError.__name__ else RequestError(message)
    return bool(module)


@dataclass(frozen=True)
class Task:
    """One process's measurement of one point."""

    key: str
    point: PointRequest
    process: int


@dataclass(frozen=True)
class SweepOptions:
    """Options for measuring tasks.

    A process may take ``limit_s`` seconds and map ``memory_limit`` bytes. ``apart`` False measures
    in this process. ``try_all`` also starts points that do not fit by the closed form. ``command``
    is what the user typed, which a worker cannot know.
    """

    apart: bool = True
    limit_s: float | None = None
    memory_limit: int | None = None
    try_all: bool = False
    command: str | None = None


Entry = dict[str, Any]
#: Called before each task: how many are done, how many there are, which is next.
_Progress = Callable[[int, int, Task], None]
#: A function that runs tasks, here or elsewhere; entries come back in any order.
Executor = Callable[[Sequence[Task], SweepOptions], Iterable[tuple[Task, Entry]]]


def locally(tasks: Sequence[Task], options: SweepOptions) -> Iterator[tuple[Task, Entry]]:
    """Measure one task after the other, on this machine."""
    for task in tasks:
        yield task, measured(task, options)


def measured(task: Task, options: SweepOptions) -> Entry:
    """Return a task's journal entry: its record, numbers or not, and the environment."""
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
    """Return all points once, then all again: processes of one point are far apart in time."""
    turns = product(range(processes), points)
    return [Task(key_of(point, process), point, process) for process, point in turns]


def sweep(
    tasks: Sequence[Task], path: Path, options: SweepOptions, executor: Executor | None = None,
    on_progress: _Progress | None = None,
) -> int:  # fmt: skip
    """Measure the tasks that the file lacks and append them; return how many were measured.

    Raises :class:`RequestError` for a file that is no journal or is being written,
    :class:`CannotRunError` when the disk is full.
    """
    options = replace(options, command=options.command or command_line(sys.argv))
    with Journal(path) as journal:
        left = [task for task in tasks if task.key not in journal.done]
        done = len(tasks) - len(left)
        if on_progress and left:
            on_progress(done, len(tasks), left[0])
        for count, (task, entry) in enumerate((executor or locally)(left, options), 1):
            journal.append(task.key, entry)
            if on_progress and count < len(left):
                on_progress(done + count, len(tasks), left[count])
    return len(left)


def on_workers(
    tasks: Sequence[Task], options: SweepOptions, *, workers: int = 0, scheduler: str | None = None
) -> Iterator[tuple[Task, Entry]]:
    """Measure on ``workers`` processes of this machine, or on those of a running ``scheduler``.

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
        terms = {"pure": False, "resources": {"device": 1}}
        futures = {client.submit(measured, t, options, key=t.key, **terms): t for t in tasks}
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
        # its profiler looks at frames meanwhile, and what they hold lives longer than it should
        with import_module("dask").config.set({"distributed.worker.profile.enabled": False}):
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


def load_results(path: Path) -> Report:
    """Return the report of a results file: its environment is the first record's.

    Raises :class:`RequestError` for a file that is no results file.
    """
    return report_of(read(path), str(path))


def report_of(entries: Sequence[dict[str, Any]], name: str = "results") -> Report:
    """Return a journal's entries as a report, points in order; ``name`` is for messages."""
    groups: dict[str, list[ProfileRecord]] = {}
    environments: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        line = f"{name} line {number}"
        record = restored(ProfileRecord, entry.get("record"), f"{line}: record")
        groups.setdefault(entry["key"].rpartition("/")[0], []).append(record)
        where = object_in(entry, "environment", line)
        environments.setdefault(repr(where), where)
    records = [joined(group) for group in groups.values()]
    done = sum(record.skipped is None for record in records)
    points = f"{done} point{'s' * (done != 1)} measured, {len(records) - done} skipped"
    summary = {
        "answer": ". ".join(filter(None, (points, answer(records).removesuffix(".")))) + ".",
        "measured": done, "skipped": len(records) - done,
        "processes": max((len(group) for group in groups.values()), default=0),
        "environments": list(environments.values()), "time": time_spent(records),
    }  # fmt: skip
    return Report("sweep", records, summary, next(iter(environments.values()), {}))


#: Fields that a point's wall time is split into.
TIMES = ("measured_s", "compile_s", "overhead_s", "start_s")


def time_spent(records: Sequence[ProfileRecord]) -> dict[str, float | None]:
    """Return the seconds of the measured points by purpose, and the share of overhead.

    ``overhead_share`` is of measuring and overhead, without compiling and process starts. Imports,
    planning and writing are in none of them.
    """
    done = [record for record in records if record.skipped is None]
    spent = {name: _total(done, name) or 0.0 for name in TIMES}
    whole = spent["measured_s"] + spent["overhead_s"]
    return {**spent, "overhead_share": spent["overhead_s"] / whole if whole else None}


def _total(records: Sequence[ProfileRecord], name: str) -> float | None:
    values = [value for record in records if (value := getattr(record, name)) is not None]
    return math.fsum(values) if values else None


def joined(records: Sequence[ProfileRecord]) -> ProfileRecord:
    """Return one record for a point that several processes measured: all times, one interval."""
    timed = [record for record in records if record.skipped is None and record.times_s]
    if len(records) == 1 or not timed:
        return records[0]
    failed = [record.skipped for record in records if record.skipped]
    totals: dict[str, Any] = {name: _total(timed, name) for name in TIMES}
    conditions = joined_conditions([record.conditions for record in timed])
    notes = [*timed[0].differences, *(f"a process gave no times: {why}" for why in failed)]
    together = replace(
        timed[0], times_s=[time for record in timed for time in record.times_s],
        cpu_times_s=[time for record in timed for time in record.cpu_times_s],
        **totals, differences=list(dict.fromkeys(notes)),
    )  # fmt: skip
    estimate = estimate_over_processes([record.times_s for record in timed])
    return with_times(together, estimate, conditions)


#: Fields in which two curves must agree to be compared.
_SIZES = (
    "phase", "causal", "compiled", "dtype", "batch_size", "d_model", "num_heads", "scope", "device",
)  # fmt: skip


def curve_crossings(reports: Sequence[Report]) -> list[tuple[ProfileRecord, float, float]]:
    """Return where median times of two mechanisms cross, at equal sizes on one device.

    Each is a record of the first, the length and the time, interpolated on a log-log plot.
    """
    curves: dict[Any, dict[int, ProfileRecord]] = {}
    for record in by_device(reports, ProfileRecord):
        key = (tuple(getattr(record, n) for n in _SIZES), record.mechanism, str(record.params))
        if record.median_s:
            curves.setdefault(key, {})[record.seq_len] = record
    crossings = []
    for ((a, name, _), first), ((b, other, _), second) in combinations(curves.items(), 2):
        for low, high in pairwise(sorted(set(first) & set(second)) if a == b else ()):
            start, end, other_start, other_end = (
                math.log(curve[n].median_s or 1) for curve in (first, second) for n in (low, high)
            )
            if (start - other_start) * (end - other_end) < 0 and name != other:
                share = (start - other_start) / (start - other_start - end + other_end)
                time = math.exp(start + share * (end - start))
                crossings.append((first[low], low * (high / low) ** share, time))
    return crossings
