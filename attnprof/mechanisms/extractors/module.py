"""The Extractors in torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.blocks.causal_convolution import BlockConvolution, FourierConvolution
from attnprof.blocks.core import ModuleSizes
from attnprof.errors import RequestError
from attnprof.mechanisms.extractors.convolution import BLOCK, padded_length
from attnprof.mechanisms.extractors.spec import Extractor

CONTIGUOUS = torch.contiguous_format


class MatrixProducts(torch.autograd.Function):
    """SHE's extraction, e_i = sum over j <= i of x_j W_{i-j+1}, ``chunk`` distances a product.

    The last ``chunk`` inputs of every row stand side by side once, (n·b, chunk·d); the product
    for distances k … k + chunk - 1 reads all but the last k of these rows.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, chunk: int) -> Tensor:
        """X (b, n, d), w (n, d, d) → (b, n, d)."""
        ctx.save_for_backward(x, w)
        ctx.chunk = chunk
        b, n, d = x.shape
        past = _windows(x, chunk, chunk - 1)
        out = x.new_zeros(n * b, d)
        for k in range(0, n, chunk):
            count = min(chunk, n - k)
            seen, rows = past[: (n - k) * b, (chunk - count) * d :], out[k * b :]
            torch.addmm(rows, seen, _stacked(w[k : k + count].flip(0)), out=rows)
        del past, seen
        return x.new_empty(b, n, d).copy_(out.view(n, b, d).transpose(0, 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """The next ``chunk`` gradients side by side serve both operands."""
        x, w = ctx.saved_tensors
        chunk: int = ctx.chunk
        b, n, d = x.shape
        coming = _windows(grad, chunk, 0)
        rows = x.new_empty(n, b, d).copy_(x.transpose(0, 1)).view(n * b, d)
        grad_x = x.new_zeros(n * b, d) if ctx.needs_input_grad[0] else None
        grad_w = torch.empty_like(w) if ctx.needs_input_grad[1] else None
        for k in range(0, n, chunk):
            count = min(chunk, n - k)
            later = coming[k * b :, : count * d]
            if grad_w is not None:
                both = torch.mm(rows[: (n - k) * b].t(), later)
                grad_w[k : k + count] = both.view(d, count, d).transpose(0, 1)
                del both
            if grad_x is not None:
                maps = w[k : k + count].transpose(1, 2).clone(memory_format=CONTIGUOUS)
                early = grad_x[: (n - k) * b]
                torch.addmm(early, later, _stacked(maps), out=early)
                del maps
        del coming, rows, later
        if grad_x is None:
            return None, grad_w, None
        out = x.new_empty(b, n, d).copy_(grad_x.view(n, b, d).transpose(0, 1))
        return out, grad_w, None


def _stacked(maps: Tensor) -> Tensor:
    """(chunk, d, d) → (chunk·d, d), as a view."""
    return maps.view(-1, maps.shape[-1])


def _windows(x: Tensor, chunk: int, before: int) -> Tensor:
    """(b, n, d) → (n·b, chunk·d): ``before`` tokens back and on from there, zeros outside."""
    b, n, d = x.shape
    padded = x.new_zeros(n + chunk - 1, b, d)
    padded[before : before + n] = x.transpose(0, 1)
    windows = padded.unfold(0, chunk, 1).permute(0, 1, 3, 2)
    return x.new_empty(n, b, chunk, d).copy_(windows).view(n * b, chunk * d)


@dataclass
class PastRows:
    """Rows of the tokens so far, the newest first, at the end of (batch, window, width)."""

    rows: Tensor
    length: int = 0

    def push(self, row: Tensor) -> Tensor:
        """Add (batch, 1, width) and return (batch, length, width) as a view."""
        self.length += 1
        first = self.rows.shape[1] - self.length
        self.rows[:, first : first + 1] = row
        return self.rows[:, first:]

    def advance(self, tokens: int) -> None:
        """As after so many tokens with random rows, from an empty state."""
        self.rows.normal_()
        self.length = tokens


class ExtractorLayer(nn.Module):
    """A layer ``forward(x, causal=False)`` on (batch, n, d_model), n up to the window.

    Causal by nature: ``causal`` changes nothing. ``weight`` holds w_1 … w_l (W_1 … W_l for SHE)
    by distance, nearest first; an input shorter than the window uses the first of them.
    """

    def __init__(self, spec: Extractor, sizes: ModuleSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        self.window, d = sizes.seq_len or 0, sizes.d_model
        weight = torch.empty(spec.weight_shape(self.window, d))
        bound = 1 / math.sqrt(self.window * (d if spec.weights == "matrix" else 1))
        self.weight = nn.Parameter(weight.uniform_(-bound, bound))
        self.maps = spec.maps
        for name in self.maps:
            setattr(self, name, nn.Linear(d, d, bias=spec.bias))

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        """(b, n, d_model) → (b, n, d_model)."""
        n = int(x.shape[1])
        if n > self.window:
            raise self._too_long(n)
        weight = self.weight if n == self.window else self.weight[:n]
        return self._rest(x, self._extract(self._mapped("in_proj", x), weight))

    def _extract(self, y: Tensor, weight: Tensor) -> Tensor:
        """The extraction part, (b, n, d) → (b, n, d)."""
        n = int(y.shape[1])  # torch.jit's tracer gives a tensor
        way = self.spec.chosen(n)
        run: Any = MatrixProducts
        if self.spec.weights != "matrix":
            run, weight = BlockConvolution if way else FourierConvolution, weight.view(n, -1)
            way = min(BLOCK, n) if way else padded_length(n)
        out: Tensor = run.apply(y, weight, way)
        return out

    def _mapped(self, name: str, x: Tensor) -> Tensor:
        return getattr(self, name)(x) if name in self.maps else x

    def _rest(self, x: Tensor, extracted: Tensor) -> Tensor:
        """Adjustment by the token's own row, then the output map."""
        if "adj_proj" not in self.maps:
            return extracted
        adjusted = self._mapped("adj_proj", x) * extracted
        del extracted
        return self._mapped("out_proj", adjusted)

    def init_state(self, batch_size: int) -> PastRows:
        """An empty cache with room for the window."""
        return PastRows(self.weight.new_empty(batch_size, self.window, self.sizes.d_model))

    def step(self, x_t: Tensor, state: PastRows) -> tuple[Tensor, PastRows]:
        """One token: (b, d_model) or (b, 1, d_model) → the same shape, and the new state."""
        x = x_t.unsqueeze(1) if x_t.dim() == 2 else x_t
        if state.length == self.window:
            raise self._too_long(self.window + 1)
        past = state.push(self._mapped("in_proj", x))
        y = self._rest(x, self._newest(past, self.weight[: state.length]))
        return (y.squeeze(1) if x_t.dim() == 2 else y), state

    def _newest(self, past: Tensor, weight: Tensor) -> Tensor:
        """The direct sum for the newest token: past (b, t, d), newest first → (b, 1, d)."""
        b, t, d = past.shape
        if self.spec.weights == "matrix":
            return torch.mm(past.view(b, t * d), weight.view(t * d, d)).unsqueeze(1)
        if self.spec.weights == "vector":
            return (past * weight).sum(1, keepdim=True)
        return torch.bmm(weight.expand(b, 1, t), past)

    def _too_long(self, n: int) -> RequestError:
        return RequestError(
            f"{self.spec.name} was built for a window of {self.window} tokens and got {n}: "
            f"build it with seq_len={n}"
        )


LAYERS = dict.fromkeys(("she", "he", "we", "me"), ExtractorLayer)
