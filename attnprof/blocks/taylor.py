"""TaylorShift's operations with their own backward, and its sums by a state of features.

Rows, boxes, maps and ratios each save less than autograd would. Sums are causal by a scan over
chunks, or over all tokens.

The product of two rows' features is a weight of TaylorShift. Features are all pairs of entries, or
each once. Symmetric features hold x_i·x_j once where x ⊠ x holds it twice. They lie feature by
feature, (b, d(d+1)/2 + d + 1, c): the products x_i·x_{i+s} are then one multiplication of whole
blocks a shift s, with i + s going round.
"""

import math
from typing import Any

from attnprof.costs import at_least_one, exact_div, floor_div
from attnprof.ops import functional
from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, empty_like, put_entries, zeros_like
from attnprof.ops.layout import is_literally
from attnprof.ops.loops import each, in_blocks, other_blocks


def _rows(x: Any, *, length: Any) -> tuple[Any, tuple[Any, ...]]:
    norm = x.norm(dim=-1, keepdim=True)
    norm.masked_fill_(norm.eq(0), math.inf)
    factor = norm.reciprocal_().mul_(length)
    # heads of one sequence are strided; one after the other, nothing later copies them
    out = x.new_empty(x.shape)
    functional.put_entries(out, "mul", x, factor)
    return out, (out, factor)


def _rows_grad(saved: tuple[Any, ...], grad: Any, *, length: Any) -> tuple[Any]:
    """Return the gradient through a normalised row: (g - y (y·g) / length²) · factor."""
    y, factor = saved
    along = (grad * y).sum(-1, keepdim=True).div_(length**2)
    return ((y * along).neg_().add_(grad).mul_(factor),)


#: Rows of (…, d) scaled to a length; a zero row stays zero and passes no gradient.
rows_to_length = Function(_rows, _rows_grad)


def _map(scores: Any, *, causal: bool) -> tuple[Any, tuple[Any, ...]]:
    weights = (scores * scores).add_(1)
    return (weights.tril_() if causal else weights), (scores,)


def _map_grad(saved: tuple[Any, ...], grad: Any, *, causal: bool) -> tuple[Any]:
    out = (grad * saved[0]).mul_(2)
    return (out.tril_() if causal else out,)


#: s² + 1 of shifted scores (b, n, m), twice the Taylor map; zero above the diagonal if causal.
taylor_map = Function(_map, _map_grad)


