"""Sums by a state of features, causal by a scan over chunks or over all tokens, on the tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from attnprof.costs import Cost, Number, at_least_one, ceil_div, floor_div, is_plain
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import Tape
from attnprof.mechanisms.taylorshift.stages import (
    ADD,
    MUL,
    added,
    copied,
    fresh,
    inplace,
    keep,
    zeros,
)


def each_chunk(tape: Tape, n: Number, size: int, write: Callable[[Number], None]) -> None:
    """Write ⌊n/size⌋ full chunks and what remains."""
    full = floor_div(n, size)
    rest = n - size * full
    repeated(tape, full, size, write)
    repeated(tape, at_least_one(rest), rest, write)


def repeated(tape: Tape, times: Number, tokens: Number, write: Callable[[Number], None]) -> None:
    """Write what is done ``times`` times for chunks of so many tokens; nothing for none."""
    if not (is_plain(times) and times == 0):
        with tape.repeat(times):
            write(tokens)


class RowFeatures(ABC):
    """How a chunk of rows (b, c, d) with values (b, c, width) meets a state, on the tape."""

    @abstractmethod
    def width(self, d: Number) -> Number:
        """Number of features of d entries."""

    @abstractmethod
    def absorb(
        self, tape: Tape, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False
    ) -> None:
        """State += features(x)ᵀ v."""

    @abstractmethod
    def read(self, tape: Tape, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
        """features(x) · state: (b, c, width)."""

    @abstractmethod
    def row_gradient(
        self,
        tape: Tape,
        name: str,
        x: Tensor,
        v: Tensor,
        state: Tensor,
        n: Number,
        *,
        doubled: bool,
    ) -> Tensor:
        """The gradient of rows, of n in all, whose features met values in a state."""


@dataclass(frozen=True)
class Chunks:
    """(b, n, d) rows with values (b, n, width), ``size`` tokens a chunk."""

    tape: Tape
    features: RowFeatures
    shape: tuple[Number, Number, Number]
    width: Number
    size: int

    def slices(self, c: Number) -> tuple[Tensor, Tensor]:
        """A chunk of rows as wide as queries, and one as wide as values."""
        b, _, d = self.shape
        return self.tape.constant(b, c, d), self.tape.constant(b, c, self.width)

    def state(self) -> Tensor:
        """The sums, zero at first."""
        b, _, d = self.shape
        return zeros(self.tape, "state", b, self.features.width(d), self.width)

    def absorb(self, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False) -> None:
        """A chunk joins the state."""
        self.features.absorb(self.tape, state, x, v, doubled=doubled)

    def read(self, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
        """A chunk reads the state."""
        return self.features.read(self.tape, name, x, state, doubled=doubled)

    def row_gradient(
        self, name: str, x: Tensor, v: Tensor, state: Tensor, *, doubled: bool
    ) -> Tensor:
        """A chunk's gradient through its features."""
        n = self.shape[1]
        return self.features.row_gradient(self.tape, name, x, v, state, n, doubled=doubled)

    def chunks(self, write: Callable[[Number], None]) -> None:
        """Write what every chunk does."""
        each_chunk(self.tape, self.shape[1], self.size, write)


