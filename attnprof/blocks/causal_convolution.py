"""Causal convolution over tokens, e_i = sum over j <= i of x_j * w_{i-j+1}: by FFT, by blocks.

``x`` is (batch, n, d); ``w`` is (n, d), a filter a channel, or (n, 1), one filter for all. Both
ways keep nothing but their inputs for the backward pass and hold memory linear in n. Or ``w`` is
(n, d, d), a matrix for each distance, and several distances are a product.
"""

from collections.abc import Sequence
from typing import Any

from attnprof.costs import Number, ceil_div, floor_div
from attnprof.ops.function import Function
from attnprof.ops.functional import (
    add_product,
    copy_in_rows,
    empty_like,
    irfft,
    rfft,
    wide_zeros,
    zeros_like,
)
from attnprof.ops.layout import is_literally
from attnprof.ops.loops import either, in_shrinking_blocks

#: Flags (by blocks, by FFT), of which one is 1 and the other 0; expressions for symbolic sizes.
Flags = tuple[Number, Number]


def _either_way(
    x: Any, w: Any, *, flags: Flags, block: Number, length: Number
) -> tuple[Any, tuple[Any, ...]]:
    out = either(x, flags, lambda: _by_blocks(x, w, block), lambda: _by_frequencies(x, w, length))
    return out, (x, w)


def _either_grads(
    saved: tuple[Any, ...], grad: Any, *, needs: Sequence[bool], flags: Flags, block: Number,
    length: Number,
) -> tuple[Any, ...]:  # fmt: skip
    x, w = saved
    grads: tuple[Any, ...] = either(
        x, flags,
        lambda: _by_blocks_grads(x, w, grad, needs, block),
        lambda: _by_frequencies_grads(x, w, grad, needs, length),
    )  # fmt: skip
    return grads


# -- through the frequency domain ---------------------------------------------------------
def _by_frequencies(x: Any, w: Any, length: Number) -> Any:
    """Return the convolution by transforms of ``length`` (at least 2n - 1) points.

    Rounding is relative to the largest value of a row's channel: a later token moves an earlier
    row by that much, and a token that is not finite spoils all rows.
    """
    spectrum = _spectrum(x, length)
    spectrum.mul_(_spectrum(w.unsqueeze(0), length))
    rows = irfft(spectrum, length)
    del spectrum
    return _tokens(rows, x)


def _by_frequencies_grads(
    x: Any, w: Any, grad: Any, needs: Sequence[bool], length: Number
) -> tuple[Any, Any]:
    """Return both gradients, which are correlations: products with a conjugate spectrum."""
    spectrum = _spectrum(grad, length)
    w_grad = None
    if needs[1]:
        other = _spectrum(x, length).conj_physical_().mul_(spectrum)
        summed = other.sum((0, 1) if is_literally(w.shape[1], 1) else (0,), keepdim=True)
        del other
        rows = irfft(summed, length)
        del summed
        w_grad = _tokens(rows, w.unsqueeze(0)).squeeze(0)
        del rows
    if not needs[0]:
        return None, w_grad
    spectrum.mul_(_spectrum(w.unsqueeze(0), length).conj_physical_())
    rows = irfft(spectrum, length)
    del spectrum
    return _tokens(rows, x), w_grad


def _spectrum(x: Any, length: Number) -> Any:
    """Return the spectra (b, d, length/2 + 1), complex, of zero-padded channels of (b, n, d)."""
    b, n, d = x.shape
    rows = wide_zeros(x, b, d, length)
    rows[..., :n] = x.transpose(1, 2)
    return rfft(rows)


def _tokens(rows: Any, like: Any) -> Any:
    """Return the first n points of channels (b, d, length), in the shape of ``like`` (b, n, d)."""
    return copy_in_rows(rows[..., : like.shape[1]].transpose(1, 2), like)


