"""Features of rows whose products are TaylorShift's weights: all pairs of entries, or each once.

Symmetric features hold x_i·x_j once where x ⊠ x holds it twice. They lie feature by feature,
(b, d(d+1)/2 + d + 1, c): the products x_i·x_{i+s} are then one multiplication of whole blocks a
shift s, with i + s going round.
"""

from __future__ import annotations

from typing import Any

from attnprof.blocks.taylor import box_grad
from attnprof.costs import at_least_one, exact_div, floor_div
from attnprof.ops.functional import add_product, put_entries, zeros_like
from attnprof.ops.layout import is_literally
from attnprof.ops.loops import each


class Boxed:
    """[x ⊠ x, x, 1], or doubled [x ⊠ x, 2x, 2]: (b, c, d² + d + 1)."""

    def width(self, d: Any) -> Any:
        """Features of d entries: all pairs, the entries, and one."""
        return d * d + d + 1

    def absorb(self, state: Any, x: Any, v: Any, doubled: bool = False) -> None:
        """A product into memory of its own, then added."""
        state.add_(self.of(x, doubled).transpose(1, 2).bmm(v))

    def read(self, x: Any, state: Any, doubled: bool) -> Any:
        """One product."""
        return self.of(x, doubled).bmm(state)

    def row_grad(self, x: Any, v: Any, state: Any, doubled: bool) -> Any:
        """The box's gradient, and that of the entries."""
        grad, square = v.bmm(state.transpose(1, 2)), x.shape[-1] * x.shape[-1]
        out = box_grad(grad[..., :square], x)
        middle = grad[..., square:-1]
        return out.add_(middle * 2 if doubled else middle)

    def of(self, x: Any, doubled: bool) -> Any:
        """The features, filled in place."""
        b, c, d = x.shape
        features = x.new_empty(b, c, self.width(d))
        squares = features[..., : d * d].view(b, c, d, d)
        squares.copy_(x.unsqueeze(-1).expand(b, c, d, d)).mul_(x.unsqueeze(-2))
        middle = features[..., d * d : -1].copy_(x)
        if doubled:
            middle.mul_(2)
        features[..., -1:].fill_(2 if doubled else 1)
        return features


class Symmetric:
    """[x, 1, x_i², x_i·x_j], (b, d(d+1)/2 + d + 1, c).

    Doubled are all but the squares, x_i·x_j standing for both orders.
    """

    def width(self, d: Any) -> Any:
        """Features of d entries: the pairs i ≤ j, the entries, and one."""
        return exact_div(d * (d + 1), 2) + d + 1

    def absorb(self, state: Any, x: Any, v: Any, doubled: bool = False) -> None:
        """One product, added to the state as it is made."""
        add_product(state, self.of(_columns(x), x.shape[-1], doubled), v)

    def read(self, x: Any, state: Any, doubled: bool) -> Any:
        """One product."""
        return self.of(_columns(x), x.shape[-1], doubled).transpose(1, 2).bmm(state)

    def row_grad(self, x: Any, v: Any, state: Any, doubled: bool) -> Any:
        """A product, then shift by shift."""
        grad = state.bmm(v.transpose(1, 2))
        return _entries_grad(grad, _columns(x), x.shape[-1], doubled).transpose(1, 2)

    def of(self, x: Any, d: Any, doubled: bool) -> Any:
        """The features of :func:`_columns`."""
        b, _, c = x.shape
        shifts, half = _shifts(d)
        features = x.new_empty(b, self.width(d), c)
        base = features[:, :d]
        if doubled:
            put_entries(base, "mul", x[:, :d], 2)
        else:
            base.copy_(x[:, :d])
        features[:, d].fill_(2 if doubled else 1)
        pairs = features[:, d + 1 :]
        put_entries(pairs[:, :d], "mul", x[:, :d], x[:, :d])
        for _ in each(x, 0, at_least_one(shifts)):
            others = x[:, 1:].unfold(1, d, 1).transpose(2, 3)
            blocks = pairs[:, d : d + shifts * d].view(b, shifts, d, c)
            put_entries(blocks, "mul", base.unsqueeze(1), others)
        if not is_literally(half, 0):
            put_entries(pairs[:, d + shifts * d :], "mul", base[:, :half], x[:, half : 2 * half])
        return features


def _shifts(d: Any) -> tuple[Any, Any]:
    """Whole shifts of the pairs, and d/2 where a shift by that is left, which gives half of d."""
    shifts = floor_div(d - 1, 2)
    return shifts, exact_div(d * (d - 1 - 2 * shifts), 2)


def _columns(x: Any) -> Any:
    """(b, c, d) → (b, d + (d-1)//2, c): entries as rows, then the first ones once more."""
    b, c, d = x.shape
    shifts = _shifts(d)[0]
    columns = x.new_empty(b, d + shifts, c)
    columns[:, :d] = x.transpose(1, 2)
    if not is_literally(shifts, 0):
        columns[:, d:] = columns[:, :shifts]
    return columns


def _entries_grad(grad: Any, x: Any, d: Any, doubled: bool) -> Any:
    """The gradient (b, d, c) of the rows from that of their features; adds up shift by shift."""
    shifts, half = _shifts(d)
    out = zeros_like(x)
    rows, entries = out[:, :d], x[:, :d]
    rows.copy_(grad[:, :d])
    squares, pairs = grad[:, d + 1 : 2 * d + 1], grad[:, 2 * d + 1 :]
    rows.addcmul_(squares, entries)
    if not doubled:
        rows.addcmul_(squares, entries)
    for s in each(x, 1, shifts + 1):
        block = pairs[:, (s - 1) * d : s * d]
        rows.addcmul_(block, x[:, s : s + d])
        out[:, s : s + d].addcmul_(block, entries)
    if not is_literally(half, 0):
        block = pairs[:, shifts * d :]
        rows[:, :half].addcmul_(block, x[:, half : 2 * half])
        rows[:, half : 2 * half].addcmul_(block, x[:, :half])
    if not is_literally(shifts, 0):
        rows[:, :shifts].add_(out[:, d:])
    return rows.mul_(2) if doubled else rows


#: Features φ of rows (b, c, d) with φ(q, doubled)·φ(k) = (q·k + 1)² + 1.
#:
#: A state is Σ φ(k) vᵀ, (b, features, width), over tokens with values (b, c, width). ``absorb``
#: adds rows with their values to it, in place; rows ``read`` (b, c, width) from it; ``row_grad`` is
#: the gradient (b, c, d) of rows whose features met values there.
RowFeatures = Boxed | Symmetric
BOXED, SYMMETRIC = Boxed(), Symmetric()