class Scan(Chunks):
    """Causal: a chunk's own scores, and the state of the chunks before it."""

    def updates(self, state: Tensor) -> None:
        """Every chunk but the last joins the state; these are full ones."""

        def update(c: Number) -> None:
            self.absorb(state, *self.slices(c))

        repeated(self.tape, ceil_div(self.shape[1], self.size) - 1, self.size, update)

    def suffix_updates(self, state: Tensor) -> None:
        """Every chunk but the first joins the state of the backward scan."""

        def update(c: Number) -> None:
            self.absorb(state, *self.slices(c), doubled=True)

        full = floor_div(self.shape[1], self.size)
        rest, later = self.shape[1] - self.size * full, at_least_one(full)
        repeated(self.tape, full - later, self.size, update)
        repeated(self.tape, at_least_one(rest) * later, rest, update)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The causal sums (b, n, width); only the inputs are saved."""
        out = fresh(self.tape, "causal sums", *v.shape)
        if self.tape.grad:
            self.tape.attach(out, "causal sums", lambda _: self.backward(q, k, v), [q, k, v])
        state = self.state()

        def chunk(c: Number) -> None:
            tape, (x, v) = self.tape, self.slices(c)
            weights = tape.bmm("chunk: scores", x, x, tb=True)
            inplace(tape, "chunk: scores + 1", weights, ADD)
            inplace(tape, "chunk: Taylor map", weights, MUL, weights)
            inplace(tape, "chunk: Taylor map", weights, ADD)
            inplace(tape, "chunk: masking", weights, Cost())
            part = tape.bmm("chunk: weighted values", weights, v)
            tape.free(weights)
            added(tape, "chunk: sum", part, self.read("queries", x, state, doubled=True))
            copied(tape, "chunk: result", part)
            tape.free(part)

        self.chunks(chunk)
        self.updates(state)
        self.tape.free(state)
        return out

    def backward(self, q: Tensor, k: Tensor, v: Tensor) -> Gradients:
        """Two scans: forwards for q and what stays in a chunk, backwards for k and v."""
        tape = self.tape
        grads = [fresh(tape, "gradients", *t.shape) for t in (q, k, v)]
        state = self.state()

        def prefix(c: Number) -> None:
            x, v = self.slices(c)
            through = self.row_gradient("queries", x, v, state, doubled=True)
            copied(tape, "queries: grad", through)
            tape.free(through)
            self.within(x, v)

        def suffix(c: Number) -> None:
            x, v = self.slices(c)
            through = self.row_gradient("keys", x, v, state, doubled=False)
            added(tape, "keys: grad", x, through)
            added(tape, "values: grad", v, self.read("keys", x, state, doubled=False))

        self.chunks(prefix)
        self.updates(state)
        tape.record("state: zero", state.shape, Cost(bytes_moved=state.size))
        self.chunks(suffix)
        self.suffix_updates(state)
        tape.free(state)
        return list(zip((q, k, v), grads, strict=True))

    def within(self, x: Tensor, v: Tensor) -> None:
        """The gradients that stay within one chunk."""
        tape = self.tape
        shifted = tape.bmm("chunk: scores", x, x, tb=True)
        inplace(tape, "chunk: scores + 1", shifted, ADD)
        square = MUL * shifted.count
        weights = tape.emit("chunk: Taylor map", shifted.shape, square, [shifted, shifted])
        inplace(tape, "chunk: Taylor map", weights, ADD)
        inplace(tape, "chunk: masking", weights, Cost())
        values = tape.bmm("chunk: grad values", weights, v, ta=True)
        copied(tape, "chunk: grad values", values)
        tape.free(values, weights)
        scores = tape.bmm("chunk: grad weights", v, v, tb=True)
        inplace(tape, "chunk: grad scores, masked", scores, Cost())
        inplace(tape, "chunk: grad scores", scores, MUL)
        inplace(tape, "chunk: grad scores", scores, MUL, shifted)
        tape.free(shifted)
        rows = tape.bmm("chunk: grad queries", scores, x)
        added(tape, "chunk: grad queries", x, rows)
        keys = tape.bmm("chunk: grad keys", scores, x, ta=True)
        copied(tape, "chunk: grad keys", keys)
        tape.free(keys, scores)


class Sums(Chunks):
    """Without a mask: a state of all tokens, which every chunk reads."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The sums (b, n, width); the inputs and the state are saved."""
        tape = self.tape
        out = fresh(tape, "sums", *v.shape)
        state = self.state()
        if tape.grad:
            tape.attach(out, "sums", lambda _: self.gradients(q, k, v, state), [q, k, v])
            keep(out, state)
        self.chunks(lambda c: self.absorb(state, *self.slices(c)))

        def chunk(c: Number) -> None:
            x, _ = self.slices(c)
            part = self.read("queries", x, state, doubled=True)
            copied(tape, "chunk: result", part)
            tape.free(part)

        self.chunks(chunk)
        tape.free(state)
        return out

    def gradients(self, q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> Gradients:
        """Gradients of q and of the state, then of k and v."""
        tape = self.tape
        grads = [fresh(tape, "gradients", *t.shape) for t in (q, k, v)]
        later = self.state()

        def first(c: Number) -> None:
            x, v = self.slices(c)
            part = self.row_gradient("queries", x, v, state, doubled=True)
            copied(tape, "queries: grad", x)
            tape.free(part)
            self.absorb(later, x, v, doubled=True)

        def second(c: Number) -> None:
            x, v = self.slices(c)
            part = self.row_gradient("keys", x, v, later, doubled=False)
            copied(tape, "keys: grad", x)
            tape.free(part)
            part = self.read("keys", x, later, doubled=False)
            copied(tape, "values: grad", part)
            tape.free(part)

        self.chunks(first)
        self.chunks(second)
        tape.free(later)
        return list(zip((q, k, v), grads, strict=True))
