"""The efficient form's boxed features (d² products a row), on the tape."""

from __future__ import annotations

from attnprof.costs import Cost, Number, at_least_one, more_than_one
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.mechanisms.taylorshift.scan import RowFeatures
from attnprof.mechanisms.taylorshift.stages import (
    ADD,
    MUL,
    added,
    box_gradient,
    fresh,
    inplace,
)


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


class Boxed(RowFeatures):
    """Every product of two entries of a row, the entries, and one."""

    def width(self, d: Number) -> Number:
        """d² + d + 1."""
        return d * d + d + 1

    def absorb(
        self, tape: Tape, state: Tensor, x: Tensor, v: Tensor, *, doubled: bool = False
    ) -> None:
        """A product into memory of its own, then added."""
        mapped = features(tape, "state", x, doubled=doubled)
        update = tape.bmm("state: update", mapped, v, ta=True)
        tape.free(mapped)
        added(tape, "state: sum", state, update)

    def read(self, tape: Tape, name: str, x: Tensor, state: Tensor, *, doubled: bool) -> Tensor:
        """One product."""
        mapped = features(tape, name, x, doubled=doubled)
        out = tape.bmm(f"{name}: read", mapped, state)
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
        """Two products with the box's gradient.

        A chunk's rows are gathered for them where there are several sequences or heads.
        """
        part = tape.bmm(f"{name}: grad features", v, state, tb=True)
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
        tape.free(part)
        return out


BOXED = Boxed()
