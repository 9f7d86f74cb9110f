"""Bring a decoder's state to the token before the one that is measured, and back again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.measure.request import PointRequest

#: Seconds that filling a state token by token may take.
PATIENCE_S = 60.0


def position(module: Any, request: PointRequest) -> Any:
    """The state after ``seq_len`` - 1 tokens.

    Shipped mechanisms' states are filled at once with random rows; one that does not know how to
    advance, by real steps. Raises :class:`CannotRunError` when those take more than a minute.
    """
    import torch

    from attnprof.blocks.decoding import positioned

    dtype = getattr(torch, request.dtype)
    if request.scope == "layer":
        state = module.init_state(request.batch_size)
    else:
        state = module.init_state(request.batch_size, torch.empty(0, dtype=dtype))
    tokens, start = request.seq_len - 1, time.perf_counter()

    def rows() -> list[Any]:
        return [torch.randn(shape, dtype=dtype) for shape in request.input_shapes]

    def patience(done: int) -> None:
        spent = time.perf_counter() - start
        if spent > PATIENCE_S:
            raise CannotRunError(
                f"the decoding state of {tokens} tokens is built token by token, and {done} "
                f"took {spent:.0f} s already; ask for a shorter --seq"
            )

    return positioned(module, state, tokens, rows, patience)


def rewind_to(state: Any) -> Callable[[], None]:
    """A function that puts counters, lists and references of a state back as they are now.

    Tensors that a step changes in place keep their new values: shapes, and so costs, are equal.
    """
    found = list(owners(state))
    kept = [dict(vars(owner)) for owner in found]
    lists = [(item, list(item)) for owner in found for item in _lists(owner)]

    def rewind() -> None:
        for owner, values in zip(found, kept, strict=True):
            for name, value in values.items():
                object.__setattr__(owner, name, value)
        for target, content in lists:
            target[:] = content

    return rewind


def _lists(owner: Any) -> list[list[Any]]:
    return [value for value in vars(owner).values() if isinstance(value, list)]


def owners(part: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Objects of ours inside a state that have attributes; tensors are left alone."""
    seen = set() if seen is None else seen
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
        yield from owners(item, seen)
