"""`attnprof profile`: the real module, timed, measured and counted beside its closed form."""

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli.measurement import Measurement, set_wait_policy
from attnprof.cli.options import working
from attnprof.cli.request import Conditions, Selection, parse_names, parse_set
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.request import configured

EXAMPLE = "attnprof profile --attention efficient --seq 4096"


def profile(
    *,
    shape: Selection = Selection(seq=None),
    conditions: Conditions,
    scope: opt.ScopeOption = "layer",
    modules: opt.Modules,
    measurement: Measurement,
    isolate: bool | None = Option(
        None, "--isolate/--in-process",
        help="Each point in a process of its own; by default those that may run out of memory.",
    ),
    predict_only: bool = Option(
        False, "--predict-only", help="Run nothing: predict, as the command predict does."
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
    if shape.attention is None or shape.seq is None:
        missing = "--attention" if shape.attention is None else "--seq"
        raise RequestError(f"profile needs {missing}: type {EXAMPLE}")
    names = parse_names(shape.attention)
    chosen = configured(names, parse_set(conditions.settings), modules.args, modules.inputs)
    workloads = shape.workloads(conditions)
    set_wait_policy(measurement.wait_policy)
    from attnprof.device.roofline import with_roofline
    from attnprof.measure.batch import measure_points, plan_points

    points = plan_points(
        dict(zip(names, chosen, strict=True)), workloads, scope=scope, device=conditions.device,
        **measurement.terms(),
    )  # fmt: skip
    if predict_only:
        from attnprof.device.prediction import predict_points

        with working("predicting"):
            predicted = predict_points(points)
        to.deliver(predicted)
        return 0 if predicted.summary["predicted"] else CannotRunError.exit_code
    with working("measuring"):
        report = measure_points(points, isolate=isolate)
    to.deliver(with_roofline(report))
    return 0 if report.summary["measured"] else CannotRunError.exit_code
