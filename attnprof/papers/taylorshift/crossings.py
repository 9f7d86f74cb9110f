"""Figure 1's measurements: time and memory of both forms over length, one head, batch 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.measure.clocks import time_in_turns
from attnprof.measure.measured_crossovers import first_crossing, peaks_of
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import estimate_median
from attnprof.measure.subject import build_subject
from attnprof.papers.taylorshift.formulas import FORMS, first_lengths
from attnprof.registry import get
from attnprof.workload import Workload

DIRECT, EFFICIENT = FORMS
#: First and last length timed, by head width; in between powers of two and the middle of two.
SPANS = {8: (16, 1024), 16: (32, 2048), 32: (128, 4096), 64: (512, 8192), 128: (512, 8192)}
#: Where the curves do not meet within the span they are continued to this many times its end.
CONTINUED = 4
#: Lengths timed around the two that hold the crossing, from a little below to a little above.
INSIDE, EDGE = 6, 1.15
COLUMNS = ("d", "N0", "N1", "N0hat", "N0hat_low", "N0hat_high", "extrapolated", "N1hat")
BUDGET = Budget(samples=400, max_time_s=1.5, warmup_s=0.1, least=5)


def lengths(first: int, last: int) -> list[int]:
    """Powers of two and one and a half times them, both ends included."""
    powers = [first * 2**k for k in range((last // first).bit_length())]
    return sorted({n for p in powers for n in (p, 3 * p // 2) if n <= last})


def measure_crossovers(
    spans: Mapping[int, tuple[int, int]] = SPANS, budget: Budget = BUDGET
) -> dict[str, Any]:
    """Both crossovers by head width, predicted and measured, and the curves they lie on.

    ``N0hat`` is where the two median times are equal, ``N0hat_low`` and ``N0hat_high`` where the
    ends of the medians' intervals are; ``extrapolated`` where curves fitted to the times met
    beyond the last length timed. ``N1hat`` is exact: the first length at which the efficient
    form's measured peak is not above the direct form's.
    """
    found: dict[str, Any] = {name: [] for name in (*COLUMNS, "curves")}
    for d, span in spans.items():
        curves = [row for n in lengths(*span) for row in _point(d, n, budget)]
        column = {"d": d, **first_lengths(d), **_speed_crossing(d, curves, budget)}
        column["N1hat"] = memory_crossing(d, first_lengths(d)["N1"])
        for name, value in column.items():
            found[name].append(value)
        found["curves"] += curves
        if column["extrapolated"]:
            found["curves"] += list(_continued(d, curves))
    return found


def _times(d: int, seq_len: int, budget: Budget) -> list[list[float]]:
    asked = [PointRequest(form, seq_len, 1, d, scope="core") for form in FORMS]
    return time_in_turns([build_subject(request) for request in asked], budget)


def clocked(times: Sequence[float]) -> dict[str, float]:
    """What a curve has of the times at a point: their median and its interval."""
    known = estimate_median(times)
    ends = {"time_low_s": known.low_s, "time_high_s": known.high_s}
    return {"time_s": known.median_s, **ends, "samples": known.count}


def _point(d: int, seq_len: int, budget: Budget) -> Iterator[dict[str, Any]]:
    for form, times in zip(FORMS, _times(d, seq_len, budget), strict=True):
        at = {"d": d, "form": form, "seq_len": seq_len}
        peak = _peak(form, d, seq_len)
        yield {**at, **clocked(times), "peak_bytes": peak, "extrapolated": False}


def _peak(form: str, d: int, seq_len: int) -> int:
    return peaks_of(get(form), Workload(seq_len, 1, d), "core")(seq_len)


def _speed_crossing(
    d: int, curves: Sequence[Mapping[str, Any]], budget: Budget
) -> dict[str, float | bool]:
    """Where the times are equal: a straight line through the ratios' logarithms around there.

    It stays around the two lengths that hold the crossing.
    """
    times = {(row["form"], row["seq_len"]): row["time_s"] for row in curves}
    sizes = sorted({row["seq_len"] for row in curves})
    dearer = [times[DIRECT, n] > times[EFFICIENT, n] for n in sizes]
    brackets = [(a, b) for (a, x), (b, y) in pairwise(zip(sizes, dearer, strict=True)) if y > x]
    if not brackets or not dearer[-1]:
        end = meeting_of(*(_fit(curves, form) for form in FORMS))
        return {"N0hat": end, "N0hat_low": end, "N0hat_high": end, "extrapolated": True}
    low, high = brackets[-1][0] / EDGE, brackets[-1][1] * EDGE
    inside = sorted(
        {8 * round(low * (high / low) ** (k / (INSIDE - 1)) / 8) for k in range(INSIDE)}
    )
    ratios = {n: _ratio(*_times(d, n, budget)) for n in inside}
    middle, first, last = (
        min(high, max(low, root({n: r[place] for n, r in ratios.items()}))) for place in range(3)
    )
    return {"N0hat": middle, "N0hat_low": first, "N0hat_high": last, "extrapolated": False}


def _ratio(direct: Sequence[float], efficient: Sequence[float]) -> tuple[float, float, float]:
    """Direct by efficient, pair by pair: the median, and its interval's high and low end."""
    known = estimate_median([a / b for a, b in zip(direct, efficient, strict=True)])
    return known.median_s, known.high_s, known.low_s


