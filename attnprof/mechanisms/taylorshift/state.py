"""What a TaylorShift decoder keeps: the tokens so far, or their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.taylor_scan import RowFeatures, built_state
from attnprof.ops.layer import LayerSizes


@dataclass
class TaylorState:
    """Caches of normalised keys and of values, (b·h, t, d); or, once built, their sums.

    ``caches`` makes either; ``direct`` tells whether the token of a number is decoded directly,
    where that changes on the way.
    """

    sizes: LayerSizes
    caches: Any
    features: RowFeatures
    direct: Callable[[int], bool] | None = None
    length: Any = 0
    keys: Any = None
    values: Any = None
    sums: Any = None

    def advance(self, tokens: int) -> None:
        """As after so many tokens with random rows, from a fresh state."""
        if self.sums is None and self.direct and tokens and not self.direct(tokens):
            self.built(1)
        if self.sums is not None:
            self.sums.uniform_(0.5, 1.5)
        else:
            self._make_caches()
            self.keys.advance(tokens)
            self.values.advance(tokens)
        self.length = tokens

    def cached(self, k: Any, v: Any) -> tuple[Any, Any]:
        """Append a token (b·h, 1, d); all keys and values so far."""
        self._make_caches()
        self.length += 1
        return self.keys.append(k), self.values.append(v)

    def _make_caches(self) -> None:
        """Both caches, when the first token needs them."""
        if self.keys is None:
            h, d = self.sizes.num_heads, self.sizes.head_dim
            self.keys, self.values = self.caches(h, d), self.caches(h, d)

    def built(self, size: int) -> Any:
        """The sums (b·h, features, d + 1); built once from the caches, which are let go."""
        if self.sums is None and self.keys is not None:
            self.sums = built_state(self.keys.seen, self.values.seen, size, self.features)
        elif self.sums is None:
            h, d = self.sizes.num_heads, self.sizes.head_dim
            self.sums = self.caches.zeros(h, self.features.width(d), d + 1)
        self.keys = self.values = None
        return self.sums
