"""Results of operations that fake tensors cannot run, or run with another layout than the CPU.

Shapes and strides are those of CPU kernels. Sources: torch's aten/src/ATen/native:
{layer_norm,Normalization,Loss,Activation,SoftMax,GroupedMMUtils}.cpp.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor

from attnprof.trace.rules import recurrent
from attnprof.trace.rules.table import name_of

aten = torch.ops.aten
StandIn = Callable[..., Any]


def _split_heads(qkv: Any, _bias: Any, heads: int) -> tuple[Any, ...]:
    """Return three (batch, heads, tokens, head width) without values, in one storage."""
    batch, tokens, width = qkv.shape
    made = qkv.new_empty(3, batch, heads, tokens, width // (3 * heads))
    return tuple(made.unbind(0))


def _reduced_loss(name: str, place: int) -> StandIn:
    """Return a loss whose sum stays in the storage of all losses, which lives as long."""
    func = getattr(aten, name).default

    def reduced(x: Any, *args: Any, **kwargs: Any) -> Any:
        given = {"reduction": args[place]} if len(args) > place else kwargs
        if given.get("reduction", 1) == 0:
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


def _resized(name: str) -> StandIn:
    """Return the gradient of a resized image; torch's own takes no symbolic sizes."""
    func = getattr(aten, name).default

    def gradient(grad: Any, size: Any, before: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_symbolic(*size, *before):
            return grad.new_empty(before)
        return func(grad, size, before, *args, **kwargs)

    return gradient


def _as_a_product(*args: Any, **_kwargs: Any) -> Any:
    """Return a result laid out as a product; torch's own chooses between two operands."""
    return aten.mul.Tensor(*(x for x in args if isinstance(x, torch.Tensor)))


def _in_rows(name: str, memory_format: Any = lambda _: torch.contiguous_format) -> StandIn:
    """Return an operation whose results are those of contiguous operands, as CPU kernels make them.

    Or of operands in the memory format that is chosen for each.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        tensors = (x if isinstance(x, torch.Tensor) else None for x in args)
        rows = (x if y is None else torch.empty_like(y, memory_format=memory_format(y))
                for x, y in zip(args, tensors, strict=True))  # fmt: skip
        return getattr(aten, name).default(*rows, **kwargs)

    return made


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


#: Results of operations that torch cannot run on fake tensors, or only with other storages:
#: shapes, no values.
STAND_INS: dict[str, StandIn] = {
    "native_batch_norm": _without_moments,
    **{
        name: _resized(name)
        for name in ("_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa_backward")
    },
    **{
        f"{name}_backward": _as_a_product
        for name in ("softplus", "elu", "hardtanh", "hardsigmoid", "hardswish", "logit")
    },
    "embedding": _embedding,
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
    made = plain(*args, **kwargs)
    return out if made.shape == out.shape else func(*args, out=out, **kwargs)


@cache
def _plain_of(func: Any) -> Any:
    """Return the overload that returns what this one writes to ``out``; None if there is none."""
    schema = getattr(func, "_schema", None)  # an operation of higher order has none
    if schema is None or [item.name for item in schema.arguments if item.is_out] != ["out"]:
        return None
    packet = func.overloadpacket
    others = (getattr(packet, name) for name in packet.overloads())
    others = (other for other in others if other is not func)
    return next((other for other in others if _inputs_of(other) == _inputs_of(func)), None)


def _inputs_of(func: Any) -> list[tuple[str, str]]:
    """Return the arguments of an operation, by name and type, without those it writes to."""
    return [(item.name, str(item.type)) for item in func._schema.arguments if not item.is_out]


def result_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operation's result; for fake tensors also where torch has none."""
    plain = _plain_of(func)
    if plain is not None and _is_symbolic(*kwargs["out"].shape):
        return _write_to_out(plain, func, args, **kwargs)
    stand_in = STAND_INS.get(name_of(func).removeprefix("aten."))
    if stand_in is not None and (isinstance(args[0], FakeTensor) or args[0].is_meta):
        return stand_in(*args, **kwargs)
    return func(*args, **kwargs)
