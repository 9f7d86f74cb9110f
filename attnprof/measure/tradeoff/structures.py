"""Draw queries, keys and values of a known structure from a seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Generator, Tensor

#: Standard deviation of the logarithm of a row's length, where lengths are spread.
SPREAD = 0.5
#: Head width for each rank of low-rank inputs; share 1/32 of the tokens is near in local ones.
WIDTH_A_RANK, PARTS = 16, 32
#: How far a row's highest score exceeds the logarithm of the number of tokens.
MARGIN = 3.0

Pair: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class QueriesKeysValues:
    """q, k and v in float64, (batch, heads, tokens, width), and where they come from."""

    source: str
    q: Tensor
    k: Tensor
    v: Tensor
    norms: str | None = None


def structured(
    name: str, shape: tuple[int, int, int, int], *, norms: str, causal: bool, seed: int
) -> QueriesKeysValues:
    """Return inputs of one of the ``STRUCTURES``, row lengths by one of the ``NORMS``.

    ``shape`` is (batch, heads, tokens, width). Values are normal random numbers.
    """
    made = torch.Generator().manual_seed(seed)
    q, k = STRUCTURES[name](shape, causal, made)
    q, k = (NORMS[norms](x, made) for x in (q, k))
    return QueriesKeysValues(name, q, k, _normal(shape, made), norms)


def _normal(shape: tuple[int, ...], made: Generator) -> Tensor:
    return torch.randn(shape, generator=made, dtype=torch.float64)


def _sharp(tokens: int) -> float:
    """Return a score that outweighs all other tokens' together, if theirs are about 0."""
    return math.log(tokens) + MARGIN


def _random(shape: tuple[int, int, int, int], _causal: bool, made: Generator) -> Pair:
    """Return normal random queries and keys: scores of variance 1, without structure."""
    return _normal(shape, made), _normal(shape, made)


def _peaked(shape: tuple[int, int, int, int], causal: bool, made: Generator) -> Pair:
    """Return queries that each attend to one random key (if causal: not a later one)."""
    b, h, n, d = shape
    k = _normal(shape, made)
    room = torch.arange(1, n + 1) if causal else torch.full((n,), n)
    chosen = (torch.rand((b, h, n), generator=made, dtype=torch.float64) * room).long()
    key = k.gather(2, chosen.unsqueeze(-1).expand(shape))
    return key * (_sharp(n) * math.sqrt(d)) / key.square().sum(-1, keepdim=True), k


def _local(shape: tuple[int, int, int, int], _causal: bool, made: Generator) -> Pair:
    """Return queries and keys whose scores fall with the distance, like a bell.

    Cosines and sines of random frequencies at each position: their products are, on average, a
    Gaussian of the distance (Rahimi and Recht 2007).
    """
    b, h, n, d = shape
    pairs = -(-d // 2)
    frequencies = _normal((b, h, 1, pairs), made) / max(1.0, n / PARTS)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequencies
    waves = torch.cat((angles.cos(), angles.sin()), -1)[..., :d]
    rows = waves * math.sqrt(_sharp(n) * math.sqrt(d) / pairs)
    return rows, rows.clone()


def _low_rank(shape: tuple[int, int, int, int], _causal: bool, made: Generator) -> Pair:
    """Return queries and keys in one low-rank subspace a head; scores of variance 1."""
    b, h, n, d = shape
    rank = max(1, d // WIDTH_A_RANK)
    basis, _ = torch.linalg.qr(_normal((b, h, d, rank), made))
    scale = (d / rank) ** 0.25
    q, k = (scale * _normal((b, h, n, rank), made) @ basis.mT for _ in range(2))
    return q, k


def _on_sphere(x: Tensor, _made: Generator) -> Tensor:
    """Scale all rows of a head to the length of its typical one."""
    return x * x.square().sum(-1, keepdim=True).mean(2, keepdim=True).sqrt() / _row_norms(x)


def _spread(x: Tensor, made: Generator) -> Tensor:
    """Scale rows of a head to its typical length times a log-normal number."""
    factor = (SPREAD * _normal((*x.shape[:-1], 1), made) - SPREAD**2).exp()
    return _on_sphere(x, made) * factor


def _row_norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms.clamp(min=1e-300)


#: How queries and keys are drawn, by the structure's name.
STRUCTURES: dict[str, Callable[[tuple[int, int, int, int], bool, Generator], Pair]] = {
    "random": _random, "peaked": _peaked, "local": _local, "low-rank": _low_rank,
}  # fmt: skip
#: How rows of queries and keys are scaled: to one length a head, or to spread lengths.
NORMS: dict[str, Callable[[Tensor, Generator], Tensor]] = {"sphere": _on_sphere, "spread": _spread}
