"""Operations of a layer on rows outside attention: norms, rotary positions, short convolutions."""

import math
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.kernel_attention import State
from attnprof.costs import Cost
from attnprof.ops.arithmetic import SIGMOID
from attnprof.ops.function import Function
from attnprof.ops.functional import as_format_of, join, wide_positions
from attnprof.ops.loops import each

#: Added to a mean square before its root.
SMALL = 1e-6


def _normed(x: Any, weight: Any) -> tuple[Any, tuple[Any, ...]]:
    scale = (x * x).mean(-1, keepdim=True).add_(SMALL).sqrt_().reciprocal_()
    unit = x * scale
    return unit if weight is None else unit * weight, (unit, scale, weight)


def _normed_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    unit, scale, weight = saved
    to_weight = None if weight is None else (grad * unit).sum((0, 1))
    above = grad if weight is None else grad * weight
    along = (above * unit).mean(-1, keepdim=True)
    return (above - unit * along).mul_(scale), to_weight


#: x (b, n, c) over its root mean square, times weight (c,) or None; Zhang & Sennrich (2019).
normed = Function(_normed, _normed_grads)


def define_norm(writer: Any, count: Any, width: Any) -> None:
    """Write the operations of ``count`` rows' norms, of ``width`` entries, with weights."""
    writer.dots("squares", count, count * width)
    each = Cost(divisions=2, additions=1, other=1) * count
    writer.stage("norm", each + Cost(multiplications=2) * (count * width), count, width)


def define_gate(writer: Any, gates: Any, outputs: Any, width: Any) -> None:
    """Write ``gates`` maps of ``width`` entries, their sigmoids, and ``outputs`` gated entries."""
    writer.dots("gate", gates, gates * width)
    writer.stage("gate: sigmoid", SIGMOID * gates, gates)
    writer.stage("gated", Cost(multiplications=outputs), outputs)


def angles(like: Any, positions: Any, width: int) -> tuple[Any, Any]:
    """Return cosines, sines (…, width / 2) of place · 10000^(-2i / width); Su et al. (2021), Eq 15.

    ``positions`` is one position, or positions (n,) along a dimension of their own.
    """
    step = 2 * math.log(10_000) / width
    rates = (wide_positions(like, width // 2) * -step + step).exp_()
    turns = positions.unsqueeze(1) * rates if hasattr(positions, "unsqueeze") else rates * positions
    cosines, sines = turns.cos(), turns.sin()
    return as_format_of(cosines, like), as_format_of(sines, like)


def _turned(x: Any, cosines: Any, sines: Any, *, back: bool = False) -> Any:
    a, b = x.chunk(2, -1)
    if back:
        return join([a * cosines + b * sines, b * cosines - a * sines], -1)
    return join([a * cosines - b * sines, b * cosines + a * sines], -1)


#: x (…, n, width), the halves of a row as coordinates of points that turn by its angles.
turned = Function(
    lambda x, cosines, sines: (_turned(x, cosines, sines), (cosines, sines)),
    lambda saved, grad: (_turned(grad, *saved, back=True), None, None),
)


def _windows(x: Any, taps: Any) -> Any:
    """Return x (b, n, c) after taps - 1 rows of zeros."""
    b, _, c = x.shape
    return join([x.new_zeros(b, taps - 1, c), x], 1)


def _convolved(x: Any, w: Any) -> tuple[Any, tuple[Any, ...]]:
    n, taps = x.shape[1], w.shape[0]
    rows = _windows(x, taps)
    out = rows[:, taps - 1 :] * w[taps - 1]
    for tap in each(x, 0, taps - 1):
        out.add_(rows[:, tap : tap + n] * w[tap])
    return out, (x, w)


def _convolved_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    x, w = saved
    (b, n, c), taps = x.shape, w.shape[0]
    rows = _windows(x, taps)
    to_w = w.new_empty(taps, c)
    for tap in each(x, 0, taps):
        to_w[tap : tap + 1] = (rows[:, tap : tap + n] * grad).sum((0, 1)).view(1, c)
    del rows
    later = join([grad, grad.new_zeros(b, taps - 1, c)], 1)
    to_x = grad * w[taps - 1]
    for tap in each(x, 0, taps - 1):
        first = taps - 1 - tap
        to_x.add_(later[:, first : first + n] * w[tap])
    return to_x, to_w


#: y_t = Σ_i w_i x_{t - taps + 1 + i}; x (b, n, c), w (taps, c), zeros before the first token.
short_convolution = Function(_convolved, _convolved_grads)


@dataclass
class ConvolvedState(State):
    """A recurrence's state, and of each convolution the latest rows but the new one, by letter."""

    tails: dict[str, Any]

    def advance(self, tokens: int) -> None:
        """Count ``tokens`` tokens; the state's size does not depend on them."""
        super().advance(tokens)
        for tail in self.tails.values():
            tail.uniform_(-1, 1)


def convolved_step(x: Any, w: Any, tail: Any) -> Any:
    """Return the new token's row (b, 1, c), convolved with the rows before it.

    ``tail`` (b, taps - 1, c) holds these rows, and moves on by one token, in place.
    """
    rows = join([tail, x], 1)
    tail.copy_(rows[:, 1:])
    return (rows * w).sum(1, keepdim=True)
