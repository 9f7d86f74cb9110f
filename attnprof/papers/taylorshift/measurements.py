"""What only a clock, an allocator or a sampler can say of 004.

Here time and memory over length: Figure 1's forms, one head, batch 1, and Figure 2's encoders.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import log
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.measure.clocks import time_in_turns
from attnprof.measure.measured_crossovers import first_crossing, meet, peaks_of
from attnprof.measure.memory import measure_peak
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import estimate_median
from attnprof.measure.subject import Subject, build_subject
from attnprof.models import build, preset
from attnprof.models.inputs import example_inputs
from attnprof.papers.taylorshift.formulas import FORMS, first_lengths
from attnprof.papers.taylorshift.norms import fit_norms, measure_norms
from attnprof.registry import get
from attnprof.workload import Workload

STANDARD, DIRECT, EFFICIENT = MODELS = ("standard", *FORMS)
#: First and last length timed, by head width; in between powers of two and the middle of two.
SPANS = {8: (16, 1024), 16: (32, 2048), 32: (128, 4096), 64: (512, 8192), 128: (512, 8192)}
#: Where the curves do not meet within the span they are continued to this many times its end.
CONTINUED = 4
#: Lengths timed around the two that hold the crossing, from a little below to a little above.
INSIDE, EDGE = 6, 1.15
COLUMNS = ("d", "N0", "N1", "N0hat", "N0hat_low", "N0hat_high", "extrapolated", "N1hat")
FORMS_BUDGET = Budget(samples=400, max_time_s=1.5, warmup_s=0.1, least=5)
#: The document's text model (Table 7, IMDB) between its ends; 8 heads make d = 32 of it.
ENCODER = preset("004-imdb-byte-standard").config.with_(
    num_heads=8, embedding="rows", positions="none", class_token=False, num_classes=None,
    final_norm=False,
)  # fmt: skip
LENGTHS = (128, 256, 512, 750, 1000, 1250, 1500, 1800, 2000, 2500)
ENCODERS_BUDGET = Budget(samples=40, max_time_s=4.0, warmup_s=0.1, least=3)


def lengths(first: int, last: int) -> list[int]:
    """Powers of two and one and a half times them, both ends included."""
    powers = [first * 2**k for k in range((last // first).bit_length())]
    return sorted({n for p in powers for n in (p, 3 * p // 2) if n <= last})


def measure_crossovers(
    spans: Mapping[int, tuple[int, int]] = SPANS, budget: Budget = FORMS_BUDGET
) -> dict[str, Any]:
    """Both crossovers by head width, predicted and measured, and the curves they lie on.

    ``N0hat`` is where the two median times are equal, ``N0hat_low`` and ``N0hat_high`` where the
    ends of the medians' intervals are; ``extrapolated`` where curves fitted to the times met
    beyond the last length timed. ``N1hat`` is exact: the first length at which the efficient
    form's measured peak is not above the direct form's.
    """
    found: dict[str, Any] = {name: [] for name in (*COLUMNS, "curves")}
    for d, span in spans.items():
        curves = [
            {"d": d, "form": form, "seq_len": n, **clocked(times), "peak_bytes": _peak(form, d, n),
             "extrapolated": False}
            for n in lengths(*span)
            for form, times in zip(FORMS, _times(d, n, budget), strict=True)
        ]  # fmt: skip
        column = {"d": d, **first_lengths(d), **_speed_crossing(d, curves, budget)}
        column["N1hat"] = memory_crossing(d)
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


def _peak(form: str, d: int, seq_len: int) -> int:
    return peaks_of(get(form), Workload(seq_len, 1, d), "core")(seq_len)


def _speed_crossing(
    d: int, curves: Sequence[Mapping[str, Any]], budget: Budget
) -> dict[str, float | bool]:
    """Where the times are equal: on a line through the ratios' logarithms, near both lengths."""
    times = {(row["form"], row["seq_len"]): row["time_s"] for row in curves}
    sizes = sorted({row["seq_len"] for row in curves})
    bracket = _bracket({n: times[EFFICIENT, n] / times[DIRECT, n] for n in sizes})
    if bracket is None:
        end = meeting_of(*(_fit(curves, form) for form in FORMS))
        return {"N0hat": end, "N0hat_low": end, "N0hat_high": end, "extrapolated": True}
    low, high = bracket[0] / EDGE, bracket[1] * EDGE
    steps = (low * (high / low) ** (k / (INSIDE - 1)) for k in range(INSIDE))
    ratios = {}  # direct by efficient, pair by pair
    for n in sorted({8 * round(step / 8) for step in steps}):
        pairs = zip(*_times(d, n, budget), strict=True)
        ratios[n] = estimate_median([direct / efficient for direct, efficient in pairs])
    middle, first, last = (
        min(high, max(low, root({n: getattr(known, place) for n, known in ratios.items()})))
        for place in ("median_s", "high_s", "low_s")
    )
    return {"N0hat": middle, "N0hat_low": first, "N0hat_high": last, "extrapolated": False}


