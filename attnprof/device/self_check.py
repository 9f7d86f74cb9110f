"""Check predictions on a device: predict and time random layers that nothing was fitted to.

A calibration times single operations only. Its last step draws layers at random, predicts each, and
times it in a process of its own as ``profile --isolate`` does, since the calibrating process has
kept memory and pays fewer page faults. Entry point: :func:`check_layers`.

The *residual* of a layer is the logarithm of measured over predicted seconds; the median residual
of a phase is its *bias*, by which later predictions are corrected. Layers differ by far more than
runs of one layer do: the median of 13 layers was off by up to 0.1 on three processors.

The bias is that of an undisturbed processor, as a calibration has its times. Other users of a
virtual machine's processor slow it by half for tenths of a second. So a run counts if the reference
operation takes its usual time before and after it, and layers without such a run are timed again.

The *score* of a layer is how far the median of its first run, as ``profile`` tells it, lies from
the bias of the phase's other layers. With 60 layers the third largest score bounds that of the next
layer in 58 of 61 cases, whatever the distribution: split conformal prediction, with each layer held
out in turn.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, inf, log
from random import Random
from statistics import median

from attnprof import registry
from attnprof.device.checked_layers import CheckedLayer, SelfCheck
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.batch import measure_apart
from attnprof.measure.clocks import Clock, sample
from attnprof.measure.point import fit
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.subject import build_subject, refusing
from attnprof.processes.progress import tell

#: Layers of each phase, 60 in all; how many suffice once ``CHECK_S`` seconds have passed; the most
#: points that are drawn to find them.
LAYERS, LEAST_LAYERS, CHECK_S, MAX_POINTS = 20, 13, 35.0, 600
#: Range of a layer's predicted seconds.
SHORTEST_S, LONGEST_S = 5e-5, 0.15
#: The most processor seconds to list a layer's operations.
LISTING_S = 0.5
#: Range of lengths; numbers of heads; head widths.
LENGTHS, HEADS, WIDTHS = (32, 4096), (1, 2, 3, 4, 6, 8, 12), (16, 24, 32, 40, 48, 64, 80, 96, 128)
PHASES = ("forward", "train", "decode")
BUDGET = Budget(samples=8, min_time_s=0.05, max_time_s=0.2, warmup_s=0.05, least=3)

#: A function that returns a point's predicted seconds, given the most processor seconds to list it.
Predict = Callable[[PointRequest, float], float]
#: A function that times a point's calls and returns the seconds of each.
Measure = Callable[[PointRequest], Sequence[float]]
#: Rounds in which disturbed layers are timed once more; seconds for all of them.
MORE_ROUNDS, MORE_ROUNDS_S = 2, 8.0


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


@dataclass
class _TimedLayer:
    """A point and its seconds: predicted, the first run's median, and measured if undisturbed."""

    request: PointRequest
    predicted_s: float
    profiled_s: float = 0.0
    measured_s: float = inf
    is_undisturbed: bool = False

    def add_run(self, measure: Measure, is_undisturbed: Callable[[], bool]) -> None:
        """Time the point once more.

        ``measured_s`` is the median of an undisturbed run. Until there is one, it is the least
        lower quartile of all runs.
        """
        before = is_undisturbed()
        seconds = sorted(measure(self.request))
        self.profiled_s = self.profiled_s or median(seconds)
        self.is_undisturbed = before and is_undisturbed()
        if self.is_undisturbed:
            self.measured_s = median(seconds)
        else:
            self.measured_s = min(self.measured_s, seconds[len(seconds) // 4])

    def result(self) -> CheckedLayer:
        """Return the layer as a calibration keeps it."""
        request = self.request
        return CheckedLayer(
            request.mechanism, request.phase, request.seq_len, request.num_heads,
            request.head_dim, self.predicted_s, self.measured_s, self.profiled_s,
        )  # fmt: skip


def check_layers(
    predict: Predict, points: Iterator[PointRequest], measure: Measure,
    is_undisturbed: Callable[[], bool] = lambda: True,
) -> SelfCheck | None:  # fmt: skip
    """Return ``LAYERS`` checked layers of each phase, ``LEAST_LAYERS`` or more on a slow machine.

    They are the first points that fit into memory and are predicted to take ``SHORTEST_S`` to
    ``LONGEST_S``. ``is_undisturbed``: whether the processor is as fast now as it was calibrated.
    Returns None if ``points`` has too few.
    """
    layers: list[_TimedLayer] = []
    missing = dict.fromkeys(PHASES, LAYERS)
    until = time.monotonic() + CHECK_S
    for request in islice(points, MAX_POINTS):
        is_late = time.monotonic() > until
        if max(missing.values()) <= (LAYERS - LEAST_LAYERS if is_late else 0):
            break
        if not missing[request.phase]:
            continue
        with suppress(AttnprofError), refusing(request):  # sizes that the mechanism refuses
            if fit(request)[0]:
                continue
            layer = _TimedLayer(request, predict(request, LISTING_S))
            if SHORTEST_S < layer.predicted_s < LONGEST_S:
                tell("holding predictions against layers", len(layers), LAYERS * len(PHASES))
                layer.add_run(measure, is_undisturbed)
                layers.append(layer)
                missing[request.phase] -= 1
    if max(missing.values()) > LAYERS - LEAST_LAYERS:
        return None
    until = time.monotonic() + MORE_ROUNDS_S
    for _ in range(MORE_ROUNDS):
        for layer in (layer for layer in layers if not layer.is_undisturbed):
            if time.monotonic() > until:
                break
            tell("holding predictions against disturbed layers once more")
            with suppress(AttnprofError):  # too little memory or time now: the earlier run stays
                layer.add_run(measure, is_undisturbed)
    return SelfCheck(tuple(layer.result() for layer in layers))


def measure_here(request: PointRequest, clock: Clock) -> list[float]:
    """Return the seconds of a point's calls in this process."""
    subject = build_subject(request)
    return [call.wall_s for call in sample(clock, subject.prepare, subject.call, request.budget)]


def measure_in_new_process(request: PointRequest, threads: int) -> list[float]:
    """Return the seconds of a point's calls in a new process.

    Raises :class:`CannotRunError` if it gives no time.
    """
    unchecked = replace(request, counts=False, check=False, threads=threads)
    record = measure_apart(unchecked)
    if not record.times_s:
        raise CannotRunError(record.skipped or "no time")
    return record.times_s
