"""``attnprof compare``: one table, the winner marked in each column."""

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.closed_form.answers import compare_answer
from attnprof.closed_form.cost_records import CONTESTED, POSSIBLE, compare_records
from attnprof.record import Report


def compare(
    *,
    shape: request.Selection,
    free: request.FreeSizes,
    conditions: request.Conditions,
    scope: opt.ScopeOption = "layer",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    convention: opt.ConventionOption = "flops",  # noqa: ARG001 - both are columns
    to: opt.DrawnOutput,
) -> None:
    """Put mechanisms side by side and mark the cheapest.

    Without --attention these are all mechanisms. One that cannot do what is asked is a row with
    the reason. --plot draws FLOPs and peak memory over several sequence lengths.

    Examples:
      attnprof compare -a standard,sdpa,linear --seq 1024,65536
      attnprof compare --seq 4096 --phase decode
      attnprof compare -a standard,efficient --quantity flops --format csv
      attnprof compare -a standard,linear --seq 1024:65536:x4 --plot costs.png
    """
    request.some_of(kind, ("formula",), "--kind")
    shown = request.some_of(quantity, POSSIBLE, "--quantity") if quantity else list(CONTESTED)
    names = registry.names() if shape.attention is None else request.parse_names(shape.attention)
    asked = request.closed_form_request(shape, conditions, names, **free.sizes)
    records = compare_records(*asked, scope)
    winners: dict[str, dict[str, list[str]]] = {}  # by length and quantity, who is lowest
    for one in records:
        for name in one.wins.split(",") if one.wins else ():
            winners.setdefault(str(one.seq_len), {}).setdefault(name, []).append(one.mechanism)
    summary = {"winners": winners, "answer": compare_answer(records, shown)}
    to.deliver(Report("compare", records, summary, opt.environment()), quantities=shown)
