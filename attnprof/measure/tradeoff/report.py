"""Report every candidate on every input: its distance from softmax attention, and its cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from attnprof import registry
from attnprof.errors import AttnprofError, CannotRunError, RequestError, together
from attnprof.measure.request import Budget
from attnprof.measure.tradeoff.candidates import Candidate
from attnprof.measure.tradeoff.distances import Distance, ExactAttention
from attnprof.measure.tradeoff.runs import (
    Terms,
    check_memory,
    draws_of,
    refusals,
    seeded,
    times_of,
    workload_of,
)
from attnprof.measure.tradeoff.structures import QueriesKeysValues
from attnprof.processes.progress import tell
from attnprof.record import Report, TradeoffRecord
from attnprof.record.measured import names_of
from attnprof.units import format_number, format_ratio
from attnprof.workload import Workload

#: Errors below this are rounding.
EXACT = 1e-9


def tradeoff_report(
    candidates: Sequence[Candidate], inputs: Sequence[QueriesKeysValues], terms: Terms,
    budget: Budget | None, environment: Mapping[str, Any],
) -> Report:  # fmt: skip
    """Return a record a candidate and input; without a ``budget`` nothing is timed.

    A candidate that cannot run is a record with the reason. Raises :class:`RequestError` or
    :class:`CannotRunError` if none can.
    """
    refused: list[AttnprofError] = []
    groups = []
    for place, given in enumerate(inputs):
        rows = []
        exact = ExactAttention(given, causal=terms.causal)
        for done, candidate in enumerate(candidates):
            count, many = place * len(candidates) + done, len(inputs) * len(candidates)
            tell(f"comparing {candidate.name} on {given.source}", count, many)
            row = _blank_record(candidate, given, terms)
            try:
                row = replace(row, **_costs_and_errors(candidate, exact, terms))
            except (RequestError, CannotRunError) as error:
                refused.append(error)
                row = replace(row, skipped=str(error))
            rows.append(row)
        groups.append(rows)
    records = [row for rows in groups for row in rows]
    if records and len(refused) == len(records):
        raise together(refused)
    if budget is not None:
        groups = _with_times(groups, candidates, inputs, terms, budget)
    groups = [_mark_pareto(rows) for rows in groups]
    records = [row for rows in groups for row in rows]
    known = {c.name: list(c.mechanism.to_softmax) for c in candidates}
    nearest = [line for rows, given in zip(groups, inputs, strict=True)
               for line in _nearest(rows, workload_of(given, terms))]  # fmt: skip
    said: dict[str, Any] = {"relations": known, "nearest": nearest, "answer": " ".join(nearest)}
    return Report("tradeoff", records, said, environment)


def _blank_record(candidate: Candidate, given: QueriesKeysValues, terms: Terms) -> TradeoffRecord:
    b, h, n, d = given.q.shape
    return TradeoffRecord(
        mechanism=candidate.name, params=candidate.mechanism.params, input=given.source,
        norms=given.norms, relation=candidate.mechanism.to_softmax[0], causal=terms.causal,
        batch_size=b, seq_len=n, d_model=h * d, num_heads=h, head_dim=d, dtype=terms.dtype,
        device=terms.device, seeds=0,
    )  # fmt: skip


def _costs_and_errors(
    candidate: Candidate, exact: ExactAttention, terms: Terms
) -> dict[str, Any]:  # fmt: skip
    """Return a candidate's costs by closed form, and its distances over draws of the weights."""
    mechanism, workload = candidate.mechanism, workload_of(exact.given, terms)
    if not mechanism.abilities.attend:
        raise RequestError(
            f"{candidate.name} has no queries and keys: it is no approximation of softmax attention"
        )
    table = mechanism.cost(workload, "core")
    check_memory(mechanism, workload)
    count = draws_of(mechanism, workload, terms)
    distances: list[Distance] = []
    for seed in range(terms.seed, terms.seed + count):
        core = seeded(candidate, workload, terms, seed)
        with refusals(candidate.name):
            distance = exact.distance(core, distribution=not distances)
        if distance is None:
            raise CannotRunError(f"{candidate.name} gives NaN or infinite numbers in float64")
        distances.append(distance)
    errors = [distance.relative for distance in distances]
    return {
        "seeds": count, "error_relative": median(errors), "error_relative_low": min(errors),
        "error_relative_high": max(errors),
        "error_worst_row": median(distance.worst_row for distance in distances),
        "error_distribution": distances[0].distribution, "weights": distances[0].weights,
        "flops": int(table.flops), "bytes_moved": int(table.total.bytes_moved),
        "peak_bytes": int(table.peak()),
    }  # fmt: skip


def _with_times(
    groups: list[list[TradeoffRecord]], candidates: Sequence[Candidate],
    inputs: Sequence[QueriesKeysValues], terms: Terms, budget: Budget,
) -> list[list[TradeoffRecord]]:  # fmt: skip
    """Return the rows with times of every candidate that ran, on the first input of each size."""
    known: dict[Workload, dict[Candidate, Any]] = {}
    timed_groups = []
    for rows, given in zip(groups, inputs, strict=True):
        workload = workload_of(given, terms)
        if workload not in known:
            runs = [c for c, row in zip(candidates, rows, strict=True) if row.skipped is None]
            known[workload] = times_of(runs, given, terms, budget)
        timed_groups.append([
            _with_time(row, known[workload].get(c))
            for c, row in zip(candidates, rows, strict=True)
        ])  # fmt: skip
    return timed_groups


def _with_time(row: TradeoffRecord, known: Any) -> TradeoffRecord:
    if known is None or row.skipped is not None:
        return row
    ends = {"ci_low_s": known.low_s, "ci_high_s": known.high_s}
    return replace(row, median_s=known.median_s, **ends)


def _mark_pareto(rows: Sequence[TradeoffRecord]) -> list[TradeoffRecord]:
    """Return the rows marked ``pareto`` unless another row beats them.

    A row beats one with no more FLOPs and no larger error if one of the two is less.
    """
    known = [(row.flops, _error_or_zero(row)) for row in rows if row.skipped is None]

    def beaten(one: tuple[Any, float]) -> bool:
        return any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in known)

    return [
        row if row.skipped else replace(row, pareto=not beaten((row.flops, _error_or_zero(row))))
        for row in rows
    ]


def _error_or_zero(row: TradeoffRecord) -> float:
    """Return the error, or 0 if it is just rounding."""
    error = row.error_relative or 0.0
    return 0.0 if error < EXACT else error


def _nearest(rows: Sequence[TradeoffRecord], workload: Workload) -> Iterator[str]:
    """Yield a sentence: which mechanism cheaper than softmax attention has the least error."""
    whole = int(registry.get("standard").cost(workload, "core").flops)
    named = zip(rows, names_of(rows), strict=True)
    cheaper = [
        (row, name) for row, name in named
        if row.flops is not None and row.flops < whole and row.relation in ("approximates", "")
    ]  # fmt: skip
    if not cheaper:
        return
    row, name = min(cheaper, key=lambda pair: _error_or_zero(pair[0]))
    norms = f" ({row.norms})" if row.norms else ""
    share = format_ratio(row.flops or 0, whole)
    yield (
        f"{row.input}{norms}: with fewer FLOPs than softmax attention, {name} is nearest, at "
        f"{format_number(_error_or_zero(row), short=True)} of the output's norm and {share}× its "
        "FLOPs."
    )
