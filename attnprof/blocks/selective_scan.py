"""The selective scan of Mamba-1: S_t = exp(Δ_t a) ∘ S_{t-1} + (Δ_t x_t) b_tᵀ, y_t = S_t c_t.

Every channel decays each entry of its state by itself, so there are no products of chunks: kernels
go token by token and keep the state where they compute (Gu & Dao 2023). The backward pass computes
the states of a chunk again from the one at its start, and goes through them from the last.
"""

from typing import Any

from attnprof.costs import ceil_div
from attnprof.ops.function import Function
from attnprof.ops.functional import empty_like, wide, wide_zeros, zeros_like
from attnprof.ops.loops import in_blocks


def _at(place: slice, *rows: Any) -> list[Any]:
    """Return tokens of (b, ·, n) rows in float32 at least."""
    return [wide(x[:, :, place]) for x in rows]


def _advance(state: Any, decay: Any, values: Any, b: Any) -> None:
    """Move a state (b, d, s) past a token, in place: decayed, plus Δx (b, d, 1) bᵀ."""
    state.mul_(decay)
    state.add_(values * b.transpose(1, 2))


def _forward(
    x: Any, dt: Any, a: Any, b: Any, c: Any, *, rows: int, state: Any = None, keep: bool
) -> tuple[Any, tuple[Any, ...]]:
    n = x.shape[-1]
    state = wide_zeros(x, x.shape[0], *a.shape) if state is None else state
    states = wide(x).new_empty(ceil_div(n, rows), *state.shape) if keep else None
    out = x.new_empty(x.shape)
    for part in in_blocks(x, n, rows):
        if states is not None:
            states[part.start // rows] = state
        given = [rows_of[:, :, part] for rows_of in (x, dt, b, c)]
        block = out[:, :, part]
        for at in in_blocks(x, block.shape[-1], 1):
            values, steps, keys, queries = _at(at, *given)
            _advance(state, (steps * a).exp_(), values * steps, keys)
            block[:, :, at] = (state * queries.transpose(1, 2)).sum(-1, keepdim=True)
    return out, (x, dt, a, b, c, states)


def _grads(saved: tuple[Any, ...], grad: Any, *, rows: int, **_: Any) -> tuple[Any, ...]:
    x, dt, a, b, c, states = saved
    into = [empty_like(rows_of, in_rows=True) for rows_of in (x, dt, b, c)]
    of_a, later = zeros_like(wide(a)), wide_zeros(x, x.shape[0], *a.shape)
    for part in in_blocks(x, x.shape[-1], rows, backwards=True):
        given = [rows_of[:, :, part] for rows_of in (x, dt, b, c, grad)]
        length = given[0].shape[-1]
        inside = states.new_empty(length + 1, *later.shape)
        inside[0] = states[part.start // rows]
        for at in in_blocks(x, length, 1):
            values, steps, keys, _, _ = _at(at, *given)
            inside[at.start + 1] = inside[at.start]
            _advance(inside[at.start + 1], (steps * a).exp_(), values * steps, keys)
        for at in in_blocks(x, length, 1, backwards=True):
            places = [rows_of[:, :, part][:, :, at] for rows_of in into]
            around = inside[at.start], inside[at.start + 1]
            _token_grads(_at(at, *given), a, around, (of_a, later), places)
    to_x, to_dt, to_b, to_c = into
    return to_x, to_dt, of_a, to_b, to_c


def _token_grads(
    token: list[Any], a: Any, states: tuple[Any, Any], sums: tuple[Any, Any], into: list[Any]
) -> None:
    """Put a token's gradients; that of the state after it becomes that of the one before."""
    x, dt, b, c, grad = token
    (before, after), (of_a, later), (to_x, to_dt, to_b, to_c) = states, sums, into
    later.add_(grad * c.transpose(1, 2))
    to_c.copy_((after * grad).sum(1, keepdim=True).transpose(1, 2))
    to_b.copy_((later * (x * dt)).sum(1, keepdim=True).transpose(1, 2))
    of_values = (later * b.transpose(1, 2)).sum(-1, keepdim=True)
    later.mul_((dt * a).exp_())
    of_exponent = later * before
    to_x.copy_(of_values * dt)
    to_dt.copy_((of_exponent * a).sum(-1, keepdim=True).add_(of_values * x))
    of_a.add_((of_exponent * dt).sum(0))


#: Rows (batch, d, n) of a selective scan: x and Δ (batch, d, n), a (d, s), b and c (batch, s, n).
#:
#: ``state`` (batch, d, s) is the one before the first token, zeros unless given, and moved in place
#: past the last. Saved are the operands and a state for each ``rows`` tokens.
selective_scan = Function(_forward, _grads)
