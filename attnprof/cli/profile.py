"""Single points: ``profile`` measures, ``predict`` and ``recommend`` compute by ``calibrate``."""

from pathlib import Path
from typing import Any

from attnprof.cli import options as opt
from attnprof.cli.measurement import (
    CALIBRATION,
    KEPT,
    ON,
    THREADS,
    WAIT_POLICY,
    Measurement,
    set_wait_policy,
)
from attnprof.cli.options import working
from attnprof.cli.request import (
    Conditions,
    Selection,
    parse_bytes,
    parse_names,
    parse_set,
    some_of,
)
from attnprof.device.calibration import Calibration, default_path, entries, load, save
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.request import configured
from attnprof.record import CalibrationRecord, Report
from attnprof.record.files import make_folder
from attnprof.record.recognition import reading_back
from attnprof.workload import DTYPES


def _needed(command: str, shape: Selection, conditions: Conditions, modules: opt.Modules) -> Any:
    """Return the names to measure and their workloads; RequestError if an option is missing."""
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
    requests = _needed("profile", shape, conditions, modules)
    set_wait_policy(measurement.wait_policy)
    from attnprof.device.calibration import with_roofline
    from attnprof.measure.batch import measure_points, plan_points

    how = {"scope": scope, "device": conditions.device, **measurement.terms()}
    points = plan_points(*requests, **how)
    if predict_only:
        return _predict(points, to)
    with working("measuring"):
        report = measure_points(points, isolate=isolate)
    to.deliver(with_roofline(report))
    return 0 if report.summary["measured"] else CannotRunError.exit_code


def _predict(points: Any, to: opt.Output, **how: Any) -> int:
    """Write the prediction of planned points; return the exit code."""
    from attnprof.device.prediction import predict_points

    with working("predicting"):
        report = predict_points(points, **how)
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
    requests = _needed("predict", shape, conditions, modules)
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

    Those that compute softmax attention come first; of the others it says what they give up, and
    from which lengths on another one is fastest.

    Examples:
      attnprof recommend --seq 8192 --d-model 1024 --heads 16 --phase train
      attnprof recommend --seq 4096 --causal --memory 2GiB
      attnprof recommend --seq 16384 --phase decode --set window=1024
    """
    if shape.seq is None:
        example = "attnprof recommend --seq 8192 --d-model 1024 --heads 16 --phase train"
        raise RequestError(f"recommend needs --seq: type {example}")
    if shape.attention is not None:
        raise RequestError("recommend ranks all mechanisms: leave --attention out, or type predict")
    workloads = shape.workloads(conditions)
    if len(workloads) > 1:
        raise RequestError(
            f"--seq {shape.seq}: recommend takes one length, and looks at others "
            f"itself: type --seq {workloads[0].seq_len}"
        )
    from attnprof.device.recommendation import recommend as rank

    with working("predicting"):
        report = rank(
            workloads[0], parse_set(conditions.settings), device=conditions.device, scope=scope,
            threads=threads, path=calibration, on=on, memory=parse_bytes(memory, "--memory"),
        )  # fmt: skip
    to.deliver(report)


def calibrate(
    *,
    device: opt.DeviceOption = "auto",
    dtype: str | None = opt.flag(
        "NAMES", "Number formats (default: float32; on a GPU bfloat16, too)."
    ),
    seconds: float = opt.flag(
        "SECONDS", "Time for each ceiling, an eightieth of it for each size of an operation; with "
        "less than 0.5 the largest sizes are left out.", default=0.5,
    ),
    contended: bool = opt.switch("--contended", "Go on where other processes use the processor."),
    threads: int | None = THREADS,
    wait_policy: str = WAIT_POLICY,
    calibration: Path | None = opt.flag("FILE", "Keep it here, not in the cache folder."),
    to: opt.Output,
) -> None:  # fmt: skip
    """Measure this device: its ceilings, and single operations.

    FLOP/s of products, bytes/s of a copy, and the seconds of products, operations on entries and
    rows, gathers, Fourier transforms and autograd over sizes; no attention is run. profile and
    sweep set their results beside the ceilings; predict is made of the operations.

    Examples:
      attnprof calibrate
      attnprof calibrate --device cuda --dtype float32,bfloat16
    """
    if not 0 < seconds < 3600:
        raise RequestError(f"--seconds {seconds}: give a time from above 0 to an hour")
    formats = None if dtype is None else some_of(dtype, DTYPES, "--dtype")
    path = calibration or default_path()
    make_folder(path.parent)
    opt.ensure_writable(path, force=to.force, flag="--calibration", extended=True)
    if not to.force:
        with reading_back():
            entries(path)
    set_wait_policy(wait_policy)
    import torch

    from attnprof.device.calibration_run import calibrate as run
    from attnprof.measure.batch import resolve_device
    from attnprof.measure.environment import device_name

    where = resolve_device(device)
    wanted = formats or (["float32"] if where == "cpu" else ["float32", "bfloat16"])
    if threads is not None:
        torch.set_num_threads(threads)
    with reading_back():
        before = None if to.force else load(device_name(where), torch.get_num_threads(), path)
    with working("calibrating"):
        measured = run(where, wanted, seconds, contended=contended, before=before)
    save(measured, path, force=to.force)
    opt.note(f"kept in {path}")
    to.deliver(_ceilings_report(measured, wanted, path))


def _ceilings_report(calibration: Calibration, wanted: list[str], path: Path) -> Report:
    """Return a row a number format, and what else is known of the device."""
    from attnprof.measure.environment import describe_environment

    known = calibration.ceilings
    records = [
        CalibrationRecord(
            device=calibration.device, device_name=known.name, threads=calibration.threads,
            dtype=name, flops_per_s=rate, bytes_per_s=known.bytes_per_s, source=known.source,
            operations=sum(len(table.seconds) for table in calibration.tables[name].values()),
            repeatability=calibration.repeatability,
        )
        for name, rate in known.flops_per_s.items()
    ]  # fmt: skip
    missing = [name for name in wanted if name not in known.flops_per_s]
    summary = {
        "file": str(path), "not_multiplied": missing, "cpu_share": calibration.cpu_share,
        "fault_s_per_byte": calibration.fault_s,
    }  # fmt: skip
    return Report("calibrate", records, summary, describe_environment(calibration.device))
