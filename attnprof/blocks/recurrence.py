"""Linear recurrences S_t = decay_t ∘ S_{t-1} + k_t u_tᵀ, read as o_t = q_t S_t, in three forms.

u_t is v_t, or, by the delta rule, β_t (v_t - k_tᵀ (decay_t ∘ S_{t-1})): the part of the value that
the decayed state does not predict. A decay is exp(g_t): a number a token, one a channel, or none.

``chunkwise`` takes a chunk of tokens at once: products inside a chunk, a state (dk, dv) across
chunks; the delta rule solves a unit triangular system a chunk for all u (Yang et al. 2024). With
G the running sum of g in a chunk, only exp(G_i - G_j) of j ≤ i is formed, never exp(-G_j): no
gate overflows. ``recurrent`` takes token by token, ``parallel`` all tokens as one chunk without a
state. Every backward pass goes chunk by chunk from the last one, from states that are kept at the
start of each.
"""

from dataclasses import dataclass
from typing import Any

from attnprof.costs import ceil_div, minimum
from attnprof.ops.function import Function
from attnprof.ops.functional import (
    add_product,
    as_format_of,
    empty_like,
    solve_unit_lower_,
    wide,
    wide_zeros,
)
from attnprof.ops.loops import in_blocks

#: Added to a row's sum of squares before the root, or to their mean.
EPSILON = 1e-6


@dataclass
class Chunk:
    """Tokens (batch, c, ·) of a chunk in float32 at least; ``sums`` are G, None without a gate.

    ``by_channel``: each channel of the keys has a decay of its own. ``group_heads`` in succession,
    with a decay a token, have the same queries and keys, which are multiplied once. ``steady``: the
    factors of all chunks, where tokens and samples decay alike.
    """

    q: Any
    k: Any
    v: Any
    sums: Any
    beta: Any
    by_channel: bool
    group_heads: Any
    steady: Any

    def factors(self) -> Any:
        """Return exp(G_i - G_j) for j ≤ i, else 0: (batch, c, c), (batch, c, c, dk), or None."""
        if self.sums is None or self.steady is not None:
            return self.steady
        if self.by_channel:
            return (self.sums.unsqueeze(2) - self.sums.unsqueeze(1)).clamp_(max=0).exp_()
        return _pairs(self.sums)

    def keys_seen(self, factors: Any) -> Any:
        """Return keys as each row sees them, (batch·c, c, dk); only where channels decay apart."""
        return (factors * self.k.unsqueeze(1)).flatten(0, 1) if self.by_channel else None

    def products(self, x: Any, factors: Any, keys_seen: Any) -> Any:
        """Return Σ_d x_id exp(G_id - G_jd) k_jd of rows x: (batch, c, c), valid for j ≤ i."""
        if keys_seen is not None:
            b, c, d = x.shape
            return x.reshape(b * c, 1, d).bmm(keys_seen.transpose(1, 2)).view(b, c, c)
        if self.group_heads == 1:
            return _decayed(x.bmm(self.k.transpose(1, 2)), factors)
        of_group, keys = (
            y.view(-1, self.group_heads, *y.shape[1:]).select(1, 0) for y in (x, self.k)
        )
        weights = of_group.bmm(keys.transpose(1, 2)).unsqueeze(1)
        return (weights * factors.view(-1, self.group_heads, *factors.shape[1:])).flatten(0, 1)

    def lower(self, pairs: Any) -> Any:
        """Return pairs with zeros at j > i, where the factors of token decays put none."""
        return pairs.tril_() if self.sums is None or self.by_channel else pairs

    def after_start(self, x: Any) -> Any:
        """Return rows times exp(G_i)."""
        return x if self.sums is None else x * self.sums.exp()

    def before_end(self, x: Any) -> Any:
        """Return rows times exp(G_c - G_i)."""
        return x if self.sums is None else x * (self.sums[:, -1:] - self.sums).exp_()

    def decay(self) -> Any:
        """Return the factor by which the chunk decays a state: (batch, dk, 1) or (batch, 1, 1)."""
        return None if self.sums is None else self.sums[:, -1:].exp().transpose(1, 2)

    def missed(self, state: Any) -> Any:
        """Return the values minus those that the state at the start predicts for the keys."""
        return self.v if state is None else self.v - self.after_start(self.k).bmm(state)


