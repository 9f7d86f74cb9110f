"""Recurrences and chunked scans as papers print them, which ``derive/shapes.py`` derives, too.

Each in plain torch, with the tokens of a chunk as an argument, which is a size of the formula.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

HEADS = ["q: B, N, h, d", "k: B, N, h, d", "v: B, N, h, d"]
FIRST = ["q: B, h, N, d", "k: B, h, N, d", "v: B, h, N, d"]
GATES = ["g: B, N, h, d", "beta: B, N, h"]


def segment_sums(x: Any) -> Any:
    """Sums of every stretch of the last axis, minus infinity above the diagonal."""
    width = x.size(-1)
    x = x[..., None].expand(*x.shape, width)
    x = x.masked_fill(~torch.tril(torch.ones(width, width, dtype=torch.bool), -1), 0)
    mask = torch.tril(torch.ones(width, width, dtype=torch.bool))
    return x.cumsum(-2).masked_fill(~mask, -torch.inf)


def state_space_duality(x: Any, a: Any, b: Any, c: Any, chunk: int) -> Any:
    """Mamba 2's minimal chunked scan (arXiv:2405.21060, Listing 1)."""
    x, a, b, c = (t.unflatten(1, (-1, chunk)) for t in (x, a, b, c))
    a = a.permute(0, 3, 1, 2)
    sums = a.cumsum(-1)
    inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, segment_sums(a).exp(), x)
    decay = (sums[..., -1:] - sums).exp()
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, decay, x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    between = segment_sums(F.pad(sums[..., -1], (1, 0))).exp()
    states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
    across = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, sums.exp())
    return (inside + across).flatten(1, 2)


def gated(q: Any, k: Any, v: Any, g: Any) -> Any:
    """Gated linear attention, token by token."""
    state, rows = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1) + k[:, t, :, :, None] * v[:, t, :, None]
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * q.shape[3] ** -0.5, state))
    return torch.stack(rows, 1)


def gated_chunks(q: Any, k: Any, v: Any, g: Any, chunk: int) -> Any:
    """Gated linear attention in chunks (arXiv:2312.06635, Section 4)."""
    q, k, v, g = (t.transpose(1, 2).unflatten(2, (-1, chunk)) for t in (q, k, v, g))
    g = g.cumsum(-2)
    q, inner, outer = q * g.exp(), k * (-g).exp(), k * (g[..., -1:, :] - g).exp()
    mask = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    state, rows = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for i in range(q.shape[2]):
        scores = (q[:, :, i] @ inner[:, :, i].mT).masked_fill(~mask, 0)
        rows.append(scores @ v[:, :, i] + q[:, :, i] @ state)
        state = g[:, :, i, -1, :, None].exp() * state + outer[:, :, i].mT @ v[:, :, i]
    return torch.cat(rows, 2).transpose(1, 2)


