"""Reports of whole models held against a memory, and reports of several models side by side.

Numbers and formulas are those of each model's own report, so they follow its view. A cache's
growth by one token is its formula's difference at the asked length: of a window it is 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.record import ComparedRecord, ModelRecord, Report
from attnprof.units import format_bytes
from attnprof.workload import ITEM_SIZES

#: Rows of the whole model, by phase and quantity.
Rows = Mapping[tuple[str, str], ModelRecord]


def with_memory(report: Report, memory: int) -> Report:
    """Return the report of ``model`` with the bytes each phase needs, and whether they fit.

    A phase holds the parameters and the most that its call adds (``peak``); a decoding step also
    the ``cache`` of the tokens before it, a training step the state of the optimizer. Nothing is
    reserved for the context of a device or a framework's fragments.
    """
    rows = _totals(report)
    phases = {phase: _parts(phase, rows, report.summary) for phase in report.summary["phases"]}
    lacking = {phase for phase in phases if rows[phase, "peak_bytes"].bound == "at least"}
    if not phases.get("decode", {}).get("cache", 1):  # of some models no cache is counted
        lacking.add("decode")
    needs = {phase: sum(parts.values()) for phase, parts in phases.items()}
    by_phase = {
        phase: {**parts, "needed": needs[phase], "fits": needs[phase] <= memory,
            "bound": "at least" if phase in lacking else "exact",
        }
        for phase, parts in phases.items()
    }  # fmt: skip
    sentences = (_sentence(phase, fields, memory) for phase, fields in by_phase.items())
    summary = {
        **report.summary, "answer": f"{'; '.join(sentences)}.", "memory_bytes": memory,
        "needed_bytes": needs, "fits": all(fields["fits"] for fields in by_phase.values()),
        "phase_memory": by_phase,
    }  # fmt: skip
    return replace(report, summary=summary)


def _totals(report: Report) -> Rows:
    rows = report.of(ModelRecord)
    return {(row.phase, row.quantity): row for row in rows if row.part == "total"}


def _parts(phase: str, rows: Rows, summary: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes that a phase holds: parameters, the cache, and all else at its peak."""
    training = summary.get("memory")  # its parameters include buffers
    weights = summary["parameters"] * ITEM_SIZES[summary["dtype"]]
    weights = training["parameters"] if training else weights
    if training and phase == "train":
        return {"parameters": weights, "cache": 0, "peak": training["peak"] - weights}
    cached, peak = rows.get((phase, "cache_bytes")), int(rows[phase, "peak_bytes"].value or 0)
    return {"parameters": weights, "cache": int(cached.value or 0) if cached else 0, "peak": peak}


def _sentence(phase: str, fields: Mapping[str, Any], memory: int) -> str:
    """Return a sentence: ``train does not fit: needs 120 GiB, there are 74.5 GiB``."""
    needed, available = format_bytes(fields["needed"]), format_bytes(memory)
    at_least = "at least " * (fields["bound"] == "at least")
    verdict = "fits" if fields["fits"] else "does not fit"
    return f"{phase} {verdict}: needs {at_least}{needed}, there are {available}"


#: Phases that are compared, a prompt and a decoded token, and the quantities of each.
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
    """Yield a model's parameters, and the quantities of each phase."""
    summary = report.summary
    record = partial(ComparedRecord, model=summary["name"], view=summary.get("view") or "torch")
    for quantity in ("parameters", "active_parameters"):
        yield record(phase="", quantity=quantity, value=summary[quantity])
    rows = _totals(report)
    for phase, quantities in _QUANTITIES.items():
        for quantity in quantities:
            if row := rows.get((phase, quantity)):
                each = record(phase=phase, quantity=quantity, value=row.value, bound=row.bound)
                yield replace(each, expression=row.expression)
                if quantity != "bytes_moved" and row.value is not None and "N" in summary["at"]:
                    value = _by_token(row, summary["at"])
                    yield replace(each, quantity=f"{quantity}_per_token", value=value)


def _by_token(row: ModelRecord, at: Mapping[str, int]) -> int | float | None:
    """Return a phase's FLOPs a token, rounded, or the bytes that the last token adds to a cache.

    The cache is one input's; None without a formula of it.
    """
    from attnprof.algebra.expressions import expression_of
    from attnprof.algebra.parser import parse

    if row.quantity != "cache_bytes":
        tokens = at.get("B", 1) * (at["N"] if row.phase == "prefill" else 1)
        return round((row.value or 0) / tokens)
    if row.expression is None:
        return None
    formula = expression_of(parse(row.expression, stored=True))
    before, after = (evaluate(formula, {**at, "N": n}) for n in (at["N"] - 1, at["N"]))
    grown = Fraction(after - before, at.get("B", 1))
    return int(grown) if grown.denominator == 1 else float(grown)


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
        sizes = [value / cache["batch_size"] for value in cache["bytes"]]
        drawn["cache"] = {"seq_len": cache["seq_len"], "bytes": sizes}
    return drawn
