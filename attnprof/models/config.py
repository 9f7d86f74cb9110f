"""The configuration of a model of ours (:class:`ModelConfig`), from Python, a table or TOML.

The models of the five documents are in ``presets.toml``, by name.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Self

from attnprof import registry
from attnprof.arguments import choice, name_text, number, parameter_value, shown, tensor_size
from attnprof.errors import NotFoundError, RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.record.files import read_toml

#: Fields with a choice of names.
_CHOICES = {
    "kind": ("encoder", "decoder", "encoder-decoder"), "norm": ("pre", "post"),
    "norm_type": ("layer", "rms"), "positions": ("none", "learned", "sinusoidal", "rotary"),
    "embedding": ("tokens", "patches", "cnn", "rows"), "activation": ("gelu", "relu", "swiglu"),
}  # fmt: skip

#: Layers in a model, at most, as they are built one by one.
MAX_LAYERS = 10_000


@dataclass(frozen=True)
class Attention:
    """A mechanism by name, with the parameters that are not its defaults."""

    name: str = "standard"
    params: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return a choice of mechanism, from a name or a table with a ``name`` and parameters."""
        if isinstance(value, cls):
            return value
        fields = dict(value) if isinstance(value, Mapping) else {"name": value}
        if "name" not in fields:
            raise RequestError(f"attention {shown(fields)} has no name: {{name = 'standard'}}")
        name = name_text(fields.pop("name"))
        usual, set_to = registry.get(name).params, registry.get(name, **fields).params
        return cls(name, tuple((n, v) for n, v in set_to.items() if v != usual[n]))

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism, as the registry has it."""
        return registry.get(self.name, **dict(self.params))

    def table(self) -> str | dict[str, Any]:
        """Return the text or table that :meth:`of` reads: a name, or a name with parameters."""
        return {"name": self.name, **dict(self.params)} if self.params else self.name


STANDARD = Attention()


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A transformer's configuration. Sizes are numbers, or symbols where formulas are derived.

    ``kind`` is encoder, decoder or encoder-decoder; a vision transformer is an encoder of patches.
    ``attention`` names mechanisms layer by layer, the last for all further layers;
    ``decoder_attention`` the mechanisms of a decoder after an encoder, by default the same.

    ``embedding`` is of ``tokens``, ``patches`` of an image, a ``cnn`` (three convolutions, over an
    image if ``image_size`` is given, else over tokens), or ``rows``: the input is (b, n, d_model)
    already. ``seq_len`` is the longest input, without the class token. An encoder gives
    ``num_classes`` numbers from the class token or the rows' mean, or rows if there are no classes;
    a decoder gives numbers for a vocabulary.

    ``norm`` is where sublayers are normalised, ``final_norm`` whether the last layer's rows are (by
    default if ``norm`` is ``pre``). ``hidden_dim`` is 4·d_model by default, ``head_hidden`` the
    width of the classifier's hidden layer. ``projections`` and ``shared_attention`` are for what
    document 003 prints: attention without maps, one module for all layers. ``causal`` concerns
    decoders.
    """

    kind: str = "decoder"
    d_model: int = 512
    num_heads: int = 8
    num_kv_heads: int | None = None
    num_layers: int = 6
    num_decoder_layers: int | None = None
    seq_len: int = 1024
    attention: tuple[Attention, ...] = (STANDARD,)
    decoder_attention: tuple[Attention, ...] | None = None
    cross_attention: Attention = STANDARD
    projections: bool = True
    shared_attention: bool = False
    causal: bool = True
    norm: str = "pre"
    norm_type: str = "layer"
    final_norm: bool | None = None
    hidden_dim: int | None = None
    activation: str = "gelu"
    mlp_bias: bool = True
    embedding: str = "tokens"
    vocab_size: int = 32_000
    image_size: int | None = None
    patch_size: int = 16
    image_channels: int = 3
    scale_embedding: bool = False
    positions: str = "learned"
    class_token: bool = False
    num_classes: int | None = None
    head_hidden: int | None = None
    head_bias: bool = True
    tied: bool = False
    dropout: float = 0.0
    embedding_dropout: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _checked(item, getattr(self, item.name)))
        if self.image_size is not None and self.image_size % self.patch_size:
            raise RequestError(
                f"patch_size={self.patch_size} does not divide image_size={self.image_size}"
            )
        for wrong, why in self._contradictions():
            if wrong:
                raise RequestError(f"{self.kind}: {why}")

    def _contradictions(self) -> Sequence[tuple[bool, str]]:
        encoder, classes = self.kind == "encoder", self.num_classes is not None
        picture, crosses = self.embedding in ("patches", "cnn"), self.kind == "encoder-decoder"
        second = self.num_decoder_layers or self.decoder_attention
        return (
            (self.image_size is not None and not picture, "image_size is of patches or a cnn"),
            (bool(second) and not crosses, "a second stack of layers is an encoder-decoder's"),
            (self.embedding == "patches" and self.image_size is None, "patches need image_size"),
            (picture and self.kind == "decoder", f"embedding={self.embedding} is an encoder's"),
            (classes and not encoder, "num_classes is an encoder's"),
            (self.class_token and not encoder, "class_token is an encoder's"),
            (self.head_hidden is not None and not classes, "head_hidden needs num_classes"),
            (self.tied and encoder, "tied is for a head over a vocabulary; an encoder has none"),
            (
                self.tied and self.kind == "decoder" and self.embedding == "rows",
                "tied needs an embedding of tokens",
            ),
            (len(self.attention) > self.num_layers, "attention names more than num_layers"),
            (
                len(self.decoder_attention or ()) > (self.num_decoder_layers or self.num_layers),
                "decoder_attention names more layers than the decoder has",
            ),
        )

    @property
    def tokens(self) -> int:
        """Rows that pass through the layers: patches or ``seq_len``, and a class token."""
        sides = self.image_size and self.image_size // self.patch_size
        return (self.seq_len if sides is None else sides * sides) + int(self.class_token)

    @property
    def hidden(self) -> int:
        """Width of the feed-forward network's hidden layer."""
        return 4 * self.d_model if self.hidden_dim is None else self.hidden_dim

    @property
    def mechanisms(self) -> tuple[list[Attention], list[Attention]]:
        """The mechanisms layer by layer: of one stack and [], or of encoder and decoder."""

        def each(attention: Sequence[Attention], layers: int) -> list[Attention]:
            return [attention[min(n, len(attention) - 1)] for n in range(layers)]

        first = each(self.attention, self.num_layers)
        if self.kind != "encoder-decoder":
            return first, []
        layers = self.num_decoder_layers or self.num_layers
        return first, each(self.decoder_attention or self.attention, layers)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return a configuration of names and values; RequestError for unknown names."""
        return cls(**{name: table[name] for name in map(_field_name, table)})

    def with_(self, **values: Any) -> Self:
        """Return the configuration with some fields changed."""
        return replace(self, **{name: values[name] for name in map(_field_name, values)})

    def table(self) -> dict[str, Any]:
        """Return names and values that are not the defaults, as TOML has them."""
        values = ((item.name, getattr(self, item.name), item.default) for item in fields(self))
        return {name: _plain(value) for name, value, default in values if value != default}

    def to_toml(self) -> str:
        """Return the text of a file for :func:`attnprof.models.load`."""
        return "".join(f"{name} = {_toml(value)}\n" for name, value in self.table().items())


def _field_name(name: str) -> str:
    names = [item.name for item in fields(ModelConfig)]
    if name not in names:
        raise RequestError(f"a model has no '{name}': {closest(name, names)}")
    return name


def _checked(item: Any, value: Any) -> Any:
    """Return a field's value, if it is one of the possible names, a size, or a mechanism."""
    if item.name == "cross_attention":
        return Attention.of(value)
    if item.name.endswith("attention") and item.name != "shared_attention":
        return _mechanisms(value)
    if item.name in _CHOICES:
        return choice(item.name, value, _CHOICES[item.name])
    if item.name.endswith("layers") and isinstance(value, int) and value > MAX_LAYERS:
        raise RequestError(
            f"{item.name} is {value:,}: at most {MAX_LAYERS:,} layers can be built; write fewer: "
            "formulas are in the number of layers L"
        )
    if "int" in str(item.type) and not isinstance(value, str | None):
        return tensor_size(item.name, value)
    checked = parameter_value(item, value)
    if "dropout" in item.name and not 0 <= number(item.name, checked) < 1:
        raise RequestError(f"{item.name} must be at least 0 and below 1, not {checked}")
    return checked


