"""How well features approximate softmax attention as there are more of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnprof.symbolic.growth import fitted

if TYPE_CHECKING:
    from torch import Tensor

Features = Callable[["Tensor", "Tensor"], "Tensor"]
TOKENS, WIDTH, DRAWS = 16, 4, 64
COUNTS = tuple(16 * 4**power for power in range(5))
SPREAD = 0.3


def favor(directions: Tensor, x: Tensor) -> Tensor:
    """exp(x Omega - |x|^2 / 2): random features of exp(q k), positive (Performer's FAVOR+)."""
    return (x @ directions - x.square().sum(-1, keepdim=True) / 2).exp()


def listed(directions: Tensor, x: Tensor) -> Tensor:
    """Those of the document's class: elu(x Omega) + 1, Omega divided by the root of m."""
    from attnprof.papers.approximation.listing import features

    return features(directions / directions.shape[-1] ** 0.5, x)


def errors(feature_map: Features) -> list[float]:
    """Error of the weights by number of features, relative to the softmax's: mean of squares."""
    import torch

    made = torch.Generator().manual_seed(4)
    q, k = (SPREAD * torch.randn(TOKENS, WIDTH, generator=made) for _ in range(2))
    exact = (q @ k.T).softmax(-1)
    found = []
    for count in COUNTS:
        total = 0.0
        for _ in range(DRAWS):
            directions = torch.randn(WIDTH, count, generator=made)
            scores = feature_map(directions, q) @ feature_map(directions, k).T
            weights = scores / scores.sum(-1, keepdim=True)
            total += float((weights - exact).square().sum() / exact.square().sum())
        found.append((total / DRAWS) ** 0.5)
    return found


def error_power(feature_map: Features = listed) -> float:
    """The power of the number of features with which the error falls."""
    return fitted(COUNTS, errors(feature_map))
