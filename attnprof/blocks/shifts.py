"""A depthwise convolution along the tokens as shifted products: no scratch, no window copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def _spans(n: int, size: int) -> list[tuple[int, slice, slice]]:
    """For each tap: its index, the rows it reaches, the rows it reads."""
    half, spans = size // 2, []
    for tap in range(size):
        shift = tap - half
        rows = slice(max(0, -shift), min(n, n - shift))
        if rows.start < rows.stop:
            spans.append((tap, rows, slice(rows.start + shift, rows.stop + shift)))
    return spans


class _Shifts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        out = torch.zeros_like(x)
        for tap, rows, read in _spans(x.shape[2], kernel.shape[1]):
            weight = kernel[:, tap, None, None]
            out[:, :, rows].addcmul_(x[:, :, read], weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, kernel = ctx.saved_tensors
        to_x, to_kernel = torch.zeros_like(x), torch.zeros_like(kernel)
        for tap, rows, read in _spans(x.shape[2], kernel.shape[1]):
            above = grad[:, :, rows]
            to_x[:, :, read].addcmul_(above, kernel[:, tap, None, None])
            to_kernel[:, tap] = (above * x[:, :, read]).sum((0, 2, 3))
        return to_x, to_kernel


def shifted_sum(x: Tensor, kernel: Tensor) -> Tensor:
    """Σ over taps of kernel (h, size) times x (b, h, n, d) moved along the tokens; odd size."""
    out: Tensor = _Shifts.apply(x, kernel)  # type: ignore[no-untyped-call]  # torch
    return out