def receptance(r: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
    """RWKV-6, token by token: a bonus for the token itself."""
    batch, heads, tokens, width = r.shape
    state = r.new_zeros(batch, heads, width, width)
    out = torch.zeros_like(v)
    for t in range(tokens):
        new = k[:, :, t, :, None] * v[:, :, t, None, :]
        out[:, :, t] = ((state + u[None, :, :, None] * new) * r[:, :, t, :, None]).sum(-2)
        state = state * w[:, :, t, :, None].exp() + new
    return out


def receptance_chunks(r: Any, k: Any, v: Any, w: Any, u: Any, chunk: int) -> Any:
    """RWKV-6 in chunks: states first, then each row of all chunks at once."""
    count = r.shape[2] // chunk
    r, k, v, w = (t.view(*t.shape[:2], count, chunk, -1) for t in (r, k, v, w))
    sums = w.cumsum(-2)
    new = (k * (sums[..., -1:, :] - sums).exp()).mT @ v
    states = [torch.zeros_like(new[:, :, 0])]
    for i in range(count - 1):
        states.append(states[i] * sums[:, :, i, -1, :, None].exp() + new[:, :, i])
    across = (r * (sums - w).exp()) @ torch.stack(states, 2)
    inside = torch.zeros_like(across)
    for i in range(chunk):
        decay = (sums[..., i : i + 1, :] - w[..., i : i + 1, :] - sums).exp()
        scores = (r[..., i : i + 1, :] * k * decay).sum(-1)
        scores = scores.masked_fill(torch.arange(chunk) >= i, 0)
        row = (r[..., i, :] * u[:, None] * k[..., i, :]).sum(-1, keepdim=True)
        inside[..., i, :] = (scores.unsqueeze(-1) * v).sum(-2) + row * v[..., i, :]
    return (across + inside).flatten(2, 3)


def causal_tiles(q: Any, k: Any, v: Any, block: int) -> Any:
    """Causal attention in tiles, those above the diagonal left out."""
    tokens, scale = q.shape[2], 1 / math.sqrt(q.shape[-1])
    out = torch.zeros_like(q)
    for i in range(0, tokens, block):
        row = q[:, :, i : i + block] * scale
        most = row.new_full((*row.shape[:-1], 1), -math.inf)
        total, rows = torch.zeros_like(most), torch.zeros_like(row)
        for j in range(0, i + block, block):
            scores = row @ k[:, :, j : j + block].mT
            if j == i:
                mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                scores = scores.masked_fill(mask, -math.inf)
            now = torch.maximum(most, scores.amax(-1, keepdim=True))
            weights, before = (scores - now).exp(), (most - now).exp()
            total = total * before + weights.sum(-1, keepdim=True)
            rows, most = rows * before + weights @ v[:, :, j : j + block], now
        out[:, :, i : i + block] = rows / total
    return out


def retention(q: Any, k: Any, v: Any, chunk: int) -> Any:
    """Retention in chunks (arXiv:2307.08621, Equation 7): a fixed decay of each head."""
    heads, width = q.shape[1], q.shape[3]
    decay = torch.log(1 - 2.0 ** (-5 - torch.arange(heads, dtype=q.dtype))).view(-1, 1, 1)
    place = torch.arange(chunk, dtype=q.dtype)
    mask = torch.exp((place[:, None] - place).clamp(min=0) * decay).tril()
    ahead, behind = (
        ((place + 1)[:, None] * decay).exp(),
        ((chunk - 1 - place)[:, None] * decay).exp(),
    )
    state, rows = 0.0, []
    for a, b, c in zip(q.split(chunk, 2), k.split(chunk, 2), v.split(chunk, 2), strict=True):
        inside = (a @ b.mT * width**-0.5 * mask) @ c
        rows.append(inside + (a * width**-0.5 @ state if rows else 0.0) * ahead)
        state = (chunk * decay).exp() * state + (b * behind).mT @ c
    return torch.cat(rows, 2)


def lightning(q: Any, k: Any, v: Any, slope: Any, block: int) -> Any:
    """Lightning attention (arXiv:2401.04658, Algorithm 1); the last block may be shorter."""
    batch, heads, tokens, width = q.shape
    place = torch.arange(block, dtype=q.dtype) + 1
    ahead, behind = torch.exp(-slope * place[:, None]), torch.exp(-slope * (block - place[:, None]))
    gap = place[:, None] - place
    mask = torch.where(gap >= 0, torch.exp(-slope * gap), 0.0)
    state, out = q.new_zeros(batch, heads, width, v.shape[-1]), torch.empty_like(v)
    for i in range((tokens + block - 1) // block):
        start, end = i * block, min((i + 1) * block, tokens)
        size = end - start
        a, b, c = (t[:, :, start:end].contiguous() for t in (q, k, v))
        inside = (a @ b.mT * mask[:, :size, :size]) @ c
        out[:, :, start:end] = inside + (a * ahead[:, :size]) @ state
        state = torch.exp(-slope * size) * state + (b * behind[:, -size:]).mT @ c
    return out


def products(q: Any, k: Any, v: Any, beta: Any, steps: int) -> Any:
    """DeltaProduct: several steps of the delta rule for each token."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    out = torch.zeros(*q.shape[:3], v.shape[3])
    for t in range(q.shape[1]):
        for j in range(steps):
            key, value = k[:, t * steps + j], v[:, t * steps + j]
            error = value - torch.einsum("bhk,bhkv->bhv", key, state)
            step = beta[:, t * steps + j, :, None] * error
            state = state + key.unsqueeze(-1) * step.unsqueeze(-2)
        out[:, t] = torch.einsum("bhk,bhkv->bhv", q[:, t], state)
    return out


def gated_delta(q: Any, k: Any, v: Any, g: Any, beta: Any, chunk: int) -> Any:
    """The gated delta rule in chunks (arXiv:2412.06464), a triangular system solved in each."""
    q, k, v, g, beta = (t.transpose(1, 2).unflatten(2, (-1, chunk)) for t in (q, k, v, g, beta))
    g = g.cumsum(-1)
    decay = (g[..., None] - g[..., None, :]).tril().exp().tril()
    lower = ((k * beta[..., None]) @ k.mT * decay).tril(-1)
    solved = torch.linalg.solve_triangular(
        lower + torch.eye(chunk),
        torch.cat([v, k * g.exp()[..., None]], -1) * beta[..., None],
        upper=False,
    )
    new, read = solved.split([v.shape[-1], k.shape[-1]], -1)
    state, rows = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), []
    for i in range(q.shape[2]):
        value = new[:, :, i] - read[:, :, i] @ state
        scores = q[:, :, i] @ k[:, :, i].mT * decay[:, :, i]
        rows.append(q[:, :, i] * g[:, :, i, :, None].exp() @ state + scores @ value)
        last = g[:, :, i, -1:]
        state = state * last[..., None].exp()
        state = state + (k[:, :, i] * (last - g[:, :, i]).exp()[..., None]).mT @ value
    return torch.cat(rows, 2).transpose(1, 2)


def gated_delta_rows(q: Any, k: Any, v: Any, g: Any, beta: Any, chunk: int) -> Any:
    """Kimi Delta Attention in chunks: gates of channels, the system solved row by row."""
    q, k, v, g, beta = (t.transpose(1, 2).unflatten(2, (-1, chunk)) for t in (q, k, v, g, beta))
    g = g.cumsum(-2)
    inner, mask = k * (-g).exp(), torch.ones(chunk, chunk, dtype=torch.bool).triu()
    lower = -((k * g.exp() * beta[..., None]) @ inner.mT).masked_fill(mask, 0)
    for i in range(1, chunk):
        row = lower[..., i, :i].clone()
        lower[..., i, :i] = row + (row.unsqueeze(-1) * lower[..., :i, :i].clone()).sum(-2)
    lower = (lower + torch.eye(chunk)) * beta[..., None, :]
    read, new = lower @ (g.exp() * k), lower @ v
    state, out = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), torch.zeros_like(v)
    for i in range(q.shape[2]):
        row = q[:, :, i] * g[:, :, i].exp()
        scores = (row @ inner[:, :, i].mT).tril()
        value = new[:, :, i] - read[:, :, i] @ state
        out[:, :, i] = row @ state + scores @ value
        last = g[:, :, i, -1:]
        state = state * last.mT.exp() + (k[:, :, i] * (last - g[:, :, i]).exp()).mT @ value
    return out.flatten(2, 3).transpose(1, 2)


def test_time_training(q: Any, k: Any, v: Any, w: Any, b: Any, rate: Any, batch: int) -> Any:
    """TTT-Linear in its dual form (arXiv:2407.04620), so many tokens in a mini-batch."""
    width = q.shape[-1]
    state = q.new_zeros(*q.shape[:2], width, width)
    bias, rows = q.new_zeros(*q.shape[:2], 1, width), []
    for i in range(q.shape[2] // batch):
        x, y, z, eta = (t[:, :, i * batch : (i + 1) * batch] for t in (q, k, v, rate))
        guess = y @ state + bias
        deviation = (guess.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        normal = (guess - guess.mean(-1, keepdim=True)) / deviation
        grad = (w * normal + b - (z - y)) * w
        grad = grad - grad.mean(-1, keepdim=True) - normal * (grad * normal).mean(-1, keepdim=True)
        grad = grad / deviation
        scores = (x @ y.mT).tril()
        read = x @ state - (eta * scores) @ grad + bias - eta.expand_as(scores).tril() @ grad
        rows.append(read + F.layer_norm(read, (width,)) * w + b)
        state = state - (eta[:, :, -1:] * y).mT @ grad
        bias = bias - (eta[:, :, -1:] * grad).sum(-2, keepdim=True)
    return torch.cat(rows, 2)


def log_linear(q: Any, k: Any, v: Any, g: Any, scales: Any) -> Any:
    """Log-linear attention (arXiv:2506.04761) by its matrix: a scale for each level of a tree."""
    tokens = q.shape[2]
    place = torch.arange(tokens)
    weights = segment_sums(g).exp()
    total = torch.zeros_like(weights)
    for level in range(math.ceil(math.log2(tokens)) + 1):
        if level == 0:
            mask = place[:, None] == place
        else:
            size = 1 << level
            start = place - place % size
            right = place % size >= size // 2
            mask = (
                right[:, None] & (place >= start[:, None]) & (place < (start + size // 2)[:, None])
            )
        total = total + weights * torch.where(mask, scales[..., level, :, None], 0.0)
    return (q @ k.mT * total) @ v


#: What is derived: the code, ``--arg``, ``--input``.
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "state_space_duality": (
        state_space_duality,
        ["chunk=C"],
        ["x: B, N, h, d", "a: B, N, h", "b: B, N, h, s", "c: B, N, h, s"],
    ),
    "gated": (gated, [], [*HEADS, "g: B, N, h, d"]),
    "gated_chunks": (gated_chunks, ["chunk=C"], [*HEADS, "g: B, N, h, d"]),
    "receptance": (receptance, [], ["r: B, h, N, d", *FIRST[1:], "w: B, h, N, d", "u: h, d"]),
    "receptance_chunks": (
        receptance_chunks,
        ["chunk=C"],
        ["r: B, h, N, d", *FIRST[1:], "w: B, h, N, d", "u: h, d"],
    ),
    "causal_tiles": (causal_tiles, ["block=C"], FIRST),
    "retention": (retention, ["chunk=C"], FIRST),
    "lightning": (lightning, ["block=C"], [*FIRST, "slope: h, 1, 1"]),
    "products": (
        products,
        ["steps=n"],
        [HEADS[0], "k: B, n*N, h, d", "v: B, n*N, h, d", "beta: B, n*N, h"],
    ),
    "gated_delta": (gated_delta, ["chunk=C"], [*HEADS, "g: B, N, h", "beta: B, N, h"]),
    "gated_delta_rows": (gated_delta_rows, ["chunk=C"], [*HEADS, *GATES]),
    "test_time_training": (
        test_time_training,
        ["batch=C"],
        [*FIRST, "w: h, 1, d", "b: h, 1, d", "rate: B, h, N, 1"],
    ),
    "log_linear": (log_linear, [], [*FIRST, "g: B, h, N", "scales: B, h, L, N"]),
}
