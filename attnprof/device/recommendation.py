"""Recommend an attention mechanism for a workload: rank all of them by predicted time.

Mechanisms that fit into memory come first, then exact ones before approximations, then fast ones
before slow; times that read the same are equal. Mechanisms with very many operations at the asked
length are extrapolated from shorter lengths. The summary also says which are fastest at other
lengths. Entry point: :func:`recommend`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from math import inf, log
from pathlib import Path
from typing import Any

from attnprof import registry
from attnprof.device.machine_reading import MachineReading
from attnprof.device.prediction import PointPredictor, alternative, pricing, record_with_peak
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.batch import plan_points, point_environment
from attnprof.measure.point import available_bytes, blank_of, needed_bytes
from attnprof.measure.request import PointRequest
from attnprof.mechanism import Mechanism
from attnprof.processes.progress import tell
from attnprof.record import PredictRecord, RecommendRecord, Report
from attnprof.units import format_bytes, format_ratio, format_time, joined, plural
from attnprof.workload import Workload

#: Most processor seconds to list a call's operations; beyond them its time is extrapolated.
LISTING_S = 1.0
#: Pairs of lengths to extrapolate from, as fractions of the asked length; the shortest in tokens.
SHORTER_LENGTHS, SHORTEST_LENGTH = ((1 / 32, 1 / 16), (1 / 128, 1 / 64)), 64
#: Other lengths whose fastest are reported, as multiples of the asked one; the longest in tokens.
MULTIPLES, LONGEST_LENGTH = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4), 2**17
#: How many exact mechanisms, and how many others, are predicted at other lengths.
CANDIDATES = 4


def recommend(
    workload: Workload, mechanisms: Mapping[str, Mechanism], *,
    device: str = "auto", threads: int | None = None, scope: str = "layer",
    path: Path | None = None, on: str | None = None, memory: int | None = None,
) -> Report:  # fmt: skip
    """Return the report of ``recommend``: the mechanisms by name, the best first.

    ``memory``: bytes that a call may need, by default those that are free here. ``on``: name of a
    device that is not here. ``path``: file of calibrations. Raises :class:`CannotRunError` without
    a calibration of the device, or if no mechanism can run the workload.
    """
    points = plan_points(mechanisms, [workload], device=device, threads=threads, scope=scope)
    environment = point_environment(points[0])
    priced = pricing(environment, path=path, on=on, threads=threads)
    memory_limit = memory
    if memory_limit is None and on is None:
        memory_limit = available_bytes(points[0].device)
    rows: list[RecommendRecord] = []
    shortages = dict[str, int]()  # bytes that mechanisms need which do not fit
    for done, point in enumerate(points):
        tell(f"predicting {point.title}", done, len(points))
        rows.append(_row(point, mechanisms[point.mechanism], priced.predict, memory_limit))
        if rows[-1].fits is False:
            shortages[point.mechanism] = needed_bytes(point)
    rows.sort(key=lambda row: (row.rank is None, not row.exact, _seconds(row)))
    ranked = [
        row if row.rank is None else replace(row, rank=rank) for rank, row in enumerate(rows, 1)
    ]
    exact = [row for row in ranked if row.rank and row.exact]
    inexact = sorted((row for row in ranked if row.rank and not row.exact), key=_seconds)
    fastest = {row.mechanism for row in (*exact[:CANDIDATES], *inexact[:CANDIDATES])}
    candidates = [point for point in points if point.mechanism in fastest]
    stretches = _stretches(candidates, priced.predict, memory_limit)
    summary = {
        "answer": _answer(ranked, stretches, priced.reading), "made_of": priced.made_of,
        "interval": priced.interval, "memory_bytes": memory_limit, "fastest": stretches,
    }  # fmt: skip
    if not any(row.rank for row in ranked):
        ranked.sort(key=lambda row: shortages.get(row.mechanism, inf))  # what needs least first
        reasons = (f"{row.mechanism} {row.skipped}" for row in ranked[:3])
        less = "; type a smaller --seq or --batch, or more --memory" * bool(shortages)
        raise CannotRunError(f"no mechanism can do what is asked here: {'; '.join(reasons)}{less}")
    return Report("recommend", ranked, summary, environment)


def gives_up(spec: Mechanism) -> str:
    """Return what a mechanism lacks compared with softmax attention; "" if nothing."""
    kind, difference = spec.to_softmax
    kind_text = KIND_TEXTS.get(kind, "another function")
    parts = [] if kind == "same" else [f"{kind_text}: {difference or 'it has no queries and keys'}"]
    abilities = spec.abilities
    parts += ["one length only"] * abilities.needs_seq_len
    parts += ["not causal"] * (not abilities.causal) + ["no decoding"] * (not abilities.decode)
    return "; ".join(parts)


#: Texts for relations to softmax attention; any other that is not "same" is another function.
KIND_TEXTS = dict.fromkeys(("approximates", "untrained"), "an approximation")


def _row(
    request: PointRequest, spec: Mechanism, predict: PointPredictor, memory_limit: int | None
) -> Any:
    """Return a mechanism's row; its rank is 0 until rows are sorted, None if it cannot run."""
    traits: dict[str, Any] = {"exact": spec.to_softmax[0] == "same", "gives_up": gives_up(spec)}
    try:
        predicted = _predict(request, predict)
        needed = needed_bytes(request)
    except AttnprofError as refusal:
        return replace(blank_of(RecommendRecord, request, str(refusal)), **traits)
    names = {field.name for field in fields(RecommendRecord)}
    values = {name: value for name, value in asdict(predicted).items() if name in names}
    fits = memory_limit is None or needed <= memory_limit
    shortage = f"needs {format_bytes(needed)}, there are {format_bytes(memory_limit or 0)}"
    return RecommendRecord(
        **{**values, "skipped": None if fits else shortage}, **traits, fits=fits,
        peak_bytes=predicted.peak_bytes_predicted, rank=0 if fits else None,
    )  # fmt: skip


