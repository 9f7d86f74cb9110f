"""`attnprof predict`: time and memory of a point, from a calibration."""

from pathlib import Path
from typing import Any

from attnprof.cli import options as opt
from attnprof.cli.measurement import CALIBRATION, KEPT, ON, THREADS
from attnprof.cli.options import working
from attnprof.cli.request import Conditions, Selection, parse_names, parse_set
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.request import configured

EXAMPLE = "attnprof predict --attention efficient --seq 4096"


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
    if shape.attention is None or shape.seq is None:
        missing = "--attention" if shape.attention is None else "--seq"
        raise RequestError(f"predict needs {missing}: type {EXAMPLE}")
    names = parse_names(shape.attention)
    chosen = configured(names, parse_set(conditions.settings), modules.args, modules.inputs)
    workloads = shape.workloads(conditions)
    from attnprof.device.prediction import predict_points
    from attnprof.measure.batch import plan_points

    how: dict[str, Any] = {"scope": scope, "threads": threads, "device": conditions.device}
    points = plan_points(dict(zip(names, chosen, strict=True)), workloads, **how)
    with working("predicting"):
        report = predict_points(points, path=calibration, on=on, kept=kept)
    to.deliver(report)
    return 0 if report.summary["predicted"] else CannotRunError.exit_code
