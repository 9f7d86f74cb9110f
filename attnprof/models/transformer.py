"""Encoders, decoders and encoder-decoders, made of embeddings and layers.

A layer is attention, optional cross-attention, and a feed-forward network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from attnprof.blocks.cache import positioned
from attnprof.blocks.core import AttentionLayer, TextCore, build_layer, checked_sizes
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.models.config import Attention, ModelConfig
from attnprof.models.embeddings import InputRows, sinusoids
from attnprof.ops.layer import LayerSizes, merge_heads, split_heads
from attnprof.registry import module_of

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu, "relu": relu, "swiglu": silu}


class FeedForward(nn.Module):
    """A network d_model → hidden → d_model; SwiGLU multiplies the hidden values by a gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, hidden, bias = config.d_model, config.hidden, config.mlp_bias
        self.function = _FUNCTIONS[config.activation]
        gated = config.activation == "swiglu"
        self.gate = nn.Linear(width, hidden, bias=bias) if gated else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (b, n, d_model) → the same shape."""
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

    def forward(self, x: Tensor, causal: bool = False, context: Tensor | None = None) -> Tensor:
        """Return (b, n, d_model) → the same shape."""
        rows = (x, x if context is None else context)
        q, kv = (split_heads(y, self.sizes.num_heads, in_rows=self.spec.flat) for y in rows)
        merged: Tensor = merge_heads(self.core(q, kv, kv, causal))
        return merged


def attention_layer(
    choice: Attention, config: ModelConfig, *, causal: bool = False, cross: bool = False
) -> nn.Module:
    """Return the attention of a layer; RequestError if its mechanism cannot be used there."""
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
    """Raise :class:`RequestError` if a mechanism cannot turn its queries and keys by place."""
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
    cross: Any

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
        """Return (b, n, d_model), and an encoder's (b, m, d_model) → (b, n, d_model)."""
        x = self._around("attention", x, lambda y: self.attention(y, causal=self.causal))
        if self.cross is not None:
            x = self._around("cross", x, lambda y: self.cross(y, context=memory))
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
        heads = None
        if self.cross is not None:  # made once for all tokens
            keys = self.cross.heads("k", memory)
            heads = keys, keys if self.cross.spec.shares_rows else self.cross.heads("v", memory)
        return [self.attention.init_state(batch_size), heads]

    def advance(self, state: list[Any], batch_size: int, tokens: int) -> None:
        """Bring a fresh state to its size after so many tokens, with random rows."""
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
            x = self._around("cross", x, lambda y: attended_memory(self.cross, y, state[1]))
        return self._around("mlp", x, self.mlp)


def attended_memory(attention: Any, x: Tensor, memory: tuple[Any, Any]) -> Tensor:
    """Return cross-attention of (b, n, d_model) to the keys and values of an encoder's rows."""
    merged: Tensor = merge_heads(attention.core(attention.heads("q", x), *memory))
    out: Tensor = attention.o_proj(merged)
    return out


@dataclass
class DecodingState:
    """The number of tokens so far, and the state of every layer of a stack."""

    stack: "Stack"
    batch_size: int
    layers: list[list[Any]]
    tokens: int = 0

    def advance(self, tokens: int) -> None:
        """Bring a fresh state to its size after so many tokens, with random rows."""
        for layer, state in zip(self.stack.layers, self.layers, strict=True):
            layer.advance(state, self.batch_size, tokens)
        self.tokens = tokens