def _mechanisms(value: Any) -> tuple[Attention, ...] | None:
    if value is None:
        return None
    choices = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not choices:
        raise RequestError("attention is empty: name one mechanism or several")
    return tuple(map(Attention.of, choices))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [item.table() for item in value]
    return value.table() if isinstance(value, Attention) else value


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Preset:
    """A model of a document, with the table that prints its sizes; ``notes`` name other sources.

    Its name ends with that of the variant.
    """

    name: str
    variant: str
    document: str
    table: str
    notes: str
    config: ModelConfig


@cache
def presets() -> dict[str, Preset]:
    """Return all presets by name, in the documents' order: each family's models by variant."""
    by_name = dict[str, Preset]()
    for family in read_toml(Path(__file__).with_name("presets.toml"))["family"]:
        for model, sizes in family["models"].items():
            for variant, changed in family["variants"].items():
                tables = family["common"], sizes, changed  # later values replace earlier ones
                values = {name: value for table in tables for name, value in table.items()}
                about = {name: values.pop(name, "") for name in ("document", "table", "notes")}
                about["notes"] = "; ".join(table["notes"] for table in tables if "notes" in table)
                name, config = f"{model}-{variant}", ModelConfig.from_table(values)
                by_name[name] = Preset(name, variant, **about, config=config)
    return by_name


def preset(name: str) -> Preset:
    """Return a preset; :class:`NotFoundError` with similar names for an unknown one."""
    if name not in presets():
        near = get_close_matches(name, presets(), n=3, cutoff=0.5)
        variants = defaultdict[str, list[str]](list)  # 001-cifar10-{dot, neural-2}
        for one in presets().values():
            variants[one.name.removesuffix(f"-{one.variant}")].append(one.variant)
        every = (f"{model}-{{{', '.join(names)}}}" for model, names in variants.items())
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(every)}"
        raise NotFoundError(f"there is no preset, file or folder '{name}': {hint}")
    return presets()[name]


def load(source: str | Path) -> ModelConfig:
    """Return the configuration of a preset, or of a TOML file whose name ends in ``.toml``.

    A file holds fields of :class:`ModelConfig`; with ``preset = "001-lm-dot"`` it changes those of
    a preset. Raises :class:`RequestError` for other names.
    """
    if not str(source).endswith(".toml"):
        return preset(str(source)).config
    if not (table := read_toml(source)):
        raise RequestError(
            f"{source} is empty: write fields of a model, like num_layers = 12, or "
            'preset = "001-lm-dot"'
        )
    base = table.pop("preset", None)
    return ModelConfig.from_table(table) if base is None else preset(base).config.with_(**table)