# -- direct sums by blocks ----------------------------------------------------------------
def _by_blocks(x: Any, w: Any, block: Number) -> Any:
    """Return the direct sums, as matrix products with the blocks of the Toeplitz matrix of w.

    The blocks at one distance are equal: one (block, block) matrix a channel times all pairs of
    token blocks that far apart. Entries above the diagonal of the first are zeros.
    """
    rows = _to_blocks(x, w, block)
    filters = _padded(w, rows)
    out = zeros_like(rows)
    for distance, left in in_shrinking_blocks(x, rows.shape[1], 1):
        maps = _toeplitz(filters, distance.start, block)
        add_product(_last(out, left), _first(rows, left), maps)
        del maps
    del rows, filters
    return _from_blocks(out, x, w)


def _by_blocks_grads(
    x: Any, w: Any, grad: Any, needs: Sequence[bool], block: Number
) -> tuple[Any, Any]:
    """Return the transposed blocks for x; sums along the diagonals of g xᵀ for w."""
    rows = _to_blocks(grad, w, block)
    w_grad = _filter_grad(_to_blocks(x, w, block), rows, w) if needs[1] else None
    if not needs[0]:
        return None, w_grad
    filters, out = _padded(w, rows), zeros_like(rows)
    for distance, left in in_shrinking_blocks(x, rows.shape[1], 1):
        maps = _toeplitz(filters, distance.start, block).transpose(1, 2)
        add_product(_first(out, left), _last(rows, left), maps)
        del maps
    del rows, filters
    return _from_blocks(out, x, w), w_grad


def _tokens_of(rows: Any, batch: Number, w: Any) -> Any:
    """Return blocks (groups, blocks, m, block) seen as (batch, blocks, block, d)."""
    if not is_literally(w.shape[1], 1):
        return rows.permute(2, 1, 3, 0)
    _, blocks, _, block = rows.shape
    return rows.view(blocks, batch, -1, block).permute(1, 0, 3, 2)


