"""Recurrent mixers as kernels run them: operands token by token in, rows and the state out.

Kernels of engines take queries, keys, values (batch, tokens, heads, width) and gates as a model
makes them; norms, step sizes and skips are inside. Each text below is such a kernel, for torch and
for the count: in chunks for a prompt, by one turn of the recurrence for a token. ``state`` is moved
in place from before the first token to after the last. :data:`MIXERS` has them by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.recurrence import recurrence, unit_rows
from attnprof.costs import ceil_div, exact_div
from attnprof.ops.function import Function
from attnprof.ops.functional import (
    as_format_of,
    empty_like,
    silu,
    softplus,
    square_root,
    wide,
    wide_zeros,
    zeros_like,
)
from attnprof.ops.layer import flat, repeat_heads
from attnprof.ops.loops import in_blocks


def _mixed(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, *, by_channel: bool = False, **how: Any
) -> Any:
    """Return rows (b, n, h, dv) of a recurrence; fewer heads of q and k serve several of v."""
    b, n, h, _ = v.shape
    heads = [
        None if x is None else flat(repeat_heads(x.transpose(1, 2), h)) for x in (q, k, v, g, beta)
    ]
    out = recurrence(*heads, state=state, by_channel=by_channel, **how)
    return out.view(b, h, n, -1).transpose(1, 2)


def _delta(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, **how: Any) -> Any:
    """Return rows of the gated delta rule: queries over sqrt d, log decays g and β of each token.

    g is (b, n, h), or (b, n, h, dk) where each channel has its decay; the state (b, h, dk, dv).
    """
    by_channel = g.dim() == v.dim()
    gates = g if by_channel else g.unsqueeze(-1)
    queries = q * (1 / square_root(q.shape[-1]))
    states = state.flatten(0, 1)
    return _mixed(queries, k, v, gates, beta.unsqueeze(-1), states, by_channel=by_channel, **how)


def _unit_delta(q: Any, k: Any, *others: Any, **how: Any) -> Any:
    """Return rows of the gated delta rule with queries and keys scaled to length one."""
    return _delta(unit_rows(q), unit_rows(k), *others, **how)


def _state_space(
    x: Any, steps: Any, a: Any, b: Any, c: Any, skip: Any, state: Any, **how: Any
) -> Any:
    """Return rows of Mamba-2 with step sizes Δ: decays exp(Δ a), values Δ x, plus skip x.

    x is (b, n, h, p), Δ (b, n, h), b and c (b, n, groups, s); a and skip have a number a head; the
    state is (b, h, p, s).
    """
    values = x * as_format_of(steps, x).unsqueeze(-1)
    states = state.flatten(0, 1).transpose(1, 2)
    gates, heads = (steps * a).unsqueeze(-1), exact_div(x.shape[2], b.shape[2])
    out = _mixed(c, b, values, gates, None, states, group_heads=heads, **how)
    return out + x * skip.view(1, 1, -1, 1)


def _lightning(q: Any, k: Any, v: Any, rate: Any, state: Any, **how: Any) -> Any:
    """Return rows of lightning attention: head h decays by exp(-rate_h); state (b, h, dk, dv)."""
    b, n, h, _ = v.shape
    gates = (-rate).view(1, 1, h, 1).expand(b, n, h, 1)
    return _mixed(q, k, v, gates, None, state.flatten(0, 1), **how)


# -- the selective scan of Mamba-1: S_t = exp(Δ_t a) ∘ S_{t-1} + (Δ_t x_t) b_tᵀ, y_t = S_t c_t --
# Every channel decays each entry of its state by itself, so there are no products of chunks:
# kernels go token by token and keep the state where they compute (Gu & Dao 2023). The backward pass
# computes the states of a chunk again from the one at its start, and goes through them from the
# last.
def _at(place: slice, *rows: Any) -> list[Any]:
    """Return tokens of (b, ·, n) rows in float32 at least."""
    return [wide(x[:, :, place]) for x in rows]


def _advance(state: Any, decay: Any, values: Any, b: Any) -> None:
    """Move a state (b, d, s) past a token, in place: decayed, plus Δx (b, d, 1) bᵀ."""
    state.mul_(decay)
    state.add_(values * b.transpose(1, 2))


def _scanned(
    x: Any, dt: Any, a: Any, b: Any, c: Any, *, rows: int, state: Any = None, keep: bool
) -> tuple[Any, tuple[Any, ...]]:
    n = x.shape[-1]
    state = wide_zeros(x, x.shape[0], *a.shape) if state is None else state
    states = wide(x).new_empty(ceil_div(n, rows), *state.shape) if keep else None
    out = x.new_empty(x.shape)
    for part in in_blocks(x, n, rows):
        if states is not None:
            states[part.start // rows] = state
        operands = [rows_of[:, :, part] for rows_of in (x, dt, b, c)]
        block = out[:, :, part]
        for at in in_blocks(x, block.shape[-1], 1):
            values, steps, keys, queries = _at(at, *operands)
            _advance(state, (steps * a).exp_(), values * steps, keys)
            block[:, :, at] = (state * queries.transpose(1, 2)).sum(-1, keepdim=True)
    return out, (x, dt, a, b, c, states)


def _scan_grads(saved: tuple[Any, ...], grad: Any, *, rows: int, **_: Any) -> tuple[Any, ...]:
    x, dt, a, b, c, states = saved
    into = [empty_like(rows_of, in_rows=True) for rows_of in (x, dt, b, c)]
    of_a, later = zeros_like(wide(a)), wide_zeros(x, x.shape[0], *a.shape)
    for part in in_blocks(x, x.shape[-1], rows, backwards=True):
        operands = [rows_of[:, :, part] for rows_of in (x, dt, b, c, grad)]
        length = operands[0].shape[-1]
        inside = states.new_empty(length + 1, *later.shape)
        inside[0] = states[part.start // rows]
        for at in in_blocks(x, length, 1):
            values, steps, keys, _, _ = _at(at, *operands)
            inside[at.start + 1] = inside[at.start]
            _advance(inside[at.start + 1], (steps * a).exp_(), values * steps, keys)
        for at in in_blocks(x, length, 1, backwards=True):
            outputs = [rows_of[:, :, part][:, :, at] for rows_of in into]
            around = inside[at.start], inside[at.start + 1]
            _token_grads(_at(at, *operands), a, around, (of_a, later), outputs)
    to_x, to_dt, to_b, to_c = into
    return to_x, to_dt, of_a, to_b, to_c


def _token_grads(
    token: list[Any], a: Any, states: tuple[Any, Any], sums: tuple[Any, Any], into: list[Any]
) -> None:
    """Write a token's gradients; that of the state after it becomes that of the state before it."""
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
selective_scan = Function(_scanned, _scan_grads)