def _pairs(sums: Any) -> Any:
    return (sums - sums.transpose(1, 2)).exp_().tril_()


def _steady_pairs(g: Any, rows: Any, heads: Any) -> Any:
    """Return factors (heads, c, c) that all chunks share; None unless tokens decay alike."""
    if heads is None:
        return None
    return _pairs(wide(g[:heads, : minimum(g.shape[1], rows)]).cumsum(1))


def _decayed(pairs: Any, factors: Any) -> Any:
    """Return pairs (batch, c, c) times factors of all samples or of one, in place, if any."""
    if factors is not None:
        pairs.view(-1, *factors.shape).mul_(factors)
    return pairs


def _chunk_at(
    operands: tuple[Any, ...], part: slice, by_channel: bool, group_heads: Any, steady: Any
) -> Chunk:  # fmt: skip
    q, k, v, g, beta = (None if x is None else wide(x[:, part]) for x in operands)
    if steady is not None:
        c = part.stop - part.start
        steady = steady[:, :c, :c]
    sums = None if g is None else g.cumsum(1)
    return Chunk(q, k, v, sums, beta, by_channel, group_heads, steady)


def _chunk_rows(c: Chunk, state: Any, *, inverse: bool) -> Any:
    """Return rows (batch, c, dv) of a chunk; moves the state past it, if there is one."""
    factors = c.factors()
    keys_seen = c.keys_seen(factors)
    updates = c.v
    if c.beta is not None:
        system = c.products(c.k, factors, keys_seen).mul_(c.beta)
        if inverse:
            updates = _by_inverse(c, system, state)
        else:
            updates = c.missed(state) * c.beta
            solve_unit_lower_(system, updates)
        del system
    weights = c.lower(c.products(c.q, factors, keys_seen))
    del factors, keys_seen
    if state is None:
        return weights.bmm(updates)
    rows = c.after_start(c.q).bmm(state)
    add_product(rows, weights, updates)
    del weights
    _advance(state, c.decay(), c.before_end(c.k), updates)
    return rows


def _by_inverse(c: Chunk, system: Any, state: Any) -> Any:
    """Return the tokens' updates by the inverse T of their system: T (β v) - T (β exp(G) k) S.

    T and both products need no state: kernels make those of all chunks at once.
    """
    inverse = system.new_ones(*system.shape).tril_().triu_()
    solve_unit_lower_(system, inverse)
    updates = inverse.bmm(c.v * c.beta)
    add_product(updates, inverse.bmm(c.after_start(c.k) * c.beta), state, alpha=-1)
    return updates


def _advance(state: Any, decay: Any, keys: Any, updates: Any) -> None:
    """Decay the state, then add keysᵀ updates, in place."""
    if decay is not None:
        state.mul_(decay)
    add_product(state, keys.transpose(1, 2), updates)


