"""Where two mechanisms cost the same: the records of ``crossover``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.crossovers.answer import crossover_answer
from attnprof.crossovers.axis import SIZES
from attnprof.crossovers.curves import curves_of, ratios
from attnprof.crossovers.sides import KINDS, METRICS, Contest, Meeting, contests, solved
from attnprof.errors import AttnprofError, CannotRunError, RequestError, together
from attnprof.record import CrossoverRecord, Report

#: Sizes that a row has.
SIZES_OF_ROWS = ("seq_len", "d_model", "head_dim", "num_heads", "batch_size")


def blank(
    meeting: Meeting, contest: Contest, given: int, skipped: str | None = None
) -> CrossoverRecord:
    """A row that says what was asked and, maybe, why there is no answer."""
    w, axis = meeting.workload, meeting.axis
    sizes = {name: getattr(w, name) for name in ("head_dim", "num_heads", "batch_size")}
    sizes |= {"seq_len": None, axis.given: given, SIZES.get(axis.name, ""): None}
    if axis.d_model is not None:
        sizes |= {"head_dim": None, "d_model": axis.d_model}
    sizes = {name: size for name, size in sizes.items() if name in SIZES_OF_ROWS}
    a, b = (axis.without(side.params) for side in (meeting.a, meeting.b))
    return CrossoverRecord(
        metric=contest.metric, unit=contest.unit, kind=contest.kind, source=contest.source,
        mechanism_a=meeting.a.name, mechanism_b=meeting.b.name, params_a=a, params_b=b,
        over=axis.name, dtype=None if contest.kind == "published" else w.dtype,
        scope=meeting.scope, phase=w.phase, causal=w.causal, verdict="", skipped=skipped, **sizes,
    )  # fmt: skip


def answered(
    row: CrossoverRecord, crossings: Sequence[float], first: int | None, **more: Any
) -> CrossoverRecord:
    """A row with its crossings; over lengths they have names of their own, too."""
    last = crossings[-1] if crossings else None
    over_lengths = row.over == "seq"
    return replace(
        row, crossover_value=last, first_value=first, all_crossings=list(crossings),
        crossover_seq_len=last if over_lengths else None,
        first_seq_len=first if over_lengths else None, **more,
    )  # fmt: skip


def _record(
    meeting: Meeting, contest: Contest, given: int, refused: list[AttnprofError]
) -> CrossoverRecord:
    """One row; a refusal is one that says why, and is kept in ``refused``."""
    try:
        found, form = solved(meeting, contest, given)
        known = contest.lengths(given, meeting.axis)
        doubts = {cost.doubt for cost in contest.at(given) if cost.doubt}
    except (RequestError, CannotRunError) as refusal:
        refused.append(refusal)
        return blank(meeting, contest, given, str(refusal))
    names = {1: meeting.b.name, -1: meeting.a.name, 0: None}
    searched, step = [list(stretch) for stretch in known.stretches], known.step
    if found.looked_at:
        searched, step = [list(found.looked_at)], 1
    return answered(
        blank(meeting, contest, given), [float(root.at) for root in found.roots],
        found.first_seq_len, closed_form=form, verdict=found.verdict,
        method="solved" if found.runs[-1].piece else "searched",
        cheaper_below=names[found.runs[0].sign], cheaper_above=names[found.runs[-1].sign],
        searched=searched, searched_step=step, bound="; ".join(sorted(doubts)) or None,
    )  # fmt: skip


def report(
    meeting: Meeting, given: Sequence[int], kinds: Sequence[str] = KINDS,
    metrics: Sequence[str] = METRICS, *, with_curves: bool = False, environment: Mapping[str, Any],
) -> Report:  # fmt: skip
    """The report, a figure's curves in its summary if wanted; RequestError for rows all refused.

    ``given`` are the head widths, or over another axis than the length the lengths.
    """
    matches = contests(meeting, kinds, metrics)
    refused: list[AttnprofError] = []
    records = [_record(meeting, contest, d, refused) for d in given for contest in matches]
    if all(record.skipped for record in records):
        raise together(refused)
    names = {"mechanism_a": meeting.a.name, "mechanism_b": meeting.b.name}
    summary: dict[str, Any] = {**names, "answer": crossover_answer(records)}
    if with_curves:
        summary["curves"] = curves_of(meeting, matches, records)
        summary["ratios"] = ratios(summary["curves"])
    return Report("crossover", records, summary, environment)
