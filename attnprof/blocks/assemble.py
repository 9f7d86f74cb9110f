"""Build a mechanism as a module, or apply its core to q, k and v."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.arguments import shown, tensor_size
from attnprof.blocks.core import AttentionLayer, TextCore
from attnprof.errors import CannotRunError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.ops.layer import LayerSizes


def checked_sizes(
    spec: Mechanism,
    d_model: int,
    num_heads: int,
    seq_len: int | None,
    num_kv_heads: int | None = None,
    value_head_dim: int | None = None,
) -> LayerSizes:
    """The sizes of a module; :class:`RequestError` where they do not fit the mechanism."""
    d_model, num_heads = tensor_size("d_model", d_model), tensor_size("num_heads", num_heads)
    seq_len, num_kv_heads, value_head_dim = (
        None if value is None else tensor_size(name, value)
        for name, value in (
            ("seq_len", seq_len), ("num_kv_heads", num_kv_heads), ("value_head_dim", value_head_dim)
        )
    )  # fmt: skip
    if d_model % num_heads:
        divisors = (n for n in range(1, d_model + 1) if d_model % n == 0)
        near = min(divisors, key=lambda n: abs(n - num_heads))
        raise RequestError(
            f"num_heads={num_heads} does not divide d_model={d_model}: "
            f"heads must share the width evenly, for example {near} heads"
        )
    if spec.kv_heads is not None and num_kv_heads not in (None, spec.kv_heads):
        raise RequestError(
            f"{spec.name} has {spec.kv_heads} heads of keys and values, not {num_kv_heads}"
        )
    num_kv_heads = num_kv_heads or spec.kv_heads
    spec.refuse_unless(grouped_kv=num_kv_heads not in (None, num_heads, spec.kv_heads))
    if num_kv_heads is not None and num_heads % num_kv_heads:
        raise RequestError(f"num_kv_heads={num_kv_heads} does not divide num_heads={num_heads}")
    head_dim = d_model // num_heads
    spec.refuse_unless(value_width=value_head_dim not in (None, head_dim))
    if spec.abilities.needs_seq_len and seq_len is None:
        raise RequestError(f"{spec.name} is built for one length: give seq_len")
    return LayerSizes(
        num_heads, head_dim, num_kv_heads or num_heads, value_head_dim or head_dim, seq_len
    )


def build_layer(spec: Mechanism, module: Any, sizes: LayerSizes) -> nn.Module:
    """The layer of a mechanism from its folder's torch module (``LAYERS`` or ``CORES``)."""
    layers: dict[str, Any] = getattr(module, "LAYERS", {})
    try:
        if spec.name in layers:
            layer: nn.Module = layers[spec.name](spec, sizes)
            return layer
        return AttentionLayer(spec, module.CORES[spec.name](spec, sizes), sizes)
    except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
        if "size" not in str(error) and "memory" not in str(error):
            raise
        raise CannotRunError(f"{spec.name} of {sizes} does not fit in memory: {error}") from error


def attend_core(
    spec: Mechanism, module: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, seed: int,
    weights: dict[str, Tensor] | None,
) -> Tensor:  # fmt: skip
    """A mechanism's core on q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv)."""
    spec.refuse_unless(attend=True)
    _check_tensors({"q": q, "k": k, "v": v})
    if weights is not None and not isinstance(weights, dict):
        raise RequestError(f"weights must be a dict of tensors by name, not {shown(weights)}")
    if not all(x.dim() == 4 for x in (q, k, v)) or q.shape[-1] != k.shape[-1]:
        shapes = ", ".join(f"{n}={tuple(x.shape)}" for n, x in (("q", q), ("k", k), ("v", v)))
        raise RequestError(
            f"attend needs q, k, v of shape (batch, heads, tokens, head_dim); got {shapes}"
        )
    sizes = checked_sizes(
        spec, q.shape[1] * q.shape[3], q.shape[1], q.shape[2], k.shape[1], v.shape[-1]
    )
    if k.shape[2] != q.shape[2] and (causal or not spec.abilities.cross):
        reason = "causal needs as many keys as queries" if causal else spec.refusal("cross")
        raise RequestError(f"{spec.name}: {reason}")
    core = seeded_core(spec, module, sizes, seed).to(q.device, q.dtype)
    if weights:
        _load(core, weights)
    out: Tensor = core(q, k, v, causal)
    return out


def seeded_core(spec: Mechanism, module: Any, sizes: LayerSizes, seed: int) -> TextCore:
    """A mechanism's core with its weights drawn from a seed; torch's generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        core: TextCore = module.CORES[spec.name](spec, sizes)
    return core


def _check_tensors(values: Mapping[str, Any]) -> None:
    """Raises :class:`RequestError` for what is no tensor of floats."""
    for name, value in values.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise RequestError(f"{name} must be a tensor of floats, not {shown(value)}")


def _load(core: TextCore, weights: dict[str, Tensor]) -> None:
    known = {**dict(core.named_parameters()), **dict(core.named_buffers())}
    for name, value in weights.items():
        if name not in known:
            raise RequestError(
                f"no weight '{name}' in {core.spec.name}; possible: {', '.join(known) or 'none'}"
            )
        _check_tensors({f"weight '{name}'": value})
        parent, _, leaf = name.rpartition(".")
        owner = core.get_submodule(parent)
        delattr(owner, leaf)  # a plain tensor may carry its own gradient graph
        setattr(owner, leaf, value)
