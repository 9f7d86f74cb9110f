"""Which attention to take for a request: all mechanisms by their predicted time."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from math import log
from pathlib import Path
from typing import Any

from attnprof import registry
from attnprof.device.prediction import Point, predicted_record, pricing
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.batch import plan_points, point_environment
from attnprof.measure.point import available_bytes, blank_of, needed_bytes
from attnprof.measure.request import PointRequest
from attnprof.mechanism import Mechanism
from attnprof.processes.progress import tell
from attnprof.record import PredictRecord, RecommendRecord, Report
from attnprof.units import format_bytes, format_ratio, format_time, joined, plural
from attnprof.workload import Workload

#: Seconds of seeing a call's operations, beyond which its time follows from shorter lengths.
MOST_S = 1.0
#: Pairs of lengths by which a time follows, as shares of what is asked, and the shortest of them.
SHORTER, SHORTEST = ((1 / 32, 1 / 16), (1 / 128, 1 / 64)), 64
#: Lengths at which the fastest are told, as multiples of what is asked, and the longest.
MULTIPLES, LONGEST = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4), 2**17
#: So many of the exact ones and of the others are asked at other lengths.
ASKED = 4


def recommend(
    workload: Workload, settings: Mapping[str, Any], *, device: str = "auto",
    threads: int | None = None, scope: str = "layer", path: Path | None = None,
    on: str | None = None, memory: int | None = None,
) -> Report:  # fmt: skip
    """Return the report of ``recommend``: every mechanism, the ones to take first.

    ``memory`` are the bytes that a call may need, by default those that are free; ``on`` names a
    device that is not here. Raises :class:`CannotRunError` without a calibration of the device.
    """
    names = registry.names()
    chosen = dict(zip(names, registry.configured(names, dict(settings)), strict=True))
    points = plan_points(chosen, [workload], device=device, threads=threads, scope=scope)
    environment = point_environment(points[0])
    predict, made_of, interval = pricing(environment, path=path, on=on)
    most = memory
    if most is None and on is None:
        most = available_bytes(points[0].device)
    rows: list[RecommendRecord] = []
    for done, point in enumerate(points):
        tell(f"predicting {point.title}", done, len(points))
        rows.append(_row(point, chosen[point.mechanism], predict, most))
    rows.sort(key=lambda row: (row.rank is None, not row.exact, _seconds(row)))
    ranked = [
        row if row.rank is None else replace(row, rank=rank) for rank, row in enumerate(rows, 1)
    ]
    fit = [row for row in ranked if row.rank]
    others = sorted((row for row in fit if not row.exact), key=_seconds)
    near = {row.mechanism for row in [*[x for x in fit if x.exact][:ASKED], *others[:ASKED]]}
    stretches = _stretches([point for point in points if point.mechanism in near], predict, most)
    summary = {
        "answer": _answer(ranked, stretches), "made_of": made_of, "interval": interval,
        "memory_bytes": most, "fastest": stretches,
    }  # fmt: skip
    if not any(row.rank for row in ranked):
        reasons = (f"{row.mechanism}: {row.skipped}" for row in ranked[:3])
        raise CannotRunError(f"no mechanism can do what is asked here: {'; '.join(reasons)}")
    return Report("recommend", ranked, summary, environment)


def gives_up(spec: Mechanism) -> str:
    """Return what a mechanism does not do that softmax attention does."""
    kind, why = spec.to_softmax
    what = KINDS.get(kind, "another function")
    parts = [] if kind == "same" else [f"{what}: {why or 'it has no queries and keys'}"]
    can = spec.abilities
    parts += ["one length only"] * can.needs_seq_len
    parts += ["not causal"] * (not can.causal) + ["no decoding"] * (not can.decode)
    return "; ".join(parts)


#: What a mechanism is to softmax attention, where it is not the same.
KINDS = dict.fromkeys(("approximates", "untrained"), "an approximation")


def _row(request: PointRequest, spec: Mechanism, predict: Point, most: int | None) -> Any:
    """Return a mechanism's row; ``rank`` 0 where it will have one."""
    traits: dict[str, Any] = {"exact": spec.to_softmax[0] == "same", "gives_up": gives_up(spec)}
    try:
        predicted = _predicted(request, predict)
        needed = needed_bytes(request)
    except AttnprofError as refusal:
        return replace(blank_of(RecommendRecord, request, str(refusal)), **traits)
    names = {field.name for field in fields(RecommendRecord)}
    values = {name: value for name, value in asdict(predicted).items() if name in names}
    fits = most is None or needed <= most
    why = None if fits else f"needs {format_bytes(needed)}, there are {format_bytes(most or 0)}"
    return RecommendRecord(
        **{**values, "skipped": why}, **traits, peak_bytes=predicted.peak_bytes_predicted,
        fits=fits, rank=0 if fits else None,
    )  # fmt: skip


