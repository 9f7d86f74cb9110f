"""Measurements of document 003's models: times of forward passes, and growth with length.

Times are processor time on one thread, so that other programs on the machine do not add to them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from attnprof.measure.batch import measure_points
from attnprof.measure.clocks import time_in_turns
from attnprof.measure.growth import counted_growth
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import MedianEstimate, estimate_median
from attnprof.measure.subject import Subject
from attnprof.papers.approximation.checks import CLASSES, TOKENS, VOCABULARY, WIDTH, attention
from attnprof.papers.approximation.figures import FAMILIES, HEAD_DIM, SHORT, subject
from attnprof.record import ProfileRecord

#: Three timed runs of each part after one that is not timed.
RUNS = Budget(samples=3, min_time_s=0.0, max_time_s=600.0, warmup_s=0.0, least=3)


def time_calls(
    calls: Mapping[Any, Callable[[], object]], budget: Budget
) -> dict[Any, MedianEstimate]:
    """Return the median time of each call, by its name; timed in turns, without gradients."""
    subjects = [
        Subject(None, lambda: None, lambda: None, torch.no_grad()(call)) for call in calls.values()
    ]
    return dict(zip(calls, map(estimate_median, time_in_turns(subjects, budget)), strict=True))


def model_times() -> dict[str, Any]:
    """Return seconds of a forward pass through each model, one sequence, as the sum of its parts.

    A model is an encoder and a decoder layer: two self-attentions of the class, standard attention
    across, two feed-forward networks and the logits.
    """
    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    logits = nn.Linear(WIDTH, VOCABULARY)
    runs = {name: attention(name, TOKENS, WIDTH) for name in CLASSES}
    parts = {"network": partial(network, x), "logits": partial(logits, x)}
    calls = {**parts, **{name: partial(run, x, x, x) for name, run in runs.items()}}
    alone = {name: estimate.median_s for name, estimate in time_calls(calls, RUNS).items()}
    shared = 2 * alone.pop("network") + alone.pop("logits")
    whole = {name: 2 * core_s + alone["standard"] + shared for name, core_s in alone.items()}
    return {"seconds": whole, "attention": alone}


def growth() -> list[dict[str, Any]]:
    """Return time, peak and matmul FLOPs of one head, by mechanism (Figures D-G) and length."""
    budget = Budget(samples=9, min_time_s=0.1, max_time_s=1.5, warmup_s=0.05)
    labels = ("standard", *(label for _, family in FAMILIES.values() for label in family))
    requests = {
        (label, length): PointRequest(
            subject(label).mechanism.name, length, 1, HEAD_DIM, scope="core", threads=1,
            params=subject(label).mechanism.params, budget=budget, check=False, counts=False,
        )
        for label in labels
        for length in SHORT
    }  # fmt: skip
    counts: dict[tuple[str, int], Any] = {}
    for label in labels:
        run = counted_growth(subject(label), SHORT)
        counts |= {(label, n): count for n, count in zip(run.seq_lens, run.values, strict=True)}
    report = measure_points(list(requests.values()), isolate=False)
    rows = []
    for (label, length), record in zip(requests, report.records, strict=True):
        assert isinstance(record, ProfileRecord)
        time_s = estimate_median(record.cpu_times_s or [])
        rows.append({
            "mechanism": label, "seq_len": length, "median_s": time_s.median_s,
            "ci_low_s": time_s.low_s, "ci_high_s": time_s.high_s,
            "peak_bytes": record.peak_bytes_measured,
            "matmul_flops": counts.get((label, length)),
        })  # fmt: skip
    return rows


MEASUREMENTS: dict[str, Callable[[], Any]] = {"model_times": model_times, "growth": growth}
