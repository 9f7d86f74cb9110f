"""Predict the time of a product of matrices of any shape from measured products of random shapes.

A grid over batch, rows, columns, length of the sums and layout would be far too large, and kernels
change with alignment. So the time is a sum of terms, like the call, multiplications, entries that
are read, packed and written, and edges that do not fill a register. Their weights, none of them
negative, are fitted to the measured times. The logarithm of measured over fitted time, the
remainder, is then interpolated between shapes that are alike in size, layout and alignment (a
Gaussian process with a Matérn kernel of order 3/2).

Products with a vector, of one row by a matrix or of a column by a row, have terms of their own.
Decoding is made of them: one query reads a cache, a state grows by the product of a key and a
value. Each entry of a matrix is used once, so the time is that of reading or writing it, from the
level of the cache that holds it. Kernels of wider products say little about that: fitted to them,
products of one row were 23 % off at the median on an AMD EPYC. These fits are 6 to 9 % off up to
MANY_ENTRIES and 8 to 11 % beyond, by products that were left out of them.

Entry points: :func:`product_shapes` and :func:`vector_shapes` for a calibration,
:meth:`ProductTimes.at` and :meth:`VectorTimes.at` for a prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, log2
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnprof.device.tables import Sizes

Array = NDArray[np.float64]

#: Layouts of operands in memory: both by rows, the second by columns, the first, or both.
PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED, BOTH_TRANSPOSED = 1, 2, 3, 4
#: Added to the layout of a batch of one product, for which some devices have other kernels than for
#: a single product.
AS_A_BATCH = 4
#: Rounds of the fit, each of which weights shapes anew by their errors; sweeps over all weights in
#: a round.
ROUNDS, SWEEPS = 12, 30
#: Error of a time, as a logarithm, at which a shape counts half as much in the fit.
ROBUST_SCALE = 0.3
#: Entries (4 B each) that levels of the cache hold; larger tensors take longer per entry.
CACHE_ENTRIES = (1e5, 2e6)
#: Layouts of products in layers, to draw from; both operands transposed is rare.
LAYOUTS = (PLAIN, PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED)


@dataclass(frozen=True)
class ProductLimits:
    """Number and largest sizes of the products to measure on a kind of device.

    ``entries``: of a tensor with its batch. ``work``: multiplications of a batch. In percent:
    ``long_sums``, products with far longer sums than rows and columns; ``many``, batches of very
    many small products; ``as_batches``, single products that are computed as a batch of one.
    """

    count: int
    entries: int
    work: int
    long_sums: int = 0
    many: int = 0
    as_batches: int = 0


CPU_PRODUCTS = ProductLimits(1300, 20_000_000, 1_200_000_000)
#: A GPU's kernels differ most by how they split long sums, and between batches and single products.
GPU_PRODUCTS = ProductLimits(
    3600, 200_000_000, 200_000_000_000, long_sums=35, many=8, as_batches=50
)
#: Ranges of sizes: lengths of sequences, small widths (heads), large widths.
LENGTH_RANGE, SMALL_RANGE, LARGE_RANGE = (16, 8192), (8, 160), (128, 4800)
#: Range of the length of long sums.
LONG_SUM_RANGE = (200, 32768)
#: Range of the number of products in batches of very many.
MANY_RANGE = (256, 65536)
#: Percent of lengths and of widths that are multiples of 8, and of sizes that are powers of two.
EVEN_LENGTHS_PERCENT, EVEN_WIDTHS_PERCENT, POWERS_PERCENT = 85, 60, 20
#: Rows whose distance is a multiple of so many entries map to few sets of a cache; a multiple of
#: twice as many, to even fewer.
CROWDED_STRIDE = 512
#: A quarter of the products have few columns, half of these a multiple of 8, since kernels differ.
FEW_COLUMNS_RANGE, EVEN_COLUMNS = (4, 40), (8, 16, 24, 32)


def product_shapes(limits: ProductLimits = CPU_PRODUCTS) -> tuple[tuple[int, ...], ...]:
    """Return shapes (batch, m, n, k, layout) over all magnitudes, random but always the same.

    A shape stands for ``batch`` products of (m, k) by (k, n).
    """
    draw = Random(0)  # noqa: S311 - which shapes, no secret
    shapes = dict[tuple[int, ...], None]()
    while len(shapes) < limits.count:
        batch = draw.choice((1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 128))
        m, n, k = (_random_size(draw) for _ in range(3))
        if draw.random() < 0.25:
            even = draw.random() < 0.5
            n = draw.choice(EVEN_COLUMNS) if even else draw.randint(*FEW_COLUMNS_RANGE)
        layout = draw.choice(LAYOUTS)
        if limits.long_sums and draw.random() * 100 < limits.long_sums:
            m, n, k = (
                _size_between(draw, *ends)
                for ends in (SMALL_RANGE, (SMALL_RANGE[0], LARGE_RANGE[1]), LONG_SUM_RANGE)
            )
            m, n = draw.sample((m, n), 2)
            layout = draw.choice((*LAYOUTS[1:], FIRST_TRANSPOSED, BOTH_TRANSPOSED))
        if limits.many and draw.random() * 100 < limits.many:
            batch = _size_between(draw, *MANY_RANGE)
            m, n, k = (_size_between(draw, *SMALL_RANGE) for _ in range(3))
            m, n = draw.sample((m, draw.choice((1, n))), 2)
        if batch > 1 and draw.random() < 0.1:
            m = 1  # the queries of one token
        elif draw.random() < 0.12:
            stride = CROWDED_STRIDE * draw.choice((1, 2, 4, 8))
            layout = draw.choice((PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED))
            m = stride if layout == FIRST_TRANSPOSED else m
            n = stride if layout == PLAIN else n
            k = stride if layout == SECOND_TRANSPOSED else k
        if limits.as_batches and batch == 1 and draw.random() * 100 < limits.as_batches:
            layout += AS_A_BATCH
        entries = batch * max(m * n, m * k, n * k)
        if entries <= limits.entries and batch * m * n * k <= limits.work:
            shapes[batch, m, n, k, layout] = None
    return tuple(shapes)


def _random_size(draw: Random) -> int:
    """Draw a length of a sequence or a width, with the same probability."""
    length = draw.random() < 0.5
    low, high = LENGTH_RANGE if length else SMALL_RANGE if draw.random() < 0.7 else LARGE_RANGE
    return _size_between(draw, low, high, EVEN_LENGTHS_PERCENT if length else EVEN_WIDTHS_PERCENT)


def _size_between(
    draw: Random, low: int, high: int, even_percent: int = EVEN_WIDTHS_PERCENT
) -> int:
    """Draw a size, log-uniform in a range; round it to a power of two, a multiple of 8, or not."""
    size = round(exp(draw.uniform(log(low), log(high))))
    if draw.random() * 100 < POWERS_PERCENT:
        return int(2 ** round(log2(size)))
    even = draw.random() * 100 < even_percent
    return max(8, size // 8 * 8) if even else size


#: Bytes of an entry of single precision, from which on kernels read factors with any strides.
SINGLE_BYTES = 4


def is_packed(x: Any) -> bool:
    """Return whether oneDNN copies a factor first: a half format whose matrices are not dense."""
    return x.element_size() < SINGLE_BYTES and not (x.is_contiguous() or x.mT.is_contiguous())


def layout_of(first: Any, second: Any) -> int:
    """Return the layout of two factors: which lies by columns, and whether in a batch of one."""
    first_by_columns, second_by_columns = (
        bool(x.stride(-1) != 1 and x.stride(-2) == 1) for x in (first, second)
    )
    is_batch_of_one = bool(first.dim() == 3 and first.shape[0] == 1)
    return PLAIN + second_by_columns + 2 * first_by_columns + AS_A_BATCH * is_batch_of_one


@dataclass(frozen=True)
class Likeness:
    """Distances between shapes; shapes within a distance of about one have similar remainders.

    ``rows``: for doubling the rows or the length of the sums. ``columns``: for doubling the columns
    up to 64. ``batched``: between one product and several. ``as_batch``: between a single product
    and a batch of one. ``aligned``: for rows that do not begin at multiples of 8 entries. ``odd``:
    for an odd number of columns. ``left_over``, ``noise``: standard deviations, in logarithms, of
    remainders and of measured times.
    """

    rows: float = 0.5
    columns: float = 2.0
    batched: float = 0.2
    as_batch: float = 0.0
    aligned: float = 0.0
    odd: float = 0.1
    left_over: float = 0.3
    noise: float = 0.1


@dataclass(frozen=True)
class ProductTimes:
    """Seconds of products by shape (batch, m, n, k, layout), with a fit to all of them."""

    seconds: Mapping[Sizes, float]
    likeness: Likeness = Likeness()

    def at(self, batch: int, m: int, n: int, k: int, layout: int = PLAIN) -> float:
        """Return the seconds of ``batch`` products (m, k) by (k, n)."""
        weights, mean, points, influence = self._fitted
        shape = np.array([[batch, m, n, k, layout]], dtype=float)
        remainder = self._covariance(self._features(shape), points) @ influence
        return float(np.exp(np.log(self._terms(shape) @ weights) + mean + remainder)[0])

    @cached_property
    def _fitted(self) -> tuple[Array, float, Array, Array]:
        """Weights of terms, median remainder, features of measured shapes, influence of each."""
        shapes = np.array(list(self.seconds), dtype=float)
        times = np.array(list(self.seconds.values()))
        terms, points = self._terms(shapes), self._features(shapes)
        weights = _fit_weights(terms / times[:, None])
        remainders = np.log(times) - np.log(terms @ weights)
        mean = float(np.median(remainders))
        covariance = self._covariance(points, points) + self.likeness.noise**2 * np.eye(len(points))
        return weights, mean, points, np.linalg.solve(covariance, remainders - mean)

    def _terms(self, shapes: Array) -> Array:
        """Return the terms that add up to a product's time: a row per shape, a column per term."""
        b, m, n, k, layout = shapes.T
        first, second = transposed(layout)
        ones, in_batch = np.ones_like(b), (b > 1) * 1.0
        left, right, results = b * m * k, b * n * k, b * m * n
        columns: list[Any] = [1 - in_batch, in_batch, b * in_batch]
        columns += [results * k, left, right, results]
        columns += [left * first, right * second, b * m, b * n, b * k]
        columns += [left * (n % 16 == rest) for rest in range(1, 16)]
        columns += [right * (m % 8 == rest) for rest in range(1, 8)]
        columns += [results * (n % step != 0) for step in (2, 4, 8, 16)]
        columns += [results * k * (n % step != 0) for step in (2, 8)]
        row_strides = _row_strides(m, n, k, layout)
        columns += [x * (stride % step != 0) for step in (2, 4, 8)
                    for x, stride in zip((right, left), row_strides, strict=True)]  # fmt: skip
        columns += [x * (stride % (CROWDED_STRIDE * times) == 0) for times in (1, 2)
                    for x, stride in zip((right, left), row_strides, strict=True)]  # fmt: skip
        columns += [x * (x > cache) for x in (left, right, results) for cache in CACHE_ENTRIES]
        columns += [left * (n < 16), right * (m < 16), results * (k < 16)]
        return np.stack([column * ones for column in columns], axis=1)

    def _features(self, shapes: Array) -> Array:
        """Return the coordinates of shapes whose distances :class:`Likeness` describes, a row each.

        The constants gave the least errors on random products that were left out of the fit.
        """
        b, m, n, k, layout = shapes.T
        like = self.likeness
        first, second = transposed(layout)
        row_strides = _row_strides(m, n, k, layout)
        crowded = [
            0.7 * (entries % (CROWDED_STRIDE * times) == 0)
            for entries in row_strides
            for times in (1, 2)
        ]
        aligned = [
            share * like.aligned * (entries % step != 0)
            for entries in row_strides
            for share, step in ((1.0, 8), (0.6, 2))
        ]
        return np.stack(
            [
                like.rows * np.log2(m), 0.5 * np.log2(n), like.rows * np.log2(k), 0.5 * np.log2(b),
                1.0 * second, 0.5 * first, like.columns * np.log2(np.minimum(n, 64)),
                0.5 * (n % 16 != 0), 0.35 * (n % 8 != 0), 0.3 * (n % 4 != 0),
                like.odd * (n % 2 != 0), 0.2 * (m % 8 != 0), 0.1 * (k % 8 != 0),
                like.batched * (b > 1), like.as_batch * (layout > AS_A_BATCH),
                *crowded, *aligned,
            ],
            axis=1,
        )  # fmt: skip

    def _covariance(self, points: Array, other_points: Array) -> Array:
        """Return the prior covariance of the remainders at two sets of points (Matérn 3/2)."""
        distances = points @ other_points.T
        distances *= -2.0
        distances += (points**2).sum(1)[:, None] + (other_points**2).sum(1)
        np.sqrt(3 * np.maximum(distances, 0.0, out=distances), out=distances)
        covariance: Array = self.likeness.left_over**2 * (1 + distances)
        covariance *= np.exp(np.negative(distances, out=distances), out=distances)
        return covariance


