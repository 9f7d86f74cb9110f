"""``attnprof crossover``: from which length on one mechanism is cheaper than another."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from attnprof.algebra.parser import short
from attnprof.arguments import seconds
from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.cli.measurement import CALIBRATION, KEPT, THREADS, WAIT_POLICY, set_wait_policy
from attnprof.crossovers import sides
from attnprof.crossovers.axis import CrossoverAxis
from attnprof.crossovers.report import crossover_report
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.models.names import check_sources
from attnprof.record import CrossoverRecord, Report
from attnprof.workload import Workload

#: Default sizes.
USUAL_SIZES = {"seq": "1024", "d": "64", "heads": "1", "d-model": "512"}


@dataclass(frozen=True, kw_only=True)
class Over:
    """Options for the size that varies: the length, or another size at fixed lengths."""

    over: str = opt.flag(
        "NAME", "seq (the length), d, heads, batch, kv_heads, or a parameter like window.",
        "--over", default="seq",
    )  # fmt: skip
    seq: str | None = opt.flag("SIZES", "Lengths for another --over than seq (default 1024).")
    d_model: str | None = opt.flag(
        "SIZE", "Model width that --over heads shares (default 512); not with --d."
    )
    every: str = opt.flag(
        "TOKENS", "Only lengths that are multiples of this, like a chunk's.", default="1"
    )
    span: str | None = opt.flag(
        "LOW:HIGH", "Values looked at, for another --over than seq.", "--range"
    )

    def axis_and_sizes(
        self, d: str | None, heads: str | None, conditions: request.Conditions,
        free: dict[str, int],
    ) -> tuple[CrossoverAxis, Workload, list[int]]:  # fmt: skip
        """Return the axis, the sizes that all rows share, and the head width or length of each."""
        over = self.over.replace("-", "_")
        typed = {"seq": self.seq, "d": d, "heads": heads, "d_model": self.d_model}
        batch = None if conditions.batch == "1" else conditions.batch
        if {**typed, "batch": batch}.get(over):
            flag = f"--{over.replace('_', '-')}"
            raise RequestError(f"--over {self.over} looks for it: leave {flag} out")
        if over == "seq":
            if wrong := [x for x in opt.typed(self) if x in ("--d-model", "--range")]:
                raise RequestError(
                    f"{wrong[0]} is for another --over than seq: add --over heads, or --over d"
                )
            widths = request.parse_sizes(d or USUAL_SIZES["d"], "--d")
            request.check_points(len(widths), f"--d {short(d or USUAL_SIZES['d'])}")
            count = request.parse_size(heads or USUAL_SIZES["heads"], "--heads")
            axis = CrossoverAxis(every=request.parse_size(self.every, "--every"))
            return axis, conditions.workload(1, count, widths[0], **free), widths
        if self.every != "1":
            raise RequestError(f"--every {self.every} is of lengths: leave it or --over out")
        if over in request.parse_set(conditions.settings):
            raise RequestError(f"--over {self.over} looks for it: leave --set {over} out")
        lengths = request.parse_sizes(self.seq or USUAL_SIZES["seq"], "--seq")
        request.check_points(len(lengths), f"--seq {short(str(self.seq))}")
        count = request.parse_size(heads or USUAL_SIZES["heads"], "--heads")
        width = request.parse_size(d or USUAL_SIZES["d"], "--d")
        if over == "kv_heads" and count == 1:
            raise RequestError("--over kv_heads divides the heads: type how many, like --heads 32")
        if "width" in free and over == "heads" and d is None:
            raise RequestError("--width is for heads of a given width: type --d, too")
        workload = conditions.workload(lengths[0], count, width, **free)
        return self._axis(over, d), workload, lengths

    def _axis(self, over: str, d: str | None) -> CrossoverAxis:
        """Return the axis with its range; heads share a model width unless ``--d`` is typed."""
        if self.d_model is not None and (d is not None or over != "heads"):
            why = "with --d the model's width varies" if d else "the widths are --heads times --d"
            raise RequestError(f"--d-model {self.d_model} is for --over heads alone: {why}")
        first, last = self._range()
        width = None
        if over == "heads" and d is None:
            width = request.parse_size(self.d_model or USUAL_SIZES["d-model"], "--d-model")
            if first > width:
                raise RequestError(
                    f"--range {self.span}: d_model {width} has no more than {width} heads: type "
                    f"--range 1:{width}"
                )
            last = min(last or width, width)
        return CrossoverAxis(over, first, last, width)

    def _range(self) -> tuple[int, int | None]:
        """Return the ends of ``--range``; from 1 to no end without it."""
        if self.span is None:
            return 1, None
        low, colon, high = self.span.partition(":")
        if not colon:
            raise RequestError(f"--range {self.span}: type the first and the last, like 1:512")
        first, last = (request.parse_size(end, "--range") for end in (low, high))
        if last < first:
            raise RequestError(
                f"--range {self.span}: the range ends before it starts: type --range {last}:{first}"
            )
        return first, last


#: The metric of each quantity.
METRIC_OF = {
    "flops": "flops", "memory": "memory", "peak_bytes": "memory", "peak_entries": "memory",
    "state_bytes": sides.STATE, "time_s": sides.TIME, "matmul_flops": sides.MATMUL,
    "step_bytes": sides.BYTES,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComparedCosts:
    """Options for the costs that are compared: metrics, kinds, scope, model."""

    scope: Annotated[
        str | None, opt.scope("core (the default), or layer (beside a module of yours).")
    ] = None
    kind: str | None = opt.flag(
        "KINDS",
        "published (printed in the papers), formula (our closed form), derived (counted in "
        "code), predicted (times, from a calibration) or measured.",
    )  # fmt: skip
    metric: str | None = opt.flag(
        "NAMES", "flops, memory, matmul (FLOPs of products), time; of decoding state, and bytes "
        "(that a step moves at least).",
    )  # fmt: skip
    quantity: opt.QuantityOption = None
    model: str | None = opt.flag(
        "CONFIG", "Compare them in all layers of a model: a config.json, a .toml file or a preset. "
        "One name is compared with the model as it is.", "--model",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Options for predicting and measuring times."""

    threads: int | None = THREADS
    wait_policy: str = WAIT_POLICY
    kept: bool = KEPT
    calibration: Path | None = CALIBRATION
    on: str | None = opt.flag(
        "NAME", "Predict on a device that is not here, by its calibration.",
        callback=opt.device_name,
    )  # fmt: skip
    journal: Path | None = opt.flag(
        "FILE", "Keep measured lengths there, and go on from what is there."
    )
    longest_call: float = opt.flag(
        "SECONDS", "Time no length of which a call should take longer.", default=2.0
    )


