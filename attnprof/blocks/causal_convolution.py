"""Causal convolution over tokens, e_i = sum over j <= i of x_j * w_{i-j+1}: by FFT, by blocks.

``x`` is (batch, n, d); ``w`` is (n, d), a filter a channel, or (n, 1), one filter for all. Both
functions keep nothing but their inputs for the backward pass and hold memory linear in n.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: torch has no half-precision FFT on CPU, and long sums need the range
WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


class FourierConvolution(torch.autograd.Function):
    """Through the frequency domain, ``length`` (at least 2n - 1) points along the last axis.

    Rounding is relative to the largest value of a row's channel: a later token moves an earlier
    row by that much, and one that is not finite spoils all.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, length: int) -> Tensor:
        """X (b, n, d), w (n, d) or (n, 1) → (b, n, d)."""
        ctx.save_for_backward(x, w)
        ctx.length = length
        spectrum = _spectrum(x, length)
        spectrum.mul_(_spectrum(w.unsqueeze(0), length))
        rows = torch.fft.irfft(spectrum, n=length)
        del spectrum
        return _tokens(rows, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Both gradients are correlations: products with a conjugate spectrum."""
        x, w = ctx.saved_tensors
        length: int = ctx.length
        spectrum = _spectrum(grad, length)
        grad_w = None
        if ctx.needs_input_grad[1]:
            other = _spectrum(x, length).conj_physical_().mul_(spectrum)
            summed = other.sum((0,) if w.shape[1] == x.shape[2] else (0, 1), keepdim=True)
            del other
            rows = torch.fft.irfft(summed, n=length)
            del summed
            grad_w = _tokens(rows, w.unsqueeze(0)).squeeze(0)
            del rows
        if not ctx.needs_input_grad[0]:
            return None, grad_w, None
        spectrum.mul_(_spectrum(w.unsqueeze(0), length).conj_physical_())
        rows = torch.fft.irfft(spectrum, n=length)
        del spectrum
        return _tokens(rows, x), grad_w, None


def _spectrum(x: Tensor, length: int) -> Tensor:
    """(b, n, d) → (b, d, length/2 + 1), complex, of zero-padded channels."""
    b, n, d = x.shape
    rows = x.new_zeros(b, d, length, dtype=WIDE.get(x.dtype, x.dtype))
    rows[..., :n] = x.transpose(1, 2)
    spectrum: Tensor = torch.fft.rfft(rows)
    return spectrum


def _tokens(rows: Tensor, like: Tensor) -> Tensor:
    """The first n points of channels (b, d, length), in the shape of ``like`` (b, n, d)."""
    return like.new_empty(like.shape).copy_(rows[..., : like.shape[1]].transpose(1, 2))


class BlockConvolution(torch.autograd.Function):
    """The direct sums, as matrix products with the blocks of the Toeplitz matrix of w.

    The blocks at one distance are equal: one (block, block) matrix a channel times all pairs of
    token blocks that far apart. Entries above the diagonal of the first are zeros.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, block: int) -> Tensor:
        """X (b, n, d), w (n, d) or (n, 1) → (b, n, d)."""
        ctx.save_for_backward(x, w)
        ctx.block = block
        rows = _to_blocks(x, w, block)
        filters = _padded(w, rows)
        out = torch.zeros_like(rows)
        for k in range(rows.shape[1]):
            _add_product(_from(out, k), _until(rows, k), _toeplitz(filters, k, block))
        del rows, filters
        return _from_blocks(out, x, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """The transposed blocks for x; sums along the diagonals of g xᵀ for w."""
        x, w = ctx.saved_tensors
        rows = _to_blocks(grad, w, ctx.block)
        grad_w = None
        if ctx.needs_input_grad[1]:
            grad_w = _filter_grad(_to_blocks(x, w, ctx.block), rows, w)
        if not ctx.needs_input_grad[0]:
            return None, grad_w, None
        filters, out = _padded(w, rows), torch.zeros_like(rows)
        for k in range(rows.shape[1]):
            blocks = _toeplitz(filters, k, ctx.block).transpose(1, 2)
            _add_product(_until(out, k), _from(rows, k), blocks)
            del blocks
        del rows, filters
        return _from_blocks(out, x, w), grad_w, None


def _add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """``out`` += a b in place.

    Spelt with ``out=`` because torch's counter misses ``baddbmm_``; torch.compile takes only that.
    """
    if torch.compiler.is_compiling():
        out.baddbmm_(a, b)
    else:
        torch.baddbmm(out, a, b, out=out)


def _by_token(rows: Tensor, batch: int, w: Tensor) -> Tensor:
    """Blocks (groups, blocks, m, block) seen as (batch, blocks, block, d)."""
    if rows.shape[0] == w.shape[1] != 1:
        return rows.permute(2, 1, 3, 0)
    _, blocks, _, block = rows.shape
    return rows.view(blocks, batch, -1, block).permute(1, 0, 3, 2)


def _to_blocks(x: Tensor, w: Tensor, block: int) -> Tensor:
    """(b, n, d) → (groups, blocks, m, block), zero-padded; groups·m = d·b, groups as w has."""
    b, n, d = x.shape
    groups, full = w.shape[1], n // block
    rows = x.new_zeros(
        groups, -(-n // block), b * d // groups, block, dtype=WIDE.get(x.dtype, x.dtype)
    )
    tokens = _by_token(rows, b, w)
    tokens[:, :full] = _in_blocks(x, full, block)
    if n % block:
        tokens[:, full, : n % block] = x[:, full * block :]
    return rows


def _from_blocks(rows: Tensor, like: Tensor, w: Tensor) -> Tensor:
    """Back to (b, n, d)."""
    b, n, _ = like.shape
    block = rows.shape[3]
    full = n // block
    tokens, out = _by_token(rows, b, w), like.new_empty(like.shape)
    _in_blocks(out, full, block).copy_(tokens[:, :full])
    if n % block:
        out[:, full * block :] = tokens[:, full, : n % block]
    return out


def _in_blocks(x: Tensor, full: int, block: int) -> Tensor:
    """The full blocks of (b, n, d) as a view (b, full, block, d)."""
    b, _, d = x.shape
    return x[:, : full * block].view(b, full, block, d)


def _from(rows: Tensor, k: int) -> Tensor:
    """Blocks k and later as rows, (groups, (blocks - k)·m, block)."""
    return rows[:, k:].flatten(1, 2)


def _until(rows: Tensor, k: int) -> Tensor:
    """All blocks but the last k as rows."""
    return rows[:, : rows.shape[1] - k].flatten(1, 2)


def _padded(w: Tensor, rows: Tensor) -> Tensor:
    """The filters (groups, block - 1 + padded n): zeros before the first weight."""
    blocks, _, block = rows.shape[1:]
    filters = rows.new_zeros(w.shape[1], (blocks + 1) * block - 1)
    filters[:, block - 1 : block - 1 + w.shape[0]] = w.t()
    return filters


def _toeplitz(filters: Tensor, k: int, block: int) -> Tensor:
    """(groups, from, to): the weights between tokens of two blocks k blocks apart."""
    window = filters[:, k * block : (k + 2) * block - 1]
    return window.unfold(1, block, 1).flip(1)


def _filter_grad(rows: Tensor, grads: Tensor, w: Tensor) -> Tensor:
    """(n, groups): for each distance the sum of x_j g_i over all pairs that far apart."""
    groups, blocks, _, block = rows.shape
    sums = rows.new_zeros(groups, (blocks + 1) * block)
    # rows one entry shorter than those summed shift each row by one: diagonals become columns
    skewed = rows.new_zeros(groups, block, 2 * block)
    place = skewed.flatten(1)[:, block:].view(groups, block, 2 * block - 1)[..., :block]
    for k in range(blocks):
        place.copy_(torch.bmm(_until(rows, k).transpose(1, 2), _from(grads, k)))
        sums[:, k * block : (k + 2) * block].add_(skewed.sum(1))
    return w.new_empty(w.shape).copy_(sums[:, block : block + w.shape[0]].t())
