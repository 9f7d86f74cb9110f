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


class Choosing(nn.Module):
    """The size of what it returns depends on values."""

    def forward(self, x):
        return x[x.sum(-1) > 0]


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
