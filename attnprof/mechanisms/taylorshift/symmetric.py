"""The efficient form with symmetric features (d(d+1)/2 products, not d²), on the tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnprof.costs import Cost, Number, at_least_one, exact_div, floor_div
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import Tape, product_cost
from attnprof.mechanisms.taylorshift.scan import Scan, each_chunk, fresh, zeros
from attnprof.mechanisms.taylorshift.stages import ADD, MUL, copied, inplace, keep

#: Without a mask no chunk pays for its scores: so many at once, for fewer and larger products.
AT_ONCE = 8


def features_of(d: Number) -> Number:
    """The pairs i ≤ j of d entries, the entries, and one."""
    return exact_div(d * (d + 1), 2) + d + 1


def _shifts(d: Number) -> tuple[Number, Number, Number]:
    """Whole shifts of the pairs, entries of the last half one, and whether there is one."""
    shifts = floor_div(d - 1, 2)
    even = d - 1 - 2 * shifts
    return shifts, exact_div(d * even, 2), even


def columns(tape: Tape, x: Tensor) -> Tensor:
    """(b, c, d) → (b, d + (d-1)//2, c)."""
    b, c, d = x.shape
    shifts, _, _ = _shifts(d)
    out = fresh(tape, "columns", b, d + shifts, c)
    moved = 2 * (x.size + b * shifts * c * tape.item_size)
    tape.record("columns", out.shape, Cost(bytes_moved=moved))
    return out


def features(tape: Tape, name: str, x: Tensor, d: Number, *, doubled: bool) -> Tensor:
    """[x, 1, x_i², x_i·x_j] of columns x, (b, features, c)."""
    b, _, c = x.shape
    shifts, half, _ = _shifts(d)
    out, rows = fresh(tape, f"{name}: features", b, features_of(d), c), b * c * d
    tape.record(
        f"{name}: features",
        out.shape,
        MUL * (rows * (1 + doubled) + rows * shifts + b * c * half)
        # entries, ones, squares; a shift's factors and products, the first factor once
        + Cost(
            bytes_moved=tape.item_size
            * (5 * rows + b * c + rows * (2 * shifts + at_least_one(shifts)) + 3 * b * c * half)
        ),
    )
    return out


def feature_gradient(tape: Tape, name: str, part: Tensor, d: Number, *, doubled: bool) -> Tensor:
    """The gradient of the rows, within memory as wide as their columns; ``part`` lives on."""
    b, _, c = part.shape
    shifts, half, _ = _shifts(d)
    out = zeros(tape, name, b, d + shifts, c)
    rows, each = b * c * d, MUL + ADD
    copied(tape, name, tape.constant(b, d, c))
    products = rows * (2 - doubled + 2 * shifts) + 2 * b * c * half
    tape.record(name, out.shape, each * products + Cost(bytes_moved=4 * products * tape.item_size))
    wrapped = b * c * shifts
    moved = Cost(bytes_moved=3 * wrapped * tape.item_size)
    tape.record(name, out.shape, ADD * wrapped + moved)
    if doubled:
        inplace(tape, name, tape.constant(b, d, c), MUL)
    out.shape = (b, d, c)  # what is read of it
    return out


def absorb(tape: Tape, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False) -> None:
    """State += features(x) · v, one product."""
    b, c, d = x.shape
    entries = columns(tape, x)
    mapped = features(tape, "state", entries, d, doubled=doubled)
    tape.free(entries)
    cost = product_cost(state.shape[1], c, state.shape[2], b) + ADD * state.count
    tape.emit("state: update", state.shape, cost, [state, mapped, v], into=state)
    tape.free(mapped)


def read(tape: Tape, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
    """featuresᵀ · state: (b, c, width)."""
    entries = columns(tape, x)
    mapped = features(tape, name, entries, x.shape[-1], doubled=doubled)
    tape.free(entries)
    out = tape.bmm(f"{name}: read", mapped, state, ta=True)
    tape.free(mapped)
    return out


def row_gradient(
    tape: Tape, name: str, x: Tensor, v: Tensor, state: Tensor, *, doubled: bool
) -> Tensor:
    """The gradient of rows whose features met values in a state."""
    part = tape.bmm(f"{name}: grad features", state, v, tb=True)
    entries = columns(tape, x)
    out = feature_gradient(tape, f"{name}: grad", part, x.shape[-1], doubled=doubled)
    tape.free(part, entries)
    return out


@dataclass(frozen=True)
class Sums(Scan):
    """Without a mask: a state of all tokens, which every chunk reads."""

    def chunks(self, write: Callable[[Number], None]) -> None:
        """Write what every group of chunks does."""
        each_chunk(self.tape, self.shape[1], AT_ONCE * self.size, write)

    def state(self) -> Tensor:
        """The sums, zero at first."""
        b, _, d = self.shape
        return zeros(self.tape, "state", b, features_of(d), self.width)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The sums (b, n, width); the inputs and the state are saved."""
        tape = self.tape
        out = fresh(tape, "sums", *v.shape)
        state = self.state()
        if tape.grad:
            tape.attach(out, "sums", lambda _: self.gradients(q, k, v, state), [q, k, v])
            keep(out, state)
        self.chunks(lambda c: absorb(tape, state, *self.slices(c)))

        def chunk(c: Number) -> None:
            x, _ = self.slices(c)
            part = read(tape, "queries", x, state, doubled=True)
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
            part = row_gradient(tape, "queries", x, v, state, doubled=True)
            copied(tape, "queries: grad", x)
            tape.free(part)
            absorb(tape, later, x, v, doubled=True)

        def second(c: Number) -> None:
            x, v = self.slices(c)
            part = row_gradient(tape, "keys", x, v, later, doubled=False)
            copied(tape, "keys: grad", x)
            tape.free(part)
            part = read(tape, "keys", x, later, doubled=False)
            copied(tape, "values: grad", part)
            tape.free(part)

        self.chunks(first)
        self.chunks(second)
        tape.free(later)
        return list(zip((q, k, v), grads, strict=True))


@dataclass(frozen=True)
class CausalSums(Scan):
    """The scan of the boxed form with the smaller state."""

    def state(self) -> Tensor:
        """The sums, zero at first."""
        b, _, d = self.shape
        return zeros(self.tape, "state", b, features_of(d), self.width)

    def absorb(self, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False) -> None:
        """A chunk joins the state."""
        absorb(self.tape, state, x, v, doubled=doubled)

    def read(self, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
        """A chunk reads the state."""
        return read(self.tape, name, x, state, doubled=doubled)

    def rows(
        self, name: str, x: Tensor, v: Tensor, state: Tensor, *, doubled: bool
    ) -> tuple[Tensor, ...]:
        """A chunk's gradient through its features."""
        return (row_gradient(self.tape, name, x, v, state, doubled=doubled),)
