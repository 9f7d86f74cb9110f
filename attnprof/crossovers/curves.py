"""Costs over lengths, or over another axis, as the figures of ``crossover`` take them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

from attnprof.costs import Number
from attnprof.crossovers.axis import curve
from attnprof.crossovers.lengths import Lengths
from attnprof.errors import CannotRunError, RequestError
from attnprof.record import CrossoverRecord

if TYPE_CHECKING:
    from attnprof.crossovers.sides import Contest, Meeting

#: Points of a curve; the factor by which it goes beyond crossings; its length without one.
POINTS = 64
AROUND = 8
WITHOUT_CROSSOVER = 1024


def curves_of(
    meeting: "Meeting", matches: Sequence["Contest"], records: Sequence[CrossoverRecord]
) -> list[dict[str, Any]]:
    """Return both costs of each contest at each given size, where both are known."""
    curves: list[dict[str, Any]] = []
    axis = meeting.axis
    for contest, given in product(matches, dict.fromkeys(r.given for r in records)):
        rows = [r for r in records if r.given == given]
        marks = [x for r in rows for x in r.all_crossings if x >= 1]
        try:
            known = contest.lengths(given, axis)
        except (RequestError, CannotRunError):
            continue  # a row says why
        places: Iterable[int] = _lengths(marks, known)
        searched = [
            r.searched[0] for r in rows if r.method == "searched" and r.kind == contest.kind
        ]
        if searched and axis.name != "seq":
            places = axis.values(meeting.workload, given)
        both: list[dict[int, Number]] = [{}, {}]
        for place, points in enumerate(both):
            for n in places:
                with suppress(RequestError):  # a value that the mechanism refuses
                    sides, workload = meeting.at(n, given)
                    points[n] = contest.at(given)[place].of(sides, workload)
        what = {"metric": contest.metric, "unit": contest.unit, "kind": contest.kind}
        curves += [
            curve(axis, given, points, **what, mechanism=side.name)
            for side, points in zip((meeting.a, meeting.b), both, strict=True)
            if points
        ]
    return curves


def seen_curves(
    meeting: "Meeting", given: int, seen: Mapping[int, Sequence[Any]], **what: Any
) -> list[dict[str, Any]]:
    """Return both sides' costs at the places that a search looked at."""
    return [
        curve(meeting.axis, given, {n: seen[n][place] for n in sorted(seen)}, **what,
              mechanism=side.name)
        for place, side in enumerate((meeting.a, meeting.b))
        if seen
    ]  # fmt: skip


def _lengths(marks: Sequence[float], known: Lengths) -> list[int]:
    """Return known lengths around the crossings; without one, around a usual length."""
    first, last = known.stretches[0][0], known.stretches[-1][1]
    marks = marks or [WITHOUT_CROSSOVER]
    low, high = max(1.0, min(marks) / AROUND), max(marks) * AROUND
    low, high = max(low, float(first)), high if last is None else min(high, float(last))
    if low > high:  # what is known lies elsewhere
        low, high = float(first), float(last or first * AROUND**2)
    steps = ((high / low) ** (i / (POINTS - 1)) for i in range(POINTS))
    lengths = {known.after(round(low * step)) for step in steps}
    return sorted(length for length in lengths if length is not None)


def ratios(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the first mechanism's cost over the second's, where curves have both."""
    by_place: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in curves:
        x = "at" if "at" in one else "seq_len"
        names = ("metric", "unit", "kind", "head_dim" if x == "seq_len" else "seq_len")
        place = {name: one[name] for name in names}
        points = dict(zip(one[x], one["value"], strict=True))
        first = by_place.setdefault(tuple(place.values()), {**place, "points": points})
        if first["points"] is not points:
            numerators = first.pop("points")
            both = {n: numerators[n] / points[n] for n in numerators if points.get(n)}
            first |= {x: list(both), "value": list(both.values())}
    return [ratio for ratio in by_place.values() if "value" in ratio]
