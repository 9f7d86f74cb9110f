"""Build torch modules from a mechanism's text: its core, and the layer around it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.arguments import shown, tensor_size
from attnprof.blocks.cache import Caches
from attnprof.errors import CannotRunError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.ops.layer import CoreText, LayerSizes, LayerText, OwnText, Weight


class TextCore(CoreText, nn.Module):
    """A mechanism's own text on torch tensors, with the parameters that it declares."""

    def __init__(self, spec: Any, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        for name, weight in spec.core_weights(sizes).items():
            self.add(name, weight)

    def add(self, name: str, weight: Weight | None) -> None:
        """Register a parameter, or a buffer that is drawn."""
        if weight and weight.drawn:
            self.register_buffer(name, drawn(weight))
        else:
            self.register_parameter(name, started(weight) if weight else None)

    def redraw(self, seed: int | None = None) -> None:
        """Draw the buffers that are drawn again: with a seed, or from torch's generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for name, weight in self.spec.core_weights(self.sizes).items():
            if weight and weight.drawn:
                getattr(self, name).copy_(drawn(weight, generator))

    def init_state(
        self, batch_size: int, like: Tensor, room: int | None = None, *, layer: bool = False
    ) -> Any:
        """Return a fresh decoding state; ``like`` tells number format and device.

        Caches that grow have ``room`` for so many tokens, by default the core's length.
        ``layer`` adds the state of the layer around the core.
        """
        room = self.sizes.seq_len if room is None else room
        make = self.spec.layer_state if layer else self.spec.init_state
        return make(self.sizes, Caches(batch_size, like, room))


def started(weight: Weight) -> nn.Parameter:
    """Return a parameter whose matrices are drawn one after the other."""
    if not isinstance(weight.start, str):
        return nn.Parameter(torch.full(weight.shape, weight.start))
    values = torch.empty(weight.shape)
    if weight.start == "uniform":
        return nn.Parameter(values.uniform_(-1 / weight.divisor, 1 / weight.divisor))
    draw = getattr(nn.init, f"{weight.start}_")
    for matrix in values if values.dim() > 2 else [values]:
        draw(matrix)
    return nn.Parameter(values / weight.divisor)


def drawn(weight: Weight, generator: torch.Generator | None = None) -> Tensor:
    """Return a buffer's random entries; of sizes that are torch's symbols without numbers."""
    if any(hasattr(size, "node") for size in weight.shape):
        return torch.empty(weight.shape)
    return _DRAWN[str(weight.start)](*weight.shape, generator)


def orthogonal_features(d: int, m: int, generator: torch.Generator | None) -> Tensor:
    """Return (d, m) columns like Gaussian ones times d^(-1/4), orthogonal within each block of d.

    Each block is a random rotation, its columns as long as Gaussian ones are (chi with d degrees;
    Choromanski et al. 2021, Section 2.4).
    """
    blocks = []
    for _ in range(-(-m // d)):
        gaussian = torch.randn(d, d, generator=generator, dtype=torch.float64)
        rotation, upper = torch.linalg.qr(gaussian)
        blocks.append((rotation * upper.diagonal().sign()).T)  # signs make it uniform (Haar)
    gaussian = torch.randn(m, d, generator=generator, dtype=torch.float64)
    rows = torch.cat(blocks)[:m] * gaussian.norm(dim=1, keepdim=True)
    scaled: Tensor = rows.to(torch.get_default_dtype()).T.contiguous() * d**-0.25
    return scaled


def gaussian_features(d: int, m: int, generator: torch.Generator | None) -> Tensor:
    """Return (d, m) Gaussian numbers over sqrt m."""
    return torch.randn(d, m, generator=generator) / math.sqrt(m)


def retention_decays(heads: int, _generator: torch.Generator | None) -> Tensor:
    """Return (heads,) logarithms of 1 - 2^(-5 - head), head from 0 (Sun et al. 2023, Eq 8)."""
    return torch.log1p(-(2.0 ** (-5.0 - torch.arange(heads))))


def slope_decays(heads: int, _generator: torch.Generator | None) -> Tensor:
    """Return (heads,) slopes -2^(-8 head / heads), head from 1 (Press et al. 2022, Section 3)."""
    return -(2.0 ** (-8.0 / heads * torch.arange(1, heads + 1)))


_RULES = (orthogonal_features, gaussian_features, retention_decays, slope_decays)
_DRAWN: dict[str, Callable[..., Tensor]] = {rule.__name__: rule for rule in _RULES}


class AttentionLayer(LayerText, nn.Module):
    """A mechanism as a layer: ``forward(x, causal=False, context=None)`` on (b, n, d_model).

    ``context`` (b, m, d_model) gives keys and values where the mechanism has cross-attention.
    ``init_state(batch_size)`` and ``step(x_t, state)`` decode one token at a time; x_t is
    (b, d_model) or (b, 1, d_model), and y_t comes back in the same shape.
    """

    #: The linear maps the mechanism has; the others are absent.
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear

    def __init__(self, spec: Any, core: TextCore, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        self.core = core
        _add_maps(self, spec.layer_maps(sizes))
        for name, weight in spec.layer_weights(sizes).items():
            self.register_parameter(name, weight and started(weight))

    def init_state(self, batch_size: int) -> Any:
        """Return a fresh decoding state for this many sequences."""
        return self.core.init_state(batch_size, next(self.parameters()), layer=True)

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Compute one token: (b, d_model) or (b, 1, d_model) → the same shape, the new state."""
        return _stepped(super().step, x_t, state)


class OwnLayer(OwnText, nn.Module):
    """A mechanism without queries, keys and values of its own: ``forward(x, causal=False)``."""

    def __init__(self, spec: Any, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        for name, weight in spec.core_weights(sizes).items():
            self.register_parameter(name, weight and started(weight))
        self.maps = spec.layer_maps(sizes)
        _add_maps(self, self.maps)

    def init_state(self, batch_size: int) -> Any:
        """Return empty caches."""
        caches = Caches(batch_size, next(self.parameters()), self.sizes.seq_len)
        return self.spec.init_state(self.sizes, caches)

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Compute one token: (b, d_model) or (b, 1, d_model) → the same shape, the new state."""
        return _stepped(super().step, x_t, state)


class HybridLayers(nn.Module):
    """A hybrid's layers, one after the other: ``forward(x, causal=False)``, and steps."""

    def __init__(self, spec: Any, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.spec = spec
        self.layers: Any = nn.ModuleList(layers)

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        """Return (b, n, d_model) → the same shape."""
        for layer in self._in_turn():
            x = layer(x, causal=causal)
        return x

    def _in_turn(self) -> Iterator[Any]:
        """Yield each layer; ``handed`` are the places picked by the layer before, if reused."""
        before: Any = None
        for layer in self.layers:
            layer.handed = before.handed if before and layer.spec.continues else None
            if before is not None:
                before.handed = None
            yield layer
            before = layer
        if before is not None:
            before.handed = None

    def init_state(self, batch_size: int) -> Any:
        """Return one state per layer."""
        return [layer.init_state(batch_size) for layer in self.layers]

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Compute one token: (b, d_model) or (b, 1, d_model) → the same shape, the new states."""
        for number, layer in enumerate(self._in_turn()):
            x_t, state[number] = layer.step(x_t, state[number])
        return x_t, state


def _add_maps(layer: Any, maps: dict[str, tuple[int, int]]) -> None:
    for name, (inner, outer) in maps.items():
        setattr(layer, name, nn.Linear(inner, outer, bias=layer.spec.bias))


def _stepped(step: Callable[..., Any], x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Apply a step of (b, 1, d_model) to a token in this shape or in (b, d_model)."""
    if x_t.dim() == 3:
        y, state = step(x_t, state)
        return y, state
    y, state = step(x_t.unsqueeze(1), state)
    return y.squeeze(1), state


def checked_sizes(
    spec: Mechanism, d_model: int, num_heads: int, seq_len: int | None,
    num_kv_heads: int | None = None, value_head_dim: int | None = None,
    head_dim: int | None = None,
) -> LayerSizes:  # fmt: skip
    """Return the sizes of a module; :class:`RequestError` where they do not fit the mechanism."""
    d_model, num_heads = tensor_size("d_model", d_model), tensor_size("num_heads", num_heads)
    seq_len, num_kv_heads, value_head_dim, head_dim = (
        None if value is None else tensor_size(name, value)
        for name, value in (
            ("seq_len", seq_len), ("num_kv_heads", num_kv_heads),
            ("value_head_dim", value_head_dim), ("head_dim", head_dim),
        )
    )  # fmt: skip
    free = head_dim is not None and head_dim * num_heads != d_model
    spec.refuse_unless(free_width=free)
    if head_dim is None and d_model % num_heads:
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
    head_dim = head_dim or d_model // num_heads
    spec.refuse_unless(value_width=value_head_dim not in (None, head_dim))
    if spec.abilities.needs_seq_len and seq_len is None:
        raise RequestError(f"{spec.name} is built for one length: give seq_len")
    return LayerSizes(
        num_heads, head_dim, num_kv_heads or num_heads, value_head_dim or head_dim, seq_len,
        d_model if free else None,
    )  # fmt: skip


def build_layer(spec: Mechanism, module: Any, sizes: LayerSizes) -> nn.Module:
    """Return the layer of a mechanism from its folder's torch module (``LAYERS`` or ``CORES``)."""
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
    """Compute a mechanism's core on q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv)."""
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
    """Return a core with weights drawn from a seed, without changing torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        core: TextCore = module.CORES[spec.name](spec, sizes)
    return core


def _check_tensors(values: Mapping[str, Any]) -> None:
    """Raise :class:`RequestError` unless all values are tensors of floats."""
    for name, value in values.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise RequestError(f"{name} must be a tensor of floats, not {shown(value)}")


def _load(core: TextCore, weights: dict[str, Tensor]) -> None:
    entries = {**dict(core.named_parameters()), **dict(core.named_buffers())}
    for name, value in weights.items():
        if name not in entries:
            raise RequestError(
                f"no weight '{name}' in {core.spec.name}; possible: {', '.join(entries) or 'none'}"
            )
        _check_tensors({f"weight '{name}'": value})
        parent, _, leaf = name.rpartition(".")
        owner = core.get_submodule(parent)
        delattr(owner, leaf)  # a plain tensor may carry its own gradient graph
        setattr(owner, leaf, value)
