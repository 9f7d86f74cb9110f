"""A causal convolution over a few tokens, a filter a channel, as recurrent layers begin with."""

from dataclasses import dataclass
from typing import Any

from attnprof.blocks.scan import State
from attnprof.ops.function import Function
from attnprof.ops.functional import join


def _windows(x: Any, taps: Any) -> Any:
    """X (b, n, c) after taps - 1 rows of zeros."""
    b, _, c = x.shape
    return join([x.new_zeros(b, taps - 1, c), x], 1)


def _convolved(x: Any, w: Any) -> tuple[Any, tuple[Any, ...]]:
    n, taps = x.shape[1], w.shape[0]
    rows = _windows(x, taps)
    out = rows[:, taps - 1 :] * w[taps - 1]
    for tap in range(taps - 1):
        out.add_(rows[:, tap : tap + n] * w[tap])
    return out, (x, w)


def _convolved_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    x, w = saved
    (b, n, c), taps = x.shape, w.shape[0]
    rows = _windows(x, taps)
    to_w = w.new_empty(taps, c)
    for tap in range(taps):
        to_w[tap : tap + 1] = (rows[:, tap : tap + n] * grad).sum((0, 1)).view(1, c)
    del rows
    later = join([grad, grad.new_zeros(b, taps - 1, c)], 1)
    to_x = grad * w[taps - 1]
    for tap in range(taps - 1):
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
        """As after so many tokens, from a fresh state."""
        super().advance(tokens)
        for tail in self.tails.values():
            tail.uniform_(-1, 1)


def convolved_step(x: Any, w: Any, tail: Any) -> Any:
    """The new token's row (b, 1, c) after ``tail`` (b, taps - 1, c), which moves on, in place."""
    rows = join([tail, x], 1)
    tail.copy_(rows[:, 1:])
    return (rows * w).sum(1, keepdim=True)
