"""Symmetric features for TaylorShift: x ⊠ x holds every pair twice, these hold it once.

A chunk's features lie feature by feature, (b, d(d+1)/2 + d + 1, c): its products x_i·x_{i+s}
are then one multiplication of whole blocks a shift s, with i + s going round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnprof.blocks.in_place import add_product, put_entries
from attnprof.blocks.taylor_scan import RowFeatures


def width_of(d: int) -> int:
    """Number of features of d entries: the pairs i ≤ j, the entries, and one."""
    return d * (d + 1) // 2 + d + 1


def columns(x: Tensor) -> Tensor:
    """(b, c, d) → (b, d + (d-1)//2, c): entries as rows, then the first ones once more."""
    b, c, d = x.shape
    round_the_end = (d - 1) // 2
    out = x.new_empty(b, d + round_the_end, c)
    out[:, :d] = x.transpose(1, 2)
    if round_the_end:
        out[:, d:] = out[:, :round_the_end]
    return out


def features(x: Tensor, d: int, doubled: bool) -> Tensor:
    """[x, 1, x_i², x_i·x_j] of :func:`columns`, (b, features, c).

    ``doubled`` gives twice all but the squares, x_i·x_j standing for both orders: the features
    of q, doubled, times those of k are (q·k + 1)² + 1.
    """
    b, _, c = x.shape
    shifts, half = (d - 1) // 2, d - 1 - (d - 1) // 2 - (d - 1) // 2
    out = x.new_empty(b, width_of(d), c)
    base = out[:, :d]
    if doubled:
        put_entries(base, x[:, :d], 2)
    else:
        base.copy_(x[:, :d])
    out[:, d].fill_(2 if doubled else 1)
    pairs = out[:, d + 1 :]
    put_entries(pairs[:, :d], x[:, :d], x[:, :d])
    if shifts:
        others = x[:, 1:].unfold(1, d, 1).transpose(2, 3)
        blocks = pairs[:, d : d + shifts * d].view(b, shifts, d, c)
        put_entries(blocks, base.unsqueeze(1), others)
    if half:  # d is even: at a shift of d/2 the second half would repeat the first
        put_entries(pairs[:, d + shifts * d :], base[:, : d // 2], x[:, d // 2 : d])
    return out


def feature_gradient(grad: Tensor, x: Tensor, d: int, doubled: bool) -> Tensor:
    """The gradient (b, d, c) of the rows from that of their features; adds up shift by shift."""
    shifts, half = (d - 1) // 2, d // 2
    out = torch.zeros_like(x)
    rows, entries = out[:, :d], x[:, :d]
    rows.copy_(grad[:, :d])
    squares, pairs = grad[:, d + 1 : 2 * d + 1], grad[:, 2 * d + 1 :]
    rows.addcmul_(squares, entries)
    if not doubled:
        rows.addcmul_(squares, entries)
    for s in range(1, shifts + 1):
        block = pairs[:, (s - 1) * d : s * d]
        rows.addcmul_(block, x[:, s : s + d])
        out[:, s : s + d].addcmul_(block, entries)
    if d % 2 == 0:
        block = pairs[:, shifts * d :]
        rows[:, :half].addcmul_(block, x[:, half:d])
        rows[:, half:].addcmul_(block, x[:, :half])
    if shifts:
        rows[:, :shifts].add_(out[:, d:])
    return rows.mul_(2) if doubled else rows


class Symmetric(RowFeatures):
    """Each pair once: the features of q, doubled, times those of k are (q·k + 1)² + 1."""

    def width(self, d: int) -> int:
        """Number of features of d entries: the pairs i ≤ j, the entries, and one."""
        return width_of(d)

    def absorb(self, state: Tensor, x: Tensor, v: Tensor, doubled: bool = False) -> None:
        """Add rows with their values to a state, in place."""
        add_product(state, features(columns(x), x.shape[-1], doubled), v)

    def read(self, x: Tensor, state: Tensor, doubled: bool) -> Tensor:
        """What rows read from a state."""
        return torch.bmm(features(columns(x), x.shape[-1], doubled).transpose(1, 2), state)

    def row_gradient(self, x: Tensor, v: Tensor, state: Tensor, doubled: bool) -> Tensor:
        """The gradient of rows whose features met values in a state."""
        part = torch.bmm(state, v.transpose(1, 2))
        return feature_gradient(part, columns(x), x.shape[-1], doubled).transpose(1, 2)


SYMMETRIC = Symmetric()
