"""Small modules of many operations and branches on sizes, which ``derive/shapes.py`` derives, too.

Each stands with what is typed after ``--arg`` and ``--input``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Branched(nn.Module):
    """Full attention of short inputs, and of the means of every two tokens of long ones."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        y = x
        if x.shape[1] > 512:
            y = F.avg_pool1d(x.transpose(1, 2), 2).transpose(1, 2)
        return (self.q(x) @ self.k(y).mT).softmax(-1) @ y


def nearest(q: Any, k: Any, v: Any) -> Any:
    """The last 128 keys alone."""
    window = min(k.shape[1], 128)
    return (q @ k[:, -window:].mT).softmax(-1) @ v[:, -window:]


def halves(x: Any) -> Any:
    """The sum of both halves of the tokens, the second as long as the first."""
    half = x.shape[1] // 2
    return torch.tanh(x[:, :half] + x[:, half : 2 * half])


class Pooled(nn.Module):
    """Keys of every seventh token, the last ones of fewer, in steps of seven."""

    def forward(self, q: Any, k: Any) -> Any:
        keys = F.avg_pool1d(k.transpose(1, 2), 7, ceil_mode=True)
        return (q @ keys).softmax(-1) @ keys.mT


def sevenths(x: Any) -> Any:
    """Zeros up to a multiple of seven, whose rows are added."""
    steps = math.ceil(x.shape[1] / 7)
    padded = F.pad(x, (0, 0, 0, 7 * steps - x.shape[1]))
    return padded.reshape(x.shape[0], steps, 7, -1).sum(2).relu()


def few(q: Any, k: Any, v: Any) -> Any:
    """As many of the best keys as the length has binary digits."""
    scores = q @ k.mT
    best, places = scores.topk(int(math.log2(k.shape[1])), -1)
    rows = places.unsqueeze(-1).expand(-1, -1, -1, v.shape[-1])
    chosen = v.unsqueeze(1).expand(-1, q.shape[1], -1, -1).gather(2, rows)
    return (best.softmax(-1).unsqueeze(-2) @ chosen).squeeze(-2)


def spread(x: Any, y: Any) -> Any:
    """Rows of one against rows of another, by broadcasting."""
    away = x.unsqueeze(2) - y.unsqueeze(1)
    near = torch.exp(-away.square().sum(-1))
    return near / near.sum(-1, keepdim=True).expand_as(near)


class Convolutions(nn.Module):
    """Convolutions with strides, dilations, groups, and one back up."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.narrow = nn.Conv1d(dim, 2 * dim, 5, stride=3, padding=2)
        self.dilated = nn.Conv1d(2 * dim, 2 * dim, 3, dilation=2, padding=2, groups=2)
        self.up = nn.ConvTranspose1d(2 * dim, dim, 3, stride=3)

    def forward(self, x: Any) -> Any:
        y = self.narrow(x.transpose(1, 2))
        return self.up(F.gelu(self.dilated(y))).transpose(1, 2)


class Images(nn.Module):
    """Patches of an image by a convolution, batch and group norm, and a mean over all of them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4 * dim, 4, stride=4)
        self.batch, self.group = nn.BatchNorm2d(4 * dim), nn.GroupNorm(4, 4 * dim)
        self.head = nn.Linear(4 * dim, 10)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.batch(self.patches(x)), inplace=True)
        return self.head(F.adaptive_avg_pool2d(self.group(y), 1).flatten(1))


class Dropped(nn.Module):
    """Dropout of three kinds."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map, self.drop = nn.Linear(dim, dim), nn.Dropout(0.2)
        self.whole = nn.Dropout1d(0.1)

    def forward(self, x: Any) -> Any:
        y = self.whole(self.drop(self.map(x)))
        return y + F.dropout(x, 0.3, training=self.training)


def parts(x: Any) -> Any:
    """Chunks of four, a split of unlike parts, windows that overlap."""
    first, *rest = x.chunk(4, 1)
    left, right = x.split([1, x.shape[-1] - 1], -1)
    rows = x.unfold(1, 4, 2).mean(-1)
    return torch.cat([first.exp(), *rest, torch.cat([right, left], -1), rows], 1)


def unlike(x: Any, y: Any) -> Any:
    """Two inputs of unlike lengths, beside each other and stacked."""
    both = torch.cat([x, y, x.mean(1, keepdim=True)], 1)
    return torch.stack([both, both.flip(1)], 1).sum((1, 3))


def in_place(x: Any) -> Any:
    """Masks written into scores that are there."""
    scores = x @ x.mT
    scores.masked_fill_(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu_(1), -1e9)
    scores.mul_(0.5).sub_(scores.detach().amax(-1, keepdim=True))
    weights = scores.exp()
    return (weights / weights.sum(-1, keepdim=True)).add_(1) @ x


def three(x: Any, w: Any, y: Any) -> Any:
    """A bilinear form of three operands."""
    return torch.einsum("bid,de,bje->bij", x, w, y)


def copied(x: Any) -> Any:
    """Copies after transpositions, and views of those."""
    y = x.permute(0, 2, 1, 3).contiguous()
    z = y.view(y.shape[0] * y.shape[1], y.shape[2], y.shape[3])
    return torch.bmm(z, z.transpose(1, 2).contiguous()).contiguous()


class Fourier(nn.Module):
    """A filter in frequencies."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Any) -> Any:
        spectrum = torch.fft.rfft(x, dim=1) * self.scale
        return torch.fft.irfft(spectrum, n=x.shape[1], dim=1)


