"""Attention as people write it by hand, which ``derive/shapes.py`` derives, too."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Projected(nn.Module):
    """Heads, a joint projection to queries, keys and values, and one of the result."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def heads(self, x: Any) -> Any:
        """Queries, keys and values: (batch, heads, tokens, width) each."""
        b, n, _ = x.shape
        return self.qkv(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4).unbind(0)

    def merged(self, y: Any) -> Any:
        """Heads beside each other again."""
        return self.out(y.transpose(1, 2).flatten(2))


class VisionBlock(nn.Module):
    """A pre-norm block of a vision transformer: unfused attention, layer scale, a wide GELU."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.attention = Timm(d_model, num_heads)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.wide = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )
        self.scale = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Any) -> Any:
        x = x + self.scale * self.attention(self.norms[0](x))
        return x + self.scale * self.wide(self.norms[1](x))


class Timm(Projected):
    """As timm writes it, with norms of queries and keys, and dropout."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.q_norm, self.k_norm = nn.LayerNorm(self.d), nn.LayerNorm(self.d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        q, k = self.q_norm(q) * self.d**-0.5, self.k_norm(k)
        weights = self.drop((q @ k.transpose(-2, -1)).softmax(-1))
        return self.drop(self.merged(weights @ v))


class Fused(Projected):
    """Torch's fused attention, causal."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        return self.merged(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class RelativeTable(Projected):
    """A learned bias of heads, looked up by distance."""

    most = 1024

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.zeros(2 * self.most - 1, num_heads))

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        q, k, v = self.heads(x)
        places = torch.arange(n)
        away = places[None] - places[:, None] + self.most - 1
        bias = self.table[away.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous()
        return self.merged((q @ k.mT * self.d**-0.5 + bias[None]).softmax(-1) @ v)


class RelativeShift(Projected):
    """Scores of distances, shifted into place, as in Transformer-XL."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.distances = nn.Linear(d_model, d_model)
        self.content, self.place = (nn.Parameter(torch.zeros(num_heads, self.d)) for _ in range(2))

    def forward(self, x: Any, distances: Any) -> Any:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, self.d).unbind(2)
        r = self.distances(distances).view(n, self.h, self.d)
        scores = torch.einsum("bihd,bjhd->bhij", q + self.content, k)
        shifted = torch.einsum("bihd,jhd->bhij", q + self.place, r)
        shifted = F.pad(shifted, (1, 0)).view(b, self.h, n + 1, n)[:, :, 1:].view_as(scores)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = ((scores + shifted) * self.d**-0.5).masked_fill(hidden, -1e9).softmax(-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(b, n, c))


class Grouped(nn.Module):
    """Two heads of keys and values, expanded and repeated; a causal mask of truth values."""

    groups = 2

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.kv = nn.Linear(d_model, 2 * self.groups * self.d, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Any) -> Any:
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.h, self.d).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.groups, self.d).permute(2, 0, 3, 1, 4)
        times = self.h // self.groups
        k = k[:, :, None].expand(b, self.groups, times, n, self.d).reshape(b, self.h, n, self.d)
        v = v.repeat_interleave(times, dim=1)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        weights = (q @ k.mT / math.sqrt(self.d)).masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, c))


