"""Modules that other tools count wrongly: sizes made numbers, branches, values, loops."""

import random
import sys
from fractions import Fraction
from math import sqrt

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Written-out attention; what is odd about it is in its variants."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.width = self.width_of(d_model, num_heads)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)

    @staticmethod
    def width_of(d_model, num_heads):
        return d_model // num_heads

    def scale(self):
        return 0.5

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.width).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * self.scale()).softmax(-1)
        return self.done((weights @ v).transpose(1, 2).reshape(b, n, c))

    def done(self, y):
        return y


class IntOfRatio(Attention):
    """The width is a rounded quotient, and its root an imported function's."""

    @staticmethod
    def width_of(d_model, num_heads):
        return int(d_model / num_heads)

    def scale(self):
        return 1 / sqrt(self.width)


def after(done):
    """Attention of whose result something is made."""
    return type("After", (Attention,), {"done": staticmethod(done)})


Tuple = after(lambda y: (y, None))
Sorted = after(lambda y: y.sort(dim=1).values)
Jagged = after(lambda y: torch.nested.nested_tensor(list(y.unbind()), layout=torch.jagged).values())
Ragged = after(lambda y: torch.nested.nested_tensor(list(y.unbind())).to_padded_tensor(0.0))
Compressed = after(
    lambda y: torch.stack([torch.eye(y.shape[1]).to_sparse_csr() @ one for one in y])
)
Coordinates = after(
    lambda y: torch.stack([torch.sparse.mm(torch.eye(y.shape[1]).to_sparse(), one) for one in y])
)
Choosing = after(lambda y: torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)))


@torch.library.custom_op("attnprof_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


WithUnknown = after(unknown)


@after
def Scanned(y):  # noqa: N802 - a class
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(torch.add, y, dim=1, combine_mode="generic")


@after
def Looping(y):  # noqa: N802 - a class
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, 2 * y), (torch.tensor(0), y))[1]


class Mapping(Attention):
    """Of a result that is normed, and dropped in part."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.norm = nn.LayerNorm(d_model)

    def done(self, y):
        return {"y": F.dropout(self.norm(y), 0.1, self.training)}


class LengthBranch(Attention):
    """Up to 307 tokens it adds its input."""

    def forward(self, x):
        y = super().forward(x)
        return y if x.shape[1] > 307 else y + x


class Checkpointed(Attention):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class MasksAStack(nn.Module):
    """A stack of torch's, whose mask depends on values."""

    def __init__(self, d_model):
        super().__init__()
        layer = nn.TransformerDecoderLayer(d_model, 1, 8, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, 1)

    def forward(self, x):
        return self.layers(x, x, tgt_mask=(x @ x.mT)[0])


class ReadsValue(Attention):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else x


class Asserts(Attention):
    """Says nothing when it refuses."""

    def forward(self, x):
        assert x.shape[1] < 2
        return super().forward(x)


class ExitsWhenLong(Attention):
    def forward(self, x):
        if x.shape[1] > 400:
            sys.exit()
        return super().forward(x)


class ExitsWhenMade(Attention):
    def __init__(self, d_model, num_heads):
        raise SystemExit(0)


def token_loop(x):
    """A state, token by token."""
    state, out = x[:, 0], []
    for i in range(x.shape[1]):
        state = state * 0.5 + x[:, i]
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) + x


def calls_scripted(x):
    return scripted(x)


def spectral(x):
    """n log n: no polynomial."""
    return torch.fft.rfft(x, dim=1).real


def raises(x):  # noqa: ARG001 - it takes an input
    raise ValueError("not today")


def unfinished(x):
    raise NotImplementedError


def divides(x):
    return x * Fraction(1, 0)


def exits(x):  # noqa: ARG001 - it takes an input
    sys.exit(5)


def raises_the_base(x):  # noqa: ARG001 - it takes an input
    raise BaseException("out")  # noqa: TRY002 - what it is here for


class Masked(nn.Module):
    """Torch's encoder, which makes nested tensors of padded ones unless it is trained."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x, mask):
        return self.encoder(x, src_key_padding_mask=mask)


class Dropping(Attention):
    """Layers that are dropped with a probability, mostly in training."""

    drops = False

    def chance(self):
        return random.random()

    def done(self, y):
        for _ in range(2):
            if (self.training or self.drops) and self.chance() < 0.05:
                continue
            y = torch.relu(y)
        return y


class DroppingAlways(Dropping):
    drops = True


class DroppingByNumpy(DroppingAlways):
    def chance(self):
        return np.random.rand()  # noqa: NPY002 - what others write


class DroppingByTorch(DroppingAlways):
    def chance(self):
        return torch.rand(())


class DroppingByDepth(DroppingAlways):
    def done(self, y):
        for _ in range(int(torch.randint(0, 4, ()))):
            y = torch.relu(y)
        return y


class NeverDropping(DroppingAlways):
    """Draws, and does the same whatever it draws."""

    def chance(self):
        return 0.05 + random.random()
