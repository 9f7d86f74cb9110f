"""Measurements for document 004: time and memory over length of Figures 1 and 2.

Figure 1 has one head of each form at batch 1, Figure 2 encoders. The length at which two calls take
equally long is searched with two settings of the C library's allocator: ``kept`` frees nothing, as
GPUs' allocators do; by ``default`` large blocks go back to the system after every call, so that
page faults are part of the time.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

from attnprof.crossovers.peaks import peak_of, search_near
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting
from attnprof.crossovers.time_search import TimeSearch
from attnprof.measure.allocator import memory_kept
from attnprof.measure.clocks import threads, time_in_turns
from attnprof.measure.environment import describe_environment, git_state
from attnprof.measure.memory import measure_peak
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import estimate_median
from attnprof.measure.subject import Subject, build_subject
from attnprof.models import build, preset
from attnprof.models.embeddings import example_inputs
from attnprof.papers.taylorshift.checks_costs import FORMS, first_lengths
from attnprof.papers.taylorshift.checks_sizes import measure_norms
from attnprof.registry import get
from attnprof.workload import Workload

STANDARD, DIRECT, EFFICIENT = MODELS = ("standard", *FORMS)
#: The allocator's settings, and the endings of names of results measured with each.
KEPT, DEFAULT = ALLOCATORS = ("kept", "default")
ENDINGS = {KEPT: "", DEFAULT: "_default"}
#: Head widths that are timed: the widths of Table 2, and more between them for the law.
TIMED = (8, 12, 16, 24, 32, 48, 64, 128)
#: Lengths at which a call should take more seconds than this are not timed.
MOST_S = 3.0
#: Samples whose extremes hold the median with 95 %.
ENOUGH = 6
#: The document's text model (Table 7, IMDB) between its ends; 8 heads make d = 32 of it.
ENCODER = preset("004-imdb-byte-standard").config.with_(
    num_heads=8, embedding="rows", positions="none", class_token=False, num_classes=None,
    final_norm=False,
)  # fmt: skip
LENGTHS = (128, 256, 512, 750, 1000, 1250, 1500, 2000)
ENCODERS_BUDGET = Budget(samples=20, max_time_s=1.5, warmup_s=0.1, least=6)
#: Seconds of calls of several sides in turns, at a length.
Times = Callable[[int, Budget], list[list[float]]]


def _where() -> dict[str, Any]:
    """Return the machine, how its clock is read, and the commit of this code."""
    with threads(1):
        environment = describe_environment("cpu")
    return {**environment, "clock": "thread_time_ns", "git": git_state(Path(__file__).parent)}


# -- crossings in time -----------------------------------------------------------------
def crossings(
    column: str, times: Times, names: Sequence[str], guesses: Sequence[float], most_s: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the length from which on the first side is faster, and a row a timed length and side.

    The fields are the last crossing under ``column``, its interval of 95 % under ``_low`` and
    ``_high``, and the length and calls of the search. Names of the default allocator's fields end
    in ``_default``. The crossing or an end is None if it is unknown.
    """

    def compare(length: int, budget: Budget) -> tuple[list[float], list[float]]:
        first, second = times(length, enough(budget))
        return first, second

    fields: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for setting in ALLOCATORS:
        search = TimeSearch(compare, _usual, guesses, most_s)
        with _allocator(setting):
            search.run()
        last = search.crossings[-1] if search.crossings else None
        at, low, high = (last.at, last.low, last.high) if last else (None, None, None)
        guesses = [at] if at else guesses
        of_setting = {
            column: at, f"{column}_low": low, f"{column}_high": high,
            "longest": max(search.times), "calls": search.timed_calls, "end": search.end,
        }  # fmt: skip
        fields |= {f"{name}{ENDINGS[setting]}": value for name, value in of_setting.items()}
        for length, pair in sorted(search.times.items()):
            for name, sample in zip(names, (pair.a_s, pair.b_s), strict=True):
                row = {"allocator": setting, "form": name, "seq_len": length, **_clocked(sample)}
                rows.append(row)
    return fields, rows


def _allocator(setting: str) -> AbstractContextManager[object]:
    return memory_kept() if setting == KEPT else nullcontext()


