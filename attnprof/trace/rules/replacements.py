"""What runs in place of an operation: its parts, or a result that fake tensors can have.

Torch composes some operations of others below the level that a dispatch mode sees. Each of these is
written here as its kernel does it, so that its parts are recorded (:func:`expansion_of`). Fake
tensors cannot run some operations, or give results another layout than the CPU does
(:func:`result_of` gives the CPU's shapes and strides). Sources: torch's aten/src/ATen/native:
transformers/{attention,transformer}.cpp, {ReduceOps,SoftMax,Dropout,Distance}.cpp,
{layer_norm,Normalization,Loss,Activation,GroupedMMUtils}.cpp.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _pop_mode_temporarily

from attnprof.trace.registered import registered
from attnprof.trace.rules import recurrent
from attnprof.trace.rules.attention import is_sparse
from attnprof.trace.rules.table import bound, name_of

aten = torch.ops.aten
#: A function that runs in place of an operation.
Replacement = Callable[..., Any]
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
    finite_tops = tops if keepdim else tops.squeeze(dims)
    finite_tops.masked_fill_(finite_tops.abs() == _INFINITE, 0)
    return (x - tops).exp_().sum(dims, keepdim).log_().add_(finite_tops)


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
EXPANSIONS: dict[str, Replacement] = {
    **FAST_PATHS,
    "_safe_softmax": _safe_softmax,
    "logsumexp": _logsumexp,
    "_euclidean_dist": _euclidean,
    "native_dropout": _dropout,
    "native_dropout_backward": lambda grad, mask, scale: grad * (mask.type_as(grad) * scale),
}


#: Operations that torch could compose of others, but that are one kernel or only ask for a size.
WHOLE = {aten.size.default, aten.stride.default, aten.max_pool1d.default}


def expansion_of(func: Any, args: tuple[Any, ...]) -> Replacement | None:
    """Return a function of the operations that this one is made of, or None.

    None for an operation that is one kernel, or for which a user has registered a rule.
    """
    if isinstance(func, HigherOrderOperator):
        whole = func._name != "flex_attention" or is_sparse(args)
    else:
        whole = registered(func._schema.name) is not None
    return None if whole else _expansion_of(func)


@cache
def _expansion_of(func: Any) -> Replacement | None:
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


# -- results for fake tensors -------------------------------------------------------------
def _split_heads(qkv: Any, _bias: Any, heads: int) -> tuple[Any, ...]:
    """Return three (batch, heads, tokens, head width) without values, in one storage."""
    batch, tokens, width = qkv.shape
    parts = qkv.new_empty(3, batch, heads, tokens, width // (3 * heads))
    return tuple(parts.unbind(0))


def _reduced_loss(name: str, place: int) -> Replacement:
    """Return a loss whose sum stays in the storage of all losses, which lives as long."""
    func = getattr(aten, name).default

    def reduced(x: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {"reduction": args[place]} if len(args) > place else kwargs
        if arguments.get("reduction", 1) == 0:
            return func(x, *args, **kwargs)
        return x.new_empty(x.shape).as_strided((), ())

    return reduced


def _grouped_product(
    a: Any, b: Any, offs: Any = None, _bias: Any = None, out_dtype: Any = None
) -> Any:
    """Return the product in any number format, rows padded to 16 bytes.

    Torch's own stand-in knows CUDA's bfloat16 alone.
    """
    groups = list(offs.shape) if a.dim() == b.dim() == 2 else list(a.shape[:-2]) * (b.dim() == 3)
    shape = [*groups, a.shape[-2], b.shape[-1]]
    padded = -(-shape[-1] * a.element_size() // 16) * 16 // a.element_size()
    strides = [shape[-2] * padded, padded, 1][-len(shape) :]
    return a.new_empty_strided(shape, strides, dtype=out_dtype or a.dtype)


def _is_symbolic(*sizes: Any) -> bool:
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _resized(name: str) -> Replacement:
    """Return the gradient of a resized image; torch's own takes no symbolic sizes."""
    func = getattr(aten, name).default

    def gradient(grad: Any, size: Any, before: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_symbolic(*size, *before):
            return grad.new_empty(before)
        return func(grad, size, before, *args, **kwargs)

    return gradient


def _as_a_product(*args: Any, **_kwargs: Any) -> Any:
    """Return a result laid out as a product; torch's stand-in chooses between two operands."""
    return aten.mul.Tensor(*(x for x in args if isinstance(x, torch.Tensor)))


def _entry_by_entry(x: Any, *_args: Any) -> Any:
    """Return a result laid out as its operand; for symbolic sizes torch composes operations."""
    return torch.empty_like(x)


def _folded(columns: Any, *args: Any) -> Any:
    """Return an image in the storage that torch takes for it: as large as its columns."""
    image = aten.col2im.default(columns, *args)
    if image.numel() > columns.numel():
        return image
    return columns.new_empty(columns.shape).as_strided(image.shape, image.stride())


def pooled(
    x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: Any = False
) -> Any:
    """Return maxima along a line, as an image of one row: torch's operation fixes sizes."""
    pairs = (1, size), (1, stride or size), (0, padding), (1, dilation)
    rows = [[one, *([each] if isinstance(each, int) else each)] for one, each in pairs]
    return aten.max_pool2d_with_indices.default(x.unsqueeze(-2), *rows, ceil_mode)[0].squeeze(-2)


def _in_rows(name: str, memory_format: Any = lambda _: torch.contiguous_format) -> Replacement:
    """Return an operation whose results lie as for contiguous operands, as CPU kernels make them.

    ``memory_format`` chooses another layout for each operand.
    """

    def in_rows(*args: Any, **kwargs: Any) -> Any:
        tensors = (x if isinstance(x, torch.Tensor) else None for x in args)
        rows = (x if y is None else torch.empty_like(y, memory_format=memory_format(y))
                for x, y in zip(args, tensors, strict=True))  # fmt: skip
        return getattr(aten, name)(*rows, **kwargs)  # the overload that takes them

    return in_rows


def _without_moments(x: Any, *args: Any) -> tuple[Any, Any, Any]:
    """Return a batch norm that keeps no moments outside of training."""
    out, *moments = _in_rows("native_batch_norm", suggest_memory_format)(x, *args)
    training = args[4]
    return (out, *moments) if training else (out, x.new_empty(0), x.new_empty(0))


def _embedding(table: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    """Return rows by whole numbers only: torch 2.11 takes any index if there are no values."""
    if indices.is_floating_point():
        raise RuntimeError("indices of an embedding must be whole numbers: Long or Int")
    return aten.embedding.default(table, indices, *args, **kwargs)


#: Operations that resize images.
RESIZED = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
#: Results of operations that torch cannot run on fake tensors, or only with other storages:
#: shapes, no values.
STAND_INS: dict[str, Replacement] = {
    "native_batch_norm": _without_moments,
    **{
        f"{name}_backward": _resized(f"{name}_backward")
        for name in (*RESIZED, "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa")
    },
    **{
        f"{name}_backward": _as_a_product
        for name in (
            "softplus", "elu", "hardtanh", "hardsigmoid", "hardswish", "logit", "softshrink",
            "hardshrink",
        )
    },
    "softshrink": _entry_by_entry,
    "hardshrink": _entry_by_entry,
    "col2im": _folded,
    "max_pool1d": pooled,
    "embedding": _embedding,
    "_masked_softmax": lambda scores, *_args: scores.new_empty(scores.shape),
    "_log_softmax_backward_data": lambda _, out, *args: aten._log_softmax_backward_data.default(
        out, out, *args
    ),
    **{
        name: _in_rows(name, suggest_memory_format)
        for name in (
            "native_batch_norm_backward", "batch_norm_backward", "_native_batch_norm_legit",
            "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
        )
    },
    **{
        name: _in_rows(name)
        for name in (
            "log_sigmoid_forward", "native_layer_norm_backward", "mse_loss_backward",
            "smooth_l1_loss_backward", "huber_loss_backward",
        )
    },
    "mkldnn_rnn_layer": recurrent.forward,
    "mkldnn_rnn_layer_backward": recurrent.backward,
    "_grouped_mm": _grouped_product,
    "_transform_bias_rescale_qkv": _split_heads,
    "binary_cross_entropy": _reduced_loss("binary_cross_entropy", 2),
    **{name: _reduced_loss(name, 1) for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss")},
}  # fmt: skip


def _write_to_out(plain: Any, func: Any, args: tuple[Any, ...], out: Any, **kwargs: Any) -> Any:
    """Return ``out`` if the result fits it; torch 2.11 makes numbers of symbolic sizes for that."""
    result = plain(*args, **kwargs)
    return out if result.shape == out.shape else func(*args, out=out, **kwargs)


@cache
def _plain_of(func: Any) -> Any:
    """Return the overload whose result this one writes to ``out``; None if there is none."""
    schema = getattr(func, "_schema", None)  # an operation of higher order has none
    if schema is None or [item.name for item in schema.arguments if item.is_out] != ["out"]:
        return None
    packet, inputs = func.overloadpacket, _inputs_of(func)
    others = (getattr(packet, name) for name in packet.overloads())
    return next((x for x in others if x is not func and _inputs_of(x) == inputs), None)


def _inputs_of(func: Any) -> list[tuple[str, str]]:
    """Return name and type of an operation's arguments, but for ``out``."""
    return [(item.name, str(item.type)) for item in func._schema.arguments if not item.is_out]


def result_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operation's result; for fake tensors also where torch has none."""
    plain = _plain_of(func)
    if plain is not None and _is_symbolic(*kwargs["out"].shape):
        return _write_to_out(plain, func, args, **kwargs)
    if func is aten._conj.default and isinstance(args[0], complex):
        conjugate = func(*args)
        torch._C._set_conj(conjugate, True)  # which fake tensors of numbers lack
        return conjugate
    stand_in = STAND_INS.get(name_of(func).removeprefix("aten."))
    if stand_in is not None and (isinstance(args[0], FakeTensor) or args[0].is_meta):
        return stand_in(*args, **kwargs)
    return func(*args, **kwargs)
