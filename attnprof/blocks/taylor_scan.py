"""TaylorShift's sums by a state of features: causal by a scan over chunks, or over all tokens.

Which features is an argument: they differ in how rows join a state and read it, and in nothing
else.
"""

from __future__ import annotations

from typing import Any

from attnprof.blocks.taylor import with_ones
from attnprof.blocks.taylor_features import RowFeatures
from attnprof.ops.function import Function
from attnprof.ops.functional import empty_like, zeros_like
from attnprof.ops.loops import in_blocks, other_blocks


def fresh_state(features: RowFeatures, like: Any, width: Any) -> Any:
    """Zeros (b, features, width) for rows like these."""
    state = like.new_zeros(like.shape[0], features.width(like.shape[-1]), width)
    return state  # noqa: RET504 - the stage is called after it


def built_state(k: Any, v: Any, size: Any, features: RowFeatures) -> Any:
    """The sums of rows k with values [1, v], (b, n, d) each, a chunk at a time."""
    state = fresh_state(features, k, v.shape[-1] + 1)
    for here in in_blocks(k, k.shape[1], size):
        features.absorb(state, k[:, here], with_ones(v[:, here]))
    return state


def _scan(
    q: Any, k: Any, v: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, tuple[Any, ...]]:
    out, n = empty_like(v), q.shape[1]
    state = fresh_state(features, q, v.shape[-1])
    for here in in_blocks(q, n, size):
        weights = q[:, here].bmm(k[:, here].transpose(1, 2)).add_(1)
        weights = weights.mul_(weights).add_(1).tril_()
        part = weights.bmm(v[:, here])
        del weights
        part.add_(features.read(q[:, here], state, True))
        out[:, here] = part
        del part
        for _ in other_blocks(q, n, size, here):  # nothing reads what the last would add
            features.absorb(state, k[:, here], v[:, here])
    return out, (q, k, v)


def _scan_grads(
    saved: tuple[Any, ...], grad: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, ...]:
    """Two scans: forwards for q and what stays in a chunk, backwards for k and v."""
    q, k, v = saved
    to_q, to_k, to_v = empty_like(q), empty_like(k), empty_like(v)
    n, state = q.shape[1], fresh_state(features, q, v.shape[-1])
    for here in in_blocks(q, n, size):
        to_q[:, here] = features.row_grad(q[:, here], grad[:, here], state, True)
        _grads_within(*(x[:, here] for x in (q, k, v, grad, to_q, to_k, to_v)))
        for _ in other_blocks(q, n, size, here):
            features.absorb(state, k[:, here], v[:, here])
    state.zero_()
    for here in in_blocks(q, n, size, backwards=True):
        to_k[:, here].add_(features.row_grad(k[:, here], v[:, here], state, False))
        to_v[:, here].add_(features.read(k[:, here], state, False))
        for _ in other_blocks(q, n, size, here, than="first"):
            features.absorb(state, q[:, here], grad[:, here], True)
    return to_q, to_k, to_v


def _grads_within(q: Any, k: Any, v: Any, grad: Any, to_q: Any, to_k: Any, to_v: Any) -> None:
    """The gradients that stay within one chunk; q's is added to, k's and v's are set."""
    shifted = q.bmm(k.transpose(1, 2)).add_(1)
    weights = (shifted * shifted).add_(1).tril_()
    to_v.copy_(weights.transpose(1, 2).bmm(grad))
    del weights
    scores = grad.bmm(v.transpose(1, 2)).tril_().mul_(2).mul_(shifted)
    del shifted
    to_q.add_(scores.bmm(k))
    to_k.copy_(scores.transpose(1, 2).bmm(q))


#: Causal sums Σ_{s ≤ t} ((q_t·k_s + 1)² + 1) v_s: q, k (b, n, d), v (b, n, width) → as v.
#:
#: Within a chunk of ``size`` tokens the scores, across chunks the state of ``features``. Backward
#: scans again, so only the inputs are saved and nothing of N × features is ever kept.
scan = Function(_scan, _scan_grads)


def _sums(
    q: Any, k: Any, v: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, tuple[Any, ...]]:
    out, state = empty_like(v), fresh_state(features, q, v.shape[-1])
    for here in in_blocks(q, q.shape[1], size):
        features.absorb(state, k[:, here], v[:, here])
    for here in in_blocks(q, q.shape[1], size):
        out[:, here] = features.read(q[:, here], state, True)
    return out, (q, k, v, state)


def _sums_grads(
    saved: tuple[Any, ...], grad: Any, *, size: Any, features: RowFeatures
) -> tuple[Any, ...]:
    """Gradients of q and of the state, then of k and v."""
    q, k, v, state = saved
    to_q, to_k, to_v, later = empty_like(q), empty_like(k), empty_like(v), zeros_like(state)
    for here in in_blocks(q, q.shape[1], size):
        to_q[:, here] = features.row_grad(q[:, here], grad[:, here], state, True)
        features.absorb(later, q[:, here], grad[:, here], True)
    for here in in_blocks(q, q.shape[1], size):
        to_k[:, here] = features.row_grad(k[:, here], v[:, here], later, False)
        to_v[:, here] = features.read(k[:, here], later, False)
    return to_q, to_k, to_v


#: The same over all tokens: a state first, then every chunk reads it. Backward makes the features
#: again; besides the inputs only the state is kept.
sums = Function(_sums, _sums_grads)
