"""One layer of a transformer: attention, optional cross-attention, and a feed-forward network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from attnprof.blocks.cache import positioned
from attnprof.blocks.core import AttentionLayer, TextCore, build_layer, checked_sizes
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.models.config import Attention, ModelConfig
from attnprof.models.embeddings import sinusoids
from attnprof.ops.layer import LayerSizes, merge_heads, split_heads
from attnprof.registry import module_of

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu, "relu": relu, "swiglu": silu}


class FeedForward(nn.Module):
    """d_model → hidden → d_model; SwiGLU multiplies the hidden values by those of a gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, hidden, bias = config.d_model, config.hidden, config.mlp_bias
        self.function = _FUNCTIONS[config.activation]
        gated = config.activation == "swiglu"
        self.gate = nn.Linear(width, hidden, bias=bias) if gated else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, d_model) → the same shape."""
        if self.gate is None:
            inner = self.function(self.up(x))
        else:
            inner = self.function(self.gate(x)) * self.up(x)
        y: Tensor = self.down(inner)
        return y


class RotaryAttention(AttentionLayer):
    """A mechanism whose queries and keys are turned by their place (Su et al. 2021)."""

    turns: Tensor

    def __init__(self, spec: Mechanism, core: TextCore, sizes: LayerSizes, tokens: int) -> None:
        super().__init__(spec, core, sizes)
        waves = sinusoids(tokens, sizes.head_dim)
        turns = torch.stack((waves[:, 1::2], waves[:, ::2]))  # cosines, sines
        self.register_buffer("turns", turns, persistent=False)
        self.first = 0  #: place of the input's first row

    def heads(self, letter: str, x: Tensor, *, decoding: bool = False, state: Any = None) -> Tensor:
        """Return the heads of q, k or v (``letter``); q and k turned by their place.

        The halves of a head are the two coordinates that turn.
        """
        heads: Tensor = super().heads(letter, x, decoding=decoding, state=state)
        if letter not in ("q", "k"):
            return heads
        cosine, sine = self.turns.narrow(1, self.first, heads.shape[2])
        a, b = heads.chunk(2, -1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)

    def step(self, x_t: Tensor, state: Any, place: int = 0) -> tuple[Tensor, Any]:
        """Return one token's result at its place, counted from 0, and the new state."""
        self.first = place
        try:
            return super().step(x_t, state)
        finally:
            self.first = 0


