"""Layers that a calibration's predictions were held against, and what they tell of its errors."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import ceil, exp, log
from statistics import median
from typing import Any

from attnprof.record.report import fits

#: The share of predictions whose time lies in their interval.
COVERED = 0.95


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


@dataclass(frozen=True)
class SelfCheck:
    """What checked layers tell of predictions on their device."""

    layers: tuple[CheckedLayer, ...]

    def to_lists(self) -> list[list[Any]]:
        """Return plain values, a list a layer."""
        return [list(astuple(layer)) for layer in self.layers]

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[Any]]) -> "SelfCheck":
        """Return what :meth:`to_lists` wrote."""
        return cls(tuple(CheckedLayer(*row) for row in rows))

    @staticmethod
    def is_listed(rows: Any) -> bool:
        """Return whether a value of a file is what :meth:`to_lists` writes."""
        if not isinstance(rows, list) or len(rows) < 2:
            return False
        hints = list(CheckedLayer.__annotations__.values())
        return all(
            isinstance(row, list) and len(row) == len(hints) and all(map(fits, row, hints))
            and min(row[-2:]) > 0
            for row in rows
        )  # fmt: skip

    def bias(self, phase: str) -> float:
        """Return the median residual of a phase's layers, by which its predictions are corrected.

        Of a phase without layers, the median of all.
        """
        return median(self._residuals(phase) or [layer.residual for layer in self.layers])

    def _residuals(self, phase: str) -> list[float]:
        return [layer.residual for layer in self.layers if layer.phase == phase]

    @property
    def scores(self) -> list[float]:
        """How far each layer's residual lies from the median of its phase's others, in order."""
        scores = []
        for phase in dict.fromkeys(layer.phase for layer in self.layers):
            residuals = self._residuals(phase)
            for place, residual in enumerate(residuals):
                others = residuals[:place] + residuals[place + 1 :]
                scores.append(abs(residual - median(others or residuals)))
        return sorted(scores)

    @property
    def median_error(self) -> float:
        """The median share by which a corrected prediction is off, as a factor minus one."""
        return exp(median(self.scores)) - 1

    @property
    def reach(self) -> float:
        """The half width of an interval of 95 %, in logarithms: the score that 95 % stay below.

        One more layer is as likely to have any rank among the scores (split conformal prediction).
        """
        scores = self.scores
        return scores[min(len(scores), ceil(COVERED * (len(scores) + 1))) - 1]

    def __str__(self) -> str:
        return (
            f"on this device median error {self.median_error:.0%}, at most "
            f"{exp(self.scores[-1]) - 1:.0%} in {len(self.layers)} layers drawn at random"
        )
