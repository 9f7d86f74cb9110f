"""``attnprof crossover``: from which length on one mechanism is cheaper than another."""

from dataclasses import replace
from typing import Annotated, Any

from typer import Argument, Option

from attnprof.algebra.parser import short
from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.closed_form.crossover import ALL_KINDS, DERIVED, KINDS, METRICS, Meeting, report
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.record import CrossoverRecord, Report
from attnprof.workload import Workload

#: Head width and number of heads, unless said.
WIDTH, HEADS = "64", "1"
#: Quantities by the metric they are.
METRIC_OF = {"flops": "flops", "memory": "memory", "peak_bytes": "memory", "peak_entries": "memory"}


def crossover(
    mechanism_a: str | None = Argument(
        None, metavar="A", help="Mechanism (default taylor-direct)."
    ),
    mechanism_b: str | None = Argument(
        None, metavar="B", help="Mechanism (default taylor-efficient)."
    ),
    *,
    attention: opt.AttentionOption = None,
    d: str = Option(WIDTH, metavar="SIZES", help="Head widths: a list 8,16 or a range 8:128:x2."),
    heads: str = Option(HEADS, metavar="SIZE", help="Number of heads."),
    conditions: request.Conditions,
    scope: Annotated[
        str | None, opt.scope("core (the default), or layer (beside a module of yours).")
    ] = None,
    kind: str | None = Option(
        None, metavar="KINDS",
        help="published (printed in the papers), formula (our closed form), derived (counted in "
        "code) or measured.",
    ),
    metric: str | None = Option(None, metavar="NAMES", help="flops, memory or both."),
    quantity: opt.QuantityOption = None,
    model: str | None = Option(
        None, "--model", metavar="CONFIG",
        help="Compare them in all layers of a model: a config.json, a .toml file or a preset. One "
        "name is compared with the model as it is.",
    ),
    modules: opt.Modules,
    to: opt.DrawnOutput,
) -> None:  # fmt: skip
    """Find the length from which one mechanism is cheaper.

    In FLOPs and in memory, solved exactly, with a closed form in the head width d where there is
    one. A and B can be modules of your own, too, like my.py:MyAttention.

    Examples:
      attnprof crossover standard linear --d 64
      attnprof crossover taylor-direct taylor-efficient --plot crossover.png
      attnprof crossover my.py:MyAttention linear
      attnprof crossover --model config.json linear
    """
    metrics = _metrics(metric, quantity)
    names = request.names_of((mechanism_a, mechanism_b), attention)
    how: dict[str, Any] = {"with_curves": to.plot is not None, "environment": opt.environment()}
    if model is not None:
        if kind not in (None, DERIVED):
            raise RequestError(f"--kind {kind}: costs of a whole model are {DERIVED} from its code")
        typed = {"--d": d != WIDTH, "--heads": heads != HEADS, "--scope": scope}
        _check_only({**typed, "--arg": modules.args, "--input": modules.inputs}, conditions)
        to.deliver(_in_model(model, names, conditions, metrics, **how))
        return
    head_dims = request.parse_sizes(d, "--d")
    request.check_points(len(head_dims), f"--d {short(d)}")
    workload = conditions.workload(1, request.parse_size(heads, "--heads"), head_dims[0])
    first, second = _pair(names, conditions, modules)
    found = _between(first, second, workload, scope, head_dims, kind, metrics, **how)
    in_table = to.fmt == opt.Format.TABLE
    to.deliver(found, more=_memory_difference((first, second), workload, found) if in_table else "")


def _pair(
    names: list[str], conditions: request.Conditions, modules: opt.Modules
) -> tuple[Any, Any]:
    """Two different mechanisms or modules; TaylorShift's forms where none is named."""
    default = list(request.TAYLORSHIFT)
    names = names or default
    if len(names) != 2 or names[0] == names[1]:
        raise RequestError(
            f"{' '.join(names)}: this command compares two different mechanisms; "
            f"type two names, like {' '.join(default)}"
        )
    first, second = request.targets_of(names, conditions, modules)
    return first, second


def _between(
    first: Any, second: Any, workload: Workload, scope: str | None, head_dims: list[int],
    kind: str | None, metrics: list[str], **how: Any,
) -> Report:  # fmt: skip
    """The report for two mechanisms or modules."""
    own = not (isinstance(first, Mechanism) and isinstance(second, Mechanism))
    kinds = [DERIVED] if own else list(KINDS)
    kinds = request.some_of(kind, ALL_KINDS, "--kind") if kind else kinds
    scope = scope or ("layer" if own else "core")  # a module is a layer: so is its rival
    if set(kinds) <= set(KINDS) and not own:
        return report(Meeting(first, second, workload, scope), head_dims, kinds, metrics, **how)
    # code has to run
    from attnprof.measure.measured_crossovers import meet

    return meet(first, second, workload, scope, head_dims, kinds, metrics, **how)


def _check_only(typed: dict[str, Any], conditions: request.Conditions) -> None:
    """RequestError for flags that say what a model's configuration says."""
    usual = request.Conditions()
    also = {"--causal": conditions.causal, "--dtype": conditions.dtype != usual.dtype}
    wrong = [flag for flag, given in {**typed, **also}.items() if given]
    if wrong:
        raise RequestError(f"--model has a configuration of its own: leave out {wrong[0]}")


def _in_model(
    source: str, names: list[str], conditions: request.Conditions, metrics: list[str], **how: Any
) -> Report:
    """The report for two mechanisms in all layers of a model."""
    from attnprof.measure.measured_crossovers import meet
    from attnprof.models.contest import rivals

    values, batch = request.parse_set(conditions.settings), conditions.batch
    batch_size = request.parse_size(batch, "--batch")
    first, second, workload = rivals(source, names, values, conditions.phase, batch_size)
    found = meet(first, second, workload, "model", [workload.head_dim], metrics=metrics, **how)
    return replace(found, summary={"model": source, **found.summary})


def _memory_difference(pair: tuple[Any, Any], workload: Workload, found: Report) -> str:
    """The sentence that belongs to memory rows of a document beside rows of running code."""
    rows = [row for row in found.of(CrossoverRecord) if row.metric == "memory"]
    kinds = {row.kind for row in rows}
    if not ("published" in kinds and kinds & {"derived", "measured"}):
        return ""
    from attnprof.closed_form.quantities import why_memory_differs

    return why_memory_differs(*pair, workload, rows[0].scope) or ""


def _metrics(metric: str | None, quantity: str | None) -> list[str]:
    """Metrics asked for, by ``--metric`` or as quantities; both where nothing is asked."""
    if metric is not None and quantity is not None:
        raise RequestError("--metric and --quantity say the same thing; leave one of them out")
    if quantity is None:
        return request.some_of(metric, METRICS, "--metric")
    asked = request.some_of(quantity, tuple(METRIC_OF), "--quantity")
    return list(dict.fromkeys(METRIC_OF[name] for name in asked))
