"""Modules and functions as somebody else would write them, to be derived."""

import math

import numpy as np
import torch
from torch import nn


class MyAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(self.d)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(B, N, C))


class Wide(nn.Module):
    """Its sizes have defaults; it takes a mask and a causal flag."""

    def __init__(self, width=48, causal=False, activation="relu", slope=0.0):
        super().__init__()
        self.causal, self.activation, self.slope = causal, activation, slope
        self.map = nn.Linear(width, width)

    def forward(self, hidden_states, mask=None, *, scale=1.0):
        scores = self.map(hidden_states) @ hidden_states.transpose(-1, -2)
        return scores if mask is None else scores.masked_fill(mask, 0.0)


class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.map = nn.Linear(config["width"], config["width"])

    def forward(self, x, positions):
        return self.map(x)


class Embedded(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, ids):
        return self.table(ids)


class Through(nn.Module):
    """Its constructor goes through numpy and reads a value."""

    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=False)
        self.register_buffer("waves", torch.from_numpy(np.sin(torch.arange(4.0).numpy())))
        self.count = int(self.waves.new_ones(3).sum().item())

    def forward(self, x):
        return self.map(x)


class Reading(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x):
        return self.map(x) if x.sum() > 0 else x


class Silent(nn.Module):
    def forward(self, x):
        self.seen = x.shape


class Detached(nn.Module):
    def forward(self, x):
        return (x > 0).sum()


class Broken(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        raise ValueError("no such width")

    def forward(self, x):
        return x


class Empty(nn.Module):
    pass


class NoModule:
    pass


def made(d_model, num_heads):
    return MyAttention(d_model, num_heads)


def attention(q, k, v, temperature=1.0):
    return (q @ k.transpose(-1, -2) / temperature).softmax(-1) @ v


def split(x, num_heads, flavour):
    assert flavour != "bitter"
    B, N, C = x.shape
    heads = x.view(B, N, num_heads, C // num_heads).transpose(1, 2)
    return attention(heads, heads, heads)


def rows(*tensors, by=1.0):
    return sum(t * by for t in tensors)


ready = MyAttention(32, 4)
number = 3


class Heads(nn.Module):
    """Heads and their width have defaults, the model's width has none."""

    def __init__(self, dim, heads=8, dim_head=64, max_len=512, num_kv_heads=2):
        super().__init__()
        self.heads, self.inner = heads, heads * dim_head
        self.qkv = nn.Linear(dim, 3 * self.inner)

    def forward(self, x):
        return self.qkv(x)


class WithoutWidth(nn.Module):
    def __init__(self, num_heads=8):
        super().__init__()
        self.num_heads = num_heads

    def forward(self, x):
        B, N, C = x.shape
        heads = x.view(B, N, self.num_heads, C // self.num_heads).transpose(1, 2)
        return attention(heads, heads, heads)


def made_with(dim, num_heads=8, size=1):
    assert size
    return MyAttention(dim, num_heads)


def headed(x, num_heads=8, dim=-1):
    B, N, C = x.shape
    heads = x.view(B, N, num_heads, C // num_heads).transpose(1, 2)
    return attention(heads, heads, heads).softmax(dim)


class Unusual(nn.Module):
    """Calls itself something else; one forward has no instance, one is decorated."""

    def __init__(this, dim):  # noqa: N805 - what it is here for
        super().__init__()
        this.map = nn.Linear(dim, dim)

    def forward(this, x):  # noqa: N805 - the same
        return this.map(x)


class Static(nn.Module):
    @staticmethod
    def forward(x):
        return x * 2.0


class ByClass(nn.Module):
    @classmethod
    def forward(cls, x):
        return x * 2.0


class Named(nn.Module):
    """Its forward takes something called self."""

    def forward(me, x, self=None):  # noqa: N805 - the same
        return x * 2.0


def first_of(self, other):
    return self * other


class SelfAttention(nn.Module):
    """Torch's own, of one sequence with itself."""

    def __init__(self, width, heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x, need_weights=False):
        return self.inner(x, x, x, need_weights=need_weights)[0]
