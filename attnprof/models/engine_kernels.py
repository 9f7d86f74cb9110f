"""The kernels of the engine's view, as operations of torch: fused attention and recurrent mixers.

Serving engines and trainers compute attention by one kernel over the pairs that the mask leaves,
without a matrix of scores in memory (:func:`fused_attention`), a recurrence over a prompt by
another (:func:`mixer`), and a token by a third, in place of the state. Engines decode latent
attention (MLA) without making a head's keys and values from the latents: each query meets the
cached row itself, latent and rotary part, and the result is a mix of latents
(:func:`latent_attention`).

On real tensors plain arithmetic and the texts of :mod:`attnprof.blocks.mixers` give their results,
on tensors without values they give shapes. Costs are those of :mod:`attnprof.trace.rules.engine`
and, of latent attention, :mod:`attnprof.trace.rules.attention`.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, _PreserveDispatchKeyGuard
from torch._C import _dispatch_tls_set_dispatch_key_excluded as set_excluded

from attnprof.blocks.mixers import MIXERS


@torch.library.custom_op("attnprof::fused_attention", mutates_args=())
def fused_attention(  # noqa: PLR0917 - an operation of torch has no others
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, attn_mask: Tensor | None,
    kind: str, width: int, query_start: int, key_start: int, scale: float, softcap: float,
    dropout_p: float, definition: bool,  # noqa: ARG001 - counted alone
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return attention (batch, queries, heads, width), and the logarithm of each row's sum.

    ``query`` is (batch, heads, tokens, width); ``key`` and ``value`` may have fewer heads. The mask
    is ``kind`` (``full causal window chunk around``) with its ``width``; the first query and key
    stand at ``query_start`` and ``key_start`` in the sequence. ``sinks`` are one score a head, a
    ``softcap`` of 0 is none; dropout is counted, not applied; with ``definition`` operations are
    those of the definition.
    """
    scores, _ = _scores(query, key, attn_mask, kind, width, query_start, key_start, scale, softcap)
    with_sinks = scores
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        with_sinks = torch.cat([scores, column], -1)
    sums = with_sinks.logsumexp(-1)
    weights = (scores - sums[..., None]).exp()
    out = weights @ _repeated(value, query).to(weights.dtype)
    return out.transpose(1, 2).to(query.dtype).contiguous(), sums


