"""Measure how far a mechanism's output, and its attention weights, are from softmax attention's."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnprof.errors import CannotRunError
from attnprof.measure.tradeoff_inputs import QueriesKeysValues

#: Scores held at once; most scores of a comparison, which take minutes.
SCORES, MOST_SCORES = 1 << 24, 1 << 34
#: Share up to which negative weights, or differences of sums, count as rounding.
ROUNDING = 1e-6
#: Tokens up to which weights are compared: that takes tokens/width calls of the core.
MOST_TOKENS = 4096

#: A mechanism's core: (q, k, v) → output.
Core = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Distance:
    """Errors as shares of the norm of softmax attention's output: of all rows, of the worst row.

    ``distribution``: total variation between both mechanisms' attention weights, mean over rows,
    from 0 to 1. None if the weights are no distribution; ``weights`` says why.
    """

    relative: float
    worst_row: float
    distribution: float | None = None
    weights: str = "not computed"


class ExactAttention:
    """softmax(Q Kᵀ / sqrt d) V in float64, computed in blocks of rows.

    Grouped heads share their keys and values. ``log_sums`` (b, h, n) are the logarithms of the sums
    of a row's exponentials.
    """

    def __init__(self, inputs: QueriesKeysValues, *, causal: bool) -> None:
        self.given, self.causal = inputs, causal
        b, h, n, _ = inputs.q.shape
        if (count := b * h * n * inputs.k.shape[2]) > MOST_SCORES:
            raise CannotRunError(
                f"softmax attention to compare with has {count:,} scores, more than the "
                f"{MOST_SCORES:,} that are computed: ask for fewer tokens, heads or a smaller batch"
            )
        step = max(1, SCORES * n // count)
        group = inputs.q.shape[1] // inputs.k.shape[1]
        self.keys = inputs.k.repeat_interleave(group, 1)
        values = inputs.v.repeat_interleave(group, 1)
        parts = []
        for first in range(0, n, step):
            scores = self._scores(slice(first, first + step), slice(None))
            total = scores.logsumexp(-1)
            parts.append(((scores - total.unsqueeze(-1)).exp() @ values, total))
        self.output, self.log_sums = (torch.cat(pieces, 2) for pieces in zip(*parts, strict=True))

    def _scores(self, rows: slice, columns: slice) -> Tensor:
        q, k = self.given.q[:, :, rows], self.keys[:, :, columns]
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            row = torch.arange(self.given.q.shape[2])[rows]
            column = torch.arange(self.keys.shape[2])[columns]
            scores = scores.masked_fill(column > row[:, None], -math.inf)
        return scores

    def weights(self, columns: slice) -> Tensor:
        """Return the weights of these key columns, (b, h, n, columns)."""
        return (self._scores(slice(None), columns) - self.log_sums.unsqueeze(-1)).exp()

    def distance(self, core: Core, *, distribution: bool = True) -> Distance | None:
        """Return a core's distance on the same inputs; None if it is not finite."""
        q, k, v = self.given.q, self.given.k, self.given.v
        output = core(q, k, v)
        if not output.isfinite().all():
            return None
        apart, exact = (_row_norms(x) for x in (output - self.output, self.output))
        relative = float(_row_norms(apart.flatten()) / _row_norms(exact.flatten()).clamp(min=_TINY))
        worst = float((apart / exact.clamp(min=_TINY)).max())
        if not distribution:
            return Distance(relative, worst)
        if k.shape[2] > MOST_TOKENS:
            why = f"not compared beyond {MOST_TOKENS:,} tokens"
            return Distance(relative, worst, weights=why)
        return Distance(relative, worst, *self._distribution(core, output))

    def _distribution(self, core: Core, output: Tensor) -> tuple[float | None, str]:
        """Return the mean total variation of the weights, and a text on what they are.

        A core that is linear in its values gives its weights as outputs, if columns of the identity
        matrix are the values. Rows are divided by their sums.
        """
        sums = core(self.given.q, self.given.k, torch.ones_like(self.given.v))[..., :1]
        again, apart = torch.zeros_like(output), torch.zeros_like(sums[..., 0])
        group = output.shape[1] // self.given.v.shape[1]
        least = 0.0
        for columns, identity in self._identity():
            weights = core(self.given.q, self.given.k, identity)
            weights = weights[..., : columns.stop - columns.start]
            again += weights @ self.given.v[:, :, columns].repeat_interleave(group, 1)
            least = min(least, float((weights / sums).min()))
            apart += (weights / sums - self.weights(columns)).abs().sum(-1)
        if not float((again - output).norm()) <= ROUNDING * float(output.norm()):
            return None, "its output is not linear in the values"
        if not (least >= -ROUNDING and bool((sums > 0).all())):
            return None, "some of its weights are negative"
        return float(apart.mean()) / 2, "a distribution"

    def _identity(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield columns of the identity matrix as values, a head's width at a time."""
        shape = self.given.v.shape
        tokens, width = shape[2:]
        for first in range(0, tokens, width):
            columns = slice(first, min(tokens, first + width))
            values = self.given.v.new_zeros(shape)
            place = torch.arange(columns.start, columns.stop)
            values[:, :, place, place - first] = 1
            yield columns, values


_TINY = 1e-300


def _row_norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norms
