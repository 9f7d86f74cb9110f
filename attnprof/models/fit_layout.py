"""The sizes that decide a model's memory: weights, caches, division by ranks.

Sizes come from a run of the model's own code (:mod:`attnprof.models.mfu_sizes`). The cache of each
layer comes from a short prompt: a layer keeps keys and values of the tokens that it sees, one
latent row a token for all heads, or a state that does not grow. Tensors of other names are told
apart by two longer prompts: what grows by the token is rows, the rest a state. Entry points:
:func:`fit_model`, :func:`cache_layout`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import zip_longest
from math import ceil
from os import PathLike
from typing import Any

from attnprof.blocks.cache import tensors_within
from attnprof.errors import CannotRunError, RequestError
from attnprof.models.conventions import ModelSizes
from attnprof.models.fit_formats import FINER, StoredFormat, stored_entries
from attnprof.models.fit_options import FitOptions
from attnprof.models.hub_config import configuration, field_of, text_config
from attnprof.models.mfu_sizes import IDLE, further_layers, role_of, subject_sizes, together
from attnprof.models.names import config_of
from attnprof.models.parts import layers_of
from attnprof.models.sources import hub_subject
from attnprof.models.swap import Swap, notes_on
from attnprof.models.text_run import TextRun, run_without_values, text_run
from attnprof.models.whole import NoCacheError, WholeModel, cache_in, cache_parts


@dataclass(frozen=True)
class LayerCache:
    """The cache of one sequence in each of ``layers`` equal layers.

    Each token has ``heads`` keys and values, of ``key_dim`` and ``value_dim`` entries; ``latent``:
    one head that all queries share. ``window``: most tokens kept, 0 for all. ``index``: entries per
    token, on average, that no window limits: of an indexer's keys, or rows that stand for several
    tokens. Independent of tokens: a ``state`` of so many entries, the ``tail`` of a convolution,
    ``taps`` rows, one less than the convolution's kernel has, and the ``rest``, as of tokens that
    wait until a row stands for them, at its fullest.
    """

    layers: int = 0
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    latent: bool = False
    window: int = 0
    index: int | Fraction = 0
    state: int = 0
    tail: int = 0
    taps: int = 0
    rest: int = 0

    @property
    def kind(self) -> str:
        """The name of the layers: ``full``, ``sliding 128``, ``latent``, ``state``."""
        rows = f"sliding {self.window:,}" if self.window else "latent" if self.latent else "full"
        names = [rows] * bool(self.heads) + ["compressed"] * bool(self.window and self.index)
        names += ["state"] * bool(self.state or self.tail)
        return " + ".join(names) or "none"


#: What the layers of transformers' caches keep under names that say what it is.
_NAMED = ("keys", "values", "indexer_keys", "conv_states", "recurrent_states")
#: Tokens that are whole blocks for every layer that keeps one row for a block of tokens.
_BLOCKS = 256
#: What to type for a model whose cache is not laid out.
_ELSE = "type attnprof model for a pass over a prompt, or fit with --train"


def cache_layout(run: TextRun, subject: WholeModel) -> list[tuple[int, LayerCache]]:
    """Return the cache of each of a model's layers after a prompt, with the layer's number.

    A decoder's rows of its encoder's tokens are among them. Raises :class:`CannotRunError` for a
    model without a cache.
    """
    latent, most_heads = (
        field_of(text_config(run.model.config), name) for name in ("kv_lora_rank", "num_kv_heads")
    )
    ours = {one.number: _swapped_cache(one) for one in run.swapped.values()}
    layers = list(_layers(run.result, subject.name))
    caches = [
        _layer_cache(layer, latent, most_heads)
        if getattr(layer, "state", None) is None
        else ours[number]
        for number, layer, _ in layers
    ]
    if any(others for *_, others in layers):
        caches = list(map(_with_others, caches, *_entries_after_blocks(subject)))
    held = _held_states(run)
    pairs = [
        (number, replace(one, **held[number]) if one == LayerCache(1) else one)
        for (number, *_), one in zip(layers, caches, strict=True)
    ]
    if not (kept := [pair for pair in pairs if pair[1] != LayerCache(1)]):
        raise CannotRunError(
            f"{subject.name} keeps earlier tokens in a form that is not known, so what serving it "
            f"takes is not, either: {_ELSE}"
        )
    return kept


def _layers(result: Any, name: str) -> Iterator[tuple[int, Any, int]]:
    """Yield of each layer its number, its cache, and how many entries that holds without a name.

    Some caches keep a second list, of what only some of the layers have.
    """
    try:
        _, cache = cache_in(result, name)
    except NoCacheError as error:
        words = f"{name} gives no cache, so it is not served token by token"
        raise CannotRunError(f"{words}: {_ELSE}") from error
    for part in cache_parts(cache):
        if isinstance(part, tuple):  # a tensor of each layer, as XLNet's rows before its layers
            yield from ((number, None, rows.numel()) for number, rows in enumerate(part))
        lists = {key: x for key, x in getattr(part, "__dict__", {}).items() if isinstance(x, list)}
        layers = lists.pop("layers", [])
        for number, (layer, *more) in enumerate(zip_longest(layers, *lists.values())):
            fields = getattr(layer, "__dict__", {})
            others = [x for key, x in fields.items() if key not in _NAMED] + more
            tensors = () if "state" in fields else tensors_within(others)
            yield number, layer, sum(x.numel() for x in tensors if x.is_floating_point())


def _held_states(run: TextRun) -> dict[int, Any]:
    """Return the entries of states and tails that modules keep as attributes, by layer."""
    numbers = {path: number for number, path in enumerate(layers_of(run.places))}
    held = defaultdict[int, Any](Counter)
    for name, module in run.modules.items():
        place = run.places[name]
        for key, value in vars(module).items() if place.part == "attention" else ():
            if place.layer and getattr(value, "is_floating_point", bool)():
                field = "tail" if "conv" in key else "state"
                held[numbers[place.layer]][field] += value.numel()
    return held


def _entries_after_blocks(subject: WholeModel) -> Iterator[list[int]]:
    """Yield the layers' entries without a name after one block of tokens and two, less a token.

    Layers that keep a row for a block of tokens then keep most tokens that still wait for theirs.
    """
    for blocks in (1, 2):
        *_, result = run_without_values(subject, blocks * _BLOCKS - 1, use_cache=True)
        yield [others for *_, others in _layers(result, subject.name)]


def _with_others(one: LayerCache, early: int, late: int) -> LayerCache:
    """Return a layer's cache with entries that have no name: rows if they grow, else a state."""
    if late == early:
        return replace(one, state=one.state + early)
    row = Fraction(late - early, _BLOCKS)
    if not one.heads and late == row * (2 * _BLOCKS - 1):  # one row for every token
        return replace(one, heads=1, key_dim=int(row))
    return replace(one, index=one.index + row, rest=ceil(early - row * (_BLOCKS - 1)))


