"""From which length on one mechanism is faster than another: predicted, and measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.crossovers import peaks
from attnprof.crossovers import sides as contests
from attnprof.crossovers.answer import crossover_answer
from attnprof.crossovers.axis import SEQ, CrossoverAxis
from attnprof.crossovers.curves import ratios
from attnprof.crossovers.peaks import request_of
from attnprof.crossovers.timed import TimedPair, TimeTerms
from attnprof.errors import RequestError, together
from attnprof.measure.batch import point_environment, resolve_device
from attnprof.mechanism import Mechanism
from attnprof.record import Report
from attnprof.trace.request.target import Target
from attnprof.workload import Workload


def meet(
    a: Mechanism | Target, b: Mechanism | Target, workload: Workload, scope: str,
    head_dims: Sequence[int], kinds: Sequence[str], metrics: Sequence[str], *,
    terms: TimeTerms, axis: CrossoverAxis = SEQ, with_curves: bool = False,
    environment: Mapping[str, Any],
) -> Report:  # fmt: skip
    """The report of ``crossover`` with rows of time, beside what the formulas and code say.

    Over another axis than the length ``head_dims`` are the lengths. Raises :class:`RequestError`
    where nothing that is asked for can be compared, :class:`CannotRunError` where every row is
    refused.
    """
    named = {"mechanism_a": a.name, "mechanism_b": b.name}
    found = Report("crossover", [], named, environment)
    counted = [metric for metric in metrics if metric != contests.TIME]
    others = [kind for kind in kinds if kind != contests.PREDICTED]
    timed = [kind for kind in kinds if kind in (contests.PREDICTED, contests.MEASURED)]
    if not timed:
        raise RequestError(
            f"--metric time with --kind {','.join(kinds)}: a time is predicted or measured; type "
            "--kind predicted,measured"
        )
    if terms.on and contests.MEASURED in kinds:
        raise RequestError(f"--on {terms.on}: only what is here is measured; type --kind predicted")
    if counted and others:
        found = peaks.meet(
            a, b, workload, scope, head_dims, others, counted, axis=axis,
            with_curves=with_curves, environment=environment,
        )  # fmt: skip
    peaks.check_steps((a, b), workload)
    device = resolve_device(terms.device)
    how: dict[str, Any] = {"scope": scope, "device": device, "threads": terms.threads}
    here = point_environment(request_of(a, workload, **how))
    own = [contests.OwnModule(x.name) if isinstance(x, Target) else x for x in (a, b)]
    meeting = contests.Meeting(own[0], own[1], workload, scope, axis=axis)
    races = [TimedPair((a, b), meeting, width, how, here, terms) for width in head_dims]
    rows = [race.row(kind) for race in races for kind in timed]
    if all(row.skipped for row in rows) and not found.records:
        raise together([refusal for race in races for refusal in race.refused])
    records: list[Any] = [*found.records, *rows]
    metric, kind_at = contests.ALL_METRICS.index, contests.ALL_KINDS.index
    records.sort(key=lambda row: (row.given, metric(row.metric), kind_at(row.kind)))
    summary = {**found.summary, "answer": crossover_answer(records)}
    if contests.PREDICTED in timed:
        summary["made_of"] = next((race.made_of for race in races if race.made_of), "")
    if with_curves:
        curves = (curve for race in races for curve in race.curves())
        summary["curves"] = [*summary.get("curves", ()), *curves]
        summary["ratios"] = ratios(summary["curves"])
    return replace(found, records=records, summary=summary, environment={**environment, **here})