def _predicted(request: PointRequest, predict: Point) -> PredictRecord:
    """Return a prediction; of very many operations, what two shorter calls let expect."""
    try:
        return predict(request, MOST_S)
    except CannotRunError:
        for shares in SHORTER:
            lengths = [max(SHORTEST, round(request.seq_len * share)) for share in shares]
            if len({*lengths}) == 1:
                break
            with suppress(CannotRunError):
                few, more = (predict(replace(request, seq_len=n), MOST_S) for n in lengths)
                return _farther(request, few, more)
        raise


def _farther(request: PointRequest, few: PredictRecord, more: PredictRecord) -> PredictRecord:
    """Return a time that grows with a power of the length, by those of two shorter lengths."""
    growth = log((more.time_s or 1) / (few.time_s or 1)) / log(more.seq_len / few.seq_len)
    seconds = (more.time_s or 0) * (request.seq_len / more.seq_len) ** growth
    bounded = more.ci_high_s is not None and more.time_s
    wide = ((more.ci_high_s or 0.0) / (more.time_s or 1.0)) ** 2 if bounded else 1.0
    return replace(
        predicted_record(request), time_s=seconds, bound=more.bound, ci_low_s=seconds / wide,
        ci_high_s=seconds * wide if bounded else None,
    )  # fmt: skip


def _seconds(row: RecommendRecord) -> float:
    return float("inf") if row.time_s is None else row.time_s


def _stretches(
    points: Sequence[PointRequest], predict: Point, most: int | None
) -> list[dict[str, Any]]:
    """Return the stretches of lengths over which the same two mechanisms are fastest."""
    stretches: list[dict[str, Any]] = []
    for done, multiple in enumerate(MULTIPLES):
        tell("predicting at other lengths", done, len(MULTIPLES))
        length = round(points[0].seq_len * multiple) if points else 0
        if not SHORTEST <= length <= LONGEST:
            continue
        times: dict[str, float] = {}
        for point in points:
            at = replace(point, seq_len=length)
            try:
                if most is None or needed_bytes(at) <= most:
                    times[point.mechanism] = predict(at, MOST_S).time_s or 0.0
            except AttnprofError:
                continue
        if not times:
            continue
        exact = [name for name in times if registry.get(name).to_softmax[0] == "same"]
        best = min(exact, key=times.__getitem__, default=None)
        fastest = min(times, key=times.__getitem__)
        if stretches and (stretches[-1]["exact"], stretches[-1]["fastest"]) == (best, fastest):
            stretches[-1]["to"] = length
        else:
            stretches.append({"from": length, "to": length, "exact": best, "fastest": fastest})
    return stretches


def _or_another(rows: Sequence[RecommendRecord], first: RecommendRecord) -> str:
    """Return the next fastest of the same kind, where the intervals do not tell the two apart."""
    others = [row for row in rows if row is not first and row.exact == first.exact]
    second = min(others, key=_seconds, default=None)
    if second is None or second.ci_low_s is None or first.ci_high_s is None:
        return ""
    return f" or {second.mechanism}" if second.ci_low_s <= first.ci_high_s else ""


def _answer(rows: Sequence[RecommendRecord], stretches: Sequence[Mapping[str, Any]]) -> str:
    """Return one sentence: what to take, what is faster at which price, where that changes."""
    fit = [row for row in rows if row.rank]
    if not fit:
        return ""
    exact = next((row for row in fit if row.exact), None)
    length = plural(fit[0].seq_len, "token")
    first = min(fit, key=_seconds) if exact is None else exact
    bound = "at least " * (first.ci_high_s is None)
    time = f"{bound}{format_time(_seconds(first))}"
    parts = [f"at {length} take {first.mechanism}{_or_another(fit, first)}: {time}, the fastest "]
    parts[0] += "that computes softmax attention" if exact else "; no exact attention fits"
    for what in ("an approximation", "another function"):
        of_kind = [row for row in fit if row.gives_up.startswith(what)]
        best = min(of_kind, key=_seconds, default=first)
        if _seconds(best) < _seconds(first):
            times = format_ratio(_seconds(first), _seconds(best))
            parts.append(f"{best.mechanism}, {what}, is {times} times as fast")
    turns = [one for one in stretches if one["exact"] not in (None, first.mechanism)]
    if exact and turns:
        ends = (dict.fromkeys(f"{one[end]:,}" for end in ("from", "to")) for one in turns)
        sentences = (
            f"{one['exact']} ({' to '.join(lengths)} tokens)"
            for one, lengths in zip(turns, ends, strict=True)
        )
        parts.append(f"elsewhere the fastest exact one is {joined(sentences)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