def transposed(layout: Any) -> tuple[Any, Any]:
    """Return for each factor of a product 1.0 if it lies by columns, 0.0 if by rows."""
    first = (layout - 1) % AS_A_BATCH + 1 >= FIRST_TRANSPOSED
    return first * 1.0, (layout % 2 == 0) * 1.0


def _row_strides(m: Array, n: Array, k: Array, layout: Array) -> tuple[Array, Array]:
    """Return the entries from one row in memory to the next, of the second and the first factor."""
    first, second = transposed(layout)
    return np.where(second > 0, k, n), np.where(first > 0, m, k)


def _fit_weights(shares: Array) -> Array:
    """Fit non-negative weights with which the columns of each row add up to about one.

    Solve least squares by coordinate descent, in rounds. Each round weights the rows so that errors
    count by their logarithm, and large errors less.
    """
    scale = np.maximum(np.sqrt((shares**2).mean(0)), 1e-300)
    columns = shares / scale
    factors, row_weights = np.zeros(columns.shape[1]), np.ones(len(columns))
    for _ in range(ROUNDS):
        weighted = columns * row_weights[:, None]
        gram, target = weighted.T @ weighted, weighted.T @ row_weights
        for _ in range(SWEEPS):
            for j in np.flatnonzero(gram.diagonal() > 0):
                factors[j] = max(0.0, factors[j] + (target[j] - gram[j] @ factors) / gram[j, j])
        totals = np.maximum(columns @ factors, 1e-3)
        row_weights = 1 / np.sqrt(totals * (1 + (np.log(totals) / ROBUST_SCALE) ** 2))
    weights: Array = factors / scale
    return weights


#: Numbers of products of one row, and of a column by a row, to measure; most entries of their
#: matrices; entries that every other shape exceeds.
ROW_SHAPES, OUTER_SHAPES, MOST_ENTRIES, MANY_ENTRIES = 170, 50, 26_000_000, 500_000
#: Range of the two sizes of a matrix, of which either may be the longer.
SHORT_RANGE, LONG_RANGE = (8, 2048), (8, 65536)
#: Numbers of matrices to draw from.
BATCHES = (1, 1, 1, 1, 2, 4, 8, 16, 32, 64)
#: Entries of all matrices together, from which on some level of a cache no longer holds them.
VECTOR_CACHE_ENTRIES = (1e5, 2.5e5, 1e6, 2e6, 4e6, 8e6)


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
            columns += [entries * (entries > cache) for cache in VECTOR_CACHE_ENTRIES]
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