def root(ratios: Mapping[int, float]) -> float:
    """The length at which a straight line through (log length, log ratio) is 0."""
    import numpy as np

    slope, height = np.polyfit([log(n) for n in ratios], [log(r) for r in ratios.values()], 1)
    return float(np.exp(-height / slope))


def _fit(curves: Sequence[Mapping[str, Any]], form: str) -> Any:
    """A parabola through the direct form's times, a line through the efficient one's."""
    import numpy as np

    rows = [row for row in curves if row["form"] == form]
    sizes, times = ([row[name] for row in rows] for name in ("seq_len", "time_s"))
    degree = 2 if form == DIRECT else 1
    return np.polynomial.Polynomial.fit(sizes, times, degree).convert()


def meeting_of(direct: Any, efficient: Any) -> float:
    """The largest length at which two fitted polynomials have the same value.

    Raises :class:`CannotRunError` where they never do.
    """
    roots = [r.real for r in (direct - efficient).roots() if abs(r.imag) < 1e-9 * abs(r)]
    if not roots or max(roots) <= 0:
        raise CannotRunError("the fitted times of both forms do not meet at any length")
    return float(max(roots))


def _continued(d: int, curves: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The fitted curves from the last length timed on, and one more peak: it is beyond N1hat."""
    last = max(row["seq_len"] for row in curves)
    for form in FORMS:
        fitted = _fit(curves, form)
        for place, n in enumerate(lengths(last, CONTINUED * last)):
            peak = _peak(form, d, n) if place == 1 else None
            yield {"d": d, "form": form, "seq_len": n, "time_s": float(fitted(n)),
                   "time_low_s": None, "time_high_s": None, "samples": 0, "peak_bytes": peak,
                   "extrapolated": True}  # fmt: skip


def memory_crossing(d: int, near: int) -> int:
    """The first length at which the efficient form's measured peak is not the larger one.

    Looked for around the closed forms' crossing, which itself is looked for around ``near``.
    """
    workload = Workload(near, 1, d)

    def predicted(n: int) -> int:
        direct, efficient = (get(f).cost(workload.with_(seq_len=n), "core").peak() for f in FORMS)
        return int(direct - efficient)

    direct, efficient = (peaks_of(get(form), workload, "core") for form in FORMS)
    guess = first_crossing(predicted, near)
    return first_crossing(lambda n: direct(n) - efficient(n), guess)