class BareAttention(nn.Module):
    """A mechanism's core on the rows themselves: no linear maps (as 003 prints it)."""

    def __init__(self, spec: Mechanism, core: TextCore, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec, self.core, self.sizes = spec, core, sizes

    def heads(self, letter: str, x: Tensor, *, decoding: bool = False, state: Any = None) -> Tensor:
        """Return columns of the rows as heads."""
        heads: Tensor = split_heads(x, self.sizes.num_heads, in_rows=self.spec.flat)
        return heads

    def forward(self, x: Tensor, causal: bool = False, context: Tensor | None = None) -> Tensor:
        """(b, n, d_model) → the same shape."""
        source = self.heads("k", x if context is None else context)
        merged: Tensor = merge_heads(self.core(self.heads("q", x), source, source, causal))
        return merged


def attention_layer(
    choice: Attention, config: ModelConfig, *, causal: bool = False, cross: bool = False
) -> nn.Module:
    """Return the attention of a layer; RequestError for what the mechanism cannot do."""
    spec, module = choice.mechanism, module_of(choice.name)
    spec.refuse_unless(causal=causal, cross=cross)
    kv_heads = None if spec.kv_heads is not None else config.num_kv_heads
    sizes = checked_sizes(spec, config.d_model, config.num_heads, config.tokens, kv_heads)
    rotary = config.positions == "rotary" and not cross
    if config.projections and not rotary:
        return build_layer(spec, module, sizes)
    if choice.name not in getattr(module, "CORES", {}):
        raise RequestError(f"{spec.name} {spec.refusal('attend')}")
    core = module.CORES[choice.name](spec, sizes)
    if not config.projections:
        return BareAttention(spec, core, sizes)
    _check_turns(spec, sizes)
    return RotaryAttention(spec, core, sizes, config.tokens)


def _check_turns(spec: Mechanism, sizes: LayerSizes) -> None:
    """Raise :class:`RequestError` without queries and keys of its own, or with odd heads."""
    if spec.shares_rows or type(spec).mixed is not Mechanism.mixed:
        reason = "values are its keys" if spec.shares_rows else "it mixes tokens before it projects"
        raise RequestError(f"{spec.name} has no rotary positions, {reason}: positions='learned'")
    if sizes.head_dim % 2:
        raise RequestError(f"rotary positions need an even head width, not {sizes.head_dim}")


def normalisation(config: ModelConfig) -> nn.Module:
    """Return a LayerNorm or RMSNorm over d_model."""
    return (nn.LayerNorm if config.norm_type == "layer" else nn.RMSNorm)(config.d_model)


class TransformerLayer(nn.Module):
    """A layer of sublayers with residual connections, each normalised before or after.

    ``attention`` is made by :func:`attention_layer`, so is ``cross``, if there is one.
    """

    attention: Any

    def __init__(
        self, config: ModelConfig, attention: nn.Module, cross: nn.Module | None, *, causal: bool
    ) -> None:
        super().__init__()
        self.pre, self.causal = config.norm == "pre", causal
        self.attention, self.cross, self.mlp = attention, cross, FeedForward(config)
        names = ("attention", "mlp") if cross is None else ("attention", "cross", "mlp")
        self.norms = nn.ModuleDict({name: normalisation(config) for name in names})
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """(b, n, d_model), and an encoder's (b, m, d_model) → (b, n, d_model)."""
        x = self._around("attention", x, lambda y: self.attention(y, causal=self.causal))
        if self.cross is not None:
            cross = self.cross
            x = self._around("cross", x, lambda y: cross(y, context=memory))
        return self._around("mlp", x, self.mlp)

    def _around(self, name: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        norm = self.norms[name]
        if self.pre:
            y: Tensor = x + self.dropout(sublayer(norm(x)))
        else:
            y = norm(x + self.dropout(sublayer(x)))
        return y

    def init_state(self, batch_size: int, memory: Tensor | None = None) -> list[Any]:
        """Return the attention's state, and the keys and values of ``memory``."""
        if isinstance(self.attention, BareAttention):
            raise RequestError("attention without projections has no step: set projections")
        known = None if self.cross is None else remembered(self.cross, memory)
        return [self.attention.init_state(batch_size), known]

    def advance(self, state: list[Any], batch_size: int, tokens: int) -> None:
        """Bring a fresh state to where it is after so many tokens with random rows."""
        like = self.mlp.up.weight

        def rows() -> tuple[Tensor]:
            return (like.new_empty(batch_size, 1, like.shape[1]).normal_(),)

        state[0] = positioned(self.attention, state[0], tokens, rows)

    def step(self, x: Tensor, state: list[Any], place: int) -> Tensor:
        """Return one token's result, (b, 1, d_model) → the same shape; the state moves on."""
        where = {"place": place} if isinstance(self.attention, RotaryAttention) else {}

        def attended(y: Tensor) -> Tensor:
            out: Tensor
            out, state[0] = self.attention.step(y, state[0], **where)
            return out

        x = self._around("attention", x, attended)
        if self.cross is not None:
            cross = self.cross
            x = self._around("cross", x, lambda y: recalled(cross, y, state[1]))
        return self._around("mlp", x, self.mlp)


def remembered(attention: Any, memory: Any) -> tuple[Any, Any]:
    """Return keys and values of an encoder's rows (b, m, d_model), made once for all tokens."""
    keys = attention.heads("k", memory)
    return keys, keys if attention.spec.shares_rows else attention.heads("v", memory)


def recalled(attention: Any, x: Tensor, memory: tuple[Any, Any]) -> Tensor:
    """Return attention of (b, n, d_model) to remembered keys and values."""
    merged: Tensor = merge_heads(attention.core(attention.heads("q", x), *memory))
    out: Tensor = attention.o_proj(merged)
    return out
