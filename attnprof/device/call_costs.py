"""Costs of calls whose code other operations have pushed out of the processor's caches.

An operation that is repeated runs from warm caches; in a layer other operations run in between, and
its code and data structures have to be fetched again. A calibration times two dozen small
operations as layers call them three ways: each repeated, one after the other, and one after the
other with memory read in between. :class:`CallCosts` turns the ratios into a share that is added to
each call of a sequence. Entry points: :func:`sequences` (benchmarks), :meth:`CallCosts.shares`.

Example: if a repeated call takes 2 µs on average and one in the sequence 3 µs, the share is 0.5 for
a call with all other kinds in between, and 0.25 with half of them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnprof.device.tables import Benchmark, Call, TimeTable

#: Operations as layers call them, on a square matrix.
CALLS: tuple[Callable[[Tensor], object], ...] = (
    lambda x: functional.linear(x, x, x[0]), lambda x: x.view(4, -1, len(x)).transpose(0, 1),
    lambda x: x @ x, lambda x: x * 0.5, lambda x: x.softmax(-1), lambda x: x[None] @ x[None],
    lambda x: x + x, lambda x: functional.layer_norm(x, x.shape[-1:]), functional.gelu,
    lambda x: x.sum(-1, keepdim=True), lambda x: x / x, lambda x: torch.cat((x, x), -1),
    torch.exp, lambda x: x.T.contiguous(), lambda x: x.masked_fill(x > 0.5, 0.0),
    lambda x: x.amax(-1), functional.relu, lambda x: x.unsqueeze(0).expand(4, -1, -1), torch.rsqrt,
    lambda x: x - 1.0, lambda x: x.norm(dim=-1), lambda x: functional.pad(x, (0, 1)),
    lambda x: x.cumsum(-1), lambda x: x.new_zeros(x.shape),
)  # fmt: skip
#: Rows of the matrix: so few that a call is overhead; repetitions of an operation in "alone".
ROWS, REPEATS = 16, 16
#: Entries of memory (1 MiB in float32) that the broken sequence reads and writes, each time after
#: so many operations.
FLUSHED_ENTRIES, FLUSH_INTERVAL = 2**18, 4
#: The most other kinds of operations in between that count, relative to those of the sequence: code
#: that is out of the near caches is fetched from the same place, however many more come.
MAX_OTHERS = 1.5
#: Bytes of memory read or written after which nothing of an operation's code is in a near cache.
CODE_BYTES = 2**20


def sequences(options: Any) -> list[Benchmark]:
    """Return benchmarks of the operations repeated, in sequence, and with memory in between.

    ``options``: dtype and device of new tensors.
    """

    def sequence(repeats: int = 1, *, flushes: bool = False) -> Callable[[int], Call]:
        def make(rows: int) -> Call:
            x, memory = (
                torch.rand(rows, rows, **options) + 0.5,
                torch.ones(FLUSHED_ENTRIES, **options),
            )

            def call() -> object:
                for index, operation in enumerate(CALLS):
                    if flushes and index % FLUSH_INTERVAL == 0:
                        memory.mul_(1.0)
                    for _ in range(repeats):
                        result = operation(x)
                return result

            return call

        return make

    def flush(_: int) -> Call:
        return partial(torch.ones(FLUSHED_ENTRIES, **options).mul_, 1.0)

    kinds = {
        "alone": sequence(REPEATS), "sequence": sequence(),
        "broken sequence": sequence(flushes=True), "flush": flush,
    }  # fmt: skip
    return [
        Benchmark(name, ((ROWS,),), make, ROWS, 1, repeat_in_pass=True)
        for name, make in kinds.items()
    ]


@dataclass(frozen=True)
class CallCosts:
    """Shares of a call's time that other operations in between add, by a calibration's tables."""

    tables: Mapping[str, TimeTable]

    def shares(self, kinds: Sequence[Hashable], moved: Sequence[int]) -> list[float]:
        """Return the share added to each call of a sequence of operations that runs repeatedly.

        ``kinds`` identify operations, ``moved`` are the bytes that each reads and writes. The share
        grows with the number of other kinds since the last call of the same kind, and with the
        bytes moved since.
        """
        sequence_share, broken_share = self._shares
        recent: list[Hashable] = []  # kinds, the latest first
        shares, moved_at, total = list[float](), dict[Hashable, int](), 0
        for is_second in (False, True):  # the first run only says what comes before the second
            for kind, size in zip(kinds, moved, strict=True):
                others = recent.index(kind) if kind in moved_at else len(recent)
                if is_second:
                    evicted = min(1.0, (total - moved_at[kind]) / CODE_BYTES)
                    relative = min(MAX_OTHERS, others / (len(CALLS) - 1))
                    shares.append(
                        relative * (sequence_share + evicted * (broken_share - sequence_share))
                    )
                if kind in moved_at:
                    del recent[others]
                recent.insert(0, kind)
                total += size
                moved_at[kind] = total
        return shares

    @cached_property
    def _shares(self) -> tuple[float, float]:
        """The share that a plain sequence adds to a repeated call, and a broken one."""
        alone, plain, broken, flush = (
            self.tables[name].at((ROWS,))
            for name in ("alone", "sequence", "broken sequence", "flush")
        )
        repeated = alone / REPEATS
        share = max(0.0, plain / repeated - 1)
        flushes_s = len(CALLS) // FLUSH_INTERVAL * flush
        return share, max(share, (broken - flushes_s) / repeated - 1)
