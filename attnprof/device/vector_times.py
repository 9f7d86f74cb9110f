"""Predict the time of products with a vector: of one row by a matrix, or of a column by a row.

Decoding is made of them: one query reads a cache, a state grows by the product of a key and a
value. Each entry of a matrix is used once, so the time is that of reading or writing it, from the
level of the cache that holds it. Kernels of wider products say little about that: fitted to them,
products of one row were 23 % off at the median on an AMD EPYC. These fits are 6 to 9 % off up to
MANY_ENTRIES and 8 to 11 % beyond, by products that were left out of them.

Entry points: :func:`vector_shapes` for a calibration, :meth:`VectorTimes.at` for a prediction.
"""

from math import exp, log
from random import Random
from typing import Any

import numpy as np

from attnprof.device.product_times import PLAIN, SECOND_TRANSPOSED, Array, ProductTimes

#: Numbers of products of one row, and of a column by a row, to measure; most entries of their
#: matrices; entries that every other shape exceeds.
ROW_SHAPES, OUTER_SHAPES, MOST_ENTRIES, MANY_ENTRIES = 170, 50, 26_000_000, 500_000
#: Range of the two sizes of a matrix, of which either may be the longer.
SHORT_RANGE, LONG_RANGE = (8, 2048), (8, 65536)
#: Numbers of matrices to draw from.
BATCHES = (1, 1, 1, 1, 2, 4, 8, 16, 32, 64)
#: Entries of all matrices together, from which on some level of a cache no longer holds them.
CACHE_ENTRIES = (1e5, 2.5e5, 1e6, 2e6, 4e6, 8e6)


def vector_shapes() -> tuple[tuple[int, ...], ...]:
    """Return shapes (batch, m, n, k, layout) with m = 1 or k = 1, random but always the same."""
    draw = Random(1)  # noqa: S311 - which shapes, no secret
    shapes = dict[tuple[int, ...], None]()
    while len(shapes) < ROW_SHAPES + OUTER_SHAPES:
        batch = draw.choice(BATCHES)
        first, second = (_size(draw, *ends) for ends in draw.sample((SHORT_RANGE, LONG_RANGE), 2))
        if MANY_ENTRIES * (len(shapes) % 2) <= batch * first * second <= MOST_ENTRIES:
            is_row = len(shapes) < ROW_SHAPES
            layout = draw.choice((PLAIN, SECOND_TRANSPOSED)) if is_row else PLAIN
            shapes[batch, *((1, second, first) if is_row else (first, second, 1)), layout] = None
    return tuple(shapes)


def _size(draw: Random, low: int, high: int) -> int:
    """Draw a size, log-uniform; a multiple of 8 in most cases."""
    size = round(exp(draw.uniform(log(low), log(high))))
    return size if size < 16 or draw.random() < 0.2 else size // 8 * 8


class VectorTimes(ProductTimes):
    """Seconds of products with a vector by shape (batch, m, n, k, layout), m = 1 or k = 1."""

    def _terms(self, shapes: Array) -> Array:
        """Return calls, rows, columns and entries, by what is read: a row per shape."""
        b, m, n, k, layout = shapes.T
        outer, by_columns = k == 1, (layout == SECOND_TRANSPOSED) & (k > 1)
        in_batch, ones = b > 1, np.ones_like(b)
        columns: list[Any] = [~in_batch, in_batch, b * in_batch]
        for kind in (outer, by_columns, ~outer & ~by_columns):
            entries = b * m * n * k * kind
            columns += [entries, b * n * kind, b * m * k * kind, entries * in_batch]
            columns += [entries * (entries > cache) for cache in CACHE_ENTRIES]
        return np.stack([column * ones for column in columns], axis=1)

    def _features(self, shapes: Array) -> Array:
        """Return the coordinates of shapes whose remainders are alike nearby, a row each."""
        b, m, n, k, layout = shapes.T
        return np.stack(
            [
                0.25 * np.log2(n), 0.25 * np.log2(m * k), 0.2 * np.log2(b), 0.5 * (b > 1),
                0.3 * np.log2(b * m * n * k), 1.0 * (layout == SECOND_TRANSPOSED), 3.0 * (k == 1),
                0.3 * (n % 8 != 0),
            ],
            axis=1,
        )  # fmt: skip