class Stack(nn.Module):
    """An embedding, layers, and perhaps a last normalisation.

    ``attention`` has a mechanism for each layer. ``shared``, if given, has attention modules by
    their mechanism: layers take their module from it, and add missing ones.
    """

    layers: Any  #: a ModuleList of :class:`TransformerLayer`

    def __init__(
        self, config: ModelConfig, attention: Sequence[Attention], *, causal: bool = False,
        cross: bool = False, shared: dict[Any, nn.Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        modules = {} if shared is None else shared
        self.embedding = InputRows(config)
        self.layers = nn.ModuleList()
        for choice in attention:
            if shared is None or choice not in modules:
                modules[choice] = attention_layer(choice, config, causal=causal)
            across = attention_layer(config.cross_attention, config, cross=True) if cross else None
            self.layers.append(TransformerLayer(config, modules[choice], across, causal=causal))
        ends = config.norm == "pre" if config.final_norm is None else config.final_norm
        self.norm = normalisation(config) if ends else None

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Return input → (b, n, d_model)."""
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, memory)
        return self._last(x)

    def _last(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    def init_state(self, batch_size: int, memory: Tensor | None = None) -> DecodingState:
        """Return the state before the first token."""
        fresh = [layer.init_state(batch_size, memory) for layer in self.layers]
        return DecodingState(self, batch_size, fresh)

    def step(self, x_t: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Return a token's row: (b, 1) or (b, 1, d_model) → (b, 1, d_model); the state moves on."""
        x = self.embedding.step(x_t, state.tokens)
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, layer_state, state.tokens)
        state.tokens += 1
        return self._last(x), state


class Classifier(nn.Module):
    """A head that gives classes from the first row or the rows' mean, perhaps by a hidden layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.first = config.d_model, config.class_token
        self.hidden = config.head_hidden and nn.Linear(width, config.head_hidden)
        self.function = relu if config.activation == "relu" else gelu
        self.out = nn.Linear(config.head_hidden or width, config.num_classes or 1,
                             bias=config.head_bias)  # fmt: skip

    def forward(self, rows: Tensor) -> Tensor:
        """Return (b, n, d_model) → (b, classes)."""
        x = rows[:, 0] if self.first else rows.mean(1)
        if self.hidden:
            x = self.function(self.hidden(x))
        classes: Tensor = self.out(x)
        return classes


def vocabulary_head(config: ModelConfig, embedding: InputRows) -> nn.Linear:
    """Return a linear map to the vocabulary; ``tied``: its weights are the embedding's."""
    head = nn.Linear(config.d_model, config.vocab_size, bias=config.head_bias)
    if config.tied:
        head.weight = embedding.rows.weight
    return head


class _Decoder(nn.Module):
    """A model that decodes token by token: the step of a stack, then a head."""

    head: Any

    def step(self, x_t: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Compute a token (b,) or (b, 1) → (b, vocabulary) or (b, 1, vocabulary), the new state."""
        alone = x_t.dim() == (1 if state.stack.embedding.takes_tokens else 2)  # no axis of tokens
        rows, state = state.stack.step(x_t.unsqueeze(1) if alone else x_t, state)
        numbers: Tensor = self.head(rows)
        return numbers.squeeze(1) if alone else numbers, state


class Transformer(_Decoder):
    """An encoder, or a decoder of one input.

    ``forward`` takes tokens (b, n), images (b, channels, side, side) or rows (b, n, d_model), and
    gives (b, classes), (b, n, vocabulary) or, of an encoder without classes, (b, n, d_model).
    ``init_state(batch_size)`` and ``step(x_t, state)`` decode: tokens (b,) or (b, 1) → (b,
    vocabulary) or (b, 1, vocabulary), and the new state.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        decodes = config.kind == "decoder"
        self.body = Stack(
            config, config.mechanisms[0], causal=decodes and config.causal,
            shared={} if config.shared_attention else None,
        )  # fmt: skip
        if decodes:
            self.head = vocabulary_head(config, self.body.embedding)
        else:
            self.head = None if config.num_classes is None else Classifier(config)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        rows: Tensor = self.body(x)
        return rows if self.head is None else self.head(rows)

    def init_state(self, batch_size: int) -> DecodingState:
        """Return the state before the first token."""
        return self.body.init_state(batch_size)


class EncoderDecoder(_Decoder):
    """An encoder, and a decoder whose layers attend to the encoder's rows.

    ``forward(source, target)`` gives (b, n, vocabulary) for a target (b, n).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        shared: dict[Any, nn.Module] | None = {} if config.shared_attention else None
        first, second = config.mechanisms
        self.encoder = Stack(config, first, shared=shared)
        self.decoder = Stack(
            config.with_(embedding="tokens"), second, causal=config.causal, cross=True,
            shared=shared,
        )  # fmt: skip
        self.head = vocabulary_head(config, self.decoder.embedding)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        numbers: Tensor = self.head(self.decoder(target, self.encoder(source)))
        return numbers

    def init_state(self, source: Tensor) -> DecodingState:
        """Return the state before the target's first token: the encoder has run."""
        return self.decoder.init_state(source.shape[0], self.encoder(source))
