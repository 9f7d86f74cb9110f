"""Boxed features for TaylorShift: every product of two entries, as 004 has them."""

from __future__ import annotations

import torch
from torch import Tensor

from attnprof.blocks.taylor import box_gradient
from attnprof.blocks.taylor_scan import RowFeatures


def features(x: Tensor, doubled: bool) -> Tensor:
    """[x ⊠ x, x, 1], or [x ⊠ x, 2x, 2]: (b, c, d) → (b, c, d² + d + 1), filled in place."""
    b, c, d = x.shape
    out = x.new_empty(b, c, d * d + d + 1)
    squares = out[..., : d * d].view(b, c, d, d)
    squares.copy_(x.unsqueeze(-1).expand(b, c, d, d)).mul_(x.unsqueeze(-2))
    middle = out[..., d * d : -1].copy_(x)
    if doubled:
        middle.mul_(2)
    out[..., -1:].fill_(2 if doubled else 1)
    return out


def feature_gradient(grad: Tensor, x: Tensor, doubled: bool) -> Tensor:
    """The gradient of x from that of its features."""
    d = x.shape[-1]
    out = box_gradient(grad[..., : d * d], x)
    middle = grad[..., d * d : -1]
    return out.add_(middle * 2 if doubled else middle)


class Boxed(RowFeatures):
    """The features of q, doubled, times those of k are (q·k + 1)² + 1."""

    def width(self, d: int) -> int:
        """Number of features of d entries: all pairs, the entries, and one."""
        return d * d + d + 1

    def absorb(self, state: Tensor, x: Tensor, v: Tensor, doubled: bool = False) -> None:
        """Add rows with their values to a state, in place."""
        state += torch.bmm(features(x, doubled).transpose(1, 2), v)

    def read(self, x: Tensor, state: Tensor, doubled: bool) -> Tensor:
        """What rows read from a state."""
        return torch.bmm(features(x, doubled), state)

    def row_gradient(self, x: Tensor, v: Tensor, state: Tensor, doubled: bool) -> Tensor:
        """The gradient of rows whose features met values in a state."""
        part = torch.bmm(v, state.transpose(1, 2))
        return feature_gradient(part, x, doubled)


BOXED = Boxed()
