"""003: what only a clock can say."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from attnprof.papers.approximation.checks_results import VOCABULARY
from attnprof.papers.approximation.listing import CLASSES, TOKENS, WIDTH, attention

RUNS = 3


def _median(call: Callable[[], object]) -> float:
    """Seconds, the median of a few runs after one to warm up."""
    times = []
    for run in range(RUNS + 1):
        start = time.perf_counter()
        call()
        if run:
            times.append(time.perf_counter() - start)
    return median(times)


def model_times() -> dict[str, Any]:
    """Seconds of a forward pass through each model, one sequence, one thread.

    Made of its parts: the class twice and the standard class across, two feed-forward networks,
    and the logits.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return _times()
    finally:
        torch.set_num_threads(threads)


def _times() -> dict[str, Any]:
    import torch
    from torch import nn

    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    logits = nn.Linear(WIDTH, VOCABULARY)
    shared = 2 * _median(partial(network, x)) + _median(partial(logits, x))
    runs = {name: attention(name, TOKENS, WIDTH) for name in CLASSES}
    alone = {name: _median(partial(run, x, x, x)) for name, run in runs.items()}
    whole = {name: 2 * own + alone["standard"] + shared for name, own in alone.items()}
    return {"seconds": whole, "attention": alone}


MEASUREMENTS: dict[str, Callable[[], Any]] = {"model_times": model_times}
