"""Convolutions as products, every tap counted, those on padding too; and pooling."""

from __future__ import annotations

import math
from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.products import macs_counts, macs_sums
from attnprof.trace.rules.table import Counts, D, entries, rule, rule_by_name, summed
from attnprof.trace.sizes import numel, product, size_of


def _macs(a: Any, out: Any, weight: Any, transposed: bool) -> Size:
    """Taps of every result (of every input entry, transposed): weight (out, in/groups, …)."""
    return numel(a if transposed else out) * product(weight.shape[1:])


@rule_by_name("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution",
              "cudnn_convolution", "cudnn_convolution_transpose", "_conv_depthwise2d",
              "conv_depthwise3d", "_slow_conv2d_forward", "thnn_conv2d", "slow_conv3d_forward",
              "slow_conv_dilated2d", "slow_conv_dilated3d")  # fmt: skip
def _convolved(out: Any, call: Any) -> Counts:
    a = getattr(call, "input", None)
    a = call.self if a is None else a
    transposed = bool(getattr(call, "transposed", "output_padding" in vars(call)
                              and not hasattr(call, "transposed")))  # fmt: skip
    bias = getattr(call, "bias", None)
    macs = macs_counts(out, _macs(a, out, call.weight, transposed))
    return macs if bias is None else summed(macs, macs_sums(out, numel(out)))


@rule_by_name("convolution_backward", "convolution_backward_overrideable")
def _convolved_backward(_out: Any, call: Any) -> Counts:
    """As many products for each gradient as forward; the bias' is a sum."""
    grad = call.grad_output
    macs = macs_counts(grad, _macs(call.input, grad, call.weight, call.transposed))
    to_input, to_weight, to_bias = call.output_mask
    return summed(
        macs if to_input else {},
        macs if to_weight else {},
        macs_sums(grad, numel(grad)) if to_bias else {},
    )


@rule("conv_tbc")
def _convolved_by_time(out: Any, _a: Any, weight: Any, _bias: Any, _pad: int = 0) -> Counts:
    """The weight is (taps, in, out)."""
    return summed(
        macs_counts(out, numel(out) * product(weight.shape[:2])), macs_sums(out, numel(out))
    )


@rule("avg_pool2d", "avg_pool3d")
def _averaged(out: Any, _a: Any, kernel: Any, *_rest: Any, **_named: Any) -> Counts:
    """A sum over the window, and a division; windows that padding cuts count in full."""
    taps = product(kernel)
    return summed(macs_sums(out, numel(out) * taps), {D: numel(out)})


@rule("avg_pool2d_backward", "avg_pool3d_backward")
def _averaged_backward(_out: Any, grad: Any, _a: Any, kernel: Any, *_rest: Any) -> Counts:
    return summed(macs_sums(grad, numel(grad) * product(kernel)), {D: numel(grad)})


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _largest(out: Any, _a: Any, kernel: Any, *_rest: Any, **_named: Any) -> Counts:
    return entries(numel(out[0]) * product(kernel), other=1)


@rule_by_name("max_pool1d")
def _largest_in_line(out: Any, call: Any) -> Counts:
    kernel = call.kernel_size
    return entries(numel(out) * (kernel if isinstance(kernel, int) else kernel[0]), other=1)


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _averaged_to_size(out: Any, a: Any, sizes: Any) -> Counts | None:
    taps = _adaptive_taps(a, len(sizes), sizes)
    return None if taps is None else summed(macs_sums(out, taps), {D: numel(out)})


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _averaged_to_size_backward(_out: Any, grad: Any, a: Any) -> Counts | None:
    dims = a.dim() - 2 if a.dim() > 3 else 2
    taps = _adaptive_taps(a, dims, grad.shape[-dims:])
    return None if taps is None else summed(macs_sums(grad, taps), {D: numel(grad)})


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def _largest_to_size(_out: Any, a: Any, sizes: Any) -> Counts | None:
    taps = _adaptive_taps(a, len(sizes), sizes)
    return None if taps is None else entries(taps, other=1)


def _adaptive_taps(a: Any, dims: int, sizes: Any) -> int | None:
    """Entries under all windows, which overlap where sizes do not divide; None for symbols."""
    shape = [size_of(size) for size in a.shape]
    if not all(isinstance(size_of(size), int) for size in (*shape, *sizes)):
        return None
    total: int = math.prod(shape[:-dims])
    for long, short in zip(shape[-dims:], sizes, strict=True):
        total *= sum(-(-(i + 1) * long // short) - i * long // short for i in range(short))
    return total
