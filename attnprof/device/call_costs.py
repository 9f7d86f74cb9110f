"""What calls cost beyond their own operation, because others come between.

A processor knows an operation repeated better than one that follows others: it has to fetch the
code of each anew. Small operations as layers call them, each again and again and then one after
another, show by which share of a call that is dearer; and with much memory gone through in between,
which takes their code's place in a cache, too.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnprof.device.tables import Benchmark, Call, TimeTable

#: Operations as layers call them, of a square matrix.
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
#: Rows of the matrix, and calls of an operation again and again.
ROWS, AGAIN = 16, 16
#: Entries of memory that is gone through between operations of a sequence, and how often.
FLUSHED, EVERY = 2**18, 4
#: So many times as much as in the sequence is added to a call at most, however many kinds of others
#: come in between: code is not fetched from farther away then.
MOST_AMONG = 1.5
#: Bytes gone through after which nothing of an operation's code is where it was.
CODE_BYTES = 2**20


def sequences(made: Any) -> list[Benchmark]:
    """Return benchmarks: each operation again and again, in turns, and with memory in between."""

    def sequence(again: int = 1, *, flushes: bool = False) -> Callable[[int], Call]:
        def make(rows: int) -> Call:
            x, memory = torch.rand(rows, rows, **made) + 0.5, torch.ones(FLUSHED, **made)

            def call() -> object:
                for place, run in enumerate(CALLS):
                    if flushes and place % EVERY == 0:
                        memory.mul_(1.0)
                    for _ in range(again):
                        last = run(x)
                return last

            return call

        return make

    def flush(_: int) -> Call:
        return partial(torch.ones(FLUSHED, **made).mul_, 1.0)

    kinds = {
        "alone": sequence(AGAIN), "sequence": sequence(),
        "broken sequence": sequence(flushes=True), "flush": flush,
    }  # fmt: skip
    return [Benchmark(name, ((ROWS,),), make, ROWS, 1, often=True) for name, make in kinds.items()]


@dataclass(frozen=True)
class CallCosts:
    """Shares of calls that are added because others come between, by a calibration's tables."""

    tables: Mapping[str, TimeTable]

    def shares(self, kinds: Sequence[Hashable], moved: Sequence[int]) -> list[float]:
        """Return the share that is added to each call of a sequence that runs again and again.

        ``kinds`` tell which operation each is, ``moved`` the bytes that it goes through. The more
        other kinds come before the same one comes again, and the more bytes are gone through, the
        less of its code is still there.
        """
        more, most = self._shares
        recent: list[Hashable] = []
        shares, last, passed = list[float](), dict[Hashable, int](), 0
        for turn in range(2):  # the first one tells what comes before each in the second
            for kind, size in zip(kinds, moved, strict=True):
                others = recent.index(kind) if kind in last else len(recent)
                if turn:
                    broken = min(1.0, (passed - last[kind]) / CODE_BYTES)
                    among = min(MOST_AMONG, others / (len(CALLS) - 1))
                    shares.append(among * (more + broken * (most - more)))
                if kind in last:
                    del recent[others]
                recent.insert(0, kind)
                passed += size
                last[kind] = passed
        return shares

    @cached_property
    def _shares(self) -> tuple[float, float]:
        """Of one sequence, and with memory in between."""
        alone, plain, broken, flush = (
            self.tables[name].at((ROWS,))
            for name in ("alone", "sequence", "broken sequence", "flush")
        )
        again = alone / AGAIN
        more = max(0.0, plain / again - 1)
        return more, max(more, (broken - len(CALLS) // EVERY * flush) / again - 1)
