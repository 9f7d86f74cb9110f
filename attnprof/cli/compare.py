"""``attnprof compare``: one table, the winner marked in each column."""

from __future__ import annotations

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.output import Output, environment
from attnprof.cli.request import (
    Conditions,
    Shape,
    closed_form_request,
    parse_names,
    some_of,
)
from attnprof.closed_form.totals import CONTESTED, compare_records
from attnprof.record import CompareRecord, Report


def compare(
    *,
    shape: Shape,
    conditions: Conditions,
    scope: opt.ScopeOption = "layer",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    convention: opt.ConventionOption = "flops",  # noqa: ARG001 - both are columns
    to: Output,
) -> None:
    """Mechanisms side by side for the same workload; the lowest of each column is marked.

    All shipped mechanisms where --attention is left out. One that cannot do what is asked is a
    row with the reason.

    Example: attnprof compare --attention standard,efficient,sdpa --seq 1024,4096 --causal
    """
    some_of(kind, ("formula",), "--kind")
    shown = some_of(quantity, CONTESTED, "--quantity")
    names = registry.names() if shape.attention is None else parse_names(shape.attention)
    records = compare_records(*closed_form_request(shape, conditions, names), scope)
    report = Report("compare", records, {"winners": _winners(records)}, environment())
    to.deliver(report, quantities=shown)


def _winners(records: list[CompareRecord]) -> dict[str, dict[str, list[str]]]:
    """By length and quantity, who is lowest."""
    found: dict[str, dict[str, list[str]]] = {}
    for record in records:
        for name in record.wins.split(",") if record.wins else ():
            found.setdefault(str(record.seq_len), {}).setdefault(name, []).append(record.mechanism)
    return found