def crossover(
    mechanism_a: str | None = Argument(None, metavar="A",
                                       help="Mechanism (default taylor-direct)."),
    mechanism_b: str | None = Argument(None, metavar="B",
                                       help="Mechanism (default taylor-efficient)."),
    *,
    attention: opt.AttentionOption = None,
    d: str | None = opt.flag("SIZES", "Head widths: a list 8,16 or a range 8:128:x2 (default 64)."),
    heads: str | None = opt.flag("SIZE", "Number of heads (default 1)."),
    over: Over,
    free: request.FreeSizes,
    conditions: request.Conditions,
    costs: ComparedCosts,
    modules: opt.Modules,
    timing: Timing,
    to: opt.DrawnOutput,
) -> None:  # fmt: skip
    """Find the length from which one mechanism is cheaper.

    Or, at lengths that are given, the head width, number of heads, batch or parameter: --over.
    In FLOPs and in memory, solved exactly, with a closed form in the head width d (in the length N)
    where there is one; in time as a calibration predicts it and as calls in turns measure it. A and
    B can be modules of your own, too, like my.py:MyAttention.

    Examples:
      attnprof crossover taylor-direct taylor-efficient --plot crossover.png
      attnprof crossover standard longformer --over window --seq 4096
      attnprof crossover standard linear --kind predicted,measured
      attnprof crossover --model config.json linear
    """
    metrics = _metrics(costs, conditions.phase)
    names = request.names_of((mechanism_a, mechanism_b), attention)
    options: dict[str, Any] = {"with_curves": to.plot is not None, "environment": opt.environment()}
    if costs.model is not None:
        sizes = {"--d": d, "--heads": heads, "--scope": costs.scope}
        flags = [flag for flag, value in sizes.items() if value is not None]
        flags += (flag for group in (over, free, modules) for flag in opt.typed(group))
        flags += (flag for flag in ("--causal", "--dtype") if flag in opt.typed(conditions))
        _check_model_request(costs.kind, metrics, flags)
        check_sources(costs.model)  # before torch is loaded
        with opt.working(f"comparing in {costs.model}"):
            report = _model_report(costs.model, names, conditions, metrics, **options)
        to.deliver(report)
        return
    axis, workload, fixed = over.axis_and_sizes(d, heads, conditions, free.sizes)
    if sides.TIME in metrics:  # before a module of the user's imports torch
        set_wait_policy(timing.wait_policy)
    first, second = _pair(names, conditions, modules)
    if sides.TIME not in metrics and (flags := [*opt.typed(timing)]):
        raise RequestError(f"{flags[0]} is for times: add --metric time")
    if sides.TIME in metrics:
        seconds("--longest-call", timing.longest_call)
        options["terms"] = sides.TimeTerms(
            conditions.device, timing.threads, timing.calibration, timing.journal,
            timing.longest_call, timing.on, timing.kept,
        )  # fmt: skip
    with opt.working(f"comparing {first.name} and {second.name}"):
        report = _pair_report(first, second, workload, costs, fixed, metrics, axis=axis, **options)
    in_table = to.fmt == opt.Format.TABLE and axis.name == "seq"
    to.deliver(report, more=_memory_difference((first, second), workload, report) * in_table)


