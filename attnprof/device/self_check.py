"""How far predictions are off on a device: layers that nothing was fitted to, predicted and timed.

A calibration is made of single operations. Its last step draws layers at random, predicts each and
times it as ``profile --isolate`` does, twice: the faster time counts, as others only slow it down.
(A process that has kept its memory for a calibration's tables pays fewer page faults.) The
residuals, logarithms of measured over predicted times, tell two things: a phase's median is its
bias, which later predictions are corrected by; how far each lies from the median of its phase's
others is how far off a prediction may be. The second largest of 39 such scores bounds the next one
in 38 of 40 cases, whatever they are distributed like (split conformal prediction, each layer held
out in turn).
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

#: Layers of each phase, as many as let one be farther off than 95 %; those drawn at most for them.
LAYERS, DRAWN = 13, 400
#: Predicted seconds of a call, from and to; seconds in which its operations must be seen.
SHORTEST_S, LONGEST_S, SEEN_S = 5e-5, 0.15, 1.0
#: Lengths, heads and head widths that are drawn.
LENGTHS, HEADS, WIDTHS = (32, 4096), (1, 2, 3, 4, 6, 8, 12), (16, 24, 32, 40, 48, 64, 80, 96, 128)
PHASES = ("forward", "train", "decode")
BUDGET = Budget(samples=8, min_time_s=0.05, max_time_s=0.3, warmup_s=0.1, least=3)

#: The predicted seconds of a point, seen within so many seconds of processor time.
Predict = Callable[[PointRequest, float], float]
#: The measured seconds of a point.
Measure = Callable[[PointRequest], float]


def drawn_points(dtype: str, device: str, seed: int = 0) -> Iterator[PointRequest]:
    """Yield points of all mechanisms, phases and sizes at random, without end."""
    random = Random(seed)  # noqa: S311 - which layers, no secret
    names = registry.names()
    while True:
        length = exp(random.uniform(*map(log, LENGTHS)))
        yield PointRequest(
            random.choice(names), max(8, round(length / 8) * 8), random.choice(HEADS),
            random.choice(WIDTHS), phase=random.choice(PHASES), dtype=dtype, device=device,
            causal=random.random() < 0.25, budget=BUDGET,
        )  # fmt: skip


def checked(predict: Predict, points: Iterator[PointRequest], measure: Measure) -> SelfCheck | None:
    """Predict and time each phase's first points that run in a fair time; None if too few do."""
    timed: list[tuple[PointRequest, float, float]] = []
    lacking = dict.fromkeys(PHASES, LAYERS)
    for request in islice(points, DRAWN):
        if not any(lacking.values()):
            break
        if not lacking[request.phase]:
            continue
        with suppress(AttnprofError), refusing(request):  # sizes that a mechanism does not take
            if fit(request)[0]:
                continue
            predicted = predict(request, SEEN_S)
            if SHORTEST_S < predicted < LONGEST_S:
                tell("holding predictions against layers", len(timed), LAYERS * len(PHASES))
                timed.append((request, predicted, measure(request)))
                lacking[request.phase] -= 1
    if any(lacking.values()):
        return None
    tell("holding predictions against layers once more")
    layers = []
    for request, predicted, measured in timed:
        seconds = measured
        with suppress(AttnprofError):  # it may find no memory or time now
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
    """Return the same, in a process of its own; :class:`CannotRunError` where it has no end."""
    unchecked = replace(request, counts=False, check=False, threads=threads)
    record = measure_apart(unchecked)
    if record.median_s is None:
        raise CannotRunError(record.skipped or "no time")
    return record.median_s
