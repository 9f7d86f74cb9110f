"""Scratch memory of pooling and padding on the CPU: copies of tensors that lie in neither way.

Kernels read entries in order, or with the channels of a pixel beside each other.
"""

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.workspaces import copied, is_channels_last, workspaces
from attnprof.trace.sizes import nbytes, numel


def _relaid(x: Any) -> Size:
    """Return the bytes of a tensor that is copied, as it lies in neither way."""
    return 0 if is_channels_last(x) else copied(x)


def _backward(_out: Any, call: Any) -> Size:
    """Return bytes of tensors copied to the gradient's layout, the result's among them."""
    gradient, chosen = call.grad_output, getattr(call, "indices", None)
    held = _relaid(gradient)
    if is_channels_last(gradient) != is_channels_last(call.self):
        held += nbytes(call.self) + (0 if chosen is None else 8 * numel(chosen))
    return held


workspaces(
    {
        "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d "
        "avg_pool3d max_pool3d_with_indices": lambda _, c: _relaid(c.self),
        "avg_pool2d_backward max_pool2d_with_indices_backward _adaptive_avg_pool2d_backward "
        "adaptive_max_pool2d_backward": _backward,
        "max_pool1d reflection_pad1d replication_pad1d": lambda _, c: copied(c.self),
    }
)  # fmt: skip
