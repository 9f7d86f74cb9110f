"""The low-rank family of 003: factorised scores U Vᵀ, and Nystromformer's landmarks."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.gathered import band_convolution
from attnprof.blocks.softmax import row_attention
from attnprof.costs import Cost, Number, floor_div, minimum
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, as_format_of, join, square_root, wide
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class LowRank(Mechanism):
    """Weights U Vᵀ of rank ``rank``: U from queries, V from keys, each normalised by softmax.

    U = softmax(Q A / sqrt d) over the rank, V = softmax(K B / sqrt d) over the tokens; both factors
    are positive, every row of U and every column of V sums to one, so every row of U Vᵀ does.
    The maps A, B (d, rank) are learned and shared by heads. The document gives no normalisation:
    this one needs no N×N matrix and keeps the weights a distribution.
    """

    rank: int = 64

    name: ClassVar[str] = "low-rank"
    title: ClassVar[str] = "Low-rank factorised attention"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "low-rank"
    allowed: ClassVar[dict[str, Any]] = {"rank": 1}
    tuned = ("rank",)
    not_split: ClassVar[str] = (
        "normalises its key factor over all tokens, whose sums ranks add up: no ring, no state"
    )
    to_softmax = (
        "untrained", "its maps are learned: the distance is that of maps as they start",
    )  # fmt: skip
    time_order = memory_order = "N"
    abilities: ClassVar[Abilities] = Abilities(causal=False, decode=False, cross=True)
    reasons: ClassVar[dict[str, str]] = {
        "causal": "normalises its key factor over all tokens, so a row would see later ones; "
        "leave --causal out",
        "decode": "normalises over a whole sequence and has no step; use --phase forward",
    }

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return scores of unit variance for queries of unit variance, once divided by sqrt d."""
        weight = Weight((sizes.head_dim, self.rank), "normal")
        return {"query_map": weight, "key_map": weight}

    def core(self, q: Any, k: Any, v: Any, weights: Any) -> Any:
        """Compute the key factor times the values first: no stage is larger than N × rank."""
        key_factor = _factor(flat(k), weights.key_map, over=1)
        context = key_factor.transpose(1, 2).bmm(flat(v))
        del key_factor
        query_factor = _factor(flat(q), weights.query_map, over=2)
        return query_factor.bmm(context).view(*q.shape[:3], -1)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define both factors, the values under V, the rows under U."""
        w, r = workload, self.rank
        heads = w.batch_size * w.num_heads
        for name, n, sums in (("key", w.keys, r), ("query", w.seq_len, w.seq_len)):
            entries = heads * n * r
            writer.dots(f"{name} factor", entries, entries * w.head_dim)
            writer.softmax(entries, heads * sums, prefix=f"{name} ", sums="sums")
        context, rows = heads * r * w.head_dim, heads * w.seq_len * w.head_dim
        writer.dots("context", context, context * w.keys)
        writer.dots("weighted context", rows, rows * r)


def _factor(x: Any, weight: Any, over: int) -> Any:
    """Return softmax(x W / sqrt d) along the axis ``over``: (b·h, n, d) → (b·h, n, rank)."""
    stretched = weight.unsqueeze(0).expand(x.shape[0], -1, -1)
    scores = x.bmm(stretched).div_(square_root(x.shape[-1]))
    return scores.softmax(over)


#: Steps of the cubic iteration, each written out: it has converged long before.
MOST_ITERATIONS = 100


@dataclass(frozen=True, kw_only=True)
class Nystromformer(Mechanism):
    """softmax(Q K̃ᵀ) pinv(softmax(Q̃ K̃ᵀ)) softmax(Q̃ Kᵀ) V with m landmarks Q̃, K̃.

    A landmark is the mean of a segment; segments differ by one token where m does not divide N,
    and there are never more landmarks than tokens. ``iterations`` of the pseudo-inverse's cubic
    iteration start from the transpose over its own norms: no sample reads another's. The inverse
    is never made: its polynomials multiply softmax(Q̃ Kᵀ) V, and only A times it is squared. An odd
    ``conv_kernel`` adds a depthwise convolution of the values along the tokens, one kernel a head.
    """

    num_landmarks: int = 64
    iterations: int = 6
    conv_kernel: int | None = None

    name: ClassVar[str] = "nystromformer"
    title: ClassVar[str] = "Nystromformer"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "low-rank"
    time_order = memory_order = "N"
    flat: ClassVar[bool] = False
    tuned = ("num_landmarks",)
    not_split: ClassVar[str] = (
        "takes its landmarks from all tokens, and an inverse of them: no ring, no state"
    )
    to_softmax = (
        "approximates", "with as many landmarks as tokens the same, but for its iterated inverse",
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {"num_landmarks": 1, "iterations": 1}
    abilities: ClassVar[Abilities] = Abilities(causal=False, decode=False)
    reasons: ClassVar[dict[str, str]] = {
        "causal": "takes its landmarks as means over all tokens, so a row would see later ones; "
        "leave --causal out",
        "decode": "takes its landmarks from a whole sequence and has no step; use --phase forward",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations > MOST_ITERATIONS:
            raise RequestError(
                f"iterations={self.iterations}: at most {MOST_ITERATIONS}, and 6 are usual"
            )
        if self.conv_kernel is not None and (self.conv_kernel < 1 or self.conv_kernel % 2 == 0):
            raise RequestError(f"conv_kernel={self.conv_kernel}: odd, so that it has a middle")

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the convolution's kernel, one a head."""
        size = self.conv_kernel
        if size is None:
            return {}
        return {"kernel": Weight((sizes.num_heads, size), "normal", math.sqrt(size))}

    def core(self, q: Any, k: Any, v: Any, weights: Any) -> Any:
        """Return attention through landmarks, plus the convolution of the values."""
        out = self._through_landmarks(q, k, v)
        if self.conv_kernel is not None:
            out.add_(band_convolution(v, weights.kernel))
        return out

    def _through_landmarks(self, q: Any, k: Any, v: Any) -> Any:
        """Compute means, three softmaxes, and the pseudo-inverse's product, from the right."""
        m, scale = minimum(self.num_landmarks, q.shape[2]), square_root(q.shape[3])
        q, q_mean = with_means(q, m=m)
        k, k_mean = with_means(k, m=m)
        q_mean = q_mean / scale
        inner = flat(q_mean).bmm(flat(k_mean).transpose(1, 2)).softmax(-1)
        context = row_attention(q_mean, k, v)
        short = inverse_product(inner, flat(context), iterations=self.iterations)
        del inner, context
        return row_attention(q, k_mean / scale, short.view(q_mean.shape))

    def reads(self, n: Number) -> Number:
        """Return rows read by all taps of the convolution together: borders are not padded."""
        size = self.conv_kernel or 1
        half = minimum(size // 2, n - 1)
        # taps beyond the sequence reach no row; a shift by s reaches n - s
        return n + 2 * half * n - half * (half + 1)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define means, three softmaxes, four products an iteration, three products outwards."""
        w = workload
        m = minimum(self.num_landmarks, w.seq_len)
        heads, d, n = w.batch_size * w.num_heads, w.head_dim, w.seq_len
        for name in ("query", "key"):
            writer.sums(f"{name} segments", heads * m * d, heads * n * d)
            writer.stage(f"{name} means", Cost(divisions=heads * m * d), heads, m, d)
        for name, rows, columns in (("left", n, m), ("inner", m, m), ("right", m, n)):
            entries = heads * rows * columns
            writer.dots(f"{name} scores", entries, entries * d)
            writer.softmax(entries, heads * rows, prefix=f"{name} ")
        square, step = heads * m * m, self.iterations
        writer.sums("column sums", heads * m, square)
        writer.stage("start", Cost(divisions=square), square)
        writer.dots("iterations", 4 * step * square, 4 * step * square * m)
        writer.stage("identities", Cost(additions=3 * step * square), square)
        writer.stage("quarters", Cost(divisions=step * square), square)
        for name, rows, columns in (("right", m, n), ("inner", m, m), ("left", n, m)):
            results = heads * rows * d
            writer.dots(f"{name} context", results, results * columns)
        if self.conv_kernel is not None:
            writer.dots("convolution", heads * n * d, heads * d * self.reads(n))
            writer.stage("add convolution", Cost(additions=heads * n * d), heads, n, d)


def _with_means(x: Any, *, m: Any) -> tuple[Any, tuple[Any, ...]]:
    longer, shorter = _segments(x, m)
    longer_means, shorter_means = longer.mean(3), shorter.mean(3)
    return (x.view(x.shape), join([longer_means, shorter_means], 2)), ()


def _with_means_grads(_saved: Any, grad: Any, to_means: Any, *, m: Any) -> tuple[Any, ...]:
    """Add a mean's gradient to that of its rows, in place."""
    longer, shorter = _segments(grad, m)
    more = longer.shape[2]
    shares = to_means[:, :, :more] / longer.shape[3]
    longer.add_(shares.unsqueeze(3))
    shares = to_means[:, :, more:] / shorter.shape[3]
    shorter.add_(shares.unsqueeze(3))
    return (grad,)


def _segments(x: Any, m: Any) -> tuple[Any, Any]:
    """Return views of x: (b, h, n mod m, ⌊n/m⌋ + 1, d) and (b, h, m - n mod m, ⌊n/m⌋, d)."""
    b, h, n, d = x.shape
    size = floor_div(n, m)
    more = n - m * size
    longer, shorter = x.split([more * (size + 1), (m - more) * size], 2)
    return longer.view(b, h, more, size + 1, d), shorter.view(b, h, m - more, size, d)


#: (b, h, n, d) → itself and (b, h, m, d): means of m segments, the first ones one token longer.
#:
#: The rows may have one other reader, which leaves its gradient to nobody else, as
#: :func:`row_attention` does: the gradient of the means is added there.
with_means = Function(_with_means, _with_means_grads)


# -- a row-stochastic matrix's pseudo-inverse times a thin matrix, without the inverse itself ----
# With Y = AZ the cubic iteration Z <- Z (13 I - Y (15 I - Y (7 I - Y))) / 4 needs no Z on the way:
#
#     Y <- (13 Y - 15 Y² + Y² (7 Y - Y²)) / 4,
#
# and Y stays symmetric, as it starts: A Aᵀ / c. The inverse times C is Z₀ = Aᵀ / c times the
# polynomials of all Y times C, in any order, for they commute: two full products an iteration and
# thin ones for C. The backward pass uses the symmetry too: three full products an iteration.
#
# Errors of Y are not undone as they are where AZ is multiplied anew: in float32 the result is good
# to about 1e-5 of its norm, not 1e-6. Formats of fewer digits are widened to float32.
def _next(x: Any, yx: Any, square: Any) -> tuple[Any, Any]:
    """Return (13 x - 15 yx - Y² (yx - 7 x)) / 4, and yx - 7 x; x thin or Y itself."""
    inner = yx.sub(x, alpha=7.0)
    out = x.lerp(yx, 7.5)  # (15 yx - 13 x) / 2
    add_product(out, square, inner, beta=-0.5, alpha=-0.25)
    return out, inner


def _run(a: Any, x: Any, scale: Any, iterations: int, kept: list[Any] | None) -> Any:
    """Return the iterations' result times x; ``kept`` collects four matrices of each step."""
    y = a.bmm(a.transpose(1, 2)).mul_(scale)
    for _ in range(iterations - 1):
        square = y.bmm(y)
        out, inner = _next(x, y.bmm(x), square)
        if kept is not None:
            kept += (y, square, x, inner)
        x = out
        del out, inner
        y = _next(y, square, square)[0]
        del square
    yx = y.bmm(x)
    inner = yx.sub(x, alpha=7.0)
    outer = y.bmm(inner)
    out = x.lerp(yx, 7.5)
    add_product(out, y, outer, beta=-0.5, alpha=-0.25)
    if kept is not None:
        kept += (y, outer, x, inner)
    return out


def _inverse_product(a: Any, x: Any, *, iterations: int, keep: bool) -> tuple[Any, tuple[Any, ...]]:
    original, a = a, wide(a)
    # over the largest column sum; the largest row sum is one
    scale = a.sum(1).amax(1).view(-1, 1, 1).reciprocal()
    kept: list[Any] | None = [] if keep else None
    last = _run(a, wide(x), scale, iterations, kept)
    out = a.transpose(1, 2).bmm(last).mul_(scale)
    saved = (a, scale, out, last, *kept) if kept else ()
    return as_format_of(out, original), saved


def _inverse_product_grads(
    saved: tuple[Any, ...], grad: Any, *, iterations: int
) -> tuple[Any, ...]:
    a, scale, out, last, *kept = saved
    original, grad = grad, wide(grad)
    to_scale = (grad * out).sum((1, 2), keepdim=True).div_(scale)
    above = grad * scale
    to_a = last.bmm(above.transpose(1, 2))
    to_y, to_x = _last_step(kept[-4:], a.bmm(above))
    del above
    for step in reversed(range(iterations - 1)):
        to_y, to_x = _step(kept[4 * step : 4 * step + 4], to_y, to_x)
    both = (to_y + to_y.transpose(1, 2)).bmm(a)
    del to_y
    to_scale.add_((both * a).sum((1, 2), keepdim=True), alpha=0.5)
    to_a.add_(both.mul_(scale))
    del both
    to_a.add_(_columns(a, scale, to_scale))
    return as_format_of(to_a, original), as_format_of(to_x, original)


def _last_step(kept: list[Any], grad: Any) -> tuple[Any, Any]:
    """Return gradients of Y and x through (13 x - 15 Yx - Y (Y (Yx - 7 x))) / 4."""
    y, outer, x, inner = kept
    quarter = grad * -0.25
    to_outer = y.bmm(quarter)
    to_inner = y.bmm(to_outer)
    to_y = quarter.bmm(outer.transpose(1, 2))
    add_product(to_y, to_outer, inner.transpose(1, 2))
    return _through(y, x, (quarter, to_inner), to_y)


def _through(y: Any, x: Any, grads: tuple[Any, Any], to_y: Any) -> tuple[Any, Any]:
    """Return gradients of Y and x, given those of 13 x - 15 Yx (-4 times) and of Yx - 7 x."""
    quarter, to_inner = grads
    to_yx = to_inner.add(quarter, alpha=15.0)
    add_product(to_y, to_yx, x.transpose(1, 2))
    to_x = quarter.mul_(-13.0).sub_(to_inner, alpha=7.0)
    add_product(to_x, y, to_yx)
    return to_y, to_x


def _step(kept: list[Any], to_next: Any, grad: Any) -> tuple[Any, Any]:
    """Return gradients of Y and x through the step's new Y and new x.

    Products with symmetric matrices: their gradients are made symmetric instead of added twice.
    """
    y, square, x, inner = kept
    quarter = grad * -0.25
    to_next = to_next + to_next.transpose(1, 2)
    to_square = quarter.bmm(inner.transpose(1, 2))
    mixed = square.sub(y, alpha=3.5)
    mixed.diagonal(dim1=1, dim2=2).add_(7.5)
    add_product(to_square, to_next, mixed, beta=1.0, alpha=-0.25)
    del mixed
    to_square = to_square + to_square.transpose(1, 2)
    to_y = to_square.bmm(y)
    del to_square
    add_product(to_y, to_next, square, beta=1.0, alpha=0.875)
    to_y.add_(to_next, alpha=1.625)
    return _through(y, x, (quarter, square.bmm(quarter)), to_y)


def _columns(a: Any, scale: Any, to_scale: Any) -> Any:
    """Return the gradient (b, 1, m) of the largest column sum's entries, shared by equal ones."""
    sums = a.sum(1, keepdim=True)
    largest = sums.eq(sums.amax(2, keepdim=True))
    ties = largest.sum(2, keepdim=True, dtype=int)
    share = to_scale.mul_(scale).mul_(scale).neg_().div_(ties)
    return share * largest


#: The pseudo-inverse of row-stochastic a (b, m, m) times x (b, m, d), each of the batch by itself,
#: after so many ``iterations``.
inverse_product = Function(_inverse_product, _inverse_product_grads)

MECHANISMS = (LowRank, Nystromformer)