def _pair(
    names: list[str], conditions: request.Conditions, modules: opt.Modules
) -> tuple[Any, Any]:
    """Return two different mechanisms or modules; TaylorShift's two forms if none is named."""
    default = list(request.TAYLORSHIFT)
    names = names or default
    if len(names) != 2 or names[0] == names[1]:
        raise RequestError(
            f"{' '.join(names)}: this command compares two different mechanisms; "
            f"type two names, like {' '.join(default)}"
        )
    first, second = request.targets_of(names, conditions, modules)
    return first, second


def _pair_report(
    first: Any, second: Any, workload: Workload, costs: ComparedCosts, sizes: list[int],
    metrics: list[str], *, axis: CrossoverAxis, **options: Any,
) -> Report:  # fmt: skip
    """Return the report for two mechanisms or modules."""
    foreign = not (isinstance(first, Mechanism) and isinstance(second, Mechanism))
    of_code = sides.DERIVED if axis.name == "seq" else sides.MEASURED
    kinds = [of_code] if foreign else list(sides.KINDS)
    if kinds == [sides.MEASURED] and costs.metric is costs.quantity is None:
        metrics = [metric for metric in metrics if metric in sides.METRICS_OF[sides.MEASURED]]
    kinds = kinds if set(metrics) - {sides.TIME} else []
    if sides.TIME in metrics:
        kinds += [sides.PREDICTED] if options["terms"].on else [sides.PREDICTED, sides.MEASURED]
    if costs.kind is not None:
        kinds = request.some_of(costs.kind, sides.ALL_KINDS, "--kind")
    scope = costs.scope or ("layer" if foreign else "core")  # a module is a layer: so is its rival
    meeting = sides.Meeting(first, second, workload, scope, axis=axis)
    return crossover_report(meeting, sizes, kinds, metrics, **options)


def _check_model_request(kind: str | None, metrics: list[str], flags: list[str]) -> None:
    """Raise RequestError for kinds, metrics and flags of single layers."""
    if kind not in (None, sides.DERIVED):
        raise RequestError(
            f"--kind {kind}: costs of a whole model are derived from its code: leave --kind out"
        )
    if other := {*metrics} - {*sides.METRICS}:
        raise RequestError(f"--metric {min(other)}: whole models have flops and memory: type one")
    if flags:
        raise RequestError(f"--model has a configuration of its own: leave out {flags[0]}")


def _model_report(
    source: str, names: list[str], conditions: request.Conditions, metrics: list[str],
    **options: Any,
) -> Report:  # fmt: skip
    """Return the report for two mechanisms in all layers of a model."""
    from attnprof.crossovers.derived import rivals

    values, batch = request.parse_set(conditions.settings), conditions.batch
    batch_size = request.parse_size(batch, "--batch")
    first, second, workload = rivals(source, names, values, conditions.phase, batch_size)
    meeting = sides.Meeting(first, second, workload, "model")
    report = crossover_report(meeting, [workload.head_dim], [sides.DERIVED], metrics, **options)
    return replace(report, summary={"model": source, **report.summary})


def _memory_difference(pair: tuple[Any, Any], workload: Workload, report: Report) -> str:
    """Return the reason why a document's memory differs from the code's, if both are shown."""
    rows = [row for row in report.of(CrossoverRecord) if row.metric == "memory"]
    kinds = {row.kind for row in rows}
    if not ("published" in kinds and kinds & {"derived", "measured"}):
        return ""
    from attnprof.closed_form.quantities import why_memory_differs

    return why_memory_differs(*pair, workload, rows[0].scope) or ""


def _metrics(costs: ComparedCosts, phase: str) -> list[str]:
    """Return the metrics of ``--metric`` or ``--quantity``, else all that the kinds have."""
    if costs.metric is not None and costs.quantity is not None:
        raise RequestError("--metric and --quantity say the same thing; leave one of them out")
    if costs.metric is not None:
        return request.some_of(costs.metric, sides.ALL_METRICS, "--metric")
    if costs.quantity is not None:
        quantities = request.some_of(costs.quantity, tuple(METRIC_OF), "--quantity")
        return list(dict.fromkeys(METRIC_OF[name] for name in quantities))
    kinds = set(sides.KINDS)
    if costs.kind is not None:
        kinds = set(request.some_of(costs.kind, sides.ALL_KINDS, "--kind"))
    counted = [x for x in sides.METRICS if any(x in sides.METRICS_OF[kind] for kind in kinds)]
    if phase == "decode" and costs.model is None and kinds & set(sides.KINDS):
        counted.append(sides.STATE)
    return [*counted, *[sides.TIME] * (sides.PREDICTED in kinds)]
