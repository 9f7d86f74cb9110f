"""Check predictions on a device: predict and time random layers that nothing was fitted to.

A calibration times single operations only. Its last step draws layers at random, predicts each, and
times it in a process of its own as ``profile --isolate`` does, since the calibrating process has
kept memory and pays fewer page faults. Each layer is timed twice and the faster time counts:
disturbances only add to it. Entry point: :func:`check_layers`.

The residual of a layer is the logarithm of measured over predicted seconds. The median residual of
a phase is its bias, by which later predictions are corrected. The score of a layer is the distance
of its residual from the median of its phase's other layers. With 39 layers the second largest score
bounds that of the next layer in 38 of 40 cases, whatever the distribution: split conformal
prediction, with each layer held out in turn.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import exp, log
from random import Random

from attnprof import registry
from attnprof.device.calibration import CheckedLayer, SelfCheck
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.batch import measure_apart
from attnprof.measure.clocks import Clock, sample
from attnprof.measure.point import fit
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import estimate_median
from attnprof.measure.subject import build_subject, refusing
from attnprof.processes.progress import tell

#: Layers of each phase: 39 in all, so that the worst may lie beyond the bound; most points drawn.
LAYERS, MAX_POINTS = 13, 400
#: Range of a layer's predicted seconds; the most processor seconds to list its operations.
SHORTEST_S, LONGEST_S, SEEN_S = 5e-5, 0.15, 1.0
#: Range of lengths; numbers of heads; head widths.
LENGTHS, HEADS, WIDTHS = (32, 4096), (1, 2, 3, 4, 6, 8, 12), (16, 24, 32, 40, 48, 64, 80, 96, 128)
PHASES = ("forward", "train", "decode")
BUDGET = Budget(samples=8, min_time_s=0.05, max_time_s=0.3, warmup_s=0.1, least=3)

#: A function that returns a point's predicted seconds, given the most processor seconds to list it.
Predict = Callable[[PointRequest, float], float]
#: A function that returns a point's measured seconds.
Measure = Callable[[PointRequest], float]


def drawn_points(dtype: str, device: str, seed: int = 0) -> Iterator[PointRequest]:
    """Yield random points over all mechanisms, phases and sizes, endlessly; a seed fixes them."""
    random = Random(seed)  # noqa: S311 - which layers, no secret
    names = registry.names()
    while True:
        length = exp(random.uniform(*map(log, LENGTHS)))
        yield PointRequest(
            random.choice(names), max(8, round(length / 8) * 8), random.choice(HEADS),
            random.choice(WIDTHS), phase=random.choice(PHASES), dtype=dtype, device=device,
            causal=random.random() < 0.25, budget=BUDGET,
        )  # fmt: skip


def check_layers(
    predict: Predict, points: Iterator[PointRequest], measure: Measure
) -> SelfCheck | None:
    """Return ``LAYERS`` checked layers of each phase; None if ``points`` has too few.

    They are the first points that fit into memory and are predicted to take ``SHORTEST_S`` to
    ``LONGEST_S``.
    """
    timed: list[tuple[PointRequest, float, float]] = []
    missing = dict.fromkeys(PHASES, LAYERS)
    for request in islice(points, MAX_POINTS):
        if not any(missing.values()):
            break
        if not missing[request.phase]:
            continue
        with suppress(AttnprofError), refusing(request):  # sizes that the mechanism refuses
            if fit(request)[0]:
                continue
            predicted = predict(request, SEEN_S)
            if SHORTEST_S < predicted < LONGEST_S:
                tell("holding predictions against layers", len(timed), LAYERS * len(PHASES))
                timed.append((request, predicted, measure(request)))
                missing[request.phase] -= 1
    if any(missing.values()):
        return None
    tell("holding predictions against layers once more")
    layers = []
    for request, predicted, measured in timed:
        seconds = measured
        with suppress(AttnprofError):  # too little memory or time now: the first time stays
            seconds = min(measured, measure(request))
        layers.append(CheckedLayer(
            request.mechanism, request.phase, request.seq_len, request.num_heads,
            request.head_dim, predicted, seconds,
        ))  # fmt: skip
    return SelfCheck(tuple(layers))


def measure_here(request: PointRequest, clock: Clock) -> float:
    """Return the median seconds of a point's call in this process."""
    subject = build_subject(request)
    times = sample(clock, subject.prepare, subject.call, request.budget)
    return estimate_median([one.wall_s for one in times]).median_s


def measure_in_new_process(request: PointRequest, threads: int) -> float:
    """Return the median seconds of a point's call in a new process.

    Raises :class:`CannotRunError` if it gives no time.
    """
    unchecked = replace(request, counts=False, check=False, threads=threads)
    record = measure_apart(unchecked)
    if record.median_s is None:
        raise CannotRunError(record.skipped or "no time")
    return record.median_s
