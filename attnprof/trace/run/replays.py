"""Recognize views that autograd makes again of fake tensors, so that they are not counted.

After a write to a view (``x[:, 0] += 1``) autograd repeats the operations that made the view, and
so does the backward pass of the write (a node ``CopySlices``). Real tensors do less: a single
``as_strided``, in the backward pass alone. A run on fake tensors has to count what real tensors do.
Source: torch's torch/csrc/autograd/variable.cpp and functions/tensor.cpp.
"""

from types import FrameType
from typing import Any

import torch
from torch._C import _current_autograd_node
from torch._subclasses.fake_tensor import FakeTensor

from attnprof.trace.rules import tensors_in

STRIDED = torch.ops.aten.as_strided.default
_CLONE = torch.ops.aten.clone.default
_WRITE = "torch::autograd::CopySlices"


class Replays:
    """The views of a run that autograd made and no code called, found as operations pass by.

    A repeated view has the tensor, the frame and the instruction of the write that caused it.
    """

    def __init__(self) -> None:
        self._expected: Any = None  # where the next repeated view would be called
        self._finished_write = -1  # autograd's number of the last write whose views are all made

    def repeats(self, func: Any, args: tuple[Any, ...], frame: FrameType) -> bool:
        """Return whether an operation, called by the code of a frame, repeats a view."""
        expected, self._expected = self._expected, None
        if not getattr(func, "is_view", False) or type(args[0]) is not FakeTensor:
            return False
        return expected == _call_place(args[0], frame) or self._in_write() is not None

    def expect_view_of(self, view: Any, frame: FrameType) -> Any:
        """Return a repeated view, and expect a view of it next: views of views come in a row."""
        self._expected = _call_place(view, frame)
        return view

    def note(self, func: Any, args: tuple[Any, ...], frame: FrameType) -> None:
        """Note an operation that ran; if it wrote to a view, expect that view's repetition next."""
        if not torch.is_grad_enabled() or not args or type(args[0]) is not FakeTensor:
            return
        writes = isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable
        if writes and args[0]._is_view() and any(x.requires_grad for x in tensors_in(args)):
            self._expected = _call_place(args[0]._base, frame)

    def end_with_copy(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether an operation is the copy after the views of a write's backward pass.

        Views after it are called by code.
        """
        copies = func is _CLONE and type(args[0]) is FakeTensor
        number = self._in_write() if copies else None
        self._finished_write = self._finished_write if number is None else number
        return number is not None

    def _in_write(self) -> int | None:
        """Return autograd's number of the write whose backward pass makes its views, or None."""
        node = _current_autograd_node()
        if node is None or node.name() != _WRITE or node._sequence_nr() == self._finished_write:
            return None
        return int(node._sequence_nr())


def _call_place(tensor: Any, frame: FrameType) -> tuple[int, int, int]:
    """Return what identifies a call: its tensor, and the frame and instruction that made it."""
    return id(tensor), id(frame), frame.f_lasti
