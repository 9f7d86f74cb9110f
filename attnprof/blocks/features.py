"""Feature maps of kernel attention: values, slopes, and the logarithm a key is scaled by."""

from __future__ import annotations

from typing import Any

from attnprof.ops.functional import square_root

#: Added to a feature relative to the row's largest one, so that no row vanishes.
EPSILON = 1e-6


class FeatureMap:
    """φ of rows (batch, c, d), one of three kinds.

    - ``projection`` None: elu(x) + 1, written max(x, 0) + exp(min(x, 0)).
    - ``projection`` Ω (d, m): elu(xΩ) + 1 (003, the article's Performer).
    - Ω and ``softmax``: exp(xΩ - ‖x‖²/(2·sqrt d)), positive features of exp(q·k / sqrt d) where
      Ω already carries d^(-1/4) (FAVOR+, Choromanski et al. 2021, Eq 5). A row is divided by its
      own largest feature and EPSILON is added; for a query that cancels, for a key the
      logarithm of the divisor comes back as its *scale*. No other row has a say in it.
      Gradients hold the largest feature constant in the EPSILON term.
    """

    def __init__(self, projection: Any, softmax: bool, batch: Any) -> None:
        self.softmax = softmax
        self.projection = None if projection is None else projection.expand(batch, -1, -1)

    def width(self, rows: Any) -> Any:
        """Number of features m of rows (batch, c, d)."""
        return rows.shape[-1] if self.projection is None else self.projection.shape[-1]

    def values(self, rows: Any) -> tuple[Any, Any]:
        """(batch, c, m) features, and the logarithm (batch, c, 1) of what divided them."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            return z.sub_(top).exp_().add_(EPSILON), top
        positive = z.clamp(min=0)
        return positive.add_(self._falling(z)), None

    def slope(self, rows: Any) -> Any:
        """(batch, c, m): the derivative of a feature to its projected input."""
        z = self._projected(rows)
        if self.softmax:
            return z.sub_(z.amax(-1, keepdim=True)).exp_()
        return self._falling(z)

    def values_and_slope(self, rows: Any) -> tuple[Any, Any, Any]:
        """Both at once: features, slopes, logarithm of the divisor."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            slope = z.sub_(top).exp_()
            return slope + EPSILON, slope, top
        positive = z.clamp(min=0)
        slope = self._falling(z)
        return positive.add_(slope), slope, None

    def input_grad(self, grad: Any, slope: Any) -> Any:
        """(batch, c, d) gradient of the rows from that of their features, which it overwrites."""
        grad.mul_(slope)
        if self.projection is None:
            return grad
        return grad.bmm(self.projection.transpose(1, 2))

    def _projected(self, rows: Any) -> Any:
        return rows if self.projection is None else rows.bmm(self.projection)

    def _falling(self, z: Any) -> Any:
        """exp(min(z, 0)), over z unless z are the rows themselves."""
        return (z.clamp(max=0) if self.projection is None else z.clamp_(max=0)).exp_()


def key_scale(keys: Any, top: Any) -> Any:
    """The logarithm (batch, c, 1) a key's features are scaled by: top - ‖k‖²/(2·sqrt d)."""
    norm = (keys * keys).sum(-1, keepdim=True).mul_(0.5 / square_root(keys.shape[-1]))
    return top.sub_(norm)
