"""What ``modules.py`` holds against the allocator: mechanisms, their variants, other modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attnprof import registry
from attnprof.trace.request.target import Expression, Input, Target

#: batch, tokens, heads, head width
SHAPES = ((2, 256, 4, 16), (1, 600, 2, 32), (3, 130, 4, 8))

#: Other ways each mechanism can run; every one also runs with its default parameters.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "efficient": ({"bias": False},),
    "standard": ({"bias": False},),
    "super": ({"per_head": True},),
    "neural": ({"down_dim": 4}, {"impl": "naive"}),
    "he": ({"impl": "fft"}, {"impl": "direct"}, {"extract_only": True}),
    "we": ({"impl": "fft"}, {"impl": "direct"}),
    "me": ({"impl": "fft"}, {"impl": "direct"}),
    "she": ({"impl": "products"}, {"impl": "direct"}),
    "linformer": ({"proj_len": 64}, {"proj_len": 64, "shared": True}),
    "longformer": ({"window": 32}, {"window": 32, "global_tokens": 4}),
    "low-rank": ({"rank": 16},),
    "nystromformer": ({"num_landmarks": 32}, {"conv_kernel": 33}),
    "performer": ({"num_features": 64}, {"features": "elu"}),
    "reformer": ({"num_hashes": 2}, {"self_attention": True}),
    "sparse": ({"stride": 16}, {"pattern": "fixed"}),
    "taylor-efficient": ({"impl": "symmetric"}, {"chunk": 16}),
    "taylorshift": ({"switch": "memory"}, {"switch": "published"}),
}


@dataclass(frozen=True)
class Case:
    """A module to build for a shape (batch, tokens, heads, head width), fed (B, N, h·d)."""

    name: str
    settings: str
    build: Callable[[int, int, int, int], Any]
    causal: bool | None = None
    dtype: str = "float32"
    phases: tuple[str, ...] = ("forward", "train")
    target: Target | None = field(default=None, compare=False)

    @property
    def mask(self) -> str:
        """Whether it is causal, in words; nothing for a module that is not asked."""
        return "" if self.causal is None else str(self.causal)

    def derivable(self) -> Target:
        """The case as something to derive."""
        if self.target is not None:
            return self.target
        inputs = [Input("x", tuple(map(Expression, ("B", "N", "h*d"))))]
        return Target(
            self.name, lambda s: self.build(s["B"], s["N"], s["h"], s["d"]), tuple(inputs),
            ("B", "N", "h", "d"), self.dtype,
        )  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them."""
    for name in registry.names():
        for params in ({}, *VARIANTS.get(name, ())):
            yield from _mechanism(name, params)
    yield from _mechanism("standard", {}, "bfloat16")
    yield from _mechanism("sdpa", {}, "bfloat16")
    yield from _modules()


def _mechanism(name: str, params: dict[str, Any], dtype: str = "float32") -> Iterator[Case]:
    from attnprof.blocks import core
    from attnprof.trace.request.lookup import mechanism_target

    spec = registry.get(name, **params)

    def build(_b: int, n: int, h: int, d: int) -> Any:
        sizes = core.checked_sizes(spec, h * d, h, n)
        return core.build_layer(spec, registry.module_of(name), sizes)

    settings = " ".join(f"{key}={value}" for key, value in params.items())
    for causal in (False, True) if spec.abilities.causal else (False,):
        target = mechanism_target(spec, causal=causal, dtype=dtype)
        yield Case(name, settings, build, causal, dtype, target=target)


class SelfAttention(nn.Module):
    """torch's own attention layer as self-attention."""

    def __init__(self, h: int, d: int, **how: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(h * d, h, batch_first=True)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x, x, x, **self.how)[0]
        return out


class Fused(nn.Module):
    """Projections around torch's fused attention."""

    def __init__(self, h: int, d: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = h, causal
        self.qkv, self.out = nn.Linear(h * d, 3 * h * d), nn.Linear(h * d, h * d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed: torch.Tensor = self.out(y.transpose(1, 2).reshape(b, n, width))
        return mixed


class Convolved(nn.Module):
    """A convolution along the tokens, of each channel or of all, and a gate."""

    def __init__(self, width: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.inner(x.transpose(1, 2)).transpose(1, 2))


class Fourier(nn.Module):
    """Token mixing by Fourier transforms over channels and tokens (FNet)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


class LongFilter(nn.Module):
    """A filter as long as the sequence, by real Fourier transforms along the tokens."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.randn(n, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = 2 * x.shape[1]
        product = torch.fft.rfft(x, length, dim=1) * torch.fft.rfft(self.taps, length, dim=0)
        return torch.fft.irfft(product, length, dim=1)[:, : x.shape[1]]


class Feedforward(nn.Module):
    """Norms, GELU and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(width), nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rms(self.down(F.gelu(self.up(self.norm(x)))))


class TopScores(nn.Module):
    """Attention to the eight largest scores of a row, weighted through logsumexp."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(1, 2) / x.shape[-1] ** 0.5
        kept, places = scores.topk(8, dim=-1)
        weights = torch.exp(kept - torch.logsumexp(kept, dim=-1, keepdim=True))
        return torch.zeros_like(scores).scatter(2, places, weights) @ x


class RunningMean(nn.Module):
    """Means over the tokens so far, groups normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counted = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return self.norm((x.cumsum(1) / counted).transpose(1, 2)).transpose(1, 2)


def _modules() -> Iterator[Case]:
    yield Case(
        "nn.MultiheadAttention", "need_weights=True", lambda _b, _n, h, d: SelfAttention(h, d)
    )
    yield Case(
        "nn.MultiheadAttention", "need_weights=False",
        lambda _b, _n, h, d: SelfAttention(h, d, need_weights=False),
    )  # fmt: skip
    yield Case(
        "nn.TransformerEncoderLayer", "dropout=0",
        lambda _b, _n, h, d: nn.TransformerEncoderLayer(h * d, h, 4 * h * d, 0.0, batch_first=True),
    )  # fmt: skip
    yield Case("projections and fused attention", "", lambda _b, _n, h, d: Fused(h, d))
    yield Case("projections and fused attention", "causal", lambda _b, _n, h, d: Fused(h, d, True))
    yield Case(
        "convolution", "of each channel, 5 taps", lambda _b, _n, h, d: Convolved(h * d, 5, h * d)
    )
    yield Case(
        "convolution", "of all channels, 3 taps", lambda _b, _n, h, d: Convolved(h * d, 3, 1)
    )
    yield Case("Fourier mixing", "", lambda _b, _n, _h, _d: Fourier())
    yield Case("long filter", "", lambda _b, n, h, d: LongFilter(n, h * d))
    yield Case("feed-forward", "", lambda _b, _n, h, d: Feedforward(h * d))
    yield Case("top scores", "", lambda _b, _n, _h, _d: TopScores())
    yield Case("running mean", "", lambda _b, _n, h, d: RunningMean(h * d))
