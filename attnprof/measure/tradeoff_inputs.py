"""Queries, keys and values to compare mechanisms on, and how far an output is from softmax's.

They are drawn with a known structure (:func:`structured`), or read from a user's file without
running code of it (:func:`supplied`). :class:`ExactAttention` measures the distance of an output,
and of attention weights, from softmax attention's on the same inputs.
"""

import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor

from attnprof.arguments import shown
from attnprof.errors import CannotRunError, RequestError
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
    generator = torch.Generator().manual_seed(seed)
    q, k = STRUCTURES[name](shape, causal, generator)
    q, k = (NORMS[norms](x, generator) for x in (q, k))
    return QueriesKeysValues(name, q, k, _normal(shape, generator), norms)


def _normal(shape: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _sharp(tokens: int) -> float:
    """Return a score that outweighs all other tokens' together, if theirs are about 0."""
    return math.log(tokens) + MARGIN


def _random(shape: tuple[int, int, int, int], _causal: bool, generator: Generator) -> Pair:
    """Return normal random queries and keys: scores of variance 1, without structure."""
    return _normal(shape, generator), _normal(shape, generator)


def _peaked(shape: tuple[int, int, int, int], causal: bool, generator: Generator) -> Pair:
    """Return queries that each attend to one random key (if causal: not a later one)."""
    b, h, n, d = shape
    k = _normal(shape, generator)
    room = torch.arange(1, n + 1) if causal else torch.full((n,), n)
    chosen = (torch.rand((b, h, n), generator=generator, dtype=torch.float64) * room).long()
    key = k.gather(2, chosen.unsqueeze(-1).expand(shape))
    return key * (_sharp(n) * math.sqrt(d)) / key.square().sum(-1, keepdim=True), k


def _local(shape: tuple[int, int, int, int], _causal: bool, generator: Generator) -> Pair:
    """Return queries and keys whose scores fall with the distance, like a bell.

    Cosines and sines of random frequencies at each position: their products are, on average, a
    Gaussian of the distance (Rahimi and Recht 2007).
    """
    b, h, n, d = shape
    pairs = -(-d // 2)
    frequencies = _normal((b, h, 1, pairs), generator) / max(1.0, n / PARTS)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequencies
    waves = torch.cat((angles.cos(), angles.sin()), -1)[..., :d]
    rows = waves * math.sqrt(_sharp(n) * math.sqrt(d) / pairs)
    return rows, rows.clone()


def _low_rank(shape: tuple[int, int, int, int], _causal: bool, generator: Generator) -> Pair:
    """Return queries and keys in one low-rank subspace a head; scores of variance 1."""
    b, h, n, d = shape
    rank = max(1, d // WIDTH_A_RANK)
    basis, _ = torch.linalg.qr(_normal((b, h, d, rank), generator))
    scale = (d / rank) ** 0.25
    q, k = (scale * _normal((b, h, n, rank), generator) @ basis.mT for _ in range(2))
    return q, k


def _on_sphere(x: Tensor, _generator: Generator) -> Tensor:
    """Scale all rows of a head to the length of its typical one."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-300)
    return x * x.square().sum(-1, keepdim=True).mean(2, keepdim=True).sqrt() / norms


def _spread(x: Tensor, generator: Generator) -> Tensor:
    """Scale rows of a head to its typical length times a log-normal number."""
    factor = (SPREAD * _normal((*x.shape[:-1], 1), generator) - SPREAD**2).exp()
    return _on_sphere(x, generator) * factor


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
        names = ", ".join(sorted(map(str, tensors))[:8]) or "nothing"
        raise RequestError(f"{path} has no '{missing[0]}': it holds {names}; save {EXAMPLE}")
    q, k, v = (_checked(path, name, tensors[name]) for name in NAMES)
    _check_sizes(path, q, k, v)
    return QueriesKeysValues(path, q, k, v)


def _tensors(path: str, data: bytes) -> Any:
    """Return the tensors and plain containers of a file that ``torch.save`` wrote."""
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


# -- distance from softmax attention -------------------------------------------------
#: Scores held at once; most scores of a comparison, which take minutes.
SCORES, MOST_SCORES = 1 << 24, 1 << 34
#: Share up to which negative weights, or differences of sums, count as rounding.
ROUNDING = 1e-6
#: Tokens up to which weights are compared: that takes tokens/width calls of the core.
MOST_TOKENS = 4096

#: A mechanism's core: (q, k, v) → output.
Core = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Distance:
    """Errors as shares of the norm of softmax attention's output: of all rows, of the worst row.

    ``distribution``: total variation between both mechanisms' attention weights, mean over rows,
    from 0 to 1. None if the weights are no distribution; ``weights`` says why.
    """

    relative: float
    worst_row: float
    distribution: float | None = None
    weights: str = "not computed"


class ExactAttention:
    """softmax(Q Kᵀ / sqrt d) V in float64, computed in blocks of rows.

    Grouped heads share their keys and values. ``log_sums`` (b, h, n) are the logarithms of the sums
    of a row's exponentials.
    """

    def __init__(self, inputs: QueriesKeysValues, *, causal: bool) -> None:
        self.inputs, self.causal = inputs, causal
        b, h, n, _ = inputs.q.shape
        if (count := b * h * n * inputs.k.shape[2]) > MOST_SCORES:
            raise CannotRunError(
                f"softmax attention to compare with has {count:,} scores, more than the "
                f"{MOST_SCORES:,} that are computed: ask for fewer tokens, heads or a smaller batch"
            )
        step = max(1, SCORES * n // count)
        group = inputs.q.shape[1] // inputs.k.shape[1]
        self.keys = inputs.k.repeat_interleave(group, 1)
        values = inputs.v.repeat_interleave(group, 1)
        parts = []
        for first in range(0, n, step):
            scores = self._scores(slice(first, first + step), slice(None))
            total = scores.logsumexp(-1)
            parts.append(((scores - total.unsqueeze(-1)).exp() @ values, total))
        self.output, self.log_sums = (torch.cat(pieces, 2) for pieces in zip(*parts, strict=True))

    def _scores(self, rows: slice, columns: slice) -> Tensor:
        q, k = self.inputs.q[:, :, rows], self.keys[:, :, columns]
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            row = torch.arange(self.inputs.q.shape[2])[rows]
            column = torch.arange(self.keys.shape[2])[columns]
            scores = scores.masked_fill(column > row[:, None], -math.inf)
        return scores

    def weights(self, columns: slice) -> Tensor:
        """Return the weights of these key columns, (b, h, n, columns)."""
        return (self._scores(slice(None), columns) - self.log_sums.unsqueeze(-1)).exp()

    def distance(self, core: Core, *, distribution: bool = True) -> Distance | None:
        """Return a core's distance on the same inputs; None if it is not finite."""
        q, k, v = self.inputs.q, self.inputs.k, self.inputs.v
        output = core(q, k, v)
        if not output.isfinite().all():
            return None
        difference, exact = (_row_norms(x) for x in (output - self.output, self.output))
        norm = _row_norms(exact.flatten()).clamp(min=_TINY)
        relative = float(_row_norms(difference.flatten()) / norm)
        worst = float((difference / exact.clamp(min=_TINY)).max())
        if not distribution:
            return Distance(relative, worst)
        if k.shape[2] > MOST_TOKENS:
            why = f"not compared beyond {MOST_TOKENS:,} tokens"
            return Distance(relative, worst, weights=why)
        return Distance(relative, worst, *self._distribution(core, output))

    def _distribution(self, core: Core, output: Tensor) -> tuple[float | None, str]:
        """Return the mean total variation of the weights, and a text on what they are.

        A core that is linear in its values gives its weights as outputs, if columns of the identity
        matrix are the values. Rows are divided by their sums.
        """
        sums = core(self.inputs.q, self.inputs.k, torch.ones_like(self.inputs.v))[..., :1]
        mixed, variation = torch.zeros_like(output), torch.zeros_like(sums[..., 0])
        group = output.shape[1] // self.inputs.v.shape[1]
        least = 0.0
        for columns, identity in self._identity():
            weights = core(self.inputs.q, self.inputs.k, identity)
            weights = weights[..., : columns.stop - columns.start]
            mixed += weights @ self.inputs.v[:, :, columns].repeat_interleave(group, 1)
            least = min(least, float((weights / sums).min()))
            variation += (weights / sums - self.weights(columns)).abs().sum(-1)
        if not float((mixed - output).norm()) <= ROUNDING * float(output.norm()):
            return None, "its output is not linear in the values"
        if not (least >= -ROUNDING and bool((sums > 0).all())):
            return None, "some of its weights are negative"
        return float(variation.mean()) / 2, "a distribution"

    def _identity(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield columns of the identity matrix as values, a head's width at a time."""
        shape = self.inputs.v.shape
        tokens, width = shape[2:]
        for first in range(0, tokens, width):
            columns = slice(first, min(tokens, first + width))
            values = self.inputs.v.new_zeros(shape)
            place = torch.arange(columns.start, columns.stop)
            values[:, :, place, place - first] = 1
            yield columns, values


_TINY = 1e-300


def _row_norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norms
