"""Attention modules as maintainers write them, one statement a line, to be changed in a line."""

from attnprof.measure.request import PointRequest

PLAIN = """
import math
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        k = k.transpose(-1, -2)
        s = q @ k / math.sqrt(self.d)
        w = s.softmax(-1)
        y = w @ v
        return self.out(y.transpose(1, 2).reshape(B, N, C))
"""

SEPARATE = """
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(d_model)
        self.scale = (d_model // num_heads) ** -0.5

    def heads(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x):
        N = x.shape[1]
        x = self.norm(x)
        q, k, v = self.heads(self.q(x)) * self.scale, self.heads(self.k(x)), self.heads(self.v(x))
        k = k.transpose(-1, -2)
        s = torch.matmul(q, k)
        w = F.softmax(s, dim=-1)
        y = torch.matmul(w, v)
        return y.transpose(1, 2).flatten(2)
"""

SUMMED = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(d_model, 2 * d_model)

    def forward(self, x):
        N = x.shape[1]
        k, v = self.kv(x).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        k = k.transpose(-1, -2)
        s = torch.einsum("bhnd,bhdm->bhnm", q, k) * q.shape[-1] ** -0.5
        w = s.softmax(-1)
        y = torch.einsum("bhnm,bhmd->bhnd", w, v)
        return x + y.transpose(1, 2).flatten(2)
"""

MODULES = {"plain": PLAIN, "separate": SEPARATE, "summed": SUMMED}

#: What to write behind a line of every module above, and what the gate must say of it.
SLIPS = {
    "contiguous": ("        w = ", "        w = w.mT.contiguous().mT\n"),
    "float64": ("        s = ", "        s = s.double()\n"),
    "mask": ("        s = ", "        s = s.masked_fill(torch.ones(N, N).triu(1) > 0, -1e9)\n"),
    "scaling": ("        s = ", "        s = s * 0.5\n"),
}


def slipped(text, slip):
    """The module with a line more, and that line's number."""
    after, line = SLIPS[slip]
    lines = text.splitlines(keepends=True)
    place = next(i for i, row in enumerate(lines) if row.startswith(after)) + 1
    if slip == "float64":  # as a slip it goes unnoticed: what follows gets what it got
        back = next(i for i, row in enumerate(lines) if row.startswith("        w = ")) + 1
        lines.insert(back, "        w = w.float()\n")
    lines.insert(place, line)
    return "".join(lines), place + 1


def request_of(folder, text, name="attention", **changes):
    """A module written to a file, as a case's request."""
    path = folder / f"{name}.py"
    path.write_text(text)
    sizes = {"seq_len": 96, "num_heads": 2, "head_dim": 8, "batch_size": 2, **changes}
    return PointRequest(f"{path}:Attention", **sizes)