class OneKeyHead(nn.Module):
    """Keys and values of one head for all queries."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.q, self.kv = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * self.d)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Any) -> Any:
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.h, self.d).transpose(1, 2)
        k, v = self.kv(x)[:, :, None, :].transpose(1, 2).chunk(2, -1)
        weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) / self.d**0.5, -1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(b, n, c))


class Latent(nn.Module):
    """Keys and values through a narrow middle; rotated places shared by all heads."""

    rank, turned = 32, 8

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.q = nn.Linear(d_model, num_heads * (self.d + self.turned))
        self.down = nn.Linear(d_model, self.rank + self.turned)
        self.norm = nn.RMSNorm(self.rank)
        self.up = nn.Linear(self.rank, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def rotated(self, x: Any) -> Any:
        """By angles that grow with the place."""
        speeds = 1e4 ** (-torch.arange(0, self.turned, 2) / self.turned)
        angles = torch.outer(torch.arange(x.shape[-2]).float(), speeds)
        angles = torch.cat((angles, angles), -1)
        one, other = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-other, one), -1) * angles.sin()

    def forward(self, x: Any) -> Any:
        b, n, c = x.shape
        q, turned = self.q(x).view(b, n, self.h, -1).transpose(1, 2).split([self.d, 8], -1)
        middle, place = self.down(x).split([self.rank, self.turned], -1)
        k, v = self.up(self.norm(middle)).view(b, n, self.h, -1).transpose(1, 2).chunk(2, -1)
        place = self.rotated(place.view(b, 1, n, -1)).expand(b, self.h, n, self.turned)
        q, k = torch.cat((q, self.rotated(turned)), -1), torch.cat((k, place), -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Alibi(Projected):
    """A bias by distance added inside the product."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.slopes = nn.Parameter(torch.zeros(num_heads, 1, 1))

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = self.heads(x)
        places = torch.arange(n)
        bias = (places[None] - places[:, None]).abs()[None] * self.slopes
        bias = (bias + torch.full((n, n), float("-inf")).triu(1)).repeat(b, 1, 1)
        q, k = q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)
        weights = torch.baddbmm(bias, q, k, alpha=self.d**-0.5).view(b, self.h, n, n)
        return self.merged(weights.softmax(-1) @ v)


class Einsums(Projected):
    """All products by ``einsum``."""

    def forward(self, x: Any) -> Any:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, self.h, 3 * self.d).chunk(3, -1)
        weights = torch.einsum("bnhd,bmhd->bhnm", q, k).mul(self.d**-0.5).softmax(-1)
        return self.out(torch.einsum("bhnm,bmhd->bnhd", weights, v).reshape(b, n, c))


class Kernelised(Projected):
    """Linear attention, normalised."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bhnd,bhne->bhde", k, v)
        norms = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(2)) + 1e-6)
        return self.merged(torch.einsum("bhnd,bhde,bhn->bhne", q, state, norms))


class CrossCovariance(Projected):
    """Attention between channels, of queries and keys of length one."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.warmth = nn.Parameter(torch.ones(num_heads, 1, 1))

    def forward(self, x: Any) -> Any:
        q, k, v = (y.transpose(-2, -1) for y in self.heads(x))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        weights = (q @ k.transpose(-2, -1) * self.warmth).softmax(-1)
        return self.merged((weights @ v).transpose(-2, -1))