def _bracket(ratios: Mapping[int, float]) -> tuple[int, int] | None:
    """The lengths between which ratios fall below 1 for good; None where they do not."""
    last = [(a, b) for a, b in pairwise(ratios) if ratios[a] > 1 >= ratios[b]]
    return last[-1] if last and ratios[max(ratios)] <= 1 else None


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
    """The largest length at which two fitted polynomials are equal; CannotRunError for none."""
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


def memory_crossing(d: int) -> int:
    """The first length at which the efficient form's measured peak is not the larger one."""
    direct, efficient = map(get, FORMS)
    found = meet(
        direct, efficient, Workload(1, 1, d), "core", [d], ["measured"], ["memory"], environment={}
    )
    row: Any = found.records[0]
    return int(row.first_seq_len)


def encoder(mechanism: str, seq_len: int) -> Subject:
    """A pre-norm encoder with drawn weights, and its call on one sequence without gradients."""
    import torch

    torch.manual_seed(0)
    config = ENCODER.with_(attention=mechanism, seq_len=seq_len)
    model, tokens = build(config), example_inputs(config)
    call = torch.no_grad()(lambda: model(*tokens))
    return Subject(model, lambda: None, lambda: None, call)


@cache
def peak(mechanism: str, seq_len: int) -> int:
    """Most bytes an encoder holds over its weights and input, by the allocator."""
    import torch

    return measure_peak(encoder(mechanism, seq_len), "cpu", torch).bytes


def measure_encoder(
    sizes: Sequence[int] = LENGTHS, budget: Budget = ENCODERS_BUDGET
) -> dict[str, Any]:
    """Memory and time of the three encoders, their ratios efficient by standard, crossovers.

    ``memory_crossover`` is exact: the first length at which the efficient encoder's peak is not
    above the standard one's. ``time_crossover`` lies on a line between two measured lengths.
    """
    peak.cache_clear()
    rows: list[dict[str, Any]] = []
    for n in sizes:
        timed = time_in_turns([encoder(name, n) for name in MODELS], budget)
        rows += [
            {"mechanism": name, "seq_len": n, **clocked(times), "peak_bytes": peak(name, n)}
            for name, times in zip(MODELS, timed, strict=True)
        ]
    known = {(row["mechanism"], row["seq_len"]): row for row in rows}
    memory, time = (
        {n: known[EFFICIENT, n][name] / known[STANDARD, n][name] for n in sizes}
        for name in ("peak_bytes", "time_s")
    )

    def larger(n: int) -> int:
        return peak(STANDARD, n) - peak(EFFICIENT, n)

    near = crossing(memory)
    return {
        "seq_len": list(sizes),
        "memory_ratio": list(memory.values()),
        "time_ratio": list(time.values()),
        "memory_crossover": near and first_crossing(larger, round(near)),
        "time_crossover": crossing(time),
        "curves": rows,
        "model": {"depth": ENCODER.num_layers, "d_model": ENCODER.d_model,
                  "num_heads": ENCODER.num_heads, "head_dim": ENCODER.d_model // ENCODER.num_heads,
                  "mlp_ratio": ENCODER.hidden // ENCODER.d_model, "batch_size": 1},
    }  # fmt: skip


def crossing(ratios: Mapping[int, float]) -> float | None:
    """Where ratios by length fall below 1 for good; None where they do not."""
    bracket = _bracket(ratios)
    return bracket and root({n: ratios[n] for n in bracket})


#: In this order: the fits are to the norms.
MEASUREMENTS: dict[str, Callable[[], Any]] = {
    "crossovers": measure_crossovers, "encoder": measure_encoder, "norms": measure_norms,
    "fits": fit_norms,
}  # fmt: skip
