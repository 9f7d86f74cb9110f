"""Code that loops over tokens, chunks, layers or experts, which ``derive/shapes.py`` derives, too.

Each stands with what is typed after ``--arg`` and ``--input``: chunks and layers are sizes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

STATES = ["put: B, N, s", "get: B, N, s"]
HEADS = ["q: B, N, h, d", "k: B, N, h, d", "v: B, N, h, d"]


def recurrence(q: Any, k: Any, v: Any) -> Any:
    """Linear attention, token by token."""
    state, rows = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], q.shape[3]), []
    for t in range(q.shape[1]):
        state = state + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        rows.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, 1)


def delta(q: Any, k: Any, v: Any) -> Any:
    """The delta rule, token by token, into rows that are there."""
    state, out = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], q.shape[3]), torch.empty_like(v)
    for t in range(q.shape[1]):
        old = torch.einsum("bhd,bhde->bhe", k[:, t], state)
        state = state + torch.einsum("bhd,bhe->bhde", k[:, t], v[:, t] - old)
        out[:, t] = torch.einsum("bhd,bhde->bhe", q[:, t], state)
    return out


def chunked(q: Any, k: Any, v: Any, chunk: Any) -> Any:
    """Linear attention in chunks of so many tokens."""
    batch, tokens, heads, width = q.shape
    shape = batch, tokens // chunk, chunk, heads, width
    q, k, v = (x.view(shape).transpose(2, 3) for x in (q, k, v))
    state, rows = q.new_zeros(batch, heads, width, width), []
    for i in range(tokens // chunk):
        inside = (q[:, i] @ k[:, i].mT).tril()
        rows.append(q[:, i] @ state + inside @ v[:, i])
        state = state + k[:, i].mT @ v[:, i]
    return torch.stack(rows, 1)


def tiled(q: Any, k: Any, v: Any) -> Any:
    """Attention in tiles of 64 queries and 64 keys, with a running maximum."""
    rows = []
    for queries in q.transpose(1, 2).split(64, 2):
        most = torch.full_like(queries[..., :1], -math.inf)
        total, out = torch.zeros_like(most), torch.zeros_like(queries)
        for keys, values in zip(k.split(64, 1), v.split(64, 1), strict=True):
            scores = queries @ keys.permute(0, 2, 3, 1)
            now = torch.maximum(most, scores.amax(-1, keepdim=True))
            weights, before = (scores - now).exp(), (most - now).exp()
            total = total * before + weights.sum(-1, keepdim=True)
            out, most = out * before + weights @ values.transpose(1, 2), now
        rows.append(out / total)
    return torch.cat(rows, 2)


def scan(x: Any, rate: Any, decay: Any, put: Any, get: Any) -> Any:
    """A selective scan: steps that softplus makes positive, a state of each channel."""
    step = F.softplus(rate)
    kept = (step.unsqueeze(-1) * -decay.exp()).exp()
    new = (step * x).unsqueeze(-1) * put.unsqueeze(2)
    state, rows = torch.zeros_like(new[:, 0]), []
    for t in range(x.shape[1]):
        state = kept[:, t] * state + new[:, t]
        rows.append((state * get[:, t].unsqueeze(1)).sum(-1))
    return torch.stack(rows, 1)


def blockwise(x: Any) -> Any:
    """Attention within blocks of 64 tokens, the last one shorter."""
    blocks = (x[:, i * 64 : (i + 1) * 64] for i in range(math.ceil(x.shape[1] / 64)))
    return torch.cat([(block @ block.mT).softmax(-1) @ block for block in blocks], 1)


def padded(x: Any) -> Any:
    """Attention within blocks of 32 tokens, after zeros that fill the last one."""
    more = -x.shape[1] % 32
    y = F.pad(x, (0, 0, 0, more)).unflatten(1, (-1, 32))
    return ((y @ y.mT).softmax(-1) @ y).flatten(1, 2)[:, : x.shape[1]]


class Rounded(nn.Module):
    """A gated map of a width of two thirds, in eights."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = 8 * ((int(2 * 4 * dim / 3) + 7) // 8)
        self.up, self.gate = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Strict(nn.Module):
    """Attention that insists on integers."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if type(d_model) is not int or type(num_heads) is not int:
            raise TypeError("whole numbers alone")
        self.h = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.h, -1).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(x.shape)


class Stack(nn.Module):
    """So many layers of torch's queries."""

    def __init__(self, d_model: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(d_model, num_heads, 64, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Experts(nn.Module):
    """Two of eight experts for each token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, 8)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(8))

    def forward(self, x: Any) -> Any:
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2, -1)
        out = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            row, place = torch.where(chosen == i)
            out.index_add_(0, row, expert(rows[row]) * weights[row, place, None])
        return out.view_as(x)


#: What is derived: the code, ``--arg``, ``--input``.
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "recurrence": (recurrence, [], HEADS),
    "delta": (delta, [], HEADS),
    "chunked": (chunked, ["chunk=C"], HEADS),
    "tiled": (tiled, [], HEADS),
    "scan": (
        scan,
        [],
        ["x: B, N, d", "rate: B, N, d", "decay: d, s", "put: B, N, s", "get: B, N, s"],
    ),
    "blockwise": (blockwise, [], ["x: B, N, d"]),
    "padded": (padded, [], ["x: B, N, d"]),
    "Rounded": (Rounded, ["dim=d"], ["x: B, N, d"]),
    "Strict": (Strict, ["d_model=h*d", "num_heads=h"], ["x: B, N, h*d"]),
    "Stack": (Stack, ["d_model=h*d", "num_heads=h", "num_layers=L"], ["x: B, N, h*d"]),
    "Experts": (Experts, ["dim=d"], ["x: B, N, d"]),
}
