"""How far predictions are off on a device: layers that nothing was fitted to, predicted and timed.

A calibration is made of single operations. Its last step draws layers at random, predicts each and
times it as ``profile`` does. The residuals, logarithms of measured over predicted times, tell two
things: their median is the bias, which later predictions are corrected by; how far each lies from
the median of the others is how far off a prediction may be. The largest of ``LAYERS`` such scores
bounds the next one in ``LAYERS`` of ``LAYERS + 1`` cases, whatever they are distributed like (split
conformal prediction, each layer held out in turn).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from math import exp, log
from random import Random
from statistics import median

from attnprof import registry
from attnprof.errors import AttnprofError
from attnprof.measure.clocks import Clock, cuda_clock, sample
from attnprof.measure.point import fit
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import estimate_median
from attnprof.measure.subject import build_subject, refusing

#: Layers that a bound of 95 % takes, and those drawn at most to have them.
LAYERS, DRAWN = 19, 200
#: Predicted seconds of a call, from and to; seconds in which its operations must be seen.
SHORTEST_S, LONGEST_S, SEEN_S = 5e-5, 0.15, 1.0
#: Lengths, heads and head widths that are drawn.
LENGTHS, HEADS, WIDTHS = (32, 4096), (1, 2, 3, 4, 6, 8, 12), (16, 24, 32, 40, 48, 64, 80, 96, 128)
PHASES = ("forward", "train", "decode")
BUDGET = Budget(samples=8, min_time_s=0.1, max_time_s=0.3, warmup_s=0.1, least=3)

#: The predicted seconds of a point, seen within so many seconds of processor time.
Predict = Callable[[PointRequest, float], float]


@dataclass(frozen=True)
class CheckedLayer:
    """A layer that was predicted and timed; seconds."""

    mechanism: str
    phase: str
    seq_len: int
    num_heads: int
    head_dim: int
    predicted_s: float
    measured_s: float

    @property
    def residual(self) -> float:
        """The logarithm of measured over predicted."""
        return log(self.measured_s / self.predicted_s)

    def to_list(self) -> list[str | float]:
        """Return plain values in order."""
        return list(asdict(self).values())


@dataclass(frozen=True)
class SelfCheck:
    """What checked layers tell of predictions on their device."""

    layers: tuple[CheckedLayer, ...]

    @property
    def bias(self) -> float:
        """The median residual, by which predictions are corrected."""
        return median(layer.residual for layer in self.layers)

    @property
    def scores(self) -> list[float]:
        """How far each layer's residual lies from the median of the others, in order."""
        residuals = [layer.residual for layer in self.layers]
        return sorted(
            abs(one - median(residuals[:place] + residuals[place + 1 :]))
            for place, one in enumerate(residuals)
        )

    @property
    def median_error(self) -> float:
        """The median share by which a corrected prediction is off, as a factor minus one."""
        return exp(median(self.scores)) - 1

    @property
    def reach(self) -> float:
        """The half width of an interval of 95 %, in logarithms."""
        return self.scores[-1]

    def __str__(self) -> str:
        return (
            f"on this device median error {self.median_error:.0%}, at most {exp(self.reach) - 1:.0%} "
            f"in {len(self.layers)} layers drawn at random"
        )


def drawn_points(dtype: str, device: str, threads: int | None, seed: int) -> Iterator[PointRequest]:
    """Yield points of all mechanisms, phases and sizes at random, without end."""
    random = Random(seed)
    names = registry.names()
    while True:
        length = exp(random.uniform(*map(log, LENGTHS)))
        yield PointRequest(
            random.choice(names), max(8, round(length / 8) * 8), random.choice(HEADS),
            random.choice(WIDTHS), phase=random.choice(PHASES), dtype=dtype, device=device,
            threads=threads, causal=random.random() < 0.25, budget=BUDGET,
        )  # fmt: skip


def checked(
    predict: Predict, dtype: str, device: str, threads: int | None, seed: int = 0,
    count: int = LAYERS, progress: Callable[[str], None] = lambda _: None,
) -> SelfCheck | None:  # fmt: skip
    """Predict and time layers drawn at random; None where too few of them run."""
    layers: list[CheckedLayer] = []
    for request in islice(drawn_points(dtype, device, threads, seed), DRAWN):
        if len(layers) == count:
            break
        with suppress(AttnprofError), refusing(request):  # sizes that a mechanism does not take
            if fit(request)[0]:
                continue
            predicted = predict(request, SEEN_S)
            if SHORTEST_S < predicted < LONGEST_S:
                progress(f"check of layer {len(layers) + 1} of {count}: {request.mechanism}")
                layers.append(CheckedLayer(
                    request.mechanism, request.phase, request.seq_len, request.num_heads,
                    request.head_dim, predicted, measured_s(request),
                ))  # fmt: skip
    return SelfCheck(tuple(layers)) if len(layers) == count else None


def measured_s(request: PointRequest) -> float:
    """Return the median seconds of a point's call, timed as ``profile`` does."""
    import torch

    clock = cuda_clock(torch, request.device) if request.device.startswith("cuda") else Clock()
    subject = build_subject(request)
    times = sample(clock, subject.prepare, subject.call, request.budget)
    return estimate_median([one.wall_s for one in times]).median_s
