"""Many points, one after the other: lists of mechanisms and lengths in, a report out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.environment import describe_environment
from attnprof.measure.isolation import measure_apart
from attnprof.measure.point import blank, fit, tried_point
from attnprof.measure.request import PointRequest
from attnprof.record import ProfileRecord, Report
from attnprof.workload import DTYPES, Workload

#: Called before each point: how many are done, how many there are, which is next.
Progress = Callable[[int, int, PointRequest], None]


def resolve_device(asked: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1`` as a device that exists here.

    Raises :class:`RequestError` for another name and :class:`CannotRunError` for a missing GPU.
    """
    import torch

    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", asked):
        raise RequestError(f"unknown device '{asked}': possible are auto, cpu, cuda and cuda:1")
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cpu":
        return asked
    if not torch.cuda.is_available():
        raise CannotRunError(
            f"--device {asked}: no CUDA device here (torch {torch.__version__}); possible: "
            "--device cpu, or auto"
        )
    count = torch.cuda.device_count()
    if int(asked.partition(":")[2] or 0) >= count:
        last = f"cuda:{count - 1}"
        raise CannotRunError(f"--device {asked}: there are {count} CUDA devices; last is {last}")
    return asked


def plan_points(
    mechanisms: Mapping[str, Any],
    workloads: Sequence[Workload],
    *,
    device: str = "auto",
    **more: Any,
) -> list[PointRequest]:
    """One request for each mechanism (by the name it was asked for) at each workload.

    ``more`` are other fields of :class:`PointRequest`. Raises :class:`RequestError` for number
    formats of no tensor, :class:`CannotRunError` for a device that is not here.
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


def measure_points(
    requests: Sequence[PointRequest],
    *,
    isolate: bool | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Measure points in order; each becomes a record, numbers or a ``skipped`` reason.

    ``isolate`` True runs every point in a process of its own, False none, None those that may
    run out of memory. A mechanism's refusal is a row among others; where every point is refused
    it is raised.
    """
    records: list[ProfileRecord] = []
    refusals: list[RequestError | CannotRunError] = []
    for done, request in enumerate(requests):
        if on_progress:
            on_progress(done, len(requests), request)
        try:
            reason, risky = fit(request)
            apart = isolate if isolate is not None else risky and request.device == "cpu"
            measured = measure_apart if apart and not reason else tried_point
            records.append(measured(request))
        except (RequestError, CannotRunError) as error:
            refusals.append(error)
            records.append(blank(request, str(error)))
    if refusals and len(refusals) == len(records):
        raise refusals[0]
    return Report("profile", records, summarise(records), point_environment(requests[0]))


def point_environment(request: PointRequest) -> dict[str, Any]:
    """What a point is measured on."""
    found = describe_environment(request.device, request.seed)
    return {**found, "threads": request.threads or found["threads"]}


def summarise(records: Sequence[ProfileRecord]) -> dict[str, Any]:
    """How many points were measured, and the fastest mechanism at each length."""
    fastest: dict[str, str] = {}
    for length in dict.fromkeys(r.seq_len for r in records):
        timed = [r for r in records if r.seq_len == length and r.median_s is not None]
        if timed:
            fastest[str(length)] = min(timed, key=lambda r: r.median_s or 0.0).mechanism
    measured = sum(r.skipped is None for r in records)
    return {"measured": measured, "skipped": len(records) - measured, "fastest": fastest}
