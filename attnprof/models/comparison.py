"""Put models side by side: reports of single models become one, at the same sizes.

Numbers and formulas are those of each model's own report, so they follow its view. A cache's
growth by one token is its formula's difference at the asked length: of a window it is 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnprof.record import ComparedRecord, ModelRecord, Report

#: Phases that are compared, a prompt and a decoded token, and what of each.
PHASES = ("prefill", "decode")
_QUANTITIES = {
    "prefill": ("flops", "bytes_moved"), "decode": ("flops", "bytes_moved", "cache_bytes"),
}  # fmt: skip


def comparison(reports: Sequence[Report], environment: Mapping[str, Any] | None = None) -> Report:
    """Return one report of several models' reports, each of :data:`PHASES` at the same sizes."""
    records = [row for report in reports for row in _rows(report)]
    summary = {
        "models": [report.summary["name"] for report in reports],
        "dtypes": {report.summary["name"]: report.summary["dtype"] for report in reports},
        "at": {name: reports[0].summary["at"].get(name) for name in ("B", "N")},
        "curves": [_curves(report) for report in reports],
        "notes": [
            f"{report.summary['name']}: {note}" for report in reports
            for note in report.summary["notes"]
        ],
    }  # fmt: skip
    return Report("model --compare", records, summary, environment or {})


def _rows(report: Report) -> Iterator[ComparedRecord]:
    """Yield a model's parameters, and what each phase takes."""
    summary = report.summary
    name, view = summary["name"], summary.get("view") or "torch"
    for quantity in ("parameters", "active_parameters"):
        value = summary[quantity]
        yield ComparedRecord(model=name, phase="", quantity=quantity, value=value, view=view)
    whole = {
        (row.phase, row.quantity): row for row in report.of(ModelRecord) if row.part == "total"
    }
    for phase, quantities in _QUANTITIES.items():
        for quantity in quantities:
            row = whole.get((phase, quantity))
            if row is None:
                continue
            yield ComparedRecord(
                model=name, phase=phase, quantity=quantity, expression=row.expression,
                value=row.value, bound=row.bound, view=view,
            )  # fmt: skip
            yield from _by_token(row, name, view, summary["at"])


def _by_token(
    row: ModelRecord, name: str, view: str, at: Mapping[str, int]
) -> Iterator[ComparedRecord]:
    """Yield a quantity of one token: FLOPs by the tokens of a phase, a cache's growth.

    FLOPs are rounded to whole ones.
    """
    if row.value is None or "N" not in at or row.quantity == "bytes_moved":
        return
    tokens = at.get("B", 1) * (at["N"] if row.phase == "prefill" else 1)
    growth = row.quantity == "cache_bytes"
    quantity = "cache_bytes_per_token" if growth else "flops_per_token"
    value = _growth(row, at) if growth else round(row.value / tokens)
    yield ComparedRecord(
        model=name, phase=row.phase, quantity=quantity, value=value, bound=row.bound, view=view
    )


def _growth(row: ModelRecord, at: Mapping[str, int]) -> int | float | None:
    """Return what the last token of the asked length adds for one input; None without a formula."""
    from attnprof.algebra.expressions import expression_of
    from attnprof.algebra.parser import parse

    if row.expression is None:
        return None
    formula = expression_of(parse(row.expression, stored=True))
    before, after = (
        formula.subs({x: {**at, "N": at["N"] - back}.get(x.name, x) for x in formula.free_symbols})
        for back in (1, 0)
    )
    grown = (after - before) / at.get("B", 1)
    if not grown.is_number:
        return None
    return int(grown) if grown == int(grown) else float(grown)


def _curves(report: Report) -> dict[str, Any]:
    """Return lengths with a model's FLOPs a token of a prompt, and with its cache of one input."""
    curves = report.summary.get("curves") or {}
    flops, cache = (curves.get("shares") or {}).get("prefill"), curves.get("cache")
    drawn: dict[str, Any] = {"model": report.summary["name"], "flops": None, "cache": None}
    if flops:
        sums = [sum(values) for values in zip(*flops["parts"].values(), strict=True)]
        lengths, batch = flops["seq_len"], flops["batch_size"]
        by_token = [value / n / batch for value, n in zip(sums, lengths, strict=True)]
        drawn["flops"] = {"seq_len": lengths, "flops_per_token": by_token}
    if cache:
        held = [value / cache["batch_size"] for value in cache["bytes"]]
        drawn["cache"] = {"seq_len": cache["seq_len"], "bytes": held}
    return drawn