def mixed_by_fourier(x: Any) -> Any:
    """The real part of a transform in both directions."""
    return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


class Norms(nn.Module):
    """Layer, batch, group, instance and RMS norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer, self.rms = nn.LayerNorm(2 * dim), nn.RMSNorm(2 * dim)
        self.batch, self.group = nn.BatchNorm1d(2 * dim), nn.GroupNorm(2, 2 * dim)
        self.instance = nn.InstanceNorm1d(2 * dim)

    def forward(self, x: Any) -> Any:
        y = self.rms(self.layer(x)).transpose(1, 2)
        return self.instance(self.group(self.batch(y)))


class Bags(nn.Module):
    """Means and sums of looked-up rows."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.means = nn.EmbeddingBag(1000, dim, mode="mean")
        self.sums = nn.EmbeddingBag(1000, dim, mode="sum")

    def forward(self, ids: Any) -> Any:
        return self.means(ids) * self.sums(ids)


def running(x: Any) -> Any:
    """Sums, products and logarithms of all before."""
    decay = torch.sigmoid(x).cumprod(1)
    return (x * decay).cumsum(1) + x.logcumsumexp(1) + x.cummax(1).values


def moved(x: Any) -> Any:
    """Rows gathered, scattered, written and added at places."""
    places = x.detach().argsort(1)
    sorted_rows = x.gather(1, places)
    back = torch.zeros_like(x).scatter(1, places, sorted_rows)
    summed = torch.zeros_like(x).scatter_add(1, places, x)
    rows = torch.arange(x.shape[1])
    written = x.clone()
    written[:, rows // 2] = back[:, rows]
    return written.index_add(1, rows // 2, summed)


def ordered(x: Any) -> Any:
    """Tokens in the order of their first number."""
    values, order = x.sort(1, descending=True)
    return values + x.take_along_dim(order, 1) + x.flip(1).roll(1, 1)


def scaled_products(q: Any, k: Any, bias: Any) -> Any:
    """Products with scales, onto what is there."""
    scores = torch.baddbmm(bias, q, k.mT, beta=0.5, alpha=0.125)
    more = torch.addmm(scores[0], q[0], k[0].t(), beta=2, alpha=3)
    return torch.addcmul(scores, more.unsqueeze(0), scores, value=0.1)


def solved(x: Any) -> Any:
    """Triangular systems, a Cholesky factor, an inverse."""
    gram = x.mT @ x + torch.eye(x.shape[-1])
    lower = torch.linalg.cholesky(gram)
    y = torch.linalg.solve_triangular(lower, x.mT, upper=False)
    return torch.linalg.inv(gram) @ y


class Checkpointed(nn.Module):
    """A block whose forward pass runs again for the backward one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def block(self, x: Any) -> Any:
        """What is run twice."""
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Any) -> Any:
        return x + checkpoint(self.block, x, use_reentrant=False)


class Halved(nn.Module):
    """Products in bfloat16, norms in float32, and a mask of numbers of another kind."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.map(x)
            scores = y @ y.mT
        mask = torch.arange(x.shape[1]).double().neg()
        return (self.norm(x) + (scores + mask).softmax(-1).to(x.dtype) @ x).half()


class Buffered(nn.Module):
    """A table of positions of a fixed length, sliced, and a count of calls."""

    def __init__(self, dim: int, length: int = 700) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(length, dim))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return torch.sin(x + self.table[: x.shape[1]])


class Shared(nn.Module):
    """One map called twice, and its weight once more, transposed."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.out.weight = self.map.weight

    def forward(self, x: Any) -> Any:
        return self.out(self.map(self.map(x).relu())) @ self.map.weight


class Nested(nn.Module):
    """Modules in lists and dicts, some in turn, which give a dict of results."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.heads = nn.ModuleDict({"wide": nn.Linear(dim, 3 * dim), "one": nn.Linear(dim, 1)})

    def forward(self, x: Any) -> Any:
        for i, each in enumerate(self.maps):
            x = each(x) if i % 2 else F.silu(each(x))
        return {name: head(x) for name, head in self.heads.items()}


def several(x: Any, memory: Any, weight: Any, mask: Any) -> Any:
    """Inputs of unlike shapes, two results, a mask of truth values."""
    scores = (x @ weight @ memory.mT).masked_fill(~mask[:, None], float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights @ memory, weights


class Squeezed(nn.Module):
    """Channels scaled by what their means say, of a sixteenth of the width and eight at least."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        narrow = max(8, dim // 16)
        self.down, self.up = nn.Linear(dim, narrow), nn.Linear(narrow, dim)

    def forward(self, x: Any) -> Any:
        return x * self.up(self.down(x.mean(1)).relu()).sigmoid().unsqueeze(1)


class Capped(nn.Module):
    """At most 96 learned rows are asked, and half of the tokens at most."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(96, dim))

    def forward(self, x: Any) -> Any:
        rows = self.rows[: min(96, x.shape[1] // 2)]
        return (rows @ x.mT).softmax(-1) @ x


class Rotated(nn.Module):
    """Rotary positions from a table that is made for the length, by pairs."""

    def forward(self, x: Any) -> Any:
        n, d = x.shape[1], x.shape[-1]
        rates = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
        angles = torch.outer(torch.arange(n).float(), rates)
        turn = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(-2)


class Gated(nn.Module):
    """A recurrent layer of torch's own in both directions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer = nn.GRU(dim, dim, batch_first=True, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


def strided(x: Any) -> Any:
    """Every third token, the rest beside it, and a band of a matrix."""
    thirds = x[:, ::3]
    rest = x[:, 1::3]
    band = (x @ x.mT).tril(2).triu(-2)
    return thirds.sum((1, 2)) + rest.sum((1, 2)) + band.diagonal(dim1=-2, dim2=-1).sum(-1)


def distances(x: Any, y: Any) -> Any:
    """Distances, norms, angles."""
    return torch.cdist(x, y) + F.cosine_similarity(x.unsqueeze(2), y.unsqueeze(1), dim=-1)


class Losses(nn.Module):
    """A loss of a language model: a number."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(500, dim), nn.Linear(dim, 500, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Any) -> Any:
        logits = self.head(self.table(ids))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Pyramid(nn.Module):
    """Tokens halved three times, the means of all levels beside each other."""

    def forward(self, x: Any) -> Any:
        levels = [x]
        for _ in range(3):
            x = F.max_pool1d(x.transpose(1, 2), 2, ceil_mode=True).transpose(1, 2)
            levels.append(x)
        return torch.cat([level.mean(1) for level in levels], -1)


def landmarks(q: Any, k: Any, v: Any) -> Any:
    """Means of as many segments as the root of the length."""
    m = math.isqrt(q.shape[1])
    size = q.shape[1] // m
    qs, ks = (x[:, : m * size].reshape(x.shape[0], m, size, -1).mean(2) for x in (q, k))
    left = (q @ ks.mT).softmax(-1)
    return left @ ((qs @ k.mT).softmax(-1) @ v)


X = ["x: B, N, d"]
QKV = ["q: B, N, d", "k: B, M, d", "v: B, M, d"]
ALIKE = ["q: B, N, d", "k: B, N, d", "v: B, N, d"]
TWO = ["x: B, N, d", "y: B, M, d"]
#: What is derived: the code, ``--arg``, ``--input``.
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "Branched": (Branched, ["dim=d"], X),
    "nearest": (nearest, [], QKV),
    "halves": (halves, [], X),
    "Pooled": (Pooled, [], ["q: B, N, d", "k: B, M, d"]),
    "sevenths": (sevenths, [], X),
    "few": (few, [], ALIKE),
    "spread": (spread, [], TWO),
    "Convolutions": (Convolutions, ["dim=d"], X),
    "Images": (Images, ["dim=d"], ["x: B, 3, N, M"]),
    "Dropped": (Dropped, ["dim=d"], X),
    "parts": (parts, [], X),
    "unlike": (unlike, [], TWO),
    "in_place": (in_place, [], X),
    "three": (three, [], ["x: B, N, d", "w: d, e", "y: B, M, e"]),
    "copied": (copied, [], ["x: B, N, h, d"]),
    "Fourier": (Fourier, ["dim=d"], X),
    "mixed_by_fourier": (mixed_by_fourier, [], X),
    "Norms": (Norms, ["dim=d"], ["x: B, N, 2*d"]),
    "Bags": (Bags, ["dim=d"], ["ids: B, N int64"]),
    "running": (running, [], X),
    "moved": (moved, [], X),
    "ordered": (ordered, [], X),
    "scaled_products": (scaled_products, [], ["q: B, N, d", "k: B, M, d", "bias: N, M"]),
    "solved": (solved, [], X),
    "Checkpointed": (Checkpointed, ["dim=d"], X),
    "Halved": (Halved, ["dim=d"], X),
    "Buffered": (Buffered, ["dim=d"], X),
    "Shared": (Shared, ["dim=d"], X),
    "Nested": (Nested, ["dim=d"], X),
    "several": (
        several, [],
        ["x: B, N, d", "memory: B, M, e", "weight: d, e", "mask: B, M bool"],
    ),
    "Squeezed": (Squeezed, ["dim=d"], X),
    "Capped": (Capped, ["dim=d"], X),
    "Rotated": (Rotated, [], ["x: B, N, 2*d"]),
    "Gated": (Gated, ["dim=d"], X),
    "strided": (strided, [], X),
    "distances": (distances, [], TWO),
    "Losses": (Losses, ["dim=d"], ["ids: B, N int64"]),
    "Pyramid": (Pyramid, [], X),
    "landmarks": (landmarks, [], ALIKE),
}  # fmt: skip
