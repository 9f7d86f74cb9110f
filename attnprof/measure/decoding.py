"""Bring a decoder's state to the token before the one that is measured, and back again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from attnprof.blocks.cache import TokenCache
from attnprof.errors import CannotRunError
from attnprof.measure.request import PointRequest

#: Seconds that filling a state token by token may take.
PATIENCE_S = 60.0


def position(module: Any, request: PointRequest) -> Any:
    """The state after ``seq_len`` - 1 tokens.

    A state made of token caches only is filled at once with random rows; any other one by real
    steps. Raises :class:`CannotRunError` when the steps would take more than a minute.
    """
    import torch

    if request.scope == "layer":
        state = module.init_state(request.batch_size)
    else:
        like = torch.empty(0, dtype=getattr(torch, request.dtype))
        state = module.init_state(request.batch_size, like)
    before = request.seq_len - 1
    caches = _only_caches(state)
    if caches is not None:
        for cache in caches:
            _fill(cache, before)
        return state
    with torch.no_grad():
        return _stepped(module, request, state, before)


def _only_caches(state: Any) -> list[TokenCache] | None:
    """The caches of a state that holds nothing else."""
    if not is_dataclass(state):
        return None
    parts = [getattr(state, item.name) for item in fields(state)]
    caches = [part for part in parts if isinstance(part, TokenCache)]
    return caches if len(caches) == len(parts) else None


def _fill(cache: TokenCache, tokens: int) -> None:
    batch, room, width = cache.rows.shape
    while room < tokens + 1:  # the growth that appending would have done
        room *= 2
    cache.rows = cache.rows.new_empty(batch, room, width).normal_()
    cache.length = tokens


def _stepped(module: Any, request: PointRequest, state: Any, tokens: int) -> Any:
    import torch

    dtype = getattr(torch, request.dtype)
    shapes = request.input_shapes
    start = time.perf_counter()
    for done in range(tokens):
        _, state = module.step(*(torch.randn(shape, dtype=dtype) for shape in shapes), state)
        spent = time.perf_counter() - start
        if spent > PATIENCE_S:
            raise CannotRunError(
                f"the decoding state of {tokens} tokens is built token by token, and {done + 1} "
                f"took {spent:.0f} s already; ask for a shorter --seq"
            )
    return state


def rewind_to(state: Any) -> Callable[[], None]:
    """A function that puts counters, lists and references of a state back as they are now.

    Tensors that a step changes in place keep their new values: shapes, and so costs, are equal.
    """
    owners = list(_owners(state, set()))
    kept = [dict(vars(owner)) for owner in owners]
    lists = [(item, list(item)) for owner in owners for item in _lists(owner)]

    def rewind() -> None:
        for owner, values in zip(owners, kept, strict=True):
            for name, value in values.items():
                object.__setattr__(owner, name, value)
        for target, content in lists:
            target[:] = content

    return rewind


def _lists(owner: Any) -> list[list[Any]]:
    return [value for value in vars(owner).values() if isinstance(value, list)]


def _owners(part: Any, seen: set[int]) -> Any:
    """Objects of ours inside a state that have attributes; tensors are left alone."""
    if id(part) in seen:
        return
    seen.add(id(part))
    inside: list[Any] = []
    if isinstance(part, (list, tuple)):
        inside = list(part)
    elif isinstance(part, dict):
        inside = list(part.values())
    elif type(part).__module__.split(".")[0] not in ("torch", "builtins") and hasattr(
        part, "__dict__"
    ):
        yield part
        inside = list(vars(part).values())
    for item in inside:
        yield from _owners(item, seen)