def box_product(x: Any) -> Any:
    """Return x ⊠ x: (b, n, d) → (b, n, d²), every product of two entries of a row."""
    return (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


def box_grad(grad: Any, x: Any) -> Any:
    """Return (G + Gᵀ) x for the (d, d) gradient G of every row's box product."""
    b, n, d = x.shape
    square, row = grad.reshape(b * n, d, d), x.reshape(b * n, d, 1)
    out = square.bmm(row)
    out.add_(square.transpose(1, 2).bmm(row))
    return out.view(b, n, d)


#: The box product x ⊠ x, of which autograd saves x alone.
box = Function(lambda x: (box_product(x), (x,)), lambda saved, grad: (box_grad(grad, *saved),))


def _ratio(top: Any, bottom: Any, rows: Any, *, factor: Any) -> tuple[Any, tuple[Any, ...]]:
    scaled = bottom * (factor if rows is None else rows)
    out = top / scaled
    return out, (out, scaled, rows)


def _ratio_grads(saved: tuple[Any, ...], grad: Any, *, factor: Any) -> tuple[Any, Any, None]:
    """Return the numerator's gradient, g / z, and the denominator's, -Σ g·out · scale / z."""
    out, scaled, rows = saved
    shared = (grad * out).sum(-1, keepdim=True)
    to_top = grad / scaled
    return to_top, shared.neg_().mul_(factor if rows is None else rows).div_(scaled), None


_scaled_ratio = Function(_ratio, _ratio_grads)


def ratio(top: Any, bottom: Any, scale: Any) -> Any:
    """Return numerator (b, n, d) / denominator (b, n, 1) · scale (n, 1), or a number."""
    rows, factor = (scale, 1.0) if hasattr(scale, "unsqueeze") else (None, scale)
    return _scaled_ratio(top, bottom, rows, factor=factor)


def with_ones(v: Any) -> Any:
    """Return [1, v]: a column of ones gives numerator and denominator together."""
    return functional.padded(v, before=1, value=1.0)


def row_scale(n: Any, like: Any) -> Any:
    """Return rows sqrt(d / t), t = 1 … n, (n, 1): the denominator's share of the scale."""
    scale = functional.wide_positions(like, n).reciprocal_().mul_(like.shape[-1]).sqrt_()
    return functional.as_format_of(scale, like).unsqueeze(-1)


def weighted(weights: Any, v: Any, scale: Any) -> Any:
    """Return rows of weights (b, n, m) normalised, times v (b, m, d), by sqrt(N / d)."""
    bottom = weights.sum(-1, keepdim=True)
    top = weights.bmm(v)
    return ratio(top, bottom, scale)


def boxed_sums(q: Any, k: Any, v: Any) -> Any:
    """Return Ŷ of Algorithm 1, (b, n, d + 1); one N × d² tensor alive at a time."""
    n, d = v.shape[1:]
    values = functional.padded(v, before=1, value=functional.square_root(d, over=n)).div_(n)
    total = values.sum(1, keepdim=True).mul_(d)
    boxed = box(k)
    mixed = values.transpose(1, 2).bmm(boxed)  # this way round its gradient needs no copy
    del boxed
    boxed = box(q)
    y = boxed.bmm(mixed.transpose(1, 2)).mul_(0.5)
    del boxed, mixed
    linear = k.transpose(1, 2).bmm(values)
    y.add_(q.bmm(linear).mul_(functional.square_root(d)))
    del linear
    return functional.add_row_(y, total)


class Boxed:
    """[x ⊠ x, x, 1], or doubled [x ⊠ x, 2x, 2]: (b, c, d² + d + 1)."""

    def width(self, d: Any) -> Any:
        """Return features of d entries: all pairs, the entries, and one."""
        return d * d + d + 1

    def absorb(self, state: Any, x: Any, v: Any, doubled: bool = False) -> None:
        """Add the product of keys and values to the sums, by way of new memory."""
        state.add_(self.features(x, doubled).transpose(1, 2).bmm(v))

    def read(self, x: Any, state: Any, doubled: bool) -> Any:
        """Return the rows' sums, by one product with the state."""
        return self.features(x, doubled).bmm(state)

    def row_grad(self, x: Any, v: Any, state: Any, doubled: bool) -> Any:
        """Return the box's gradient, and that of the entries."""
        grad, square = v.bmm(state.transpose(1, 2)), x.shape[-1] * x.shape[-1]
        out = box_grad(grad[..., :square], x)
        middle = grad[..., square:-1]
        return out.add_(middle * 2 if doubled else middle)

    def features(self, x: Any, doubled: bool) -> Any:
        """Return the features, filled in place."""
        b, c, d = x.shape
        features = x.new_empty(b, c, self.width(d))
        squares = features[..., : d * d].view(b, c, d, d)
        squares.copy_(x.unsqueeze(-1).expand(b, c, d, d)).mul_(x.unsqueeze(-2))
        middle = features[..., d * d : -1].copy_(x)
        if doubled:
            middle.mul_(2)
        features[..., -1:].fill_(2 if doubled else 1)
        return features


class Symmetric:
    """[x, 1, x_i², x_i·x_j], (b, d(d+1)/2 + d + 1, c).

    Doubled are all but the squares, x_i·x_j standing for both orders.
    """

    def width(self, d: Any) -> Any:
        """Return features of d entries: the pairs i ≤ j, the entries, and one."""
        return exact_div(d * (d + 1), 2) + d + 1

    def absorb(self, state: Any, x: Any, v: Any, doubled: bool = False) -> None:
        """Add the keys' product with the values to the state, as it is computed."""
        add_product(state, self.features(_columns(x), x.shape[-1], doubled), v)

    def read(self, x: Any, state: Any, doubled: bool) -> Any:
        """Return the rows' sums, by one product with the state."""
        return self.features(_columns(x), x.shape[-1], doubled).transpose(1, 2).bmm(state)

    def row_grad(self, x: Any, v: Any, state: Any, doubled: bool) -> Any:
        """Compute the state's product, then the gradient shift by shift."""
        grad = state.bmm(v.transpose(1, 2))
        return _entries_grad(grad, _columns(x), x.shape[-1], doubled).transpose(1, 2)

    def features(self, x: Any, d: Any, doubled: bool) -> Any:
        """Return the features of :func:`_columns`."""
        b, _, c = x.shape
        shifts, half = _shifts(d)
        features = x.new_empty(b, self.width(d), c)
        base = features[:, :d]
        if doubled:
            put_entries(base, "mul", x[:, :d], 2)
        else:
            base.copy_(x[:, :d])
        features[:, d].fill_(2 if doubled else 1)
        pairs = features[:, d + 1 :]
        put_entries(pairs[:, :d], "mul", x[:, :d], x[:, :d])
        for _ in each(x, 0, at_least_one(shifts)):
            others = x[:, 1:].unfold(1, d, 1).transpose(2, 3)
            blocks = pairs[:, d : d + shifts * d].view(b, shifts, d, c)
            put_entries(blocks, "mul", base.unsqueeze(1), others)
        if not is_literally(half, 0):
            put_entries(pairs[:, d + shifts * d :], "mul", base[:, :half], x[:, half : 2 * half])
        return features


def _shifts(d: Any) -> tuple[Any, Any]:
    """Return the whole shifts of pairs, and the pairs of a shift by d/2: d/2 for even d, else 0."""
    shifts = floor_div(d - 1, 2)
    return shifts, exact_div(d * (d - 1 - 2 * shifts), 2)


def _columns(x: Any) -> Any:
    """Return (b, c, d) → (b, d + (d-1)//2, c): entries as rows, then the first ones once more."""
    b, c, d = x.shape
    shifts = _shifts(d)[0]
    columns = x.new_empty(b, d + shifts, c)
    columns[:, :d] = x.transpose(1, 2)
    if not is_literally(shifts, 0):
        columns[:, d:] = columns[:, :shifts]
    return columns


def _entries_grad(grad: Any, x: Any, d: Any, doubled: bool) -> Any:
    """Return the rows' gradient (b, d, c) from that of their features, added shift by shift."""
    shifts, half = _shifts(d)
    out = zeros_like(x)
    rows, entries = out[:, :d], x[:, :d]
    rows.copy_(grad[:, :d])
    squares, pairs = grad[:, d + 1 : 2 * d + 1], grad[:, 2 * d + 1 :]
    rows.addcmul_(squares, entries)
    if not doubled:
        rows.addcmul_(squares, entries)
    for s in each(x, 1, shifts + 1):
        block = pairs[:, (s - 1) * d : s * d]
        rows.addcmul_(block, x[:, s : s + d])
        out[:, s : s + d].addcmul_(block, entries)
    if not is_literally(half, 0):
        block = pairs[:, shifts * d :]
        rows[:, :half].addcmul_(block, x[:, half : 2 * half])
        rows[:, half : 2 * half].addcmul_(block, x[:, :half])
    if not is_literally(shifts, 0):
        rows[:, :shifts].add_(out[:, d:])
    return rows.mul_(2) if doubled else rows


#: Features φ of rows (b, c, d) with φ(q, doubled)·φ(k) = (q·k + 1)² + 1.
#:
#: A state is Σ φ(k) vᵀ, (b, features, width), over tokens with values (b, c, width). ``absorb``
#: adds rows with their values to it, in place; rows ``read`` (b, c, width) from it; ``row_grad`` is
#: the gradient (b, c, d) of rows whose features met values there.
RowFeatures = Boxed | Symmetric
BOXED, SYMMETRIC = Boxed(), Symmetric()


def fresh_state(features: RowFeatures, like: Any, width: Any) -> Any:
    """Return zeros (b, features, width) for rows like these."""
    state = like.new_zeros(like.shape[0], features.width(like.shape[-1]), width)
    return state  # noqa: RET504 - the stage is called after it


def built_state(k: Any, v: Any, size: Any, features: RowFeatures) -> Any:
    """Return the sums of rows k with values [1, v], (b, n, d) each, a chunk at a time."""
    state = fresh_state(features, k, v.shape[-1] + 1)
    for chunk in in_blocks(k, k.shape[1], size):
        features.absorb(state, k[:, chunk], with_ones(v[:, chunk]))
    return state


def _scan(
    q: Any, k: Any, v: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, tuple[Any, ...]]:
    out, n = empty_like(v), q.shape[1]
    state = fresh_state(features, q, v.shape[-1])
    for chunk in in_blocks(q, n, size):
        weights = q[:, chunk].bmm(k[:, chunk].transpose(1, 2)).add_(1)
        weights = weights.mul_(weights).add_(1).tril_()
        part = weights.bmm(v[:, chunk])
        del weights
        part.add_(features.read(q[:, chunk], state, True))
        out[:, chunk] = part
        del part
        for _ in other_blocks(q, n, size, chunk):  # the state after the last one is not read
            features.absorb(state, k[:, chunk], v[:, chunk])
    return out, (q, k, v)


def _scan_grads(
    saved: tuple[Any, ...], grad: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, ...]:
    """Compute gradients by two scans: forwards for q and within chunks, backwards for k and v."""
    q, k, v = saved
    to_q, to_k, to_v = empty_like(q), empty_like(k), empty_like(v)
    n, state = q.shape[1], fresh_state(features, q, v.shape[-1])
    for chunk in in_blocks(q, n, size):
        to_q[:, chunk] = features.row_grad(q[:, chunk], grad[:, chunk], state, True)
        _grads_within(*(x[:, chunk] for x in (q, k, v, grad, to_q, to_k, to_v)))
        for _ in other_blocks(q, n, size, chunk):
            features.absorb(state, k[:, chunk], v[:, chunk])
    state.zero_()
    for chunk in in_blocks(q, n, size, backwards=True):
        to_k[:, chunk].add_(features.row_grad(k[:, chunk], v[:, chunk], state, False))
        to_v[:, chunk].add_(features.read(k[:, chunk], state, False))
        for _ in other_blocks(q, n, size, chunk, than="first"):
            features.absorb(state, q[:, chunk], grad[:, chunk], True)
    return to_q, to_k, to_v


def _grads_within(q: Any, k: Any, v: Any, grad: Any, to_q: Any, to_k: Any, to_v: Any) -> None:
    """Write the gradients between tokens of one chunk: add to q's, set k's and v's."""
    shifted = q.bmm(k.transpose(1, 2)).add_(1)
    weights = (shifted * shifted).add_(1).tril_()
    to_v.copy_(weights.transpose(1, 2).bmm(grad))
    del weights
    scores = grad.bmm(v.transpose(1, 2)).tril_().mul_(2).mul_(shifted)
    del shifted
    to_q.add_(scores.bmm(k))
    to_k.copy_(scores.transpose(1, 2).bmm(q))


#: Causal sums Σ_{s ≤ t} ((q_t·k_s + 1)² + 1) v_s: q, k (b, n, d), v (b, n, width) → as v.
#:
#: Within a chunk of ``size`` tokens the scores, across chunks the state of ``features``. Backward
#: scans again, so only the inputs are saved and nothing of N × features is ever kept.
scan = Function(_scan, _scan_grads)


def _sums(
    q: Any, k: Any, v: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, tuple[Any, ...]]:
    out, state = empty_like(v), fresh_state(features, q, v.shape[-1])
    for chunk in in_blocks(q, q.shape[1], size):
        features.absorb(state, k[:, chunk], v[:, chunk])
    for chunk in in_blocks(q, q.shape[1], size):
        out[:, chunk] = features.read(q[:, chunk], state, True)
    return out, (q, k, v, state)


def _sums_grads(
    saved: tuple[Any, ...], grad: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, ...]:
    """Return gradients of q and of the state, then of k and v."""
    q, k, v, state = saved
    to_q, to_k, to_v, later = empty_like(q), empty_like(k), empty_like(v), zeros_like(state)
    for chunk in in_blocks(q, q.shape[1], size):
        to_q[:, chunk] = features.row_grad(q[:, chunk], grad[:, chunk], state, True)
        features.absorb(later, q[:, chunk], grad[:, chunk], True)
    for chunk in in_blocks(q, q.shape[1], size):
        to_k[:, chunk] = features.row_grad(k[:, chunk], v[:, chunk], later, False)
        to_v[:, chunk] = features.read(k[:, chunk], later, False)
    return to_q, to_k, to_v


#: Sums over all tokens: a state first, then every chunk reads it. Backward makes the features
#: again; besides the inputs only the state is kept.
sums = Function(_sums, _sums_grads)
