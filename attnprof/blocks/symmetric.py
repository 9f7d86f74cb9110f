"""Symmetric features for TaylorShift: x ⊠ x holds every pair twice, these hold it once.

A chunk's features lie feature by feature, (b, d(d+1)/2 + d + 1, c): its products x_i·x_{i+s}
are then one multiplication of whole blocks a shift s, with i + s going round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from attnprof.blocks.taylor import chunks, within


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
        torch.mul(x[:, :d], 2, out=base)
    else:
        base.copy_(x[:, :d])
    out[:, d].fill_(2 if doubled else 1)
    pairs = out[:, d + 1 :]
    torch.mul(x[:, :d], x[:, :d], out=pairs[:, :d])
    if shifts:
        others = x[:, 1:].unfold(1, d, 1).transpose(2, 3)
        blocks = pairs[:, d : d + shifts * d].view(b, shifts, d, c)
        torch.mul(base.unsqueeze(1), others, out=blocks)
    if half:  # d is even: at a shift of d/2 the second half would repeat the first
        torch.mul(base[:, : d // 2], x[:, d // 2 : d], out=pairs[:, d + shifts * d :])
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


class Sums(Function):
    """Σ_s ((q_t·k_s + 1)² + 1) v_s over all tokens: a state first, then every chunk reads it.

    Backward makes the features again; besides the inputs only the state is kept.
    """

    @staticmethod
    def compute(q: Tensor, k: Tensor, v: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Q, k (b, n, d), v (b, n, width) → (b, n, width), and the state."""
        out, state = torch.empty_like(v), empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], size):
            absorb(state, k[:, here], v[:, here])
        for here in chunks(q.shape[1], size):
            out[:, here] = read(q[:, here], state, True)
        return out, state

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
        """The sums."""
        out, state = Sums.compute(q, k, v, size)
        ctx.save_for_backward(q, k, v, state)
        ctx.size = size
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q and of the state, then of k and v."""
        q, k, v, state = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        later = torch.zeros_like(state)
        for here in chunks(q.shape[1], ctx.size):
            dq[:, here] = row_gradient(q[:, here], grad[:, here], state, True)
            absorb(later, q[:, here], grad[:, here], True)
        for here in chunks(q.shape[1], ctx.size):
            dk[:, here] = row_gradient(k[:, here], v[:, here], later, False)
            dv[:, here] = read(k[:, here], later, False)
        return dq, dk, dv, None


class Scan(Function):
    """The same over s ≤ t: within a chunk the scores, across chunks the state.

    Backward scans again, forwards for q and backwards for k and v.
    """

    @staticmethod
    def compute(q: Tensor, k: Tensor, v: Tensor, size: int) -> tuple[Tensor]:
        """Q, k (b, n, d), v (b, n, width) → (b, n, width)."""
        out, state = torch.empty_like(v), empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], size):
            weights = torch.bmm(q[:, here], k[:, here].transpose(1, 2)).add_(1)
            weights = weights.mul_(weights).add_(1).tril_()
            part = torch.bmm(weights, v[:, here])
            del weights
            part += read(q[:, here], state, True)
            out[:, here] = part
            del part
            if here.stop < q.shape[1]:  # nothing reads what the last chunk would add
                absorb(state, k[:, here], v[:, here])
        return (out,)

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
        """The sums; only the inputs are saved."""
        ctx.save_for_backward(q, k, v)
        ctx.size = size
        return Scan.compute(q, k, v, size)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k, v by two scans."""
        q, k, v = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        state = empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], ctx.size):
            dq[:, here] = row_gradient(q[:, here], grad[:, here], state, True)
            within(q, k, v, grad, dq, dk, dv, here)
            if here.stop < q.shape[1]:
                absorb(state, k[:, here], v[:, here])
        state.zero_()
        for here in reversed(list(chunks(q.shape[1], ctx.size))):
            dk[:, here].add_(row_gradient(k[:, here], v[:, here], state, False))
            dv[:, here].add_(read(k[:, here], state, False))
            if here.start > 0:
                absorb(state, q[:, here], grad[:, here], True)
        return dq, dk, dv, None


def empty_state(like: Tensor, width: int) -> Tensor:
    """Zeros (b, features, width)."""
    b, _, d = like.shape
    return like.new_zeros(b, width_of(d), width)


def absorb(state: Tensor, k: Tensor, v: Tensor, doubled: bool = False) -> None:
    """Add rows (b, c, d) with their values (b, c, width) to a state, in place."""
    state.baddbmm_(features(columns(k), k.shape[-1], doubled), v)


def read(x: Tensor, state: Tensor, doubled: bool) -> Tensor:
    """What rows (b, c, d) read from a state: (b, c, width)."""
    return torch.bmm(features(columns(x), x.shape[-1], doubled).transpose(1, 2), state)


def row_gradient(x: Tensor, v: Tensor, state: Tensor, doubled: bool) -> Tensor:
    """The gradient (b, c, d) of rows whose features met values (b, c, width) in a state."""
    part = torch.bmm(state, v.transpose(1, 2))
    return feature_gradient(part, columns(x), x.shape[-1], doubled).transpose(1, 2)
