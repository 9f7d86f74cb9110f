"""Operations that torch composes of others below the level that a dispatch mode sees.

Each is written here as its kernel does it, so that its parts are recorded. Sources: torch's
aten/src/ATen/native: transformers/{attention,transformer}.cpp,
{ReduceOps,SoftMax,Dropout,Distance}.cpp.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import _pop_mode_temporarily

from attnprof.trace.registered import registered
from attnprof.trace.rules.flex import is_sparse
from attnprof.trace.rules.table import bound, name_of

Expansion = Callable[..., Any]

aten = torch.ops.aten
_INFINITE = float("inf")


def _safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Return a softmax with zeros in rows that are masked in full."""
    out = torch.softmax(x, dim, dtype)
    masked = x.eq(-_INFINITE)
    rows = torch.all(masked, dim, keepdim=True)
    return torch.where(rows, torch.zeros((), dtype=out.dtype, device=out.device), out, out=out)


def _logsumexp(x: Any, dims: Any, keepdim: bool = False) -> Any:
    """Return the logarithm of a sum of exponentials, their maximum taken out if it is finite."""
    tops = torch.amax(x, dims, keepdim=True)
    given = tops if keepdim else tops.squeeze(dims)
    given.masked_fill_(given.abs() == _INFINITE, 0)
    return (x - tops).exp_().sum(dims, keepdim).log_().add_(given)


def _euclidean(a: Any, b: Any) -> Any:
    """Return distances as |a|² + |b|² - 2ab: one product of rows with two columns more."""
    norms = [x.pow(2).sum(-1, True) for x in (a, b)]
    ones = [torch.ones_like(norm) for norm in norms]
    left = torch.cat([a.mul(-2), norms.pop(0), ones.pop(0)], -1)
    right = torch.cat([b, ones.pop(), norms.pop()], -1)
    return left.matmul(right.mT).clamp_min_(0).sqrt_()


def _multi_head(
    query: Any, key: Any, value: Any, _width: int, heads: Any, qkv_weight: Any, qkv_bias: Any,
    weight: Any, bias: Any, mask: Any = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Run the fast path of ``nn.MultiheadAttention``: (batch, tokens, width)."""
    qkv = _projected(query, key, value, qkv_weight)
    split = aten._transform_bias_rescale_qkv.default
    if isinstance(heads, torch.SymInt):  # which the operation's schema would fix
        with _pop_mode_temporarily() as recorder:
            q, k, v = recorder.__torch_dispatch__(split, (), (qkv, qkv_bias, heads))
    else:
        q, k, v = split(qkv, qkv_bias, heads)
    del qkv
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(*q.shape[:3], -1)
    if mask is None:
        scores = aten._softmax.out(scores, scores.dim() - 1, False, out=scores)
    else:
        scores = aten._masked_softmax(scores, mask.bool(), scores.dim() - 1, mask_type)
    # the result takes the place of the queries
    torch.bmm(scores.flatten(0, 1), v.flatten(0, 1), out=q.flatten(0, 1))
    kept = scores if need_weights else None
    del scores
    by_token = q.permute(0, 2, 1, 3).contiguous().view(query.shape)
    out = torch.nn.functional.linear(by_token.flatten(0, 1), weight, bias).view(query.shape)
    del by_token
    if kept is not None and average_attn_weights:
        kept = kept.sum(1).div_(heads)
    return out, kept


def _projected(query: Any, key: Any, value: Any, weight: Any) -> Any:
    if key is not value:
        parts = zip((query, key, value), weight.chunk(3), strict=True)
    elif query is not key:
        width = query.shape[-1]
        parts = zip((query, key), weight.split([width, 2 * width]), strict=True)
    else:
        return query.matmul(weight.t())
    return torch.cat([x.matmul(w.t()) for x, w in parts], 2)


def _encoder_layer(*args: Any, **kwargs: Any) -> Any:
    """Run the fast path of ``nn.TransformerEncoderLayer``."""
    call = bound(aten._transformer_encoder_layer_fwd.default, args, kwargs)
    first = (call.norm_weight_1, call.norm_bias_1, call.eps)
    second = (call.norm_weight_2, call.norm_bias_2, call.eps)
    x = _normed(call.src, *first) if call.norm_first else call.src
    x = _multi_head(
        x, x, x, call.embed_dim, call.num_heads, call.qkv_weight, call.qkv_bias, call.proj_weight,
        call.proj_bias, call.mask, need_weights=False, mask_type=call.mask_type,
    )[0].add_(call.src)  # fmt: skip
    before = x = x if call.norm_first else _normed(x, *first)
    x = _normed(x, *second) if call.norm_first else x
    up, down = call.ffn_weight_1.t(), call.ffn_weight_2.t()
    x = torch._addmm_activation(call.ffn_bias_1, x.flatten(0, 1), up, use_gelu=call.use_gelu)
    x = torch.addmm(call.ffn_bias_2, x, down).view(call.src.shape).add_(before)
    return x if call.norm_first else _normed(x, *second)


def _normed(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _dropout(x: Any, p: float, train: bool | None = None) -> tuple[Any, Any]:
    """Return the input times a random mask and a scale, and the mask; a copy if not training."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return x.mul(mask).mul_(0 if p == 1 else 1 / (1 - p)), mask


#: Fast paths by torch's name, by which they are called with symbolic sizes.
FAST_PATHS: dict[str, Any] = {
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
#: Expansions by operation, for the overload without ``out``.
EXPANSIONS: dict[str, Expansion] = {
    **FAST_PATHS,
    "_safe_softmax": _safe_softmax,
    "logsumexp": _logsumexp,
    "_euclidean_dist": _euclidean,
    "native_dropout": _dropout,
    "native_dropout_backward": lambda grad, mask, scale: grad * (mask.type_as(grad) * scale),
}


#: Operations that torch could compose of others, but that are one kernel or only ask for a size.
WHOLE = {aten.size.default, aten.stride.default, aten.max_pool1d.default}


def expansion_of(func: Any, args: tuple[Any, ...] = ()) -> Expansion | None:
    """Return a function of the operations that this one is made of, or None.

    None for an operation that is one kernel, or for which a user has registered a rule.
    """
    if isinstance(func, HigherOrderOperator):
        if func._name == "cond" and isinstance(args[0], torch.SymBool):
            return _branch  # which sizes choose
        whole = func._name != "flex_attention" or is_sparse(args)
    else:
        whole = registered(func._schema.name) is not None
    return None if whole else _expansion_of(func)


def _branch(chosen: Any, yes: Any, no: Any, operands: Any) -> Any:
    """Run the branch of ``torch.cond``, as torch does where it is no tensor that chooses."""
    return (yes if chosen else no)(*operands)


@cache
def _expansion_of(func: Any) -> Expansion | None:
    if isinstance(func, HigherOrderOperator):
        from torch._higher_order_ops.flex_attention import sdpa_dense

        return sdpa_dense  # as torch runs it without ``torch.compile``
    name = name_of(func).removeprefix("aten.")
    if name in EXPANSIONS and func._overloadname == "default":
        return EXPANSIONS[name]
    if func in WHOLE:
        return None
    has = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    if has("CompositeImplicitAutograd") and not has("CPU"):
        return partial(func._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    return None
