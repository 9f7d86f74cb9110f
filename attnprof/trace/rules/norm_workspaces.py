"""Scratch memory of norms and histograms on the CPU: sums of threads, and copies."""

from typing import Any

from torch import get_num_threads as threads

from attnprof.trace.events import Size
from attnprof.trace.rules.workspaces import (
    collapses,
    copied,
    is_channels_last,
    is_contiguous,
    layout,
    sum_width,
    workspaces,
)
from attnprof.trace.sizes import nbytes, product, size_of


def _batch_norm(_out: Any, call: Any) -> Size:
    """Return bytes of each channel's scale and shift; of sums by thread with channels last."""
    training = getattr(call, "training", False)
    sums = threads() if training and is_channels_last(call.input) else 0
    return (2 + sums) * size_of(call.input.shape[1]) * sum_width(call.input)


def _batch_norm_backward(_out: Any, call: Any) -> Size:
    """Return bytes of a gradient laid out as its operands, or of a sum by channel."""
    both = call.grad_out, call.input
    if not (all(map(is_contiguous, both)) or all(map(is_channels_last, both))):
        return size_of(call.input.shape[1]) * sum_width(call.input)
    return nbytes(call.input) if call.output_mask[0] else 0


workspaces(
    {
        "native_layer_norm": lambda _, c: copied(c.input),
        # two rows for each thread that shares the work, where the parameters have gradients
        "native_layer_norm_backward": lambda _, c: copied(c.grad_out, c.input) + (
            2 * threads() * product(c.normalized_shape) * sum_width(c.input)
            if any(c.output_mask[1:]) else 0
        ),
        # two sums for each sample and channel
        "native_group_norm_backward": lambda _, c: 2 * product((c.N, c.C)) * sum_width(c.input),
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training":
            _batch_norm,
        "native_batch_norm_backward": _batch_norm_backward,
        # the bins' edges, each thread's counts, and numbers that are laid out as a list
        "histc": lambda out, c: (
            (1 + threads()) * nbytes(out) + out.element_size()
            + nbytes(c.self) * int(not collapses(layout(c.self)))
        ),
    }
)  # fmt: skip
