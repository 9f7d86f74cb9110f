"""Decoding states: caches of keys and values that grow by a token a step, and sums of fixed size.

``advance`` brings a state to any token of a sequence without running the steps before it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.ops.functional import wide_zeros


class FullCache:
    """Rows (batch, room, width) that all have their memory from the start."""

    def __init__(self, batch: int, width: int, like: Tensor, room: int) -> None:
        self.rows = like.new_empty(batch, room, width)
        self.length = 0

    def make_room(self, rows: int, kept: int = 0) -> None:
        """Double the room until it is that of so many rows: the ``kept`` first ones, then zeros."""
        batch, room, width = self.rows.shape
        while room < rows:
            room *= 2
        if room > self.rows.shape[1]:
            bigger = self.rows.new_zeros(batch, room, width)
            bigger[:, :kept] = self.rows[:, :kept]
            self.rows = bigger

    def advance(self, tokens: int) -> None:
        """Fill the cache with random rows, as ``tokens`` steps from an empty one would."""
        self.rows.normal_()
        self.length = tokens

    @property
    def filled(self) -> Tensor:
        """A view of as many rows as tokens fill: (batch, tokens, width)."""
        return self.rows[:, : min(self.length, self.rows.shape[1])]


class TokenCache(FullCache):
    """Rows of shape (batch, tokens, width), appended one at a time.

    The room doubles when it runs out, so a token costs a constant number of copies on average. Room
    for the whole sequence, where its length is known, avoids growth.
    """

    def append(self, row: Tensor) -> Tensor:
        """Add (batch, 1 or more, width), return all (batch, tokens, width) so far, as a view."""
        first, self.length = self.length, self.length + row.shape[1]
        self.make_room(self.length, first)
        self.rows[:, first : self.length] = row
        return self.filled

    def advance(self, tokens: int) -> None:
        """Fill the cache with random rows, as ``tokens`` steps from an empty one would."""
        self.make_room(tokens + 1)
        super().advance(tokens)

    @property
    def filled(self) -> Tensor:
        """Rows (batch, tokens, width) appended so far."""
        return self.rows[:, : self.length]


class BlockSums(FullCache):
    """Sums (batch, blocks, width) of each ``block`` rows that are appended one at a time."""

    def __init__(self, batch: int, width: int, like: Tensor, room: int, block: int) -> None:
        super().__init__(batch, width, like, -(-room // block))
        self.rows.zero_()
        self.block, self.tokens = block, 0

    def append(self, row: Tensor) -> Tensor:
        """Add (batch, 1, width) to the last sum, or begin one; all sums, as a view."""
        place = self.tokens // self.block
        self.make_room(place + 1, place)
        self.rows[:, place : place + 1].add_(row)
        self.tokens, self.length = self.tokens + 1, place + 1
        return self.filled

    def advance(self, tokens: int) -> None:
        """Fill the cache with random rows, as ``tokens`` steps from an empty one would."""
        self.tokens, self.length = tokens, -(-tokens // self.block)
        self.make_room(tokens // self.block + 1)
        self.filled.normal_()


class WindowCache(FullCache):
    """Rows of shape (batch, tokens, width): the ``first`` tokens, then a ring of the latest."""

    def __init__(self, batch: int, width: int, like: Tensor, first: int, latest: int) -> None:
        super().__init__(batch, width, like, first + latest)
        self.first = first

    def append(self, row: Tensor) -> Tensor:
        """Add (batch, 1, width) and return all rows that are kept, in any order, as a view."""
        place, room = self.length, self.rows.shape[1]
        if place >= self.first:
            place = self.first + (place - self.first) % (room - self.first)
        self.rows[:, place : place + 1] = row
        self.length += 1
        return self.rows[:, : min(self.length, room)]


class NewestFirst(FullCache):
    """Rows of the tokens so far, the newest first, at the end of (batch, capacity, width)."""

    def append(self, row: Tensor) -> Tensor:
        """Add (batch, 1, width) and return (batch, length, width) as a view."""
        self.length += 1
        first = self.rows.shape[1] - self.length
        self.rows[:, first : first + 1] = row
        return self.rows[:, first:]


@dataclass(frozen=True)
class Caches:
    """A maker of empty decoding states for a batch, in the number format and device of ``like``."""

    batch_size: int
    like: Tensor
    room: int | None  #: tokens, where known

    def __call__(self, heads: int, width: int) -> TokenCache:
        """Return an empty cache of rows (batch·heads, tokens, width)."""
        return TokenCache(self.batch_size * heads, width, self.like, self.room or 64)

    def newest_first(self, heads: int, width: int) -> NewestFirst:
        """Return an empty cache with ``room`` for tokens that shows the newest first."""
        return NewestFirst(self.batch_size * heads, width, self.like, self.room or 0)

    def block_sums(self, heads: int, width: int, block: int) -> BlockSums:
        """Return empty sums of each ``block`` rows (batch·heads, blocks, width)."""
        return BlockSums(self.batch_size * heads, width, self.like, self.room or 64, block)

    def window(self, heads: int, width: int, first: int, latest: int) -> WindowCache:
        """Return an empty cache of the ``first`` tokens and the ``latest`` later ones."""
        return WindowCache(self.batch_size * heads, width, self.like, first, latest)

    def zeros(self, heads: int, *shape: int, wide: bool = False) -> Tensor:
        """Return zeros (batch·heads, *shape), in float32 at least if ``wide``."""
        shape = (self.batch_size * heads, *shape)
        zeros: Tensor = wide_zeros(self.like, *shape) if wide else self.like.new_zeros(shape)
        return zeros

    def lowest(self, heads: int, *shape: int) -> Tensor:
        """Return minus infinities (batch·heads, *shape)."""
        return self.like.new_full((self.batch_size * heads, *shape), -math.inf)

    def counts(self, heads: int) -> Tensor:
        """Return integer zeros (batch·heads)."""
        return self.like.new_zeros(self.batch_size * heads, dtype=torch.int64)


def positioned(
    module: nn.Module, state: Any, tokens: int, rows: Callable[[], Sequence[Tensor]],
    after_each: Callable[[int], None] | None = None,
) -> Any:  # fmt: skip
    """Return the state after ``tokens`` tokens, made from a fresh one without running the steps.

    A state that has ``advance(tokens)``, or consists of such ones, is filled at once with
    random rows; any other one by real steps on ``rows()``, ``after_each`` gets their count.
    """
    caches = _filled_at_once(state)
    for cache in caches:
        cache.advance(tokens)
    if caches:
        return state
    step: Any = module.step
    with torch.no_grad():
        for done in range(tokens):
            _, state = step(*rows(), state)
            if after_each:
                after_each(done + 1)
    return state


def _filled_at_once(state: Any) -> list[Any]:
    """Return the parts of a state, of a hybrid's layers too, by whose ``advance`` it is filled.

    The list is empty if a part has to be filled by steps.
    """
    if hasattr(state, "advance"):
        return [state]
    names = fields(state) if is_dataclass(state) else []
    parts = state if isinstance(state, list) else [getattr(state, f.name) for f in names]
    inside = list(map(_filled_at_once, parts))
    return [*chain(*inside)] if all(inside) else []


class DecodingStep(nn.Module):
    """One step of a module from a state, as a module: ``forward(*rows)`` → (y, new state)."""

    def __init__(self, module: nn.Module, state: Any) -> None:
        super().__init__()
        self.module = module
        self.state = state

    def forward(self, *rows: Tensor) -> tuple[Tensor, Any]:
        """Return the token's rows, as the module's ``step`` takes them."""
        step: Any = self.module.step
        out: tuple[Tensor, Any] = step(*rows, self.state)
        return out


class CachedCall(nn.Module):
    """A module that is called with its cache as keyword arguments."""

    def __init__(self, module: nn.Module, kept: Mapping[str, Any]) -> None:
        super().__init__()
        self.module, self.kept = module, kept

    def forward(self, *tensors: Any, **named: Any) -> Any:
        """Return the module's output for the next token."""
        return self.module(*tensors, **{**named, **self.kept})


def kept_by(subject: Any) -> Any:
    """Return the state or caches that a decoding step starts from; None for another module."""
    if isinstance(subject, DecodingStep):
        return subject.state
    return subject.kept if isinstance(subject, CachedCall) else None


def tensors_within(value: Any, visited: set[int] | None = None) -> Iterator[Tensor]:
    """Yield each tensor that a state holds, once: of a full cache as many rows as are filled."""
    visited = set() if visited is None else visited
    if id(value) in visited or isinstance(value, Caches):  # a maker of caches holds no state
        return
    visited.add(id(value))
    value = value.filled if isinstance(value, FullCache) else value
    if isinstance(value, Tensor):
        yield value
        return
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    elif not isinstance(value, type | nn.Module):
        slots = (name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ()))
        slot_values = (getattr(value, name, None) for name in slots)
        inside = (*getattr(value, "__dict__", {}).values(), *slot_values)
    for part in inside:
        yield from tensors_within(part, visited)
