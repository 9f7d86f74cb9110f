"""TaylorShift's sums by a state of features: causal by a scan over chunks, or over all tokens.

Which features is an argument: they differ in how rows join a state and read it, and in nothing
else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class RowFeatures(ABC):
    """Features φ of rows (b, c, d) with φ(q, doubled)·φ(k) = (q·k + 1)² + 1.

    A state is Σ φ(k) vᵀ, (b, features, width), over tokens with values (b, c, width).
    """

    @abstractmethod
    def width(self, d: int) -> int:
        """Number of features of d entries."""

    @abstractmethod
    def absorb(self, state: Tensor, x: Tensor, v: Tensor, doubled: bool = False) -> None:
        """Add rows with their values to a state, in place."""

    @abstractmethod
    def read(self, x: Tensor, state: Tensor, doubled: bool) -> Tensor:
        """What rows read from a state: (b, c, width)."""

    @abstractmethod
    def row_gradient(self, x: Tensor, v: Tensor, state: Tensor, doubled: bool) -> Tensor:
        """The gradient (b, c, d) of rows whose features met values in a state."""

    def empty_state(self, like: Tensor, width: int) -> Tensor:
        """Zeros (b, features, width) for rows like these."""
        return like.new_zeros(like.shape[0], self.width(like.shape[-1]), width)


def chunks(n: int, size: int) -> Iterator[slice]:
    """Slices of the tokens, the last one shorter where it must be."""
    return (slice(low, min(low + size, n)) for low in range(0, n, size))


class Scan(Function):
    """Causal sums Σ_{s ≤ t} ((q_t·k_s + 1)² + 1) v_s, a chunk at a time.

    Within a chunk the scores, across chunks the state. Backward scans again, forwards for q and
    backwards for k and v, so nothing of N × features is ever kept.
    """

    @staticmethod
    def compute(q: Tensor, k: Tensor, v: Tensor, size: int, features: RowFeatures) -> tuple[Tensor]:
        """Q, k (b, n, d), v (b, n, width) → (b, n, width)."""
        out, state = torch.empty_like(v), features.empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], size):
            weights = torch.bmm(q[:, here], k[:, here].transpose(1, 2)).add_(1)
            weights = weights.mul_(weights).add_(1).tril_()
            part = torch.bmm(weights, v[:, here])
            del weights
            part += features.read(q[:, here], state, True)
            out[:, here] = part
            del part
            if here.stop < q.shape[1]:  # nothing reads what the last chunk would add
                features.absorb(state, k[:, here], v[:, here])
        return (out,)

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, size: int, features: RowFeatures
    ) -> Tensor:
        """The sums; only the inputs are saved."""
        ctx.save_for_backward(q, k, v)
        ctx.size, ctx.features = size, features
        return Scan.compute(q, k, v, size, features)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Gradients of q, k, v by two scans."""
        q, k, v = ctx.saved_tensors
        features: RowFeatures = ctx.features
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        state = features.empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], ctx.size):
            dq[:, here] = features.row_gradient(q[:, here], grad[:, here], state, True)
            within(q, k, v, grad, dq, dk, dv, here)
            if here.stop < q.shape[1]:  # nothing reads what the last chunk would add
                features.absorb(state, k[:, here], v[:, here])
        state.zero_()
        for here in reversed(list(chunks(q.shape[1], ctx.size))):
            dk[:, here].add_(features.row_gradient(k[:, here], v[:, here], state, False))
            dv[:, here].add_(features.read(k[:, here], state, False))
            if here.start > 0:
                features.absorb(state, q[:, here], grad[:, here], True)
        return dq, dk, dv, None, None


def within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    here: slice,
) -> None:
    """The gradients that stay within one chunk; dq is added to, dk and dv are set."""
    shifted = torch.bmm(q[:, here], k[:, here].transpose(1, 2)).add_(1)
    weights = (shifted * shifted).add_(1).tril_()
    dv[:, here] = torch.bmm(weights.transpose(1, 2), grad[:, here])
    del weights
    scores = torch.bmm(grad[:, here], v[:, here].transpose(1, 2)).tril_().mul_(2).mul_(shifted)
    del shifted
    dq[:, here].add_(torch.bmm(scores, k[:, here]))
    dk[:, here] = torch.bmm(scores.transpose(1, 2), q[:, here])


class Sums(Function):
    """The same over all tokens: a state first, then every chunk reads it.

    Backward makes the features again; besides the inputs only the state is kept.
    """

    @staticmethod
    def compute(
        q: Tensor, k: Tensor, v: Tensor, size: int, features: RowFeatures
    ) -> tuple[Tensor, Tensor]:
        """Q, k (b, n, d), v (b, n, width) → (b, n, width), and the state."""
        out, state = torch.empty_like(v), features.empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], size):
            features.absorb(state, k[:, here], v[:, here])
        for here in chunks(q.shape[1], size):
            out[:, here] = features.read(q[:, here], state, True)
        return out, state

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, size: int, features: RowFeatures
    ) -> Tensor:
        """The sums."""
        out, state = Sums.compute(q, k, v, size, features)
        ctx.save_for_backward(q, k, v, state)
        ctx.size, ctx.features = size, features
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Gradients of q and of the state, then of k and v."""
        q, k, v, state = ctx.saved_tensors
        features: RowFeatures = ctx.features
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        later = torch.zeros_like(state)
        for here in chunks(q.shape[1], ctx.size):
            dq[:, here] = features.row_gradient(q[:, here], grad[:, here], state, True)
            features.absorb(later, q[:, here], grad[:, here], True)
        for here in chunks(q.shape[1], ctx.size):
            dk[:, here] = features.row_gradient(k[:, here], v[:, here], later, False)
            dv[:, here] = features.read(k[:, here], later, False)
        return dq, dk, dv, None, None