def _layer_cache(layer: Any, latent: int | None, most_heads: int | None) -> LayerCache:
    """Return the cache of one layer; ``latent`` is the width of latent rows.

    Falcon's code keeps keys repeated for each query head, engines keep them once: ``most_heads``.
    """
    fields: Any = getattr(layer, "__dict__", {})
    keys, values = (fields.get(name) for name in ("keys", "values"))
    heads, key_dim, value_dim = 0, 0, 0
    if getattr(keys, "ndim", 0) == 4:
        heads, key_dim, value_dim = keys.shape[1], keys.shape[-1], values.shape[-1]
        heads = min(heads, most_heads or heads)
        value_dim *= keys is not values  # some keys are the values, too
    index, tails = fields.get("indexer_keys"), list(_tensors(fields.get("conv_states")))
    return LayerCache(
        1, heads, key_dim, value_dim, latent=bool(latent) and heads == 1 and key_dim == latent,
        window=int(fields.get("sliding_window") or 0) if heads else 0,
        index=0 if index is None else index.shape[-1],
        state=sum(x.numel() for x in _tensors(fields.get("recurrent_states"))),
        tail=sum(x.numel() // x.shape[-1] * (x.shape[-1] - 1) for x in tails),
        taps=max((x.shape[-1] - 1 for x in tails), default=0),
    )  # fmt: skip


#: Tokens after which a mechanism's cache grows steadily; whole blocks of any size.
_LATE = 2**24


def _swapped_cache(one: Any) -> LayerCache:
    """Return the cache of a swapped mechanism; ``index``: row entries besides keys and values."""
    sizes = one.mechanism.sizes
    heads, widths = sizes.num_kv_heads, (sizes.head_dim, sizes.value_head_dim)
    (first, wide), (late, _), (later, _) = map(one.kept_entries, (1, _LATE, 2 * _LATE))
    row, both = Fraction(later - late, _LATE), heads * sum(widths)
    rest = late - int(row * _LATE)
    if row and row < both:  # latents, narrower than keys and values
        return LayerCache(1, 1, int(row), 0, latent=True, rest=rest)
    if row:
        return LayerCache(1, heads, *widths, index=row - both, rest=rest)
    if late > first:
        return LayerCache(1, heads, *widths, window=late // both)
    return LayerCache(1, state=wide, tail=late - wide)


def _tensors(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, dict) else [value]
    yield from (part for part in parts if hasattr(part, "numel"))


#: Projections to latents, and to rows for several tokens, that no rank has a part of.
_WHOLE_PROJECTIONS = r"\b(?!o_)\w+_a_proj|\.compressor\.\w+_proj"


@dataclass(frozen=True)
class FitModel:
    """A model's sizes and caches, as far as memory depends on them.

    ``inner``: entries per token inside a layer's feed-forward network, on average (gate, up and
    product, or before and after the activation; of the experts that a token is sent to).
    ``widest``: the same of the layer with most of them. ``finer``: entries of tensors by their GGUF
    names and by role. ``stored``: each role's entries by the formats that the file names.
    ``dropout``: whether the configuration has dropout. ``swapped``: whether some layers have
    mechanisms of ours. ``idle``: entries of weights that text does not run, as of vision.
    ``longest``: the most tokens that the configuration is for, 0 if it does not say. ``by_layer``:
    entries of a role in each layer, and whether a layer has a cache.
    """

    sizes: ModelSizes
    caches: Sequence[LayerCache]
    fields: Mapping[str, Any]
    inner: int
    chosen: int
    experts: int = 1
    expert_layers: int = 0
    latent_weights: int = 0
    finer: Mapping[str, Counter[str]] = field(default_factory=dict)
    stored: Mapping[str, Counter[StoredFormat | None]] = field(default_factory=dict)
    dropout: bool = False
    source: str = ""
    swapped: bool = False
    idle: int = 0
    longest: int = 0
    by_layer: Mapping[str | LayerCache, Counter[int]] = field(default_factory=dict)
    widest: int = 0

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.sizes.layers or sum(one.layers for one in self.caches)


def fit_model(
    config: str | PathLike[str] | Mapping[str, Any], swaps: Sequence[Swap] = (), tokens: int = 4096,
    *, served: bool = True,
) -> FitModel:  # fmt: skip
    """Return the layout of a model: a path, a name, or the fields of a ``config.json``.

    ``swaps`` put mechanisms of ours into some of its layers; one of a fixed length has ``tokens``.
    Without ``served`` it has no caches, as in training. Raises :class:`CannotRunError` for a model
    that is ``served`` and keeps none, or none that is known.
    """
    config_fields = config_of(config)
    name = config if isinstance(config, str) else "the configuration"
    title = " with ".join(filter(None, (str(name), ", ".join(swap.text for swap in swaps))))
    subject = hub_subject(config_fields, title.rpartition("/")[2] or title, None, swaps, tokens)
    if served and subject.no_step:
        raise CannotRunError(f"{subject.name} keeps no cache: {subject.no_step}")
    subject = replace(subject, notes=(*subject.notes, *notes_on(swaps)))
    whole = configuration(config_fields, str(name))
    run = text_run(subject, **({"use_cache": True} if served else {}))
    sizes = subject_sizes(subject, text_config(whole), run)
    notes = tuple(x.replace(IDLE, "held, though text does not run it") for x in sizes.notes)
    sizes = replace(sizes, mtp_layers=further_layers(config_fields), notes=notes)
    if served and whole.is_encoder_decoder:
        note = "rows of its encoder's tokens are kept, too: as many as of its own"
        sizes = replace(sizes, notes=(*sizes.notes, note))
    weights = dict(run.model.named_parameters())

    modules = {name: name.rpartition(".")[0] for name in weights}
    roles = {name: role_of(run, name, weight) for name, weight in weights.items()}
    stored = stored_entries(
        config_fields,
        (
            (module, type(run.modules[module]).__name__, roles[name], weights[name].numel())
            for name, module in modules.items() if roles[name]
        ),
    )  # fmt: skip
    latent = [weight for name, weight in weights.items() if re.search(_WHOLE_PROJECTIONS, name)]
    finer = {tensor: Counter[str]() for tensor in FINER}
    for tensor, (of_roles, pattern) in FINER.items():
        for parameter, role in roles.items():
            if role in of_roles and re.search(pattern, parameter):
                finer[tensor][role] += weights[parameter].numel()
    with_experts = {key.partition(".experts.")[0] for key in weights if ".experts." in key}
    met = sizes.active("mlp", "expert", "shared expert")
    inner = -(-met // (sizes.hidden * sizes.layers)) if sizes.hidden and sizes.layers else 0
    chosen = subject.chosen if subject.experts > 1 else 1
    rates = [rate for key, rate in whole.to_dict().items() if "drop" in key]
    caches = cache_layout(run, subject) if served else []
    by_layer, met_share = _by_layer(run, roles, caches), Fraction(subject.chosen, subject.experts)
    met_in = [
        by_layer["mlp"][n] + by_layer["shared expert"][n] + by_layer["expert"][n] * met_share
        for n in range(sizes.layers)
    ]
    widest = max(inner, ceil(max(met_in) / sizes.hidden)) if inner else 0
    return FitModel(
        sizes, together(cache for _, cache in caches), config_fields, inner, chosen,
        subject.experts, len(with_experts), sum(weight.numel() for weight in latent), finer, stored,
        any(isinstance(rate, float) and rate > 0 for rate in rates), str(name), bool(swaps),
        sum(weight.numel() for name, weight in weights.items() if not roles[name]), subject.longest,
        by_layer, widest,
    )  # fmt: skip


def _by_layer(
    run: TextRun, roles: Mapping[str, str], caches: Iterable[tuple[int, LayerCache]]
) -> dict[str | LayerCache, Counter[int]]:
    """Return the entries of each role in each layer, and the numbers of layers with each cache."""
    by_layer = defaultdict[str | LayerCache, Counter[int]](Counter)
    owners = {name: name.rpartition(".")[0] for name, role in roles.items() if role}
    layers = {name: run.places[owner].layer for name, owner in owners.items()}
    numbers = {path: n for n, path in enumerate(dict.fromkeys(filter(None, layers.values())))}
    for name, weight in run.model.named_parameters():
        if path := layers.get(name):
            by_layer[roles[name]][numbers[path]] += weight.numel()
    for number, cache in caches:
        by_layer[cache][number] += 1
    return by_layer


def check_ranks(model: FitModel, options: FitOptions) -> None:
    """Raise :class:`RequestError` for ranks that do not divide the model's layers or heads."""
    if options.pipeline > model.layers:
        raise RequestError(
            f"--pipeline {options.pipeline}: {model.sizes.name} has {model.layers} layers: "
            f"type at most --pipeline {model.layers}"
        )
    heads = {one.heads for one in model.sizes.attention if one.heads > 1}
    if wrong := next((h for h in heads if h % options.tensor_parallel), 0):
        raise RequestError(
            f"--tensor-parallel {options.tensor_parallel} does not divide the {wrong} heads of "
            f"{model.sizes.name}: type a number that does"
        )
    t, e = options.tensor_parallel, options.expert_parallel
    if e > 1 and not 1 < model.experts >= e:
        have = f"{model.experts} experts" if model.experts > 1 else "no experts"
        more = f"type at most {model.experts}" if model.experts > 1 else "leave it out"
        raise RequestError(f"--expert-parallel {e}: {model.sizes.name} has {have}: {more}")
    if max(t, e) % min(t, e):
        raise RequestError(
            f"--expert-parallel {e} and --tensor-parallel {t} are of the same ranks: type numbers "
            "of which one divides the other"
        )
    if options.cache_dtype == "fp8_ds_mla" and not any(one.latent for one in model.caches):
        raise RequestError(
            f"--cache-dtype fp8_ds_mla is of latent rows, which {model.sizes.name} does not have: "
            "type fp8"
        )