def _selective(
    x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any, bias: Any, *last: Any,
    rows: int, form: str = "",  # noqa: ARG001 - token by token, always
) -> Any:  # fmt: skip
    """Return rows (b, d, n) of Mamba-1: its scan, plus skip x, times silu(z) where it has a z.

    x, dt and z are (b, d, n), a (d, s), b and c (b, s, n), skip and bias (d); the state (b, d, s).
    """
    *gates, state = last
    steps = softplus(wide(dt) + bias.unsqueeze(-1))
    out = selective_scan(x, steps, a, b, c, rows=rows, state=state) + x * skip.unsqueeze(-1)
    return out * silu(gates[0]) if gates else out


@dataclass(frozen=True)
class Mixer:
    """A kernel: its ``text``, the place of the operand that results resemble, the state's shape."""

    text: Callable[..., Any]
    like: int
    state: Callable[[Sequence[Any]], tuple[Any, ...]]
    tokens: int = 1  #: the axis of tokens
    in_chunks: bool = True  #: whether a prompt goes by chunks, or always token by token

    def length(self, operands: Sequence[Any]) -> Any:
        """Return the number of tokens."""
        return operands[self.like].shape[self.tokens]


def _of_heads(operands: Sequence[Any]) -> tuple[Any, ...]:
    q, _, v, *_ = operands
    return v.shape[0], v.shape[2], q.shape[-1], v.shape[-1]


MIXERS = {
    "delta": Mixer(_delta, 2, _of_heads),
    "unit delta": Mixer(_unit_delta, 2, _of_heads),
    "mamba2": Mixer(_state_space, 0, lambda x: (x[0].shape[0], *x[0].shape[2:], x[3].shape[-1])),
    "lightning": Mixer(_lightning, 2, _of_heads),
    "mamba": Mixer(
        _selective, 0, lambda x: (*x[0].shape[:2], x[2].shape[-1]), tokens=2, in_chunks=False
    ),
}
