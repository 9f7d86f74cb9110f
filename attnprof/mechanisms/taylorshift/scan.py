"""The causal scan over chunks, and the state it shares with decoding, on the tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnprof.costs import Cost, Number, at_least_one, ceil_div, floor_div, is_plain, more_than_one
from attnprof.counting.engine import Gradients, Storage, Tensor
from attnprof.counting.tape import Tape
from attnprof.mechanisms.taylorshift.stages import ADD, MUL, box_gradient, copied, inplace


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


def features(tape: Tape, name: str, x: Tensor, *, doubled: bool) -> Tensor:
    """[x ⊠ x, x, 1], or [x ⊠ x, 2x, 2]: (b, c, d) → (b, c, d² + d + 1)."""
    b, c, d = x.shape
    squares, one = b * c * d * d, tape.item_size
    moved = [2 * squares, 2 * squares + x.count, 2 * x.count, b * c]
    cost = MUL * squares
    if doubled:
        cost, moved = cost + MUL * x.count, [*moved, 2 * x.count]
    out = fresh(tape, f"{name}: features", b, c, d * d + d + 1)
    tape.record(f"{name}: features", out.shape, cost + Cost(bytes_moved=sum(moved) * one))
    return out


def fresh(tape: Tape, name: str, *shape: Number) -> Tensor:
    """Memory that nothing was written to yet."""
    out = Tensor(shape, Storage(0), tape.item_size)
    out.storage.size = out.size
    tape.record(name, shape, Cost(), out.size)
    return out


def zeros(tape: Tape, name: str, *shape: Number) -> Tensor:
    """Memory filled with zeros."""
    return tape.emit(name, shape, Cost())


def added(tape: Tape, name: str, to: Tensor, more: Tensor) -> None:
    """``to += more``, which dies."""
    tape.emit(name, more.shape, Cost(additions=more.count), [more, more], into=to)
    tape.free(more)


def absorb(tape: Tape, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False) -> None:
    """State (d² + d + 1) × width += features(x)ᵀ v."""
    mapped = features(tape, "state", x, doubled=doubled)
    update = tape.bmm("state: update", mapped, v, ta=True)
    tape.free(mapped)
    added(tape, "state: sum", state, update)


def read_state(tape: Tape, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
    """features(x) · state: (b, c, width)."""
    mapped = features(tape, name, x, doubled=doubled)
    out = tape.bmm(f"{name}: read", mapped, state)
    tape.free(mapped)
    return out


def gradient_of_rows(
    tape: Tape, x: Tensor, v: Tensor, state: Tensor, n: Number, *, doubled: bool
) -> tuple[Tensor, Tensor]:
    """A chunk's gradient through its features, and that of the features, still alive.

    A chunk's rows are gathered for the products where there are several sequences or heads.
    """
    part = tape.bmm("state: grad features", v, state, tb=True)
    several = more_than_one(x.shape[0]) * more_than_one(x.shape[1])
    copies = several * at_least_one(n - x.shape[1])
    row = tape.rearrange("state: rows", x, x.shape, copies)
    out = box_gradient(tape, "state: grad rows", x)
    tape.free(row)
    if doubled:
        middle = tape.emit("state: grad linear", x.shape, MUL * x.count, [x])
        added(tape, "state: grad", out, middle)
    else:
        inplace(tape, "state: grad", out, ADD, x)
    return out, part


@dataclass(frozen=True)
class Scan:
    """One scan over (b, n, d) rows with values (b, n, width), ``size`` tokens a chunk."""

    tape: Tape
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
        return zeros(self.tape, "state", b, d * d + d + 1, self.width)

    def absorb(self, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False) -> None:
        """A chunk joins the state."""
        absorb(self.tape, state, x, v, doubled=doubled)

    def read(self, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
        """A chunk reads the state."""
        return read_state(self.tape, name, x, state, doubled=doubled)

    def rows(
        self, _name: str, x: Tensor, v: Tensor, state: Tensor, *, doubled: bool
    ) -> tuple[Tensor, ...]:
        """A chunk's gradient through its features, and what is still alive with it."""
        return gradient_of_rows(self.tape, x, v, state, self.shape[1], doubled=doubled)

    def chunks(self, write: Callable[[Number], None]) -> None:
        """Write what every chunk does."""
        each_chunk(self.tape, self.shape[1], self.size, write)

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
            held = self.rows("queries", x, v, state, doubled=True)
            copied(tape, "queries: grad", held[0])
            tape.free(*held)
            self.within(x, v)

        def suffix(c: Number) -> None:
            x, v = self.slices(c)
            through, *held = self.rows("keys", x, v, state, doubled=False)
            added(tape, "keys: grad", x, through)
            tape.free(*held)
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
