"""A depthwise convolution along the tokens as products with a band matrix, blocks of rows."""

from __future__ import annotations

from typing import Any

from attnprof.blocks.band import in_band
from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, empty_like, put_product
from attnprof.ops.loops import each

#: rows of a block
ROWS = 64


def _band(kernel: Any) -> Any:
    """(h, ROWS, ROWS + size - 1) with kernel (h, size) from the diagonal on, zeros elsewhere."""
    skewed = _skewed(kernel)
    skewed[:, :, : kernel.shape[1]].copy_(kernel.unsqueeze(1))
    return _straight(skewed)


def _skewed(kernel: Any) -> Any:
    """Zeros in the band's memory, rows one entry longer: each starts on the diagonal."""
    heads, size = kernel.shape
    return kernel.new_zeros(heads, ROWS, ROWS + size)


def _straight(skewed: Any) -> Any:
    """The band itself, a view."""
    heads, rows, width = skewed.shape
    return skewed.view(heads, rows * width)[:, : rows * (width - 1)].view(heads, rows, width - 1)


def _convolved(x: Any, kernel: Any) -> Any:
    out, band = empty_like(x), _band(kernel)
    half = kernel.shape[1] // 2
    for sample in each(x, 0, x.shape[0]):
        for rows, seen, columns in in_band(x, x.shape[2], ROWS, half, half):
            height = slice(0, rows.stop - rows.start)
            put_product(out[sample, :, rows], band[:, height, columns], x[sample, :, seen])
    return out


def _convolution_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    x, kernel = saved
    to_x = _convolved(grad, kernel.flip(1))
    size, skewed = kernel.shape[1], _skewed(kernel)
    to_band = _straight(skewed)
    for sample in each(x, 0, x.shape[0]):
        for rows, seen, columns in in_band(x, x.shape[2], ROWS, size // 2, size // 2):
            place = to_band[:, : rows.stop - rows.start, columns]
            add_product(place, grad[sample, :, rows], x[sample, :, seen].transpose(1, 2))
    to_kernel = skewed[:, :, :size].sum(1)
    return to_x, to_kernel


#: Σ over taps of kernel (h, size), of odd size, times x (b, h, n, d) moved along the tokens.
#:
#: A block of rows is one product with the band matrix of the kernel: more operations than the
#: taps have, on a processor's fastest path.
band_convolution = Function(
    lambda x, kernel: (_convolved(x, kernel), (x, kernel)), _convolution_grads
)