def _to_blocks(x: Any, w: Any, block: Number) -> Any:
    """Return (b, n, d) as (groups, blocks, m, block), zero-padded; groups of w, m = d·b/groups."""
    b, n, d = x.shape
    groups = w.shape[1]
    rows = wide_zeros(x, groups, ceil_div(n, block), b * d // groups, block)
    _copy(_tokens_of(rows, b, w), x, block)
    return rows


def _from_blocks(rows: Any, like: Any, w: Any) -> Any:
    """Return blocks (groups, blocks, m, block) as (b, n, d), without padding."""
    out = like.new_empty(like.shape)
    _copy(_tokens_of(rows, like.shape[0], w), out, rows.shape[3], back=True)
    return out


def _copy(tokens: Any, x: Any, block: Number, *, back: bool = False) -> None:
    """Copy x (b, n, d) to tokens (batch, blocks, block, d), or with ``back`` the other way."""
    b, n, d = x.shape
    full = floor_div(n, block)
    rest = n - full * block
    pairs = [(tokens[:, :full], x[:, : full * block].view(b, full, block, d))]
    if not is_literally(rest, 0):
        pairs.append((tokens[:, full, :rest], x[:, full * block :]))
    for to, source in pairs:
        (source if back else to).copy_(to if back else source)


def _last(rows: Any, count: Number) -> Any:
    """Return the last ``count`` blocks as rows, (groups, count·m, block)."""
    return rows[:, rows.shape[1] - count :].flatten(1, 2)


def _first(rows: Any, count: Number) -> Any:
    """Return the first ``count`` blocks as rows, (groups, count·m, block)."""
    return rows[:, :count].flatten(1, 2)


def _padded(w: Any, rows: Any) -> Any:
    """Return the filters (groups, block - 1 + padded n): zeros before the first weight."""
    _, blocks, _, block = rows.shape
    filters = rows.new_zeros(w.shape[1], (blocks + 1) * block - 1)
    filters[:, block - 1 : block - 1 + w.shape[0]] = w.t()
    return filters


def _toeplitz(filters: Any, distance: Number, block: Number) -> Any:
    """Return the weights (groups, from, to) between tokens of blocks ``distance`` blocks apart."""
    start = distance * block
    return filters[:, start : start + 2 * block - 1].unfold(1, block, 1).flip(1)


def _filter_grad(rows: Any, grads: Any, w: Any) -> Any:
    """Return (n, groups): for each distance the sum of x_j g_i over all pairs that far apart."""
    groups, blocks, _, block = rows.shape
    sums = rows.new_zeros(groups, (blocks + 1) * block)
    # rows one entry shorter than those summed shift each row by one: diagonals become columns
    skewed = rows.new_zeros(groups, block, 2 * block)
    place = skewed.as_strided((groups, block, block), (2 * block * block, 2 * block - 1, 1), block)
    for distance, left in in_shrinking_blocks(w, blocks, 1):
        place.copy_(_first(rows, left).transpose(1, 2).bmm(_last(grads, left)))
        start = distance.start * block
        sums[:, start : start + 2 * block].add_(skewed.sum(1))
    return w.new_empty(w.shape).copy_(sums[:, block : block + w.shape[0]].t())


#: x (b, n, d), w (n, d) or (n, 1) → (b, n, d); ``block`` tokens of a block, ``length`` points.
causal_convolution = Function(_either_way, _either_grads)


# -- a matrix for each distance -----------------------------------------------------------
def _convolved(x: Any, w: Any, *, chunk: Number) -> tuple[Any, tuple[Any, ...]]:
    """Return the convolution; the last ``chunk`` inputs of every row are copied side by side.

    The product for distances k … k + chunk - 1 reads all but the last k of these rows.
    """
    b, n, d = x.shape
    past = _windows(x, chunk, chunk - 1)
    out = x.new_zeros(n * b, d)
    for block, left in in_shrinking_blocks(x, n, chunk):
        maps = w[block].flip(0)
        inputs = past[: left * b, chunk - maps.shape[0] :].flatten(1, 2)
        add_product(out[(n - left) * b :], inputs, maps.view(-1, d))
        del maps, inputs
    del past
    return _by_token(out, x), (x, w)


def _convolved_grads(
    saved: tuple[Any, ...], grad: Any, *, needs: Sequence[bool], chunk: Number
) -> tuple[Any, ...]:
    """Return both gradients, each from the next ``chunk`` gradients of every row side by side."""
    x, w = saved
    b, n, d = x.shape
    coming = _windows(grad, chunk, 0)
    rows = x.new_empty(n, b, d).copy_(x.transpose(0, 1)).view(n * b, d)
    x_grad = x.new_zeros(n * b, d) if needs[0] else None
    w_grad = empty_like(w) if needs[1] else None
    for block, left in in_shrinking_blocks(x, n, chunk):
        count = block.stop - block.start
        later = coming[(n - left) * b :, :count].flatten(1, 2)
        if w_grad is not None:
            both = rows[: left * b].t().mm(later)
            w_grad[block] = both.view(d, count, d).transpose(0, 1)
            del both
        if x_grad is not None:
            maps = copy_in_rows(w[block].transpose(1, 2))
            add_product(x_grad[: left * b], later, maps.view(-1, d))
            del maps
        del later
    del coming, rows
    return None if x_grad is None else _by_token(x_grad, x), w_grad


def _windows(x: Any, chunk: Number, before: Number) -> Any:
    """Return windows (n·b, chunk, d) of x (b, n, d), from ``before`` tokens back; zeros outside."""
    b, n, d = x.shape
    padded = x.new_zeros(n + chunk - 1, b, d)
    padded[before : before + n] = x.transpose(0, 1)
    windows = padded.unfold(0, chunk, 1).permute(0, 1, 3, 2)
    return x.new_empty(n, b, chunk, d).copy_(windows).view(n * b, chunk, d)


def _by_token(rows: Any, like: Any) -> Any:
    """Return rows (n·b, d) as (b, n, d)."""
    b, n, d = like.shape
    return copy_in_rows(rows.view(n, b, d).transpose(0, 1))


#: e_i = sum over j <= i of x_j W_{i-j+1}: x (b, n, d), w (n, d, d) → (b, n, d), ``chunk``
#: distances a product.
matrix_convolution = Function(_convolved, _convolved_grads)