def _usual(length: int) -> int:
    """Return the next length that is a multiple of a kernel's vectors."""
    step = 8 if length >= 64 else 4
    return -(-length // step) * step


def enough(budget: Budget) -> Budget:
    """Return the budget with at least as many samples as an interval of 95 % needs."""
    return replace(budget, least=max(budget.least, ENOUGH), samples=max(budget.samples, ENOUGH))


def _clocked(times: Sequence[float]) -> dict[str, float]:
    """Return a curve's fields for times at a point: median and its interval's coverage."""
    time_s = estimate_median(times)
    ends = {"time_low_s": time_s.low_s, "time_high_s": time_s.high_s}
    return {"time_s": time_s.median_s, **ends, "coverage": time_s.coverage, "samples": time_s.count}


# -- one head --------------------------------------------------------------------------
def measure_crossovers(widths: Sequence[int] = TIMED, most_s: float = MOST_S) -> dict[str, Any]:
    """Return both crossovers by head width, predicted and measured, and the measured times.

    ``N0hat`` is the length at which both forms take equally long while freed memory is kept, with
    an interval of 95 % from ``N0hat_low`` to ``N0hat_high``; ``N0hat_default`` is that with the
    allocator's defaults. It is None if there is no crossing up to ``longest``, the longest timed
    length. ``N1hat`` is exact: the first length at which the efficient form's measured peak is not
    above the direct form's.
    """
    columns: dict[str, Any] = {"where": _where(), "d": [], "N0": [], "N1": [], "N1hat": []}
    rows: list[dict[str, Any]] = []
    for d in widths:
        column = {"d": d, **first_lengths(d), "N1hat": memory_crossing(d)}
        guesses = [float(column["N0"])]
        searched, curves = crossings("N0hat", partial(_times, d), FORMS, guesses, most_s)
        rows += ({"d": d, **row} for row in curves)
        for key, value in (column | searched).items():
            columns.setdefault(key, []).append(value)

    @cache
    def peak_bytes(form: str, d: int, seq_len: int) -> int:
        return peak_of(get(form), Workload(seq_len, 1, d), "core")

    for row in rows:
        row["peak_bytes"] = peak_bytes(row["form"], row["d"], row["seq_len"])
    return {**columns, "curves": rows}


def _times(d: int, seq_len: int, budget: Budget) -> list[list[float]]:
    requests = [PointRequest(form, seq_len, 1, d, scope="core") for form in FORMS]
    return time_in_turns([build_subject(request) for request in requests], budget)


def memory_crossing(d: int) -> int:
    """Return the first length at which the efficient form's measured peak is not the larger one."""
    direct, efficient = map(get, FORMS)
    meeting = Meeting(direct, efficient, Workload(1, 1, d))
    report = crossover_report(meeting, [d], ["measured"], ["memory"], environment={})
    row: Any = report.records[0]
    return int(row.first_seq_len)


# -- encoders --------------------------------------------------------------------------
def encoder(mechanism: str, seq_len: int) -> Subject:
    """Return a pre-norm encoder with drawn weights, called on one sequence without gradients."""
    import torch

    torch.manual_seed(0)
    config = ENCODER.with_(attention=mechanism, seq_len=seq_len)
    model, tokens = build(config), example_inputs(config)
    call = torch.no_grad()(lambda: model(*tokens))
    return Subject(model, lambda: None, lambda: None, call)


@cache
def peak(mechanism: str, seq_len: int) -> int:
    """Return the most bytes an encoder holds over its weights and input, by the allocator."""
    import torch

    return measure_peak(encoder(mechanism, seq_len), "cpu", torch).bytes


def _encoders_in_turns(names: Sequence[str], seq_len: int, budget: Budget) -> list[list[float]]:
    return time_in_turns([encoder(name, seq_len) for name in names], budget)


def measure_encoder(
    sizes: Sequence[int] = LENGTHS, budget: Budget = ENCODERS_BUDGET, most_s: float = MOST_S
) -> dict[str, Any]:
    """Return memory and time of the three encoders, their ratios efficient by standard, crossovers.

    ``memory_crossover`` is exact: the first length at which the efficient encoder's peak is not
    above the standard one's. At ``time_crossover`` both take equally long while freed memory is
    kept, with an interval of 95 %, at ``time_crossover_default`` with the allocator's defaults.
    Ratios are with freed memory kept.
    """
    peak.cache_clear()
    rows: list[dict[str, Any]] = []
    for setting in ALLOCATORS:
        with _allocator(setting):
            for n in sizes:
                turns = _encoders_in_turns(MODELS, n, budget)
                rows += [
                    {"mechanism": name, "allocator": setting, "seq_len": n, **_clocked(times)}
                    for name, times in zip(MODELS, turns, strict=True)
                ]
    for row in rows:
        row["peak_bytes"] = peak(row["mechanism"], row["seq_len"])
    kept = {(r["mechanism"], r["seq_len"]): r for r in rows if r["allocator"] == KEPT}
    memory, time = (
        {n: kept[EFFICIENT, n][name] / kept[STANDARD, n][name] for n in sizes}
        for name in ("peak_bytes", "time_s")
    )

    def peaks(n: int) -> tuple[int, int]:
        return peak(STANDARD, n), peak(EFFICIENT, n)

    near, guess, sides = crossing(memory), crossing(time), (STANDARD, EFFICIENT)
    times = partial(_encoders_in_turns, sides)
    searched, _ = crossings("time_crossover", times, sides, [guess] if guess else [], most_s)
    model = {
        "depth": ENCODER.num_layers, "d_model": ENCODER.d_model, "num_heads": ENCODER.num_heads,
        "head_dim": ENCODER.d_model // ENCODER.num_heads,
        "mlp_ratio": ENCODER.hidden // ENCODER.d_model, "batch_size": 1,
    }  # fmt: skip
    return {
        "where": _where(), "seq_len": list(sizes), "memory_ratio": list(memory.values()),
        "time_ratio": list(time.values()),
        "memory_crossover": near and search_near(peaks, round(near)).crossings[-1],
        **searched, "curves": rows, "model": model,
    }  # fmt: skip


def crossing(ratios: Mapping[int, float]) -> float | None:
    """Return about the length from which on ratios stay below 1; None if they do not.

    It is the zero of a straight line between (log length, log ratio) of two neighbours.
    """
    falls = [(a, b) for a, b in pairwise(ratios) if ratios[a] > 1 >= ratios[b]]
    if not falls or ratios[max(ratios)] > 1:
        return None
    a, b = falls[-1]
    share = log(ratios[a]) / (log(ratios[a]) - log(ratios[b]))
    return float(a * (b / a) ** share)


MEASUREMENTS: dict[str, Callable[[], Any]] = {
    "crossovers": measure_crossovers, "encoder": measure_encoder, "norms": measure_norms,
}  # fmt: skip
