"""``attnprof crossover``: from which length on one mechanism is cheaper than another."""

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
    d: str = Option("64", metavar="SIZES", help="Head widths: a list 8,16 or a range 8:128:x2."),
    heads: str = Option("1", metavar="SIZE", help="Number of heads."),
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
    modules: opt.Modules,
    to: opt.DrawnOutput,
) -> None:  # fmt: skip
    """Find the length from which one mechanism is cheaper.

    In FLOPs and in memory, solved exactly, with a closed form in the head width d where there is
    one. A and B can be modules of your own, too, like my.py:MyAttention.

    Examples:
      attnprof crossover standard linear --d 64
      attnprof crossover --d 8:128:x2 --metric flops
      attnprof crossover taylor-direct taylor-efficient --plot crossover.png
      attnprof crossover my.py:MyAttention linear
    """
    metrics, head_dims = _metrics(metric, quantity), request.parse_sizes(d, "--d")
    request.check_points(len(head_dims), f"--d {short(d)}")
    workload = conditions.workload(1, request.parse_size(heads, "--heads"), head_dims[0])
    default = list(request.TAYLORSHIFT)
    names = request.names_of((mechanism_a, mechanism_b), attention) or default
    if len(names) != 2 or names[0] == names[1]:
        raise RequestError(
            f"{' '.join(names)}: this command compares two different mechanisms; "
            f"type two names, like {' '.join(default)}"
        )
    first, second = request.targets_of(names, conditions, modules)
    own = not (isinstance(first, Mechanism) and isinstance(second, Mechanism))
    kinds = [DERIVED] if own else list(KINDS)
    kinds = request.some_of(kind, ALL_KINDS, "--kind") if kind else kinds
    scope = scope or ("layer" if own else "core")  # a module is a layer: so is its rival
    how: dict[str, Any] = {"with_curves": to.plot is not None, "environment": opt.environment()}
    if set(kinds) <= set(KINDS) and not own:
        found = report(Meeting(first, second, workload, scope), head_dims, kinds, metrics, **how)
    else:  # code has to run
        from attnprof.measure.measured_crossovers import meet

        found = meet(first, second, workload, scope, head_dims, kinds, metrics, **how)
    in_table = to.fmt == opt.Format.TABLE
    to.deliver(found, more=_memory_difference((first, second), workload, found) if in_table else "")


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
