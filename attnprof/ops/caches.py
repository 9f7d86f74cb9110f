"""Decoding states for the counter: caches of earlier tokens' rows, and sums."""

from dataclasses import dataclass, field
from typing import Any

from attnprof.costs import Cost, Number, ceil_div, maximum, minimum
from attnprof.ops.counter import Counter
from attnprof.ops.tensor import Tensor
from attnprof.workload import Workload


@dataclass
class Cache:
    """A decoder's cache of earlier tokens' rows; counts the bytes of appending one more."""

    counter: Counter
    batch: Number
    width: Number
    length: Number
    first: Number = 0
    latest: Number | None = None

    def append(self, row: Tensor) -> Tensor:
        """Store the row; return all rows in sight, in memory that the decoder holds already."""
        moved = Cost(bytes_moved=2 * row.size_bytes)
        self.counter.operations += 1
        self.counter.record("append to cache", row.shape, moved)
        self.length = self.length + row.shape[1]
        rows = in_sight(self.length, self.first, self.latest)
        return Tensor.external(self.counter, (self.batch, rows, self.width))


@dataclass
class CountedSums:
    """A decoder's sums over blocks of rows; counts the bytes of adding one more row."""

    counter: Counter
    batch: Number
    width: Number
    length: Number
    block: int

    def append(self, row: Tensor) -> Tensor:
        """Add the row to the last sum, or begin one; return all sums."""
        cost = Cost(additions=row.count, bytes_moved=3 * row.size_bytes)
        self.counter.operations += 1
        self.counter.record("add to block", row.shape, cost)
        self.length = self.length + row.shape[1]
        return Tensor.external(
            self.counter, (self.batch, ceil_div(self.length, self.block), self.width)
        )


def lent_indices(like: Any, *shape: Any) -> Tensor | None:
    """Return picked indices, 4 bytes each, that a layer before holds; None for torch's tensors."""
    if not isinstance(like, Tensor):
        return None
    picks = Tensor.external(like.counter, shape)
    picks.item_size, picks.whole = like.counter.bytes_of(4), True
    return picks


def in_sight(tokens: Number, first: Number, latest: Number | None) -> Number:
    """Return how many tokens are cached: the ``first`` and the ``latest``; all if that is None."""
    if latest is None:
        return tokens
    return minimum(tokens, first) + minimum(maximum(0, tokens - first), latest)


@dataclass(frozen=True)
class CountedCaches:
    """A maker of a decoder's state before a step; shapes (heads, …) are given without the batch.

    ``entries`` are those of each part after the step, ``bytes`` those that the step moves: cached
    rows once (the newest is written, the others are read), sums over all tokens twice.
    """

    counter: Counter
    workload: Workload
    step_tokens: int = 1
    entries: list[Number] = field(default_factory=list)
    bytes: list[Number] = field(default_factory=list)

    @property
    def batch_size(self) -> Number:
        """Number of sequences."""
        return self.workload.batch_size

    def __call__(
        self, heads: Number, width: Number, first: Number = 0, latest: Number | None = None
    ) -> Cache:
        """Return a cache of all tokens' rows, or of the ``first`` and ``latest`` ones."""
        w, heads = self.workload, self.workload.batch_size * heads
        self.entries.append(heads * width * in_sight(w.seq_len, first, latest))
        self.bytes.append(self.entries[-1] * self.counter.item_size)
        return Cache(self.counter, heads, width, w.seq_len - self.step_tokens, first, latest)

    window = newest_first = __call__

    def block_sums(self, heads: Number, width: Number, block: int) -> CountedSums:
        """Return sums of each ``block`` rows."""
        tokens, batch = self.workload.seq_len, self.batch_size * heads
        self.entries.append(batch * width * ceil_div(tokens, block))
        return CountedSums(self.counter, batch, width, tokens - self.step_tokens, block)

    def zeros(self, heads: Number, *shape: Number, wide: bool = False) -> Tensor:
        """Return sums over all tokens, in float32 at least if ``wide``."""
        size = self.counter.item_size
        sums = Tensor.external(self.counter, (self.batch_size * heads, *shape))
        sums.item_size = 4 if wide and size == 2 else size
        self.entries.append(sums.count)
        self.bytes.append(2 * sums.size_bytes)
        return sums

    lowest = zeros

    def counts(self, heads: Number) -> Tensor:
        """Return a whole number a head."""
        numbers = self.zeros(heads)
        numbers.item_size, numbers.whole = self.counter.bytes_of(8), True
        return numbers
