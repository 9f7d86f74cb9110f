"""Encoders, decoders and encoder-decoders, made of embeddings and layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from attnprof.models.config import Attention, ModelConfig
from attnprof.models.embeddings import InputRows
from attnprof.models.layers import TransformerLayer, attention_layer, normalisation


@dataclass
class DecodingState:
    """The number of tokens so far, and the state of every layer of a stack."""

    stack: "Stack"
    batch_size: int
    layers: list[list[Any]]
    tokens: int = 0

    def advance(self, tokens: int) -> None:
        """Bring a fresh state to where it is after so many tokens with random rows."""
        for layer, known in zip(self.stack.layers, self.layers, strict=True):
            layer.advance(known, self.batch_size, tokens)
        self.tokens = tokens


class Stack(nn.Module):
    """An embedding, layers, and perhaps a last normalisation.

    ``attention`` names mechanisms as :class:`ModelConfig` does. ``shared`` are attention modules by
    their choice of mechanism: layers take them from there, and put new ones there.
    """

    layers: Any  #: a ModuleList of :class:`TransformerLayer`

    def __init__(
        self, config: ModelConfig, layers: int, attention: Sequence[Attention], *,
        causal: bool = False, cross: bool = False, shared: dict[Any, nn.Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        made = {} if shared is None else shared
        self.embedding = InputRows(config)
        self.layers = nn.ModuleList()
        for number in range(layers):
            choice = attention[min(number, len(attention) - 1)]
            if shared is None or choice not in made:
                made[choice] = attention_layer(choice, config, causal=causal)
            across = attention_layer(config.cross_attention, config, cross=True) if cross else None
            self.layers.append(TransformerLayer(config, made[choice], across, causal=causal))
        self.norm = normalisation(config) if config.ends_with_norm else None

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Input → (b, n, d_model)."""
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
        for layer, known in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, known, state.tokens)
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
        """(b, n, d_model) → (b, classes)."""
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


class Transformer(nn.Module):
    """An encoder, or a decoder of one input.

    ``forward`` takes tokens (b, n), images (b, channels, side, side) or rows (b, n, d_model), and
    gives (b, classes), (b, n, vocabulary) or, of an encoder without classes, (b, n, d_model).
    ``init_state(batch_size)`` and ``step(x_t, state)`` decode: tokens (b,) or (b, 1) → (b,
    vocabulary) or (b, 1, vocabulary), and the new state.
    """

    head: nn.Module | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        decodes = config.kind == "decoder"
        self.body = Stack(
            config, config.num_layers, config.attention, causal=decodes and config.causal,
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

    def step(self, x_t: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """One token; see the class."""
        return _step_with_head(self.body, self.head, x_t, state)


class EncoderDecoder(nn.Module):
    """An encoder, and a decoder whose layers attend to the encoder's rows.

    ``forward(source, target)`` gives (b, n, vocabulary) for a target (b, n).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        shared: dict[Any, nn.Module] | None = {} if config.shared_attention else None
        self.encoder = Stack(config, config.num_layers, config.attention, shared=shared)
        self.decoder = Stack(
            config.with_(embedding="tokens"), config.num_decoder_layers or config.num_layers,
            config.decoder_attention or config.attention,
            causal=config.causal, cross=True, shared=shared,
        )  # fmt: skip
        self.head = vocabulary_head(config, self.decoder.embedding)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        numbers: Tensor = self.head(self.decoder(target, self.encoder(source)))
        return numbers

    def init_state(self, source: Tensor) -> DecodingState:
        """Return the state before the target's first token: the encoder has run."""
        return self.decoder.init_state(source.shape[0], self.encoder(source))

    def step(self, x_t: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """One token (b,) or (b, 1) → (b, vocabulary) or (b, 1, vocabulary), and the new state."""
        return _step_with_head(self.decoder, self.head, x_t, state)


def _step_with_head(
    body: Stack, head: Any, x_t: Tensor, state: DecodingState
) -> tuple[Tensor, DecodingState]:
    """Return a head's numbers for one token, with an axis of tokens if it came with one."""
    alone = x_t.dim() == (1 if body.embedding.takes_tokens else 2)  # no axis of one token
    rows, state = body.step(x_t.unsqueeze(1) if alone else x_t, state)
    numbers: Tensor = head(rows)
    return numbers.squeeze(1) if alone else numbers, state
