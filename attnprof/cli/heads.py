"""``attnprof heads``: cost against the number of heads, and the optimum."""

from typer import Argument, Option

from attnprof.algebra.polynomials import divisors
from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.closed_form.heads import KINDS, QUANTITIES, curves_of, heads_report
from attnprof.errors import RequestError


def heads_(
    mechanisms: list[str] | None = Argument(
        None, metavar="A B", help="Mechanisms (default taylor-direct taylor-efficient)."
    ),
    *,
    attention: opt.AttentionOption = None,
    d_model: str = Option("512", metavar="SIZE", help="Model width."),
    seq: str = Option("1024", metavar="SIZE", help="Sequence length."),
    heads: str | None = Option(None, metavar="SIZES", help="Only these; all divisors otherwise."),
    conditions: request.Conditions,
    scope: opt.ScopeOption = "core",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    to: opt.DrawnOutput,
) -> None:
    """Show the cost over the number of heads, and the best number.

    FLOPs and entries (numbers held in memory) at a fixed model width. The optimum is the root of
    the cost's derivative; the best divisor is the cheapest number of heads that can be built.

    Examples:
      attnprof heads --d-model 256 --seq 1025
      attnprof heads standard linear --d-model 512 --seq 4096
      attnprof heads --heads 1,2,4,8 --plot heads.png
    """
    width, length = request.parse_size(d_model, "--d-model"), request.parse_size(seq, "--seq")
    possible = divisors(width)
    counts = possible if heads is None else sorted(request.parse_sizes(heads, "--heads"))
    if wrong := [h for h in counts if width % h]:
        more = ", …" if possible[24:] else ""
        raise RequestError(
            f"--heads {wrong[0]}: does not divide d_model {width}; "
            f"possible: {', '.join(map(str, possible[:24]))}{more}"
        )
    workload = conditions.workload(length, 1, width)
    names = request.names_of(mechanisms or (), attention) or request.TAYLORSHIFT
    kinds = request.some_of(kind, KINDS, "--kind")
    quantities = request.some_of(quantity, QUANTITIES, "--quantity")
    chosen = conditions.configured(list(dict.fromkeys(names)))
    curves = curves_of(chosen, workload, scope, kinds, quantities)
    where = f"{scope}, {workload.phase}{', causal' * workload.causal}"
    sizes = f"batch {workload.batch_size}, seq {length:,}, d_model {width:,}"
    report = heads_report(curves, width, length, counts, opt.environment())
    to.deliver(report, conditions=f"{where}, {sizes}")