def _predict(request: PointRequest, predict: PointPredictor) -> PredictRecord:
    """Return a prediction, extrapolated from two shorter lengths if its listing takes too long."""
    try:
        return predict(request, LISTING_S)
    except CannotRunError:
        for shares in SHORTER_LENGTHS:
            lengths = [max(SHORTEST_LENGTH, round(request.seq_len * share)) for share in shares]
            if len({*lengths}) == 1:
                break
            with suppress(AttnprofError):  # it may not take these lengths
                shorter, longer = (predict(replace(request, seq_len=n), LISTING_S) for n in lengths)
                return _extrapolate(request, shorter, longer)
        raise


def _extrapolate(
    request: PointRequest, shorter: PredictRecord, longer: PredictRecord
) -> PredictRecord:
    """Return the record of a longer request, with a time that grows with a power of the length.

    The power is that between two shorter lengths. The interval is twice as wide in logarithms.
    """
    growth = log((longer.time_s or 1) / (shorter.time_s or 1)) / log(
        longer.seq_len / shorter.seq_len
    )
    seconds = (longer.time_s or 0) * (request.seq_len / longer.seq_len) ** growth
    has_interval = longer.ci_high_s is not None and longer.time_s
    spread = ((longer.ci_high_s or 0.0) / (longer.time_s or 1.0)) ** 2 if has_interval else 1.0
    return replace(
        record_with_peak(request), device=longer.device, time_s=seconds, bound=longer.bound,
        ci_low_s=seconds / spread, ci_high_s=seconds * spread if has_interval else None,
    )  # fmt: skip


def _seconds(row: RecommendRecord) -> float:
    """Return a row's predicted seconds to three digits, as shown; infinite if it has none."""
    return _shown_seconds(float("inf") if row.time_s is None else row.time_s)


def _shown_seconds(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def _stretches(
    points: Sequence[PointRequest], predict: PointPredictor, memory_limit: int | None
) -> list[dict[str, Any]]:
    """Return stretches of lengths with the fastest mechanism and the fastest exact one of each."""
    stretches: list[dict[str, Any]] = []
    for done, multiple in enumerate(MULTIPLES):
        tell("predicting at other lengths", done, len(MULTIPLES))
        length = round(points[0].seq_len * multiple) if points else 0
        if not SHORTEST_LENGTH <= length <= LONGEST_LENGTH:
            continue
        times: dict[str, float] = {}
        for point in points:
            request = replace(point, seq_len=length)
            try:
                if memory_limit is None or needed_bytes(request) <= memory_limit:
                    seconds = _predict(request, predict).time_s or 0.0
                    times[point.mechanism] = _shown_seconds(seconds)
            except AttnprofError:
                continue
        if not times:
            continue
        exact = [name for name in times if registry.get(name).to_softmax[0] == "same"]
        exact_name = min(exact, key=times.__getitem__, default=None)
        fastest = min(times, key=times.__getitem__)
        if stretches and (stretches[-1]["exact"], stretches[-1]["fastest"]) == (
            exact_name,
            fastest,
        ):
            stretches[-1]["to"] = length
        else:
            stretches.append(
                {"from": length, "to": length, "exact": exact_name, "fastest": fastest}
            )
    return stretches


def _answer(
    rows: Sequence[RecommendRecord], stretches: Sequence[Mapping[str, Any]],
    reading: MachineReading,
) -> str:  # fmt: skip
    """Return a sentence: the mechanism to take, faster inexact ones, and other lengths' best."""
    ranked = [row for row in rows if row.rank]
    if not ranked:
        return ""
    exact = next((row for row in ranked if row.exact), None)
    length = plural(ranked[0].seq_len, "token")
    first = min(ranked, key=_seconds) if exact is None else exact
    bound = "at least " * (first.ci_high_s is None)
    time = f"{bound}{format_time(_seconds(first))}"
    rivals = [row for row in ranked if row.exact == first.exact]
    what = "the fastest that computes softmax attention"
    if exact is None:
        asked = any(row.exact for row in rows)
        what = f"the fastest{'; no exact one can do what is asked' * asked}"
    names = f"{first.mechanism}{alternative(rivals, first, reading)}"
    parts = [f"at {length} take {names}: {time}, {what}"]
    for kind_text in ("an approximation", "another function"):
        kind_rows = [row for row in ranked if row.gives_up.startswith(kind_text)]
        best = min(kind_rows, key=_seconds, default=first)
        if _seconds(best) < _seconds(first):
            times = format_ratio(_seconds(first), _seconds(best))
            by = " by these bounds" * bool(bound)
            parts.append(f"{best.mechanism}, {kind_text}, is {times} times as fast{by}")
    elsewhere = []
    for stretch in stretches:
        if exact and stretch["exact"] not in (None, first.mechanism):
            lengths = dict.fromkeys(f"{stretch[end]:,}" for end in ("from", "to"))
            elsewhere.append(f"{stretch['exact']} ({' to '.join(lengths)} tokens)")
    if elsewhere:
        parts.append(f"elsewhere the fastest exact one is {joined(elsewhere)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
