"""Layers that were predicted and timed on a device, and how far off predictions are by them.

The last step of a calibration makes them (:mod:`attnprof.device.self_check`); its file keeps them.
Entry point: :class:`SelfCheck`, which gives the bias of a phase and the reach of an interval.
"""

from dataclasses import dataclass
from math import ceil, exp, log
from statistics import median
from typing import Any

from attnprof.record.report import fits

#: Share of calls whose measured time lies in its predicted interval.
COVERED = 0.95


@dataclass(frozen=True)
class CheckedLayer:
    """A layer with its predicted and its measured seconds.

    ``measured_s``: of an undisturbed processor, as a calibration's tables are. ``profiled_s``: the
    median of one run, as ``profile`` tells it; files before it was kept have 0.
    """

    mechanism: str
    phase: str
    seq_len: int
    num_heads: int
    head_dim: int
    predicted_s: float
    measured_s: float
    profiled_s: float = 0.0

    @property
    def residual(self) -> float:
        """The logarithm of measured over predicted seconds."""
        return log(self.measured_s / self.predicted_s)

    @property
    def profiled_residual(self) -> float:
        """The logarithm of one run's median over predicted seconds."""
        return log((self.profiled_s or self.measured_s) / self.predicted_s)


@dataclass(frozen=True)
class SelfCheck:
    """Checked layers of a device, with the bias and the errors of predictions that they show."""

    layers: tuple[CheckedLayer, ...]

    @staticmethod
    def is_listed(rows: Any) -> bool:
        """Return whether a value of a file is a list of layers, each a list of field values."""
        hints = list(CheckedLayer.__annotations__.values())
        required = len(hints) - 1  # the last field has a default
        return isinstance(rows, list) and len(rows) > 1 and all(
            isinstance(row, list) and len(row) in (required, len(hints))
            and all(map(fits, row, hints)) and min(row[required - 2:required]) > 0
            and min(row[required:], default=0) >= 0
            for row in rows
        )  # fmt: skip

    def bias(self, phase: str) -> float:
        """Return the median residual of a phase's layers, which corrects its predictions.

        A phase without layers gets the median of all layers.
        """
        layers = self._layers(phase) or self.layers
        return median(layer.residual for layer in layers)

    def _layers(self, phase: str) -> list[CheckedLayer]:
        return [layer for layer in self.layers if layer.phase == phase]

    @property
    def scores(self) -> list[float]:
        """How far one run of each layer lies from its phase's bias by the other layers, ascending.

        In logarithms. Runs are as users make them, so their disturbances count.
        """
        scores = []
        for phase in dict.fromkeys(layer.phase for layer in self.layers):
            layers = self._layers(phase)
            for index, layer in enumerate(layers):
                others = layers[:index] + layers[index + 1 :] or layers
                bias = median(other.residual for other in others)
                scores.append(abs(layer.profiled_residual - bias))
        return sorted(scores)

    @property
    def median_error(self) -> float:
        """The median relative error of corrected predictions: 0.08 for 8 % off."""
        return exp(median(self.scores)) - 1

    @property
    def reach(self) -> float:
        """The half width of a 95 % interval, in logarithms: the score that 95 % stay below.

        A new layer's score has any rank among n others with the same probability (split conformal
        prediction), so with n = 39 the bound is the score of rank ceil(0.95 · 40) = 38.
        """
        scores = self.scores
        return scores[min(len(scores), ceil(COVERED * (len(scores) + 1))) - 1]

    def __str__(self) -> str:
        return (
            f"on this device median error {self.median_error:.0%}, at most "
            f"{exp(self.scores[-1]) - 1:.0%} in {len(self.layers)} layers drawn at random"
        )
