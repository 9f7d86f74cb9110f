"""Recognize views that autograd makes again of fake tensors: they are not counted.

After a write to a view autograd repeats the operations that made it, and the backward pass of the
write does so, too; of plain tensors it is one ``as_strided``, in the backward pass alone. Source:
torch's torch/csrc/autograd/variable.cpp and functions/tensor.cpp.
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
    """Finds, among a run's operations in order, views that autograd makes and no code called."""

    def __init__(self) -> None:
        self._next: Any = None
        self._done = -1

    def repeats(self, func: Any, args: tuple[Any, ...], frame: FrameType) -> bool:
        """Return whether an operation, called by the code of a frame, makes a view again."""
        expected, self._next = self._next, None
        if not getattr(func, "is_view", False) or type(args[0]) is not FakeTensor:
            return False
        return expected == _call_place(args[0], frame) or self._in_write() is not None

    def made(self, view: Any, frame: FrameType) -> Any:
        """Return a view that was made again; expect a view of it to be next."""
        self._next = _call_place(view, frame)
        return view

    def ran(self, func: Any, args: tuple[Any, ...], frame: FrameType) -> None:
        """Note an operation; if it wrote to a view, expect that view to be made again next."""
        if not torch.is_grad_enabled() or not args or type(args[0]) is not FakeTensor:
            return
        writes = isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable
        if writes and args[0]._is_view() and any(x.requires_grad for x in tensors_in(args)):
            self._next = _call_place(args[0]._base, frame)

    def ended(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether the views of a write's backward pass are made: the view is copied next."""
        copies = func is _CLONE and type(args[0]) is FakeTensor
        number = self._in_write() if copies else None
        self._done = self._done if number is None else number
        return number is not None

    def _in_write(self) -> int | None:
        """Return the number of the write whose backward pass runs and has no view yet, or None."""
        node = _current_autograd_node()
        if node is None or node.name() != _WRITE or node._sequence_nr() == self._done:
            return None
        return int(node._sequence_nr())


def _call_place(tensor: Any, frame: FrameType) -> tuple[int, int, int]:
    return id(tensor), id(frame), frame.f_lasti