class Convolved(Projected):
    """Keys and values of every second token by a convolution, another one added to the result."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.fewer = nn.Conv1d(d_model, d_model, 2, 2)
        self.near = nn.Conv1d(d_model, d_model, 3, padding=1, groups=d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Any) -> Any:
        q, _, _ = self.heads(x)
        _, k, v = self.heads(self.norm(self.fewer(x.transpose(1, 2)).transpose(1, 2)))
        y = self.merged((q @ k.mT * self.d**-0.5).softmax(-1) @ v)
        return y + self.near(x.transpose(1, 2)).transpose(1, 2)


class Masked(Projected):
    """A mask of tokens, made four-dimensional and expanded."""

    def forward(self, x: Any, mask: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = self.heads(x)
        wide = mask[:, None, None, :].expand(b, 1, n, n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=wide)
        return self.merged(y) * mask[..., None]


class Windows(Projected):
    """Windows of 8 tokens, moved by half a window."""

    wide = 8

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.bias = nn.Parameter(torch.zeros(1, num_heads, self.wide, self.wide))

    def forward(self, x: Any) -> Any:
        b, n, c = x.shape
        x = torch.roll(x, -self.wide // 2, 1)
        q, k, v = self.heads(x.reshape(b * (n // self.wide), self.wide, c))
        y = self.merged((q @ k.mT + self.bias).softmax(-1) @ v)
        return torch.roll(y.reshape(b, n, c), self.wide // 2, 1)


class TwoLevels(Projected):
    """Blocks of 16 tokens exactly, means of blocks elsewhere; padded to whole blocks."""

    block = 16

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        padded = (F.pad(y, (0, 0, 0, -n % self.block)) for y in self.heads(x))
        q, k, v = (y.reshape(b, self.h, -1, self.block, self.d) for y in padded)
        scores = torch.einsum("bhnid,bhnjd->bhnij", q, k)
        near = (scores - scores.amax(-1, keepdim=True)).exp()
        means, totals = (q.mean(-2), k.mean(-2)), v.sum(-2)
        far = (means[0] @ means[1].mT).exp()
        far = far.masked_fill(torch.eye(far.shape[-1], dtype=torch.bool), 0.0)
        sums = near.sum(-1) + far.sum(-1)[..., None] * self.block
        y = (near @ v + (far @ totals)[..., None, :]) / sums[..., None]
        return self.merged(y.reshape(b, self.h, -1, self.d)[:, :, :n])


class Hierarchical(Projected):
    """Levels of ever coarser blocks, added up by repeating, as in H-Transformer-1D."""

    block, levels = 8, 2

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        whole = F.pad(x, (0, 0, 0, -n % (self.block * 2 ** (self.levels + 1))))
        q, k, v = (y.reshape(b * self.h, -1, self.d) for y in self.heads(whole))
        results, weights = [], []
        for level in range(self.levels + 1):
            if level:
                q, k = (y.reshape(b * self.h, -1, 2, self.d).mean(2) for y in (q, k))
                v = v.reshape(b * self.h, -1, 2, self.d).sum(2)
            rows, columns, values = (
                y.reshape(b * self.h, -1, self.block, self.d) for y in (q, k, v)
            )
            if level:  # a block looks at its neighbour
                pairs = (y.unflatten(1, (-1, 2)).flip(2).flatten(1, 2) for y in (columns, values))
                columns, values = pairs
            scores = torch.einsum("...id,...jd->...ij", rows, columns)
            near = (scores - scores.amax(-1, keepdim=True).detach()).exp()
            result = torch.einsum("...ij,...jd->...id", near, values).flatten(1, 2)
            results.append(result.repeat_interleave(2**level, 1))
            weights.append(near.sum(-1).flatten(1).repeat_interleave(2**level, 1))
        y = sum(results) / (sum(weights)[..., None] + 1e-8)
        return self.merged(y.view(b, self.h, -1, self.d))[:, :n]


class Embedded(nn.Module):
    """Tokens and learned places, of which a part is taken; logits."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, d_model)
        self.places = nn.Parameter(torch.zeros(1, 700, d_model))
        self.norm, self.out = nn.LayerNorm(d_model), nn.Linear(d_model, 100, bias=False)

    def forward(self, ids: Any) -> Any:
        return self.out(self.norm(self.tokens(ids) + self.places[:, : ids.shape[1]]))


class Cross(nn.Module):
    """Attention to a memory of another length."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    def forward(self, x: Any, memory: Any) -> Any:
        return self.attention(x, memory, memory, need_weights=False)[0]


class Folded(nn.Module):
    """Products of unlike dimensions: matrices, vectors, batches and expanded ones."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.h = num_heads
        self.matrix = nn.Parameter(torch.zeros(d_model, d_model))
        self.vector = nn.Parameter(torch.zeros(d_model))
        self.narrow = nn.Parameter(torch.zeros(num_heads, d_model // num_heads, 5))

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        weights = x @ self.matrix @ self.vector
        each = x.view(b, n, self.h, -1).transpose(1, 2) @ self.narrow
        pairs = (x * weights[..., None]).transpose(1, 2) @ x
        return (x @ pairs).sum(-1) + each.sum((1, 3))


class Normed(nn.Module):
    """Norms over groups of channels, samples, tokens and widths."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.group, self.batch = nn.GroupNorm(num_heads, d_model), nn.BatchNorm1d(d_model)
        self.sample, self.width = nn.InstanceNorm1d(d_model), nn.RMSNorm(d_model)

    def forward(self, x: Any) -> Any:
        y = x.transpose(1, 2)
        return self.width((self.group(y) + self.batch(y) + self.sample(y)).transpose(1, 2))
