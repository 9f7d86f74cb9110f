"""Measure points in order, each here or in a process of its own, whose death becomes a row.

A point is a mechanism at a workload. Entry points: :func:`plan_points`, :func:`measure_points`.
"""

import atexit
import json
import re
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from attnprof import registry
from attnprof.errors import AttnprofError, CannotRunError, RequestError, together
from attnprof.measure.correctness import check_key
from attnprof.measure.environment import describe_environment
from attnprof.measure.point import blank, fit, needed_bytes, spent_s, tried_point
from attnprof.measure.request import PointRequest
from attnprof.processes import forks
from attnprof.processes.folders import temporary_folder
from attnprof.processes.forks import Ended, signal_name
from attnprof.processes.pool import Pool, PoolError
from attnprof.processes.progress import tell
from attnprof.record import ProfileRecord, Report
from attnprof.record.measured import names_of, varying
from attnprof.units import format_bytes, format_ratio, format_time, joined, plural, setting_text
from attnprof.user_code import error_text
from attnprof.workload import DTYPES, Workload


def resolve_device(device: str) -> str:
    """Return the name of an existing device, for ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.

    Raises :class:`RequestError` for another name and :class:`CannotRunError` for a missing GPU.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise RequestError(f"unknown device '{device}': possible are auto, cpu, cuda and cuda:1")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    if not torch.cuda.is_available():
        raise CannotRunError(
            f"--device {device}: no CUDA device here (torch {torch.__version__}); possible: "
            "--device cpu, or auto"
        )
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        last = f"cuda:{count - 1}"
        raise CannotRunError(f"--device {device}: there are {count} CUDA devices; last is {last}")
    return device


def plan_points(
    mechanisms: Mapping[str, Any], workloads: Sequence[Workload], *, device: str = "auto",
    **more: Any,
) -> list[PointRequest]:  # fmt: skip
    """Return one request for each mechanism, by the name that was typed, at each workload.

    ``more`` are other fields of :class:`PointRequest`. Raises :class:`RequestError` for a number
    format that no tensor has, :class:`CannotRunError` for a device that is not here.
    """
    wrong = next((w.dtype for w in workloads if w.dtype not in DTYPES), None)
    if wrong:
        raise RequestError(f"dtype '{wrong}' cannot be measured: possible: {', '.join(DTYPES)}")
    more["device"] = resolve_device(device)
    return [
        PointRequest.at(name, workload, params=mechanism.params, **more)
        for workload in workloads
        for name, mechanism in mechanisms.items()
    ]


def measure_points(requests: Sequence[PointRequest], *, isolate: bool | None = None) -> Report:
    """Measure points in order; each becomes a record with numbers or a ``skipped`` reason.

    ``isolate`` True runs every point in a process of its own, False none, None those that may run
    out of memory. Raises an error with all reasons if every point is refused.
    """
    records: list[ProfileRecord] = []
    refusals: list[AttnprofError] = []
    for done, request in enumerate(requests):
        tell(f"measuring {request.title}", done, len(requests))
        try:
            reason, is_risky = fit(request)
            apart = isolate if isolate is not None else is_risky and request.device == "cpu"
            records.append((measure_apart if apart and not reason else tried_point)(request))
        except (RequestError, CannotRunError) as error:
            refusals.append(error)
            records.append(blank(request, str(error)))
    if refusals and len(refusals) == len(records):
        raise together(refusals)
    return Report("profile", records, summarise(records), point_environment(requests[0]))


def point_environment(request: PointRequest) -> dict[str, Any]:
    """Return the environment that a point is measured in."""
    environment = describe_environment(request.device, request.seed)
    return {**environment, "threads": request.threads or environment["threads"]}


def summarise(records: Sequence[ProfileRecord]) -> dict[str, Any]:
    """Return how many points were measured, and the fastest mechanism at each length."""
    fastest: dict[str, str] = {}
    for length in dict.fromkeys(r.seq_len for r in records):
        timed = [r for r in records if r.seq_len == length and r.median_s is not None]
        if timed:
            fastest[str(length)] = min(timed, key=lambda r: r.median_s or 0.0).mechanism
    measured = sum(r.skipped is None for r in records)
    return {"measured": measured, "skipped": len(records) - measured, "fastest": fastest,
            "answer": answer(records)}  # fmt: skip


def answer(records: Sequence[ProfileRecord]) -> str:
    """Return the fastest mechanism against the first, at the longest length that most ran at."""
    groups: dict[Any, list[tuple[str, ProfileRecord]]] = defaultdict(list)
    conditions = varying(records)
    for name, record in zip(names_of(records), records, strict=True):
        if record.median_s and record.skipped is None:
            key = (record.seq_len, *(getattr(record, condition) for condition in conditions))
            groups[key].append((name, record))
    if not groups:
        return ""
    (length, *values), group = max(groups.items(), key=lambda item: (len(item[1]), item[0][0]))
    titles = {name: meta["title"] for name, meta in ProfileRecord.columns()}
    settings = zip(conditions, values, strict=True)
    texts = (f"{titles[name]} {setting_text(value)}" for name, value in settings)
    where = joined([plural(length, "token"), *texts])
    return f"At {where}{',' * bool(conditions)} {_comparison(group)}."


def _comparison(group: Sequence[tuple[str, ProfileRecord]]) -> str:
    """Return how the fastest other mechanism compares with the first, in time and peak memory."""
    base, first = group[0]
    theirs = first.peak_bytes_measured
    if len(group) == 1:
        interval = (first.ci_low_s, first.ci_high_s)
        span = " to ".join(format_time(end) for end in interval if end is not None)
        memory = "" if theirs is None else f" and {format_bytes(theirs)} of memory at its peak"
        return f"{base} takes {format_time(first.median_s or 0.0)}{span and f' ({span})'}{memory}"
    name, other = min(group[1:], key=lambda item: item[1].median_s or 0.0)
    share = format_ratio(other.median_s or 0.0, first.median_s or 1.0)
    sentence, also = f"{name} takes {share}× the time of {base}", "and"
    if other.ci_low_s and other.ci_high_s and first.ci_low_s and first.ci_high_s:
        low, high = other.ci_low_s / first.ci_high_s, other.ci_high_s / first.ci_low_s
        ends = f"{format_ratio(low)}× to {format_ratio(high)}× by the ends of both intervals"
        if low <= 1 <= high:
            sentence, also = f"{name} takes as long as {base} within the noise", "and needs"
        sentence += f" ({ends})"
    ours = other.peak_bytes_measured
    if ours is not None and theirs:
        again = f"{also} {format_ratio(ours, theirs)}× its"
        sentence += f" {again if ours != theirs else 'and needs the same'} peak memory"
    if len(group) == 2:
        return sentence
    best = min((record for _, record in group), key=lambda record: record.median_s or 0.0)
    end = best.ci_high_s or best.median_s or 0.0
    fastest = [n for n, r in group if (r.ci_low_s or r.median_s or 0.0) <= end]
    return f"{sentence}; fastest of {len(group)}: {' or '.join(fastest)}"


#: Seconds that a child may take to import, build and count, more to compile, and to measure, in
#: multiples of its budget.
SETUP_S, COMPILING_S, PATIENCE = 120.0, 480.0, 20.0
#: What each checked module was compared with, by :func:`check_key`: it is checked only once.
_CHECKED: dict[tuple[Any, ...], str] = {}
_POOL = Pool("attnprof.measure.batch")
atexit.register(_POOL.stop)
#: Modules for counting on fake tensors; they import ``torch._dynamo``, which takes a second.
COUNTING = (
    "torch._dynamo", "attnprof.trace.request.lookup", "attnprof.trace.run.runs",
    "attnprof.trace.events",
)  # fmt: skip
#: Modules that every process needs and that are slow to import.
PRELOAD = ("torch", "numpy", "fvcore.nn", "psutil", "attnprof.measure.point", *COUNTING)


def measure_apart(
    request: PointRequest, limit_s: float | None = None, memory_limit: int | None = None, *,
    try_all: bool = True,
) -> ProfileRecord:  # fmt: skip
    """Return the record of a point from a child process, whose death is a ``skipped`` reason.

    The child may map ``memory_limit`` bytes of data and run for ``limit_s`` seconds. Without
    ``try_all`` a point that does not fit by the closed form is skipped. No user code runs here.
    """
    start = time.perf_counter()
    if limit_s is None:
        limit_s = SETUP_S + PATIENCE * request.budget.max_time_s
        limit_s += COMPILING_S if request.compiled else 0.0
    key = check_key(request)
    child_request = replace(
        request, check=request.check and key not in _CHECKED,
        threads=request.threads or torch.get_num_threads(),  # as a point that is measured here
    )  # fmt: skip
    result: dict[str, Any] = {}
    with temporary_folder() as folder:
        file = folder / "answer.json"
        order = {"do": "measure", "request": child_request.to_dict(), "memory_limit": memory_limit,
                 "try_all": try_all, "answer": str(file)}  # fmt: skip
        try:
            ended = _POOL.run(order, limit_s, memory=request.device == "cpu")
        except (PoolError, TimeoutError):
            _POOL.stop()
            vanished = "the process that measured it vanished: the process that kept it was ended"
            return blank(request, f"{vanished}, too")
        with suppress(OSError, ValueError):  # a child that was killed may have written half of it
            result = json.loads(file.read_text(encoding="utf-8"))
    if ended.timed_out:
        return blank(request, f"stopped: no result after {limit_s:g} s in a process of its own")
    if ended.code != 0 or "record" not in result:
        need = result.get("need", "")
        return blank(request, result.get("reason") or _cause_of_death(ended, need))
    record = ProfileRecord(**result["record"])
    if request.check and record.checked and record.skipped is None:
        _CHECKED[key] = record.checked
    checked = record.checked or (_CHECKED.get(key) if request.check else None)
    spent = time.perf_counter() - start - spent_s(record)
    return replace(record, start_s=spent, checked=checked)


def _cause_of_death(ended: Ended, need: str) -> str:
    who = "the process that measured it"
    if ended.code < 0 and not ended.stopped:
        cause = ", most likely out of memory" if ended.code == -signal.SIGKILL else ""
        return f"{who} was killed by {signal_name(-ended.code)}{cause}" + (need and f": {need}")
    message = f": {ended.last_line}" if ended.last_line else ""
    return f"{who} {ended.how} and gave no record{message}"


def preload(order: Mapping[str, Any]) -> None:
    """Import what an order needs before its process is forked; without one what all need."""
    if not order:
        registry.names()
        for name in PRELOAD:
            import_module(name)
    elif order["request"]["compiled"]:
        import_module("torch._inductor.compile_fx")


def measure(order: Mapping[str, Any], _say: object, _more: object) -> int:
    """Measure in a process of the pool; write record, reason or need of memory to a file."""
    limit, request = order["memory_limit"], PointRequest.from_dict(order["request"])

    def write(**result: Any) -> None:
        Path(order["answer"]).write_text(json.dumps(result), encoding="utf-8")

    def before() -> None:
        write(need=f"needs {format_bytes(needed_bytes(request))} by the closed form")
        if limit is not None:
            forks.limit_memory(limit)

    try:
        record = tried_point(request, limit, try_all=order["try_all"], before=before)
    except BaseException as error:  # noqa: BLE001 - somebody's code may raise anything
        ours = isinstance(error, AttnprofError)
        write(reason=str(error) if ours else f"it raised {error_text(error)}")
        return CannotRunError.exit_code
    write(record=asdict(record))
    return 0
