"""Draw queries, keys and values of a known structure, or read a user's, running no code of it."""

import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor

from attnprof.arguments import shown
from attnprof.errors import RequestError
from attnprof.record.files import read_bytes

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
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-300)
    return x * x.square().sum(-1, keepdim=True).mean(2, keepdim=True).sqrt() / norms


def _spread(x: Tensor, made: Generator) -> Tensor:
    """Scale rows of a head to its typical length times a log-normal number."""
    factor = (SPREAD * _normal((*x.shape[:-1], 1), made) - SPREAD**2).exp()
    return _on_sphere(x, made) * factor


#: How queries and keys are drawn, by the structure's name.
STRUCTURES: dict[str, Callable[[tuple[int, int, int, int], bool, Generator], Pair]] = {
    "random": _random, "peaked": _peaked, "local": _local, "low-rank": _low_rank,
}  # fmt: skip
#: How rows of queries and keys are scaled: to one length a head, or to spread lengths.
NORMS: dict[str, Callable[[Tensor, Generator], Tensor]] = {"sphere": _on_sphere, "spread": _spread}

#: Bytes that are read at most.
LIMIT = 1 << 34
NAMES = ("q", "k", "v")
SHAPE = "(batch, heads, tokens, head width)"
EXAMPLE = 'torch.save({"q": q, "k": k, "v": v}, "qkv.pt")'


def is_file(source: str) -> bool:
    """Return whether the name of an input is that of a file of tensors."""
    return Path(source).suffix.lower() in READERS


def supplied(path: str) -> QueriesKeysValues:
    """Return the tensors ``q``, ``k`` and ``v`` of a file, in float64.

    Each is (batch, heads, tokens, head width); keys and values may have fewer heads (a divisor) and
    another number of tokens than queries, and values another width. Raises :class:`RequestError`
    for a file that cannot be read without running code, and for tensors that do not fit together.
    """
    data = read_bytes(path, LIMIT)
    tensors = READERS[Path(path).suffix.lower()](path, data)
    if not isinstance(tensors, Mapping):
        raise RequestError(f"{path} holds {shown(tensors)}, not tensors by name: save {EXAMPLE}")
    if missing := [name for name in NAMES if name not in tensors]:
        there = ", ".join(sorted(map(str, tensors))[:8]) or "nothing"
        raise RequestError(f"{path} has no '{missing[0]}': it holds {there}; save {EXAMPLE}")
    q, k, v = (_checked(path, name, tensors[name]) for name in NAMES)
    _check_sizes(path, q, k, v)
    return QueriesKeysValues(path, q, k, v)


def _tensors(path: str, data: bytes) -> Any:
    """Return what ``torch.save`` wrote, tensors and plain containers alone."""
    try:
        return torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises anything
        if not isinstance(error, pickle.UnpicklingError) or "allowed global" not in str(error):
            raise RequestError(f"{path} is no whole file of torch.save: save {EXAMPLE}") from error
        raise RequestError(
            f"{path} holds more than tensors and plain values, and is not loaded: that could run "
            f"code; save {EXAMPLE}"
        ) from error


def _safetensors(path: str, data: bytes) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError) as error:  # or a format torch lacks
        raise RequestError(f"{path} is no whole file of safetensors: {error}") from error


def _checked(path: str, name: str, value: Any) -> Tensor:
    where = f"{path}: {name}"
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_quantized:
        raise RequestError(f"{where} is {shown(value)}, not a tensor of real numbers")
    if value.layout != torch.strided:
        raise RequestError(f"{where} is sparse: save {name}.to_dense()")
    if value.dim() != 4 or 0 in value.shape:
        raise RequestError(f"{where} has the shape {tuple(value.shape)}: it must be {SHAPE}")
    wide = value.detach().to(torch.float64).contiguous()
    if wrong := int((~wide.isfinite()).sum()):
        raise RequestError(
            f"{where} holds {wrong:,} of {wide.numel():,} numbers that are NaN or infinite"
        )
    return wide


def _check_sizes(path: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise :class:`RequestError` if the shapes of q, k and v do not fit together."""
    same = (
        (q.shape[0] == k.shape[0] == v.shape[0], "batch"),
        (k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0, "number of heads"),
        (k.shape[2] == v.shape[2], "number of tokens"),
        (q.shape[3] == k.shape[3], "head width"),
    )
    for fits, what in same:
        if not fits:
            named = zip(NAMES, (q, k, v), strict=True)
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named)
            raise RequestError(
                f"{path}: the {what} of q, k and v does not go together: {shapes} are {SHAPE}; "
                "keys and values have the same heads (a divisor of the queries') and tokens"
            )


READERS = {".pt": _tensors, ".pth": _tensors, ".safetensors": _safetensors}
