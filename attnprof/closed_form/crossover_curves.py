"""Costs over lengths around their crossovers: what a figure of ``crossover`` draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from attnprof.closed_form.crossover import Contest, Meeting
from attnprof.closed_form.lengths import KnownCost, Lengths
from attnprof.errors import CannotRunError, RequestError
from attnprof.record import CrossoverRecord

#: Points of a curve, and how far around the crossovers it goes.
POINTS = 64
AROUND = 8
WITHOUT_CROSSOVER = 1024


def curves(
    meeting: Meeting, matches: Sequence[Contest], records: Sequence[CrossoverRecord]
) -> list[dict[str, Any]]:
    """Both costs of each contest at each head width, at lengths where both are known."""
    found: list[dict[str, Any]] = []
    widths = dict.fromkeys(r.head_dim for r in records if r.head_dim is not None)
    for contest, head_dim in product(matches, widths):
        marks = [x for r in records if r.head_dim == head_dim for x in r.all_crossings if x >= 1]
        try:
            costs, known = contest.at(head_dim), contest.lengths(head_dim)
        except (RequestError, CannotRunError):
            continue  # a row says why
        lengths = _lengths(marks, known)
        for mechanism, cost in zip((meeting.a, meeting.b), costs, strict=True):
            points = dict(_points(meeting, cost, head_dim, lengths))
            curve = {
                "metric": contest.metric, "unit": contest.unit, "kind": contest.kind,
                "mechanism": mechanism.name, "head_dim": head_dim, "seq_len": list(points),
                "value": list(points.values()),
            }  # fmt: skip
            found += [curve] if points else []
    return found


def _points(
    meeting: Meeting, cost: KnownCost, head_dim: int, lengths: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Lengths and costs, without the lengths a mechanism refuses."""
    for length in lengths:
        try:
            yield length, cost.of(meeting.workload.with_(seq_len=length, head_dim=head_dim))
        except RequestError:
            continue


def _lengths(marks: Sequence[float], known: Lengths) -> list[int]:
    """Known lengths around the crossovers; without one, around a usual length or all there are."""
    first, last = known.stretches[0][0], known.stretches[-1][1]
    marks = marks or [WITHOUT_CROSSOVER]
    low, high = max(1.0, min(marks) / AROUND), max(marks) * AROUND
    low, high = max(low, float(first)), high if last is None else min(high, float(last))
    if low > high:  # what is known lies elsewhere
        low, high = float(first), float(last or first * AROUND**2)
    steps = ((high / low) ** (i / (POINTS - 1)) for i in range(POINTS))
    found = {known.after(round(low * step)) for step in steps}
    return sorted(length for length in found if length is not None)
