"""How long an operation takes on a GPU, which does thousands of pieces of it at once."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import ClassVar

from attnprof.device.benchmarks import CHAIN, PIECE
from attnprof.device.kernel_calls import KernelCall
from attnprof.device.operations import Demand
from attnprof.device.product_times import Likeness, ProductTimes
from attnprof.device.times import Times

#: How products are told apart: batches have kernels of their own, and so have rows and columns of
#: half formats that begin where matrix units want them to. Chosen on products that were left out of
#: the fit.
PRODUCTS = Likeness(rows=0.35, columns=0.3, batched=1.5, as_batch=0.2, left_over=0.5, noise=0.05)
HALF_PRODUCTS, WHOLE_BYTES = replace(PRODUCTS, aligned=1.0, odd=1.0), 4
#: Launches that a GPU's queue holds: the host goes on until there are so many, then waits.
QUEUED = 1023


@dataclass(frozen=True)
class FusedKernel:
    """What a fused kernel of attention does, in multiplications at the best product's rate.

    A block of ``rows`` queries goes through all keys: a score takes ``score`` and for each of both
    widths' entries ``width``, at least ``alone`` where a processor has no other block. Starting it
    takes ``calls`` operations' time. As those of an H200 did, not measured by a calibration.
    """

    rows: int
    score: float
    width: float
    alone: float
    calls: int = 1

    def work(self, heads: int, n: int, m: int, widths: int, processors: int) -> float:
        """Return the multiplications that take as long as so many heads (0 processors: any)."""
        each = self.score + self.width * widths
        blocks = heads * ceil(n / self.rows)
        return self.rows * m * max(each * blocks, max(each, self.alone) * processors)


#: Fused kernels of formats of four bytes and of two, forward and backward (``reports/times/h200``).
FUSED = {
    (False, False): FusedKernel(64, 130, 0.65, alone=320),
    (False, True): FusedKernel(64, 330, 1.6, alone=700),
    (True, False): FusedKernel(128, 100, 0.85, alone=240, calls=3),
    (True, True): FusedKernel(128, 420, 1.6, alone=600, calls=7),
}


@dataclass(frozen=True)
class GpuTimes(Times):
    """Seconds of a GPU's own work on operations: launches are hidden behind it.

    What a launch costs the device itself is in every table. The host's calls, functions, autograd
    nodes and views count where it asks for more than the queue holds: the rest, which it asks for
    while the device works, takes as long as it does. ``processors`` are the multiprocessors.
    """

    #: wider than a CPU's: kernels of products differ by shape in ways that are not measured
    spread: ClassVar[float] = 0.3
    ratio_spread: ClassVar[float] = 0.25

    processors: int | None = None

    def between(self, work: Demand) -> dict[str, tuple[int, float]]:
        """Return the time of calls among others, and of waiting for a host with a full queue."""
        others = "operations after others"
        calls = {others: super().between(work)[others]}
        views = sum(o.form == "view" for o in work.operations)
        launches = len(work.operations) - views
        if launches <= QUEUED:
            return calls
        asked_s = launches * self.tables["chain"].at((1,)) / CHAIN
        asked_s += views * self.view_s + work.nodes * self.node_s
        asked_s += work.functions * self.function_s
        own_s = sum(map(self.seconds, work.operations)) + calls[others][1]
        waiting = max(0.0, asked_s * (1 - QUEUED / launches) - own_s)
        return {**calls, "waiting for the host": (launches - QUEUED, waiting)}

    def _priced(self, o: KernelCall) -> float:
        return 0.0 if o.form == "view" else super()._priced(o)

    def call_s_of(self, o: KernelCall) -> float:
        """Return the seconds of the operation on next to nothing; a view takes the device none."""
        return 0.0 if o.form == "view" else super().call_s_of(o)

    def _strided_s(self, length: int, stride: int, runs: int) -> float:
        """Return the seconds of runs side by side: as long as one with all their entries."""
        return self.tables["strided"].at((length * runs / stride, stride))

    def _broken_s(self, seconds: float, runs: int, length: float) -> float:
        """Return the seconds of pieces: what finding their places costs, however many there are."""
        pieces = self.tables["in pieces"]
        return max(seconds, pieces.at((runs * max(length, PIECE),)))

    @cached_property
    def _products(self) -> ProductTimes:
        likeness = PRODUCTS if self.entry_bytes >= WHOLE_BYTES else HALF_PRODUCTS
        return ProductTimes(self.tables["product"].seconds, likeness)

    @cached_property
    def _best_rate(self) -> float:
        """Multiplications a second of the best product."""
        products = self.tables["product"].seconds.items()
        return max(b * m * n * k / seconds for (b, m, n, k, _), seconds in products)

    def _fused(self, o: KernelCall) -> float:
        """Return the seconds of a fused kernel, whose blocks the processors share."""
        heads, n, m, d, v = o.sizes
        half = self.entry_bytes < WHOLE_BYTES
        kernel = FUSED[half, "backward" in o.name]
        start_s = kernel.calls * self.call_s
        if half and n == 1:  # the keys are shared out, and reading them is all
            return start_s + self.tables["unary"].at((heads * m * (d + v) / 2,))
        work = kernel.work(heads, n, m, d + v, self.processors or 0)
        return start_s + work / self._best_rate