@torch.library.custom_op("attnprof::fused_attention_backward", mutates_args=())
def fused_attention_backward(  # noqa: PLR0917 - an operation of torch has no others
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor,
    sinks: Tensor | None, attn_mask: Tensor | None, kind: str, width: int, query_start: int,
    key_start: int, scale: float, softcap: float,
    dropout_p: float, definition: bool,  # noqa: ARG001 - counted alone
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of queries, keys, values and sinks (empty without any)."""
    scores, slope = _scores(
        query, key, attn_mask, kind, width, query_start, key_start, scale, softcap
    )
    weights = (scores - sums[..., None]).exp()
    grad = grad_out.transpose(1, 2).to(weights.dtype)
    keys, values = (_repeated(x, query).to(weights.dtype) for x in (key, value))
    rows = (grad * out.transpose(1, 2).to(weights.dtype)).sum(-1, keepdim=True)
    of_scores = weights * (grad @ values.mT - rows) * slope * scale
    of_keys = of_scores.mT @ query.to(weights.dtype)
    of_values = weights.mT @ grad
    of_sinks = query.new_empty(0)
    if sinks is not None:
        at_sinks = (sinks.to(weights.dtype).view(1, -1, 1) - sums).exp()
        of_sinks = -(at_sinks * rows[..., 0]).sum((0, 2)).to(sinks.dtype)
    return (
        (of_scores @ keys).to(query.dtype), _gathered(of_keys, key), _gathered(of_values, value),
        of_sinks,
    )  # fmt: skip


def _scores(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, kind: str, width: int, query_start: int,
    key_start: int, scale: float, softcap: float,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Return masked scores, and their derivative by the scaled products: 1 without a soft cap."""
    wide = _wide(query)
    scores: Tensor = query.to(wide) @ _repeated(key, query).to(wide).mT * scale
    slope: Any = 1.0
    if softcap:
        bent = (scores / softcap).tanh()
        scores, slope = bent * softcap, 1 - bent * bent
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    mask = visible(kind, width, query.shape[2], key.shape[2], query_start, key_start)
    return scores.masked_fill(~mask.to(query.device), -torch.inf), slope


def visible(
    kind: str, width: int, queries: int, keys: int, query_start: int, key_start: int
) -> Tensor:
    """Return which keys each query sees: (queries, keys), true or false."""
    at = torch.arange(query_start, query_start + queries)[:, None]
    keys_at = torch.arange(key_start, key_start + keys)
    if kind == "full":
        return torch.ones(queries, keys, dtype=torch.bool)
    if kind == "around":
        return (at - keys_at).abs() <= width
    mask = keys_at <= at
    if kind == "window":
        return mask & (at - keys_at < width)
    return mask & (at // width == keys_at // width) if kind == "chunk" else mask


def _wide(x: Tensor) -> torch.dtype:
    """Return the number format that a kernel computes in: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with as many heads as the queries."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _gathered(grad: Tensor, x: Tensor) -> Tensor:
    """Return a gradient summed over the query heads that share a key head."""
    shared = grad.reshape(grad.shape[0], x.shape[1], -1, *grad.shape[2:])
    return shared.sum(2).to(x.dtype)


@fused_attention.register_fake
def _(query: Any, key: Any, value: Any, *_: Any) -> Any:
    if query.shape[-1] != key.shape[-1]:
        raise RuntimeError(f"queries of width {query.shape[-1]} and keys of {key.shape[-1]}")
    batch, heads, tokens = query.shape[:3]
    out = query.new_empty((batch, tokens, heads, value.shape[-1]))
    return out, query.new_empty((batch, heads, tokens), dtype=_wide(query))


@fused_attention_backward.register_fake
def _(_: Any, query: Any, key: Any, value: Any, _out: Any, _sums: Any, sinks: Any, *__: Any) -> Any:
    of_sinks = query.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return (*(x.new_empty(x.shape) for x in (query, key, value)), of_sinks)


def _keep_attention(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, sinks, attn_mask, *ctx.how = inputs
    ctx.save_for_backward(query, key, value, *output, sinks, attn_mask)


def _attention_gradients(ctx: Any, grad_out: Any, _grad_sums: Any) -> Any:
    *three, of_sinks = fused_attention_backward(grad_out, *ctx.saved_tensors, *ctx.how)
    return (*three, of_sinks if ctx.needs_input_grad[3] else None, *[None] * 9)


fused_attention.register_autograd(_attention_gradients, setup_context=_keep_attention)


@torch.library.custom_op("attnprof::mixer", mutates_args=())
def mixer(
    kind: str, operands: list[Tensor], state: Tensor | None, rows: int, form: str, keeps: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, the state after them, and memory of the states that a backward pass reads.

    ``kind`` is one of :data:`MIXERS`, ``form`` chunkwise (``rows`` tokens a chunk) or recurrent;
    ``state`` is the one before, zeros if None. ``keeps``: there is a backward pass.
    """
    like = operands[MIXERS[kind].like]
    shape, wide = MIXERS[kind].state(operands), _wide(like)
    end = like.new_zeros(shape, dtype=wide) if state is None else state.to(wide, copy=True)
    out = MIXERS[kind].text(*operands, end, rows=rows, form=form)
    kept = _kept(kind, operands, rows, keeps)
    return out.to(like.dtype).contiguous(), end.to(_state_format(kind, operands)), kept


@torch.library.custom_op("attnprof::mixer_step", mutates_args={"state"})
def mixer_step(kind: str, operands: list[Tensor], state: Tensor) -> Tensor:
    """Return the row of one token, and update the state in place."""
    wide = state.to(_wide(state))
    out: Tensor = MIXERS[kind].text(*operands, wide, rows=1, form="recurrent")
    if wide is not state:
        state.copy_(wide)
    return out.to(operands[MIXERS[kind].like].dtype).contiguous()


@torch.library.custom_op("attnprof::mixer_backward", mutates_args=())
def mixer_backward(
    grad_out: Tensor, kind: str, operands: list[Tensor],
    states: Tensor,  # noqa: ARG001 - read by a kernel, and made again here
    rows: int, form: str, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of operands that need one, an empty tensor for others."""
    with _PreserveDispatchKeyGuard(), torch.enable_grad():
        set_excluded(DispatchKey.AutogradFunctionality, False)
        leaves = [x.detach().requires_grad_(need) for x, need in zip(operands, needs, strict=True)]
        like = leaves[MIXERS[kind].like]
        state = like.new_zeros(MIXERS[kind].state(leaves), dtype=_wide(like))
        out = MIXERS[kind].text(*leaves, state, rows=rows, form=form)
        graded = [x for x in leaves if x.requires_grad]
        grads = iter(torch.autograd.grad(out, graded, grad_out.to(out.dtype)))
    return [
        next(grads).contiguous() if need else x.new_empty(0)
        for x, need in zip(operands, needs, strict=True)
    ]


def _state_format(kind: str, operands: list[Tensor]) -> Any:
    """Return the number format of a state: that of values in lightning attention, else wide."""
    like = operands[MIXERS[kind].like]
    return like.dtype if kind == "lightning" else _wide(like)


def _kept(kind: str, operands: list[Tensor], rows: int, keeps: bool) -> Tensor:
    """Return memory for a wide state at the start of each chunk; none if not kept."""
    like = operands[MIXERS[kind].like]
    shape = -(-MIXERS[kind].length(operands) // rows), *MIXERS[kind].state(operands)
    return like.new_empty(shape if keeps else (0,), dtype=_wide(like))


@mixer.register_fake
def _(kind: Any, operands: Any, _state: Any, rows: Any, _form: Any, keeps: Any) -> Any:
    like = operands[MIXERS[kind].like]
    end = like.new_empty(MIXERS[kind].state(operands), dtype=_state_format(kind, operands))
    return like.new_empty(like.shape), end, _kept(kind, operands, rows, keeps)


@mixer_step.register_fake
def _(kind: Any, operands: Any, _: Any) -> Any:
    like = operands[MIXERS[kind].like]
    return like.new_empty(like.shape)


@mixer_backward.register_fake
def _(_grad: Any, _kind: Any, operands: Any, *rest: Any) -> Any:
    needs = rest[-1]
    return [x.new_empty(x.shape if need else (0,)) for x, need in zip(operands, needs, strict=True)]


def _keep_mixer(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.kind, operands, _, ctx.rows, ctx.form, _ = inputs
    ctx.save_for_backward(*operands, output[2])
    ctx.set_materialize_grads(False)


def _mixer_gradients(ctx: Any, grad_out: Any, _end: Any, _states: Any) -> Any:
    *operands, states = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[1])
    grads = mixer_backward(grad_out, ctx.kind, operands, states, ctx.rows, ctx.form, needs)
    passed = [grad if need else None for grad, need in zip(grads, needs, strict=True)]
    return None, passed, None, None, None, None


mixer.register_autograd(_mixer_gradients, setup_context=_keep_mixer)


@torch.library.custom_op("attnprof::latent_attention", mutates_args=())
def latent_attention(
    query: Tensor, latents: Tensor, rotary: Tensor, attn_mask: Tensor | None, scale: float
) -> Tensor:
    """Return mixed latents (batch, heads, tokens, rank) of queries on rows of a latent cache.

    ``query`` is (batch, heads, tokens, rank + rotary width), ``latents`` (batch, 1, keys, rank) and
    ``rotary`` (batch, 1, keys, rotary width). ``attn_mask`` is true where a query sees a key, or is
    added to scores.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    keys = torch.cat((latents, rotary), -1).to(wide)
    scores = query.to(wide) @ keys.mT * scale
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return (scores.softmax(-1) @ latents.to(wide)).to(query.dtype)


@latent_attention.register_fake
def _(query: Any, latents: Any, *_: Any) -> Any:
    return query.new_empty((*query.shape[:3], latents.shape[-1]))
