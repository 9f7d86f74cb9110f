"""Matrix products in every spelling; convolutions as products, every tap counted; pooling.

Integer products count nothing; of a convolution taps on padding count, too.
"""

from __future__ import annotations

import math
from typing import Any

from attnprof.arguments import several
from attnprof.trace.events import Size
from attnprof.trace.rules.table import (
    NOTHING,
    OTHER,
    A,
    Counts,
    D,
    M,
    first_of,
    is_factor,
    macs,
    products,
    rule,
    rules,
    sums,
    tensors_in,
)
from attnprof.trace.sizes import numel, product, size_of


def _product(out: Any, call: Any) -> Counts:
    """Of the last two tensors."""
    a, b = tensors_in(vars(call))[-2:]
    return macs(out) * numel(a) * (size_of(b.shape[-1]) if b.dim() > 1 else 1)


def _added(out: Any, call: Any) -> Counts:
    """One addition a result where something is added; a multiplication for each factor not 1."""
    added = sums(out) * numel(out) + products(out) * numel(call.self) * is_factor(call.beta)
    return added * bool(call.beta != 0) + products(out) * numel(out) * is_factor(call.alpha)


@rule("_grouped_mm")
def _grouped_product(out: Any, call: Any) -> Counts:
    """Each row, or column, is multiplied in its group alone."""
    a, b = call.self, call.mat2
    columns = numel(b) if b.dim() < a.dim() else size_of(b.shape[-1])
    rows = size_of(a.shape[-2]) if b.dim() < a.dim() else numel(a)
    return macs(out) * rows * columns


@rule("linear mkldnn_linear")
def _linear(out: Any, call: Any) -> Counts:
    x, weight = tensors_in(vars(call))[:2]
    rows = size_of(weight.shape[0]) if weight.dim() > 1 else 1
    return macs(out) * numel(x) * rows + sums(out) * numel(out) * (call.bias is not None)


@rule("linear_backward")
def _linear_backward(_out: Any, call: Any) -> Counts:
    once = macs(call.grad_output) * numel(call.self) * size_of(call.weight.shape[0])
    to_input, to_weight, to_bias = call.output_mask
    return once * to_input + once * to_weight + A * numel(call.grad_output) * to_bias


@rule("_trilinear")
def _trilinear(out: Any, call: Any) -> Counts:
    """Two products: the first with the second, summed over what the third does not have."""
    one, two, three = (
        _spread(call.i1, call.expand1), _spread(call.i2, call.expand2),
        _spread(call.i3, call.expand3),
    )  # fmt: skip
    both = [b if a is None else a for a, b in zip(one, two, strict=True)]
    kept = [
        c if place in call.sumdim and c is None else (c if a is None else a)
        for place, (a, c) in enumerate(zip(both, three, strict=True))
    ]
    counts = macs(out) * _size(both) + macs(out) * _size(kept)
    if call.unroll_dim in call.sumdim:
        counts += sums(out) * numel(out) * size_of(both[call.unroll_dim])
    return counts


def _spread(tensor: Any, expanded: Any) -> list[Any]:
    """Sizes by dimension, None where the tensor is expanded."""
    sizes = list(tensor.shape)
    for place in sorted(expanded):
        sizes.insert(place, None)
    return sizes


def _size(sizes: list[Any]) -> Size:
    return product(1 if size is None else size for size in sizes)


@rule("convolution _convolution convolution_overrideable mkldnn_convolution cudnn_convolution "
      "cudnn_convolution_transpose _conv_depthwise2d conv_depthwise3d _slow_conv2d_forward "
      "thnn_conv2d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d")  # fmt: skip
def _convolved(out: Any, call: Any) -> Counts:
    a = tensors_in(vars(call))[0]
    transposed = getattr(call, "transposed", hasattr(call, "output_padding"))
    bias = getattr(call, "bias", None)
    return _taps(a, out, call.weight, transposed) + sums(out) * numel(out) * (bias is not None)


def _taps(a: Any, out: Any, weight: Any, transposed: bool) -> Counts:
    """Those of every result (of every input entry, transposed): weight (out, in/groups, …)."""
    return macs(out) * numel(a if transposed else out) * product(weight.shape[1:])


@rule("convolution_backward convolution_backward_overrideable")
def _convolved_backward(_out: Any, call: Any) -> Counts:
    """As many products for each gradient as forward; the bias' is a sum."""
    grad = call.grad_output
    once = _taps(call.input, grad, call.weight, call.transposed)
    to_input, to_weight, to_bias = call.output_mask
    return once * to_input + once * to_weight + sums(grad) * numel(grad) * to_bias


def _averaged(a: Any, taps: Size | None) -> Counts | None:
    """A sum over each window, and a division; windows that padding cuts count in full."""
    return None if taps is None else sums(a) * taps + D * numel(a)


def _adaptive_taps(a: Any, sizes: Any) -> int | None:
    """Entries under all windows, which overlap where sizes do not divide; None for symbols."""
    shape, dims = [size_of(size) for size in a.shape], len(sizes)
    if not all(isinstance(size_of(size), int) for size in (*shape, *sizes)):
        return None
    total: int = math.prod(shape[:-dims])
    for long, short in zip(shape[-dims:], sizes, strict=True):
        total *= sum(-(-(i + 1) * long // short) - i * long // short for i in range(short))
    return total


def _largest_to_size(_out: Any, call: Any) -> Counts | None:
    taps = _adaptive_taps(call.self, call.output_size)
    return None if taps is None else OTHER * taps


rules(
    {
        "mm bmm mv dot vdot": _product,
        "addmm baddbmm addbmm addmv": lambda out, c: _product(out, c) + _added(out, c),
        # the activation is ReLU, or GELU by erf as on a CPU
        "_addmm_activation": lambda out, c: (
            _product(out, c) + _added(out, c)
            + (OTHER + (3 * M + A if c.use_gelu else NOTHING)) * numel(out)
        ),
        # an outer product is entry by entry: no sums of products
        "addr": lambda out, c: products(out) * numel(out) + _added(out, c),
        # the weight is (taps, in, out)
        "conv_tbc": lambda out, c: (
            macs(out) * numel(out) * product(c.weight.shape[:2]) + sums(out) * numel(out)
        ),
        "avg_pool2d avg_pool3d": lambda out, c: (
            _averaged(out, numel(out) * product(c.kernel_size))
        ),
        "avg_pool2d_backward avg_pool3d_backward": lambda _, c: (
            _averaged(c.grad_output, numel(c.grad_output) * product(c.kernel_size))
        ),
        "_adaptive_avg_pool2d _adaptive_avg_pool3d": lambda out, c: (
            _averaged(out, _adaptive_taps(c.self, c.output_size))
        ),
        "_adaptive_avg_pool2d_backward": lambda _, c: (
            _averaged(c.grad_output, _adaptive_taps(c.self, c.grad_output.shape[-2:]))
        ),
        "_adaptive_avg_pool3d_backward": lambda _, c: (
            _averaged(c.grad_output, _adaptive_taps(c.self, c.grad_output.shape[-3:]))
        ),
        "max_pool1d max_pool2d_with_indices max_pool3d_with_indices": lambda out, c: (
            OTHER * numel(first_of(out)) * product(several("kernel_size", c.kernel_size))
        ),
        "adaptive_max_pool2d adaptive_max_pool3d": _largest_to_size,
    }
)  # fmt: skip
