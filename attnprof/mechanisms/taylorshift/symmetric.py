"""The efficient form with symmetric features (d(d+1)/2 products, not d²), on the tape."""

from __future__ import annotations

from attnprof.costs import Cost, Number, at_least_one, exact_div, floor_div
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape, product_cost
from attnprof.mechanisms.taylorshift.scan import RowFeatures
from attnprof.mechanisms.taylorshift.stages import ADD, MUL, copied, fresh, inplace, zeros

#: Chunks at once, for fewer and larger products. A mask makes every chunk pay for its scores;
#: without one there are none.
SCANNED, AT_ONCE = 2, 8


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


class Symmetric(RowFeatures):
    """Each pair of entries once, the entries, and one."""

    def width(self, d: Number) -> Number:
        """d(d+1)/2 + d + 1."""
        return features_of(d)

    def absorb(
        self, tape: Tape, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False
    ) -> None:
        """One product, added to the state as it is made."""
        b, c, d = x.shape
        entries = columns(tape, x)
        mapped = features(tape, "state", entries, d, doubled=doubled)
        tape.free(entries)
        cost = product_cost(state.shape[1], c, state.shape[2], b) + ADD * state.count
        tape.emit("state: update", state.shape, cost, [state, mapped, v], into=state)
        tape.free(mapped)

    def read(self, tape: Tape, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
        """One product."""
        entries = columns(tape, x)
        mapped = features(tape, name, entries, x.shape[-1], doubled=doubled)
        tape.free(entries)
        out = tape.bmm(f"{name}: read", mapped, state, ta=True)
        tape.free(mapped)
        return out

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
        """A product, then shift by shift."""
        part = tape.bmm(f"{name}: grad features", state, v, tb=True)
        entries = columns(tape, x)
        out = feature_gradient(tape, f"{name}: grad", part, x.shape[-1], doubled=doubled)
        tape.free(part, entries)
        return out


SYMMETRIC = Symmetric()
