"""Inputs of our models: rows (b, n, d_model) of tokens, patches or convolutions, with positions.

:func:`input_texts` describes a model's inputs for ``derive``, :func:`example_inputs` draws them.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from attnprof.errors import RequestError
from attnprof.models.config import ModelConfig

#: Standard deviation of learned positions and class tokens, as in ViT.
SPREAD = 0.02


def sinusoids(tokens: int, width: int) -> Tensor:
    """Return (tokens, width): sines in even columns, cosines in odd ones (Vaswani et al. 2017)."""
    column = torch.arange(width)
    pair = (column - column % 2).float()  # bfloat16 would round angles
    angles = torch.arange(tokens)[:, None] / 10_000 ** (pair / width)
    waves = torch.where(column % 2 == 0, angles.sin(), angles.cos())
    return waves.to(torch.get_default_dtype())


class Patches(nn.Module):
    """An image (b, channels, side, side) to (b, patches, d_model), one linear map a patch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.size = config.patch_size
        self.projection = nn.Linear(config.image_channels * self.size**2, config.d_model)

    def forward(self, image: Tensor) -> Tensor:
        """Return patches row by row; each has its channels, rows and columns in a row."""
        b, c, height, width = image.shape
        p = self.size
        cut = image.view(b, c, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        rows: Tensor = self.projection(cut.reshape(b, (height // p) * (width // p), c * p * p))
        return rows


class ConvolutionStem(nn.Module):
    """Three convolutions with GELU between: along tokens, or over an image down to patches.

    004 (Table 5) says no more of its CNN. Over an image, widths double up to d_model, and strides
    multiply to the patch. Tokens keep their number, and enter as columns of an identity matrix, so
    that the first convolution is their embedding.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, kind = config.d_model, nn.Conv2d if config.image_size else nn.Conv1d
        widths, steps = [config.vocab_size, width, width, width], [1, 1, 1]
        if config.image_size:
            widths = [config.image_channels, max(1, width // 4), max(1, width // 2), width]
            steps = strides(config.patch_size)
        self.vocabulary = None if config.image_size else config.vocab_size
        self.convolutions = nn.ModuleList(
            kind(inner, outer, reach := max(3, step // 2 * 2 + 1), step, reach // 2)
            for (inner, outer), step in zip(pairwise(widths), steps, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (b, n) or an image → (b, n, d_model)."""
        first, *others = self.convolutions
        if self.vocabulary is not None:
            (samples, tokens), dtype = x.shape, next(first.parameters()).dtype
            numbers = x.unsqueeze(1)
            x = x.new_zeros(samples, self.vocabulary, tokens, dtype=dtype).scatter_(1, numbers, 1)
        x = first(x)
        for convolution in others:
            x = convolution(gelu(x))
        return x.flatten(2).mT


def strides(patch: int) -> list[int]:
    """Return three numbers whose product is the patch, as even as possible, the largest first."""
    divisors = [n for n in range(1, patch + 1) if patch % n == 0]
    pairs = ((a, b) for a in divisors for b in divisors if patch % (a * b) == 0)
    return sorted(min(((a, b, patch // (a * b)) for a, b in pairs), key=sum), reverse=True)


class InputRows(nn.Module):
    """The input's rows, a class token before them, positions added."""

    class_token: nn.Parameter | None
    positions: Tensor | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.tokens = config.d_model, config.tokens
        self.rows, self.takes_tokens = _ROWS[config.embedding](config), config.embedding != "rows"
        self.scale = float(width) ** 0.5 if config.scale_embedding else None
        self.learned = config.positions == "learned"
        self.class_token = _random(1, width) if config.class_token else None
        if config.positions == "sinusoidal":
            self.register_buffer("positions", sinusoids(self.tokens, width), persistent=False)
        else:
            self.positions = _random(self.tokens, width) if self.learned else None
        self.dropout = nn.Dropout(config.embedding_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (b, n), an image or rows (b, n, d_model) → (b, n, d_model)."""
        rows = self.rows(x)
        if self.class_token is not None:
            rows = torch.cat((self.class_token.expand(rows.shape[0], -1, -1), rows), 1)
        if rows.shape[1] > self.tokens:
            raise RequestError(
                f"the model was built for at most {self.tokens} tokens and got {rows.shape[1]}: "
                f"build it with seq_len={rows.shape[1]}"
            )
        return self._placed(rows, 0)

    def step(self, x_t: Tensor, place: int) -> Tensor:
        """Embed a token (b, 1) or a row (b, 1, d_model) at a place from 0 on: (b, 1, d_model)."""
        return self._placed(self.rows(x_t), place)

    def _placed(self, rows: Tensor, first: int) -> Tensor:
        """Return rows with positions; learned ones are scaled like the tokens (002, Sec 4)."""
        if self.positions is not None and self.learned:
            rows = rows + self.positions.narrow(0, first, rows.shape[1])
        if self.scale is not None:
            rows = rows * self.scale
        if self.positions is not None and not self.learned:
            rows = rows + self.positions.narrow(0, first, rows.shape[1])
        kept: Tensor = self.dropout(rows)
        return kept


def _random(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).normal_(0, SPREAD))


_ROWS: dict[str, Any] = {
    "tokens": lambda config: nn.Embedding(config.vocab_size, config.d_model),
    "patches": Patches, "cnn": ConvolutionStem, "rows": lambda _: nn.Identity(),
}  # fmt: skip


def input_texts(config: ModelConfig) -> dict[str, str]:
    """Return inputs by name, as ``attnprof derive --input`` takes them, in B and N."""
    if config.kind == "encoder-decoder":
        return {"source": _text(config), "target": "B, M int64"}
    return {"x": _text(config)}


def example_inputs(
    config: ModelConfig, batch_size: int = 1, seq_len: int | None = None
) -> tuple[Any, ...]:
    """Return random tensors as the model takes them, of the longest length by default.

    On torch's default device, from its generator.
    """
    n = config.seq_len if seq_len is None else seq_len
    first = {
        "image": lambda: torch.randn(batch_size, *_image(config)),
        "rows": lambda: torch.randn(batch_size, n, config.d_model),
        "tokens": lambda: torch.randint(config.vocab_size, (batch_size, n)),
    }
    tensor = first[_input_kind(config)]()
    crosses = config.kind == "encoder-decoder"
    return (tensor, first["tokens"]()) if crosses else (tensor,)


def _input_kind(config: ModelConfig) -> str:
    if config.embedding == "patches" or (config.embedding == "cnn" and config.image_size):
        return "image"
    return "rows" if config.embedding == "rows" else "tokens"


def _image(config: ModelConfig) -> tuple[int, int, int]:
    return config.image_channels, config.image_size or 0, config.image_size or 0


def _text(config: ModelConfig) -> str:
    return {
        "image": "B, " + ", ".join(map(str, _image(config))),
        "rows": f"B, N, {config.d_model}",
        "tokens": "B, N int64",
    }[_input_kind(config)]
