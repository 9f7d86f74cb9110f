"""How long a product of matrices takes, from measured products of many shapes.

A kernel's time adds up: the call, every multiplication, entries that are read, packed and written,
and what edges cost that do not fill a register. How much each counts is fitted to measured times,
none of it negative. What the sum leaves over is interpolated between neighbours, shapes that are
alike in size, layout and alignment (a Gaussian process with a Matérn kernel of order 3/2).
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

#: How operands lie: row by row (1), the second transposed (2), the first (3), both (4).
PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED, BOTH_TRANSPOSED = 1, 2, 3, 4
#: Added to the layout of a single product that is asked for as a batch of one, which some devices
#: have other kernels for.
AS_A_BATCH = 4
#: Rounds of the fit, each weighing shapes by how far off they were, and sweeps in one.
ROUNDS, SWEEPS = 12, 30
#: Logarithms of a time's error beyond which a shape counts less.
FAR_OFF = 0.3
#: Entries of a level of the cache, four bytes each; results beyond them are written more slowly.
CACHES = (1e5, 2e6)


#: Layouts of products that calls ask for; both operands transposed are rare.
LAYOUTS = (PLAIN, PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED)


@dataclass(frozen=True)
class ProductLimits:
    """Products that are measured; entries of a tensor and multiplications of the largest.

    ``long_sums`` of a hundred have far longer sums than rows and columns, ``many`` of a hundred
    are batches of very many small ones, ``as_batches`` of a hundred single ones are batches of one.
    """

    count: int
    entries: int
    work: int
    long_sums: int = 0
    many: int = 0
    as_batches: int = 0


ON_CPU = ProductLimits(1400, 20_000_000, 1_200_000_000)
#: A GPU's kernels differ most in how they divide long sums, and whether they are asked for batches.
ON_GPU = ProductLimits(3600, 200_000_000, 200_000_000_000, long_sums=35, many=8, as_batches=50)
#: Sizes are lengths of sequences or widths, small ones of heads or larger ones, from and to; and
#: how many of a hundred lengths and widths are multiples of 8, and how many powers of two.
LENGTHS, SMALL, LARGE = (16, 8192), (8, 160), (128, 4800)
LONG = (200, 32768)
#: Products of a batch of very many, from and to.
MANY = (256, 65536)
EVEN_LENGTHS, EVEN_WIDTHS, POWERS = 85, 60, 20
#: Rows a multiple of so many entries apart share few places of a cache, and of twice as many fewer.
CROWDED = 512
#: Columns of a quarter of the results, and the multiples of 8 among them that half of these have:
#: kernels treat each such width in its own way.
FEW_COLUMNS, EVEN_COLUMNS = (4, 40), (8, 16, 24, 32)


def product_shapes(limits: ProductLimits = ON_CPU) -> tuple[tuple[int, ...], ...]:
    """Return random products of all magnitudes, always the same: batch, m, n, k and layout."""
    draw = Random(0)  # noqa: S311 - which shapes, no secret
    shapes = dict[tuple[int, ...], None]()
    while len(shapes) < limits.count:
        batch = draw.choice((1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 128))
        m, n, k = (_size(draw) for _ in range(3))
        if draw.random() < 0.25:
            even = draw.random() < 0.5
            n = draw.choice(EVEN_COLUMNS) if even else draw.randint(*FEW_COLUMNS)
        layout = draw.choice(LAYOUTS)
        if limits.long_sums and draw.random() * 100 < limits.long_sums:
            m, n, k = (_sized(draw, *ends) for ends in (SMALL, (SMALL[0], LARGE[1]), LONG))
            m, n = draw.sample((m, n), 2)
            layout = draw.choice((*LAYOUTS[1:], FIRST_TRANSPOSED, BOTH_TRANSPOSED))
        if limits.many and draw.random() * 100 < limits.many:
            batch = _sized(draw, *MANY)
            m, n, k = (_sized(draw, *SMALL) for _ in range(3))
            m, n = draw.sample((m, draw.choice((1, n))), 2)
        if batch > 1 and draw.random() < 0.1:
            m = 1  # the queries of one token
        elif draw.random() < 0.12:
            apart = CROWDED * draw.choice((1, 2, 4, 8))
            layout = draw.choice((PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED))
            m = apart if layout == FIRST_TRANSPOSED else m
            n = apart if layout == PLAIN else n
            k = apart if layout == SECOND_TRANSPOSED else k
        if limits.as_batches and batch == 1 and draw.random() * 100 < limits.as_batches:
            layout += AS_A_BATCH
        entries = batch * max(m * n, m * k, n * k)
        if entries <= limits.entries and batch * m * n * k <= limits.work:
            shapes[batch, m, n, k, layout] = None
    return tuple(shapes)


def _size(draw: Random) -> int:
    length = draw.random() < 0.5
    low, high = LENGTHS if length else SMALL if draw.random() < 0.7 else LARGE
    return _sized(draw, low, high, EVEN_LENGTHS if length else EVEN_WIDTHS)


def _sized(draw: Random, low: int, high: int, even_share: int = EVEN_WIDTHS) -> int:
    """Draw a size of any magnitude between two: a power of two, a multiple of 8, or any."""
    size = round(exp(draw.uniform(log(low), log(high))))
    if draw.random() * 100 < POWERS:
        return int(2 ** round(log2(size)))
    even = draw.random() * 100 < even_share
    return max(8, size // 8 * 8) if even else size


#: Bytes of an entry from which on a factor of a product may lie in memory in any way.
WHOLE_BYTES = 4


def is_packed(x: Any) -> bool:
    """Return whether oneDNN copies a factor first: matrices of half formats that lie apart."""
    return x.element_size() < WHOLE_BYTES and not (x.is_contiguous() or x.mT.is_contiguous())


def layout_of(first: Any, second: Any) -> int:
    """Return the layout: which of two matrices lies column by column; whether in a batch."""
    left, right = (bool(x.stride(-1) != 1 and x.stride(-2) == 1) for x in (first, second))
    alone = bool(first.dim() == 3 and first.shape[0] == 1)
    return PLAIN + right + 2 * left + AS_A_BATCH * alone


@dataclass(frozen=True)
class Likeness:
    """How far properties tell products apart; neighbours are about one apart.

    Of twice the ``rows`` or the length of sums, of twice the ``columns`` up to 64; of one or
    several at once (``batched``), of one alone or in a batch (``as_batch``); of rows that begin at
    multiples of 8 entries or do not (``aligned``), and even or odd columns. ``left_over`` and
    ``noise`` are standard deviations, in logarithms, of what the sum leaves over and of a time.
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
    """Seconds of products by their sizes: batch, m, n, k and the layout (``PLAIN``, …)."""

    seconds: Mapping[Sizes, float]
    likeness: Likeness = Likeness()

    def at(self, batch: int, m: int, n: int, k: int, layout: int = PLAIN) -> float:
        """Return the seconds of so many products (m, k) by (k, n)."""
        weights, mean, points, left = self._fitted
        shape = np.array([[batch, m, n, k, layout]], dtype=float)
        near = self._covariance(self._features(shape), points) @ left
        return float(np.exp(np.log(_work(shape) @ weights) + mean + near)[0])

    @cached_property
    def _fitted(self) -> tuple[Array, float, Array, Array]:
        """Weights of the sum, its usual error, measured shapes, and what each tells of others."""
        shapes = np.array(list(self.seconds), dtype=float)
        times = np.array(list(self.seconds.values()))
        work, points = _work(shapes), self._features(shapes)
        weights = _fit(work / times[:, None])
        over = np.log(times) - np.log(work @ weights)
        mean = float(np.median(over))
        covariance = self._covariance(points, points) + self.likeness.noise**2 * np.eye(len(points))
        return weights, mean, points, np.linalg.solve(covariance, over - mean)

    def _features(self, shapes: Array) -> Array:
        """Return the coordinates of shapes by which they are alike, chosen on random products."""
        b, m, n, k, layout = shapes.T
        like = self.likeness
        first, second = transposed(layout)
        apart = _rows_apart(m, n, k, layout)
        crowded = [
            0.7 * (entries % (CROWDED * times) == 0) for entries in apart for times in (1, 2)
        ]
        aligned = [
            share * like.aligned * (entries % step != 0)
            for entries in apart
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

    def _covariance(self, some: Array, others: Array) -> Array:
        """Return how much what one shape leaves over tells of another's."""
        apart = some @ others.T
        apart *= -2.0
        apart += (some**2).sum(1)[:, None] + (others**2).sum(1)
        np.sqrt(3 * np.maximum(apart, 0.0, out=apart), out=apart)
        covariance: Array = self.likeness.left_over**2 * (1 + apart)
        covariance *= np.exp(np.negative(apart, out=apart), out=apart)
        return covariance


def _work(shapes: Array) -> Array:
    """Return what a product's time is a sum of, a column each."""
    b, m, n, k, layout = shapes.T
    first, second = transposed(layout)
    ones, pieces = np.ones_like(b), (b > 1) * 1.0
    left, right, out = b * m * k, b * n * k, b * m * n
    columns: list[Any] = [1 - pieces, pieces, b * pieces, out * k, left, right, out]
    columns += [left * first, right * second, b * m, b * n, b * k]
    columns += [left * (n % 16 == rest) for rest in range(1, 16)]
    columns += [right * (m % 8 == rest) for rest in range(1, 8)]
    columns += [out * (n % step != 0) for step in (2, 4, 8, 16)]
    columns += [out * k * (n % step != 0) for step in (2, 8)]
    rows_apart = _rows_apart(m, n, k, layout)
    columns += [x * (apart % step != 0) for step in (2, 4, 8)
                for x, apart in zip((right, left), rows_apart, strict=True)]  # fmt: skip
    columns += [x * (apart % (CROWDED * times) == 0) for times in (1, 2)
                for x, apart in zip((right, left), rows_apart, strict=True)]  # fmt: skip
    columns += [x * (x > cache) for x in (left, right, out) for cache in CACHES]
    columns += [left * (n < 16), right * (m < 16), out * (k < 16)]
    return np.stack([column * ones for column in columns], axis=1)


def transposed(layout: Any) -> tuple[Any, Any]:
    """Return whether the first and the second operand lie column by column, 1 or 0."""
    first = (layout - 1) % AS_A_BATCH + 1 >= FIRST_TRANSPOSED
    return first * 1.0, (layout % 2 == 0) * 1.0


def _rows_apart(m: Array, n: Array, k: Array, layout: Array) -> tuple[Array, Array]:
    """Return the entries from one row in memory to the next, second operand first."""
    first, second = transposed(layout)
    return np.where(second > 0, k, n), np.where(first > 0, m, k)


def _fit(shares: Array) -> Array:
    """Fit weights, none negative, with which the columns of a row add up to about one.

    Least squares by coordinates, in rounds: rows are weighed so that errors count by their
    logarithm, and large ones less.
    """
    scale = np.maximum(np.sqrt((shares**2).mean(0)), 1e-300)
    columns = shares / scale
    factors, rows = np.zeros(columns.shape[1]), np.ones(len(columns))
    for _ in range(ROUNDS):
        weighed = columns * rows[:, None]
        gram, aim = weighed.T @ weighed, weighed.T @ rows
        for _ in range(SWEEPS):
            for j in np.flatnonzero(gram.diagonal() > 0):
                factors[j] = max(0.0, factors[j] + (aim[j] - gram[j] @ factors) / gram[j, j])
        total = np.maximum(columns @ factors, 1e-3)
        rows = 1 / np.sqrt(total * (1 + (np.log(total) / FAR_OFF) ** 2))
    weights: Array = factors / scale
    return weights
