"""How long an operation takes on a GPU, which does thousands of pieces of it at once."""

from dataclasses import dataclass
from functools import cached_property

from attnprof.device.benchmarks import PIECE
from attnprof.device.product_times import ProductTimes
from attnprof.device.times import Times

#: How products are told apart: batches have kernels of their own, and so have rows of half formats
#: that begin where matrix units want them to. Chosen on products that were left out of the fit.
ALIGNED, BATCHED, WHOLE_BYTES = 1.0, 0.8, 4

#: Share of the best product's rate that fused kernels of attention reach, forward and backward: as
#: those of an H200 did in bfloat16 (``reports/h200``), not measured by a calibration.
FUSED_SHARE, FUSED_BACKWARD_SHARE = 0.55, 0.45
#: Products of a block of scores that the forward and the backward pass of a fused kernel make.
FUSED_PRODUCTS, FUSED_BACKWARD_PRODUCTS = 2, 5


@dataclass(frozen=True)
class GpuTimes(Times):
    """Seconds of a GPU's own work on operations: launches are hidden behind it.

    What a launch costs the device itself is in every table; the host's functions, autograd nodes
    and views are next to nothing in theirs.
    """

    def _strided_s(self, length: int, stride: int, runs: int) -> float:
        """Runs side by side take as long as one that is as long as all of them."""
        return self.tables["strided"].at((length * runs / stride, stride))

    def _broken_s(self, seconds: float, runs: int, length: float) -> float:
        """Pieces cost what finding their places costs, however many there are at once."""
        pieces = self.tables["in pieces"]
        return max(seconds, pieces.at((runs * max(length, PIECE),)))

    @cached_property
    def _products(self) -> ProductTimes:
        aligned = ALIGNED if self.entry_bytes < WHOLE_BYTES else 0.0
        return ProductTimes(self.tables["product"].seconds, aligned, BATCHED)

    @cached_property
    def _best_rate(self) -> float:
        """Multiplications a second of the best product."""
        products = self.tables["product"].seconds.items()
        return max(b * m * n * k / seconds for (b, m, n, k, _), seconds in products)

    def _fused(self, heads: int, n: int, m: int, d: int, v: int, *, backward: bool) -> float:
        """A fused kernel: products at a share of the best rate."""
        share = FUSED_BACKWARD_SHARE if backward else FUSED_SHARE
        products = FUSED_BACKWARD_PRODUCTS if backward else FUSED_PRODUCTS
        work = heads * n * m * (d + v) / 2 * products
        return self.call_s + work / (share * self._best_rate)
