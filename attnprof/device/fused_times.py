"""Times of torch's fused attention on a CPU, which is measured whole.

A fused kernel shares blocks of queries out to threads, goes through keys by blocks, and keeps
scores in a cache: its time is not the sum of the products that it consists of. So calibrations time
the kernel itself, over heads, queries, keys and head widths, with and without a causal mask,
forward and backward; :func:`fused_s` interpolates between these times.
"""

from collections.abc import Mapping
from functools import partial
from math import isqrt
from typing import Any

import torch

from attnprof.device.operations import KernelCall
from attnprof.device.tables import Benchmark, Call, TimeTable

#: Heads, queries, keys and head widths that are timed; one query is a decoded token.
HEADS, QUERIES = (1, 8), (1, 16, 64, 256, 1024, 4096)
KEYS, WIDTHS = (16, 64, 256, 1024, 4096), (16, 64, 128)
#: Widths of as many queries as keys: kernels treat each in its own way.
SQUARE_WIDTHS = (16, 32, 48, 64, 96, 128)
#: Scores of as many queries as keys, which masks and backward passes are timed at: time grows with
#: them beyond the largest.
SCORES = tuple(length**2 for length in (16, 64, 128, 256, 512, 1024, 2048, 4096))
#: Products of a score that are timed at most, where the kernel is fast enough for them; FLOPs of
#: such a product, of queries with keys and of weights with values, forward and backward.
MOST, FORWARD_FLOPS, BACKWARD_FLOPS = 2**30, 4, 10


def fused_benchmarks(made: Any) -> list[Benchmark]:
    """Return the benchmarks of the fused kernel on a CPU in a format (``made``: dtype, device)."""
    square = HEADS, SCORES, SQUARE_WIDTHS
    return [
        Benchmark(
            "fused", (HEADS, QUERIES, KEYS, WIDTHS), partial(_forward, made), MOST,
            flops=FORWARD_FLOPS,
        ),
        *(
            Benchmark(name, square, partial(make, made, causal), MOST, flops=flops)
            for name, make, causal, flops in (
                ("fused square", _square, False, FORWARD_FLOPS),
                ("fused causal", _square, True, FORWARD_FLOPS),
                ("fused backward", _backward, False, BACKWARD_FLOPS),
                ("fused causal backward", _backward, True, BACKWARD_FLOPS),
            )
        ),
    ]  # fmt: skip


def fused_s(tables: Mapping[str, TimeTable], o: KernelCall) -> float:
    """Return the seconds of a fused kernel; other lengths of queries and keys by their product."""
    heads, n, m, d, v = o.sizes
    kind = o.form + " backward" * ("backward" in o.name)
    if kind == "fused" and n != m:
        return tables[kind].at((heads, n, m, (d + v) / 2))
    table = tables["fused square" if kind == "fused" else kind]
    return table.at((heads, n * m, (d + v) / 2))


def _head_rows(made: Any, heads: int, length: int, width: int) -> torch.Tensor:
    """Return rows of heads as a layer has them, beside each other for each token."""
    return torch.randn(1, length, heads, width, **made).transpose(1, 2)


def _forward(made: Any, heads: int, n: int, m: int, width: int, *, causal: bool = False) -> Call:
    q, k, v = (_head_rows(made, heads, length, width) for length in (n, m, m))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _square(made: Any, causal: bool, heads: int, scores: int, width: int) -> Call:
    return _forward(made, heads, isqrt(scores), isqrt(scores), width, causal=causal)


def _backward(made: Any, causal: bool, heads: int, scores: int, width: int) -> Call:
    n = isqrt(scores)
    q, k, v, gradient = (_head_rows(made, heads, n, width) for _ in range(4))
    aten = torch.ops.aten
    y, scale = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)  # noqa: SLF001 - torch's kernel
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 - torch's kernel
    return lambda: backward(gradient, q, k, v, y, scale, 0.0, causal)
