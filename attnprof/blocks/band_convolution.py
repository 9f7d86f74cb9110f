"""A depthwise convolution along the tokens as products with a band matrix, blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnprof.blocks.autocast import apply
from attnprof.blocks.in_place import add_product, put_product
from attnprof.counting.band import CONVOLUTION_ROWS as ROWS


def _band(kernel: Tensor) -> Tensor:
    """(h, ROWS, ROWS + size - 1) with kernel (h, size) from the diagonal on, zeros elsewhere."""
    skewed = _skewed(kernel)
    skewed[:, :, : kernel.shape[1]].copy_(kernel.unsqueeze(1))
    return _straight(skewed)


def _skewed(kernel: Tensor) -> Tensor:
    """Zeros in the band's memory, rows one entry longer: each starts on the diagonal."""
    heads, size = kernel.shape
    return kernel.new_zeros(heads, ROWS, ROWS + size)


def _straight(skewed: Tensor) -> Tensor:
    """The band itself, a view."""
    heads, rows, width = skewed.shape
    return skewed.view(heads, rows * width)[:, : rows * (width - 1)].view(heads, rows, width - 1)


def _blocks(n: int, size: int) -> Iterator[tuple[slice, slice, slice, slice]]:
    """For each block: its rows, the rows it reads, and the part of the band between them."""
    half = size // 2
    for start in range(0, n, ROWS):
        end = min(n, start + ROWS)
        first, last = max(0, start - half), min(n, end + half)
        columns = slice(first - start + half, last - start + half)
        yield slice(start, end), slice(first, last), slice(0, end - start), columns


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        return _convolved(x, kernel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, kernel = ctx.saved_tensors
        to_x = _convolved(grad, kernel.flip(1))
        skewed = _skewed(kernel)
        to_band = _straight(skewed)
        for sample in range(x.shape[0]):
            for rows, read, height, columns in _blocks(x.shape[2], kernel.shape[1]):
                given = x[sample, :, read].transpose(1, 2)
                add_product(to_band[:, height, columns], grad[sample, :, rows], given)
        return to_x, skewed[:, :, : kernel.shape[1]].sum(1)


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    out, band = torch.empty_like(x), _band(kernel)
    for sample in range(x.shape[0]):
        for rows, read, height, columns in _blocks(x.shape[2], kernel.shape[1]):
            put_product(out[sample, :, rows], band[:, height, columns], x[sample, :, read])
    return out


def band_convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """Σ over taps of kernel (h, size) times x (b, h, n, d) moved along the tokens; odd size.

    A block of rows is one product with the band matrix of the kernel: more operations than the
    taps have, on a processor's fastest path.
    """
    out: Tensor = apply(_Convolution, x, kernel)
    return out
