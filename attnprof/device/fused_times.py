"""Times of torch's fused attention: measured as a whole on a CPU, by a formula on a GPU.

A fused kernel distributes blocks of queries over threads, goes through keys in blocks, and keeps
scores in a cache: its time is not the sum of its products. So a calibration times the whole kernel
over heads, queries, keys and head widths, with and without a causal mask, forward and backward.
On a GPU, whose kernels have simple blocks, :class:`FusedKernel` counts multiplications instead.
Entry points: :func:`fused_benchmarks` for a calibration; :func:`fused_s` and ``FUSED_KERNELS`` for
a prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, isqrt
from typing import Any

import torch

from attnprof.device.operation_forms import KernelCall
from attnprof.device.tables import JUST_USED, Benchmark, Call, TimeTable

#: Heads, queries, keys and head widths that are timed; one query stands for a decoded token.
HEADS, QUERIES = (1, 8), (1, 16, 64, 256, 1024, 4096)
KEYS, WIDTHS = (16, 64, 256, 1024, 4096), (16, 64, 128)
#: Head widths for as many queries as keys, closer together: kernels differ by width.
SQUARE_WIDTHS = (16, 32, 48, 64, 96, 128)
#: Scores (queries times keys) for as many queries as keys.
SCORES = tuple(length**2 for length in (16, 64, 128, 256, 512, 1024, 2048, 4096))
#: The most multiplications of a score that are timed if the kernel is fast enough; FLOPs for each:
#: queries by keys and weights by values forward, five products backward.
MAX_PRODUCTS, FORWARD_FLOPS, BACKWARD_FLOPS = 2**30, 4, 10


def fused_benchmarks(options: Any) -> list[Benchmark]:
    """Return the benchmarks of the fused kernel on a CPU.

    ``options``: dtype and device of new tensors.
    """
    square = HEADS, SCORES, SQUARE_WIDTHS
    return [
        Benchmark(
            "fused", (HEADS, QUERIES, KEYS, WIDTHS), partial(_forward, options), MAX_PRODUCTS,
            JUST_USED, flops=FORWARD_FLOPS,
        ),
        *(
            Benchmark(name, square, partial(make, options, causal), MAX_PRODUCTS, flops=flops)
            for name, make, causal, flops in (
                ("fused square", _square, False, FORWARD_FLOPS),
                ("fused causal", _square, True, FORWARD_FLOPS),
                ("fused backward", _backward, False, BACKWARD_FLOPS),
                ("fused causal backward", _backward, True, BACKWARD_FLOPS),
            )
        ),
    ]  # fmt: skip


def fused_s(tables: Mapping[str, TimeTable], call: KernelCall) -> float:
    """Return the seconds of a fused kernel's call (sizes: heads, queries, keys, both widths).

    With a mask, or backward, queries and keys count by their product only.
    """
    heads, n, m, d, v = call.sizes
    kind = call.form + " backward" * ("backward" in call.name)
    if kind == "fused" and n != m:
        return tables[kind].at((heads, n, m, (d + v) / 2))
    table = tables["fused square" if kind == "fused" else kind]
    return table.at((heads, n * m, (d + v) / 2))


def _head_rows(options: Any, heads: int, length: int, width: int) -> torch.Tensor:
    """Return (1, heads, length, width), in memory as a layer's (1, length, heads, width)."""
    return torch.randn(1, length, heads, width, **options).transpose(1, 2)


def _forward(options: Any, heads: int, n: int, m: int, width: int, *, causal: bool = False) -> Call:
    """Return a call of the kernel for n queries and m keys."""
    q, k, v = (_head_rows(options, heads, length, width) for length in (n, m, m))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _square(options: Any, causal: bool, heads: int, scores: int, width: int) -> Call:
    """Return a call of the kernel for as many queries as keys, by their product."""
    return _forward(options, heads, isqrt(scores), isqrt(scores), width, causal=causal)


def _backward(options: Any, causal: bool, heads: int, scores: int, width: int) -> Call:
    """Return a call of the backward kernel for as many queries as keys, by their product."""
    n = isqrt(scores)
    q, k, v, gradient = (_head_rows(options, heads, n, width) for _ in range(4))
    aten = torch.ops.aten
    y, scale = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)  # noqa: SLF001 - torch's kernel
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 - torch's kernel
    return lambda: backward(gradient, q, k, v, y, scale, 0.0, causal)


@dataclass(frozen=True)
class FusedKernel:
    """The work of a fused attention kernel on a GPU, in multiplications at the best product's rate.

    The kernel takes blocks of ``rows`` queries through all keys. A score costs ``score``, plus
    ``width`` for each entry of a key and of a value, but at least ``alone`` on a multiprocessor
    that has no other block. Starting the kernel takes as long as ``calls`` small operations. The
    numbers are from an H200; a calibration does not measure them.
    """

    rows: int
    score: float
    width: float
    alone: float
    calls: int = 1

    def work(self, heads: int, n: int, m: int, widths: int, processors: int) -> float:
        """Return the multiplications that take as long as the kernel.

        ``n``, ``m``: queries and keys. ``widths``: entries of a key and a value. ``processors``:
        multiprocessors, 0 if unknown.
        """
        per_score = self.score + self.width * widths
        blocks = heads * ceil(n / self.rows)
        return self.rows * m * max(per_score * blocks, max(per_score, self.alone) * processors)


#: Fused kernels by (format of two bytes, backward pass), as timed for ``reports/times/h200``.
FUSED_KERNELS = {
    (False, False): FusedKernel(64, 130, 0.65, alone=320),
    (False, True): FusedKernel(64, 330, 1.6, alone=700),
    (True, False): FusedKernel(128, 100, 0.85, alone=240, calls=3),
    (True, True): FusedKernel(128, 420, 1.6, alone=600, calls=7),
}
