"""Single points: ``profile`` measures them, ``predict`` and ``recommend`` compute them."""

from pathlib import Path
from typing import Any

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.measurement import CALIBRATION, KEPT, ON, THREADS, Measurement, set_wait_policy
from attnprof.cli.request import Conditions, Selection, parse_bytes, parse_names, parse_set
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.request import configured


def _mechanisms_and_workloads(
    command: str, shape: Selection, conditions: Conditions, modules: opt.Modules
) -> Any:
    """Return mechanisms by name, and their workloads; RequestError if an option is missing."""
    if shape.attention is None or shape.seq is None:
        missing = "--attention" if shape.attention is None else "--seq"
        example = f"attnprof {command} --attention efficient --seq 4096"
        raise RequestError(f"{command} needs {missing}: type {example}")
    names = parse_names(shape.attention)
    chosen = configured(names, parse_set(conditions.settings), modules.args, modules.inputs)
    return dict(zip(names, chosen, strict=True)), shape.workloads(conditions)


def profile(
    *,
    shape: Selection = Selection(seq=None),
    conditions: Conditions,
    scope: opt.ScopeOption = "layer",
    modules: opt.Modules,
    measurement: Measurement,
    isolate: bool | None = opt.switch(
        "--isolate/--in-process",
        "Each point in a process of its own; by default those that may run out of memory.",
        default=None,
    ),
    predict_only: bool = opt.switch(
        "--predict-only", "Run nothing: predict, as the command predict does."
    ),
    to: opt.Output,
) -> int:  # fmt: skip
    """Time and measure real modules beside their closed forms.

    Each module is built, checked, timed, and counted by torch's counter and fvcore, too.

    Examples:
      attnprof profile --attention efficient --seq 4096
      attnprof profile -a standard,sdpa --seq 1024:8192:x2 --phase train
      attnprof profile -a my.py:MyAttention --seq 512 --arg d_model=h*d
    """
    if predict_only and measurement.compiled:
        raise RequestError(
            "--compile --predict-only: code is predicted as it is written: leave one of them out"
        )
    set_wait_policy(measurement.wait_policy)  # before a module of the user's imports torch
    requests = _mechanisms_and_workloads("profile", shape, conditions, modules)
    from attnprof.device.calibration import with_roofline
    from attnprof.measure.batch import measure_points, plan_points

    points = plan_points(*requests, scope=scope, device=conditions.device, **measurement.terms())
    if predict_only:
        return _predict(points, to)
    with opt.working("measuring"):
        report = measure_points(points, isolate=isolate)
    to.deliver(with_roofline(report))
    return 0 if report.summary["measured"] else CannotRunError.exit_code


def _predict(points: Any, to: opt.Output, **options: Any) -> int:
    """Write the prediction of planned points; return the exit code."""
    from attnprof.device.prediction import predict_points

    with opt.working("predicting"):
        report = predict_points(points, **options)
    to.deliver(report)
    return 0 if report.summary["predicted"] else CannotRunError.exit_code


def predict(
    *,
    shape: Selection = Selection(seq=None),
    conditions: Conditions,
    scope: opt.ScopeOption = "layer",
    modules: opt.Modules,
    threads: int | None = THREADS,
    kept: bool = KEPT,
    calibration: Path | None = CALIBRATION,
    on: str | None = ON,
    to: opt.Output,
) -> int:  # fmt: skip
    """Predict time and memory without running anything.

    The operations of a call are seen on tensors without values; their seconds are those that
    calibrate measured one by one. The interval is one of 95 %.

    Examples:
      attnprof predict --attention efficient --seq 4096
      attnprof predict -a standard,linear --seq 512:8192:x2 --phase train
      attnprof predict -a my.py:MyAttention --seq 512 --arg d_model=h*d
      attnprof predict -a sdpa --seq 8192 --dtype bfloat16 --on H100
    """
    requests = _mechanisms_and_workloads("predict", shape, conditions, modules)
    from attnprof.measure.batch import plan_points

    points = plan_points(*requests, scope=scope, threads=threads, device=conditions.device)
    return _predict(points, to, path=calibration, on=on, kept=kept)


def recommend(
    *,
    shape: Selection = Selection(seq=None),
    conditions: Conditions,
    scope: opt.ScopeOption = "layer",
    threads: int | None = THREADS,
    calibration: Path | None = CALIBRATION,
    on: str | None = ON,
    memory: str | None = opt.flag(
        "SIZE", "Memory that a call may need, like 8GiB (default: what is free)."
    ),
    to: opt.Output,
) -> None:  # fmt: skip
    """Rank all mechanisms by predicted time and memory.

    With --attention only the named ones. Those that compute softmax attention come first; of the
    others it says what they give up, and from which lengths on another one is fastest.

    Examples:
      attnprof recommend --seq 8192 --d-model 1024 --heads 16 --phase train
      attnprof recommend --seq 4096 --causal --memory 2GiB
      attnprof recommend --seq 16384 --phase decode --set window=1024
    """
    if shape.seq is None:
        example = "attnprof recommend --seq 8192 --d-model 1024 --heads 16 --phase train"
        raise RequestError(f"recommend needs --seq: type {example}")
    workloads = shape.workloads(conditions)
    if len(workloads) > 1:
        raise RequestError(
            f"--seq {shape.seq}: recommend takes one length, and looks at others "
            f"itself: type --seq {workloads[0].seq_len}"
        )
    names = registry.names() if shape.attention is None else parse_names(shape.attention)
    chosen = dict(zip(names, conditions.configured(names), strict=True))
    most = parse_bytes(memory, "--memory")
    with opt.working("predicting"):
        from attnprof.device.recommendation import recommend as rank

        report = rank(
            workloads[0], chosen, device=conditions.device, scope=scope, threads=threads,
            path=calibration, on=on, memory=most,
        )  # fmt: skip
    to.deliver(report)
