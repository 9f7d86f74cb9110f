"""What a decoder keeps, for the counter: rows of earlier tokens, sums, and what a step moves."""

from dataclasses import dataclass, field

from attnprof.costs import Cost, Number, maximum, minimum
from attnprof.ops.counter import Counter
from attnprof.ops.tensor import Tensor
from attnprof.workload import Workload


@dataclass
class Cache:
    """A decoder's rows of earlier tokens: what appending one more moves."""

    counter: Counter
    batch: Number
    width: Number
    length: Number
    first: Number = 0
    latest: Number | None = None

    def append(self, row: Tensor) -> Tensor:
        """The row is stored; all rows in sight are memory the decoder holds already.

        The ``first`` tokens and the ``latest`` of the others; all of them where that is None.
        """
        moved = Cost(bytes_moved=2 * row.size_bytes)
        self.counter.operations += 1
        self.counter.record("append to cache", row.shape, moved)
        self.length = self.length + row.shape[1]
        seen = self.length
        if self.latest is not None:
            others = maximum(0, self.length - self.first)
            seen = minimum(self.length, self.first) + minimum(others, self.latest)
        return Tensor.given(self.counter, (self.batch, seen, self.width))


@dataclass(frozen=True)
class CountedCaches:
    """Makes what a decoder holds after all tokens before the last; (heads, …) without the batch."""

    counter: Counter
    workload: Workload
    step_tokens: int = 1

    def __call__(
        self, heads: Number, width: Number, first: Number = 0, latest: Number | None = None
    ) -> Cache:
        """Rows of these tokens; or of the first of them, and the latest of the others."""
        w = self.workload
        before = w.seq_len - self.step_tokens
        return Cache(self.counter, w.batch_size * heads, width, before, first, latest)

    window = newest_first = __call__

    def zeros(self, heads: Number, *shape: Number, wide: bool = False) -> Tensor:
        """Sums of these tokens, in float32 at least if ``wide``."""
        size = self.counter.item_size
        held = Tensor.given(self.counter, (self.workload.batch_size * heads, *shape))
        held.item_size = 4 if wide and size == 2 else size
        return held

    lowest = zeros

    def counts(self, heads: Number) -> Tensor:
        """A whole number each."""
        held = self.zeros(heads)
        held.item_size, held.whole = self.counter.bytes_of(8), True
        return held


@dataclass(frozen=True)
class StateTraffic(CountedCaches):
    """What a step moves of a decoder's state, in ``bytes``: cached rows once, sums twice.

    Of cached rows all but the newest are read, and that one is written; sums are read and written.
    """

    bytes: list[Number] = field(default_factory=list)

    @property
    def batch_size(self) -> Number:
        """The sequences that are kept."""
        return self.workload.batch_size

    def __call__(
        self, heads: Number, width: Number, first: Number = 0, latest: Number | None = None
    ) -> Cache:
        """Rows as :class:`CountedCaches` has them."""
        rows: Number = self.workload.seq_len
        if latest is not None:
            rows = minimum(rows, first) + minimum(maximum(0, rows - first), latest)
        entries = self.workload.batch_size * heads * width * rows
        self.bytes.append(entries * self.counter.item_size)
        return super().__call__(heads, width, first, latest)

    window = newest_first = __call__

    def zeros(self, heads: Number, *shape: Number, wide: bool = False) -> Tensor:
        """Sums."""
        held = super().zeros(heads, *shape, wide=wide)
        self.bytes.append(2 * held.size_bytes)
        return held

    lowest = zeros
