"""Causal convolution with a matrix for each distance, several distances a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnprof.costs import Number
from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, copy_in_rows, empty_like
from attnprof.ops.loops import in_shrinking_blocks


def _convolved(x: Any, w: Any, *, chunk: Number) -> tuple[Any, tuple[Any, ...]]:
    """The last ``chunk`` inputs of every row stand side by side once.

    The product for distances k … k + chunk - 1 reads all but the last k of these rows.
    """
    b, n, d = x.shape
    past = _windows(x, chunk, chunk - 1)
    out = x.new_zeros(n * b, d)
    for block, left in in_shrinking_blocks(x, n, chunk):
        maps = w[block].flip(0)
        seen = past[: left * b, chunk - maps.shape[0] :].flatten(1, 2)
        add_product(out[(n - left) * b :], seen, maps.view(-1, d))
        del maps, seen
    del past
    return _by_token(out, x), (x, w)


def _convolved_grads(
    saved: tuple[Any, ...], grad: Any, *, needs: Sequence[bool], chunk: Number
) -> tuple[Any, ...]:
    """The next ``chunk`` gradients side by side serve both operands."""
    x, w = saved
    b, n, d = x.shape
    coming = _windows(grad, chunk, 0)
    rows = x.new_empty(n, b, d).copy_(x.transpose(0, 1)).view(n * b, d)
    x_grad = x.new_zeros(n * b, d) if needs[0] else None
    w_grad = empty_like(w) if needs[1] else None
    for block, left in in_shrinking_blocks(x, n, chunk):
        count = block.stop - block.start
        later = coming[(n - left) * b :, :count].flatten(1, 2)
        if w_grad is not None:
            both = rows[: left * b].t().mm(later)
            w_grad[block] = both.view(d, count, d).transpose(0, 1)
            del both
        if x_grad is not None:
            maps = copy_in_rows(w[block].transpose(1, 2))
            add_product(x_grad[: left * b], later, maps.view(-1, d))
            del maps
        del later
    del coming, rows
    return None if x_grad is None else _by_token(x_grad, x), w_grad


def _windows(x: Any, chunk: Number, before: Number) -> Any:
    """(b, n, d) → (n·b, chunk, d): ``before`` tokens back and on from there, zeros outside."""
    b, n, d = x.shape
    padded = x.new_zeros(n + chunk - 1, b, d)
    padded[before : before + n] = x.transpose(0, 1)
    windows = padded.unfold(0, chunk, 1).permute(0, 1, 3, 2)
    return x.new_empty(n, b, chunk, d).copy_(windows).view(n * b, chunk, d)


def _by_token(rows: Any, like: Any) -> Any:
    """(n·b, d) → (b, n, d)."""
    b, n, d = like.shape
    return like.new_empty(b, n, d).copy_(rows.view(n, b, d).transpose(0, 1))


#: e_i = sum over j <= i of x_j W_{i-j+1}: x (b, n, d), w (n, d, d) → (b, n, d), ``chunk``
#: distances a product.
matrix_convolution = Function(_convolved, _convolved_grads)
