"""Read queries, keys and values from a user's file, without running code from it."""

import pickle
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnprof.arguments import shown
from attnprof.errors import RequestError
from attnprof.measure.tradeoff.structures import QueriesKeysValues
from attnprof.record.files import read_bytes

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
