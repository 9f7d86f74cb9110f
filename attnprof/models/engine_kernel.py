"""The fused attention kernel of the engine's view, as an operation of torch.

Serving engines and trainers compute attention by one kernel over the pairs that the mask leaves,
without a matrix of scores in memory. :func:`fused_attention` is such an operation: on real tensors
plain arithmetic gives its result, on tensors without values it gives shapes. Its costs are those of
:mod:`attnprof.trace.rules.engine`.
"""

from typing import Any

import torch
from torch import Tensor


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
    """Return masked scores, and what a score grows by with the product that it is made of."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores: Tensor = query.to(wide) @ _repeated(key, query).to(wide).mT * scale
    slope: Any = 1.0
    if softcap:
        bent = (scores / softcap).tanh()
        scores, slope = bent * softcap, 1 - bent * bent
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    seen = visible(kind, width, query.shape[2], key.shape[2], query_start, key_start)
    return scores.masked_fill(~seen.to(query.device), -torch.inf), slope


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
    seen = keys_at <= at
    if kind == "window":
        return seen & (at - keys_at < width)
    return seen & (at // width == keys_at // width) if kind == "chunk" else seen


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with as many heads as the queries."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _gathered(grad: Tensor, x: Tensor) -> Tensor:
    """Return a gradient with as many heads as keys have: the sum over those that share one."""
    shared = grad.reshape(grad.shape[0], x.shape[1], -1, *grad.shape[2:])
    return shared.sum(2).to(x.dtype)


@fused_attention.register_fake
def _(query: Any, key: Any, value: Any, *_: Any) -> Any:
    if query.shape[-1] != key.shape[-1]:
        raise RuntimeError(f"queries of width {query.shape[-1]} and keys of {key.shape[-1]}")
    batch, heads, tokens = query.shape[:3]
    out = query.new_empty((batch, tokens, heads, value.shape[-1]))
    wide = torch.promote_types(query.dtype, torch.float32)
    return out, query.new_empty((batch, heads, tokens), dtype=wide)


@fused_attention_backward.register_fake
def _(_: Any, query: Any, key: Any, value: Any, _out: Any, _sums: Any, sinks: Any, *__: Any) -> Any:
    of_sinks = query.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return (*(x.new_empty(x.shape) for x in (query, key, value)), of_sinks)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, sinks, attn_mask, *ctx.how = inputs
    ctx.save_for_backward(query, key, value, *output, sinks, attn_mask)


def _gradients(ctx: Any, grad_out: Any, _grad_sums: Any) -> Any:
    found = fused_attention_backward(grad_out, *ctx.saved_tensors, *ctx.how)
    *three, of_sinks = found
    return (*three, of_sinks if ctx.needs_input_grad[3] else None, *[None] * 9)


fused_attention.register_autograd(_gradients, setup_context=_keep)