def token_row(state: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    """Add one token (batch, 1, ·) to the state, in place, and return its row (batch, 1, dv)."""
    if g is not None:
        state.mul_(g.exp().transpose(1, 2))
    if beta is not None:
        v = (v - k.bmm(state)).mul_(beta)
    add_product(state, k.transpose(1, 2), v)
    return q.bmm(state)


def _forward(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *,
    rows: int, form: str = "chunkwise", by_channel: bool = False, group_heads: Any = 1,
    steady: Any = None, state: Any = None, keep: bool,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    operands, (b, n, dk), dv = (q, k, v, g, beta), q.shape, v.shape[-1]
    out = v.new_empty(b, n, dv)
    states = None
    if form == "parallel":
        rows = n
    else:
        state = wide_zeros(v, b, dk, dv) if state is None else state
        states = wide(v).new_empty(b, ceil_div(n, rows), dk, dv) if keep else None
    pairs = None if form == "recurrent" else _steady_pairs(g, rows, steady)
    for part in in_blocks(q, n, rows):
        if states is not None:
            states[:, part.start // rows] = state
        if form == "recurrent":
            _token_rows(operands, part, state, out)
        else:
            chunk = _chunk_at(operands, part, by_channel, group_heads, pairs)
            out[:, part] = _chunk_rows(chunk, state, inverse=form == "inverse")
            del chunk
    return out, (*operands, states)


def _token_rows(operands: tuple[Any, ...], part: slice, state: Any, out: Any) -> None:
    """Compute the rows of a chunk one after the other."""
    parts = tuple(None if x is None else x[:, part] for x in operands)
    rows = out[:, part]
    for at in in_blocks(out, rows.shape[1], 1):
        token = (None if x is None else wide(x[:, at]) for x in parts)
        rows[:, at] = token_row(state, *token)


def _grads(
    saved: tuple[Any, ...], grad: Any, *,
    rows: int, by_channel: bool = False, group_heads: Any = 1, steady: Any = None,
    needs: tuple[bool, ...], **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    *inputs, states = saved
    operands = tuple(inputs)
    q, v = operands[0], operands[2]
    b, n, dk = q.shape
    into = [
        empty_like(x, in_rows=True) if x is not None and (need or place < 3) else None
        for place, (x, need) in enumerate(zip(operands, needs, strict=True))
    ]
    later = None if states is None else wide_zeros(v, b, dk, v.shape[-1])
    rows = n if states is None else rows
    pairs = _steady_pairs(operands[3], rows, steady)
    for part in in_blocks(q, n, rows, backwards=True):
        state = None if states is None else states[:, part.start // rows]
        chunk = _chunk_at(operands, part, by_channel, group_heads, pairs)
        _chunk_grads(chunk, wide(grad[:, part]), state, later, (part, into))
        del chunk
        del state
    return tuple(into)


def _chunk_grads(c: Chunk, grad: Any, state: Any, later: Any, to: tuple[slice, list[Any]]) -> None:
    """Write the gradients of a chunk's tokens; ``later``, of the end state, becomes the start's."""
    part, (to_q, to_k, to_v, to_g, to_beta) = to
    factors = c.factors()
    keys_seen = c.keys_seen(factors)
    updates, system, key_products, missed = c.v, None, None, None
    if c.beta is not None:
        key_products = c.products(c.k, factors, keys_seen)
        system = key_products * c.beta
        missed = c.missed(state)
        updates = missed * c.beta
        solve_unit_lower_(system, updates)
    weights = c.lower(c.products(c.q, factors, keys_seen))
    v_grad = weights.transpose(1, 2).bmm(grad)
    del weights
    if later is not None:
        add_product(v_grad, c.before_end(c.k), later)
    weights_grad = c.lower(grad.bmm(updates.transpose(1, 2)))
    known_grad = None
    if c.beta is not None:
        solve_unit_lower_(system, v_grad, transposed=True)
        del system
        known_grad = v_grad.bmm(updates.transpose(1, 2)).tril_(-1).neg_()
        if to_beta is not None:
            beta_grad = (v_grad * missed).sum(-1, keepdim=True)
            to_beta[:, part] = beta_grad.add_((known_grad * key_products).sum(-1, keepdim=True))
            del beta_grad
        v_grad.mul_(c.beta)
        known_grad.mul_(c.beta)
    del key_products, missed
    to_v[:, part] = v_grad
    q_grad, left, right = _pair_grads(c, weights_grad, known_grad, factors, keys_seen)
    del weights_grad, known_grad, factors, keys_seen
    end = None
    if state is not None:
        q_grad.add_(c.after_start(grad.bmm(state.transpose(1, 2))))
        if left is not None:
            left.sub_(c.after_start(v_grad.bmm(state.transpose(1, 2))))
        keys_grad = c.before_end(updates.bmm(later.transpose(1, 2)))
        right.add_(keys_grad)
        end = _end_grad(c, state, later, keys_grad) if to_g is not None else None
        del keys_grad
        _to_start(c, later, grad, None if left is None else v_grad)
    del updates, v_grad
    to_q[:, part] = q_grad
    if to_g is not None:
        to_g[:, part] = _gate_grad(c, q_grad, left, right, end)
    to_k[:, part] = right if left is None else right.add_(left)


def _to_start(c: Chunk, later: Any, grad: Any, v_grad: Any) -> None:
    """Turn the gradient of the state at a chunk's end into that at its start, in place."""
    if c.sums is not None:
        later.mul_(c.decay())
    add_product(later, c.after_start(c.q).transpose(1, 2), grad)
    if v_grad is not None:
        add_product(later, c.after_start(c.k).transpose(1, 2), v_grad, alpha=-1)


def _pair_grads(
    c: Chunk, weights: Any, key_grad: Any, factors: Any, keys_seen: Any
) -> tuple[Any, Any, Any]:
    """Return gradients of queries, of keys k_i that read the state, and of keys k_j that it holds.

    Gradients of pairs are (batch, c, c), zero where j > i; they are overwritten.
    """
    if c.by_channel:
        return _channel_grads(c, weights, key_grad, factors, keys_seen)
    weights = _decayed(weights, factors)
    q_grad, right, left = weights.bmm(c.k), weights.transpose(1, 2).bmm(c.q), None
    if key_grad is not None:
        left = _decayed(key_grad, factors).bmm(c.k)
        add_product(right, key_grad.transpose(1, 2), c.k)
    return q_grad, left, right


def _channel_grads(
    c: Chunk, weights: Any, key_grad: Any, factors: Any, keys_seen: Any
) -> tuple[Any, Any, Any]:
    b, n, d = c.k.shape
    q_grad, left = weights.view(b * n, 1, n).bmm(keys_seen).view(b, n, d), None
    reads = weights.view(b * n, n, 1).bmm(c.q.reshape(b * n, 1, d))
    if key_grad is not None:
        left = key_grad.view(b * n, 1, n).bmm(keys_seen).view(b, n, d)
        add_product(reads, key_grad.view(b * n, n, 1), c.k.reshape(b * n, 1, d))
    right = reads.view(b, n, n, d).mul_(factors).sum(1)
    return q_grad, left, right


def _end_grad(c: Chunk, state: Any, later: Any, keys_grad: Any) -> Any:
    """Return the gradient (batch, 1, ·) of G_c, through the state's and the keys' decay."""
    kept = (state * later).mul_(c.decay()).sum(2).unsqueeze(1)
    moved = (keys_grad * c.k).sum(1, keepdim=True).add_(kept)
    return moved if c.by_channel else moved.sum(-1, keepdim=True)


def _gate_grad(c: Chunk, q_grad: Any, left: Any, right: Any, end: Any) -> Any:
    """Return gradient (batch, c, ·) of the gates.

    exp(G_i) multiplies queries and keys that read, exp(-G_i) keys that are read: the gradient of
    G is that of queries and keys times their values. A gate moves G from its token on.
    """
    keys = -right if left is None else left - right
    of_sums = (c.q * q_grad).add_(keys.mul_(c.k))
    del keys
    if not c.by_channel:
        of_sums = of_sums.sum(-1, keepdim=True)
    total = of_sums.sum(1, keepdim=True)
    if end is not None:
        total.add_(end)
    return (of_sums - of_sums.cumsum(1)).add_(total)


#: Rows (batch, n, dv) of a recurrence; q, k (batch, n, dk), v (batch, n, dv), log decays g
#: (batch, n, 1 or dk) or None, β (batch, n, 1) for the delta rule or None.
#:
#: ``form`` is chunkwise (by the ``inverse`` of its systems, too), recurrent or parallel, ``rows``
#: the tokens of a chunk, ``by_channel`` whether g has dk columns, ``group_heads`` how many heads in
#: succession have the same q and k, ``steady`` a sample's heads if tokens and samples decay alike:
#: a chunk's decays are made once then. ``state`` (batch, dk, dv) is the one before the first token,
#: zeros unless given, and moved in place past the last. Saved are the operands and a state a chunk.
recurrence = Function(_forward, _grads)


def _unit(x: Any, *, epsilon: float = EPSILON) -> tuple[Any, tuple[Any, ...]]:
    rows = wide(x)
    factor = (rows * rows).sum(-1, keepdim=True).add_(epsilon).sqrt_().reciprocal_()
    out = x.new_empty(x.shape)
    out.copy_(rows * factor)
    return out, (out, factor)


def _unit_grads(saved: tuple[Any, ...], grad: Any, **_: Any) -> tuple[Any]:
    out, factor = saved
    along = (grad * out).sum(-1, keepdim=True)
    # in one number format: torch widens all rows if a factor is wider
    return ((grad - out * along).mul_(as_format_of(factor, grad)),)


#: Rows (…, d) over their length, to the square of which ``epsilon`` is added.
unit_rows = Function(_unit, _unit_grads)
