"""Bytes of a model's weights and caches on one rank.

They are sums over what the model's own code has (:mod:`attnprof.models.mfu_sizes`) and keeps
(:mod:`attnprof.models.cache_layout`), in the formats and pages of engines.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import ceil
from os import PathLike
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.cache_layout import LayerCache, cache_layout
from attnprof.models.conventions import MATRICES, ModelSizes
from attnprof.models.hub import hub_subject
from attnprof.models.hub_config import configuration, text_config
from attnprof.models.mfu_sizes import subject_sizes
from attnprof.models.names import config_of
from attnprof.models.storage import (
    CACHES,
    ENTRY_BYTES,
    FINER,
    GGUF,
    MIXTURES,
    WEIGHTS,
    format_named,
    format_of_file,
)
from attnprof.models.text_run import text_run

#: Tokens of a prompt that an engine takes at once, if it is not told otherwise.
CHUNK = 8192
#: The share of a memory that engines use, if they are not told otherwise.
UTILIZATION = 0.9
#: Bytes of an entry of activations, and of a logit; of a state and of a convolution's tail.
HALF, SINGLE = 2, 4
#: The longest context that is asked for.
LONGEST = 2**50
#: Roles of weights that every rank of tensor parallelism holds whole.
_ON_EVERY_RANK = ("norm", "latent norm", "router", "shared gate", "vector", "indexer")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How a model is run: formats, pages, and how many ranks share what.

    ``memory`` is of one device, in bytes; ``utilization`` the share of it that is used. ``dtype``
    None is the format of the file, else bfloat16.
    """

    memory: int
    seq_len: int = 4096
    batch_size: int = 1
    dtype: str | None = None
    cache_dtype: str | None = None
    block_size: int = 16
    tensor_parallel: int = 1
    pipeline: int = 1
    expert_parallel: int = 1
    context_parallel: int = 1
    chunk: int = CHUNK
    utilization: float = UTILIZATION
    uncapped: bool = False

    def __post_init__(self) -> None:
        counts = ("seq_len", "batch_size", "block_size", "tensor_parallel", "pipeline",
                  "expert_parallel", "context_parallel", "chunk", "memory")  # fmt: skip
        for name in counts:
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= LONGEST:
                flag = name.removesuffix("_len").removesuffix("_size").replace("_", "-")
                raise RequestError(f"--{flag} {value}: give a whole number from 1 on")
        if not 0 < self.utilization <= 1:
            raise RequestError(f"--utilization {self.utilization}: give a share, like 0.9")
        if self.dtype is not None:
            format_named(self.dtype, "--dtype", WEIGHTS)
        self.cache_formats()

    @property
    def ranks(self) -> int:
        """The number of devices."""
        shared = max(self.tensor_parallel, self.expert_parallel)  # the same ones
        return shared * self.pipeline * self.context_parallel

    def cache_formats(self) -> tuple[str, str]:
        """Return the formats of keys and of values, which ``fp8,nvfp4`` names apart."""
        names = (self.cache_dtype or "bfloat16").split(",")[:2]
        first, *rest = (format_named(name, "--cache-dtype", CACHES) for name in names)
        return first, (rest or [first])[0]


@dataclass(frozen=True)
class FitModel:
    """A model as it is laid out: its sizes, and what layers keep.

    ``inner`` entries a token are made inside a layer's feed-forward network, on average: gate, up
    and product, or before and after the activation; of experts those that a token meets. ``finer``
    are the entries of tensors by their GGUF names; ``dropout``: its configuration has some.
    """

    sizes: ModelSizes
    caches: Sequence[LayerCache]
    fields: Mapping[str, Any]
    inner: int
    chosen: int
    experts: int = 1
    expert_layers: int = 0
    latent_weights: int = 0
    finer: Mapping[str, int] = field(default_factory=dict)
    dropout: bool = False
    source: str = ""

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.sizes.layers or sum(one.layers for one in self.caches)


def fit_model(config: str | PathLike[str] | Mapping[str, Any]) -> FitModel:
    """Return the layout of a model: a path, a name, or the fields of a ``config.json``."""
    known = config_of(config)
    name = config if isinstance(config, str) else "the configuration"
    subject = hub_subject(known, str(name).rpartition("/")[2] or str(name))
    whole = configuration(known, str(name))
    run = text_run(subject, use_cache=True)
    sizes = subject_sizes(subject, text_config(whole), run)
    if whole.is_encoder_decoder:
        note = "rows of its encoder's tokens are kept, too: as many as of its own"
        sizes = replace(sizes, notes=(*sizes.notes, note))
    weights = dict(run.model.named_parameters())
    entries = partial(_entries_of, weights)
    with_experts = {key.partition(".experts.")[0] for key in weights if ".experts." in key}
    met = sizes.active("mlp", "expert", "shared expert")
    inner = -(-met // (sizes.hidden * sizes.layers)) if sizes.hidden and sizes.layers else 0
    chosen = subject.chosen if subject.experts > 1 else 1
    rates = [rate for key, rate in whole.to_dict().items() if "drop" in key]
    return FitModel(
        sizes, cache_layout(run, subject.name), known, inner, chosen, subject.experts,
        len(with_experts), entries("_a_proj"),
        {name: entries(pattern) for name, (_, pattern) in FINER.items()},
        any(isinstance(rate, float) and rate > 0 for rate in rates), str(name),
    )  # fmt: skip


def _entries_of(weights: Mapping[str, Any], pattern: str) -> int:
    return sum(weight.numel() for name, weight in weights.items() if re.search(pattern, name))


def check_ranks(model: FitModel, options: FitOptions) -> None:
    """Raise :class:`RequestError` for ranks among which the model's layers or heads do not go."""
    if options.pipeline > model.layers:
        raise RequestError(
            f"--pipeline {options.pipeline}: {model.sizes.name} has {model.layers} layers"
        )
    heads = {one.heads for one in model.sizes.attention if one.heads > 1}
    if wrong := next((h for h in heads if h % options.tensor_parallel), 0):
        raise RequestError(
            f"--tensor-parallel {options.tensor_parallel} does not divide the {wrong} heads of "
            f"{model.sizes.name}"
        )
    t, e = options.tensor_parallel, options.expert_parallel
    if e > 1 and not 1 < model.experts >= e:
        have = f"{model.experts} experts" if model.experts > 1 else "no experts"
        raise RequestError(f"--expert-parallel {e}: {model.sizes.name} has {have}")
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


# -- weights -------------------------------------------------------------------------------


def weight_format(model: FitModel, options: FitOptions) -> tuple[str, Fraction, str]:
    """Return the format of matrices, its bytes an entry, and who says so."""
    if options.dtype is not None:
        name = format_named(options.dtype, "--dtype", WEIGHTS)
        return name, ENTRY_BYTES[name], "--dtype"
    if from_file := format_of_file(model.fields):
        return *from_file, "quantization_config of the file"
    return "bfloat16", ENTRY_BYTES["bfloat16"], "the default"


def weight_bytes(model: FitModel, options: FitOptions) -> int:
    """Return the bytes of weights of the fullest rank.

    Formats below 16 bits are of matrices in layers, MXFP4 of experts alone; tables, the head and
    routers stay in bfloat16, norms and biases too; in GGUF's, tables and the head are in blocks and
    the others in float32. Norms, routers and latent projections are on every rank.
    """
    return ceil(sum(each * number for each, number in entries_by_bytes(model, options).items()))


def entries_by_bytes(model: FitModel, options: FitOptions) -> dict[Fraction, Fraction]:
    """Return the parameters of the fullest rank by the bytes of each."""
    name, entry, _ = weight_format(model, options)
    held, numbers = entries_of_rank(model, options), defaultdict[Fraction, Fraction](Fraction)
    for role, number in held.items():
        numbers[_entry_bytes(role, name, entry)] += number
    for tensor, finer, in_layers in MIXTURES.get(name, ()):
        roles = FINER[tensor][0]
        share = Fraction(in_layers(model.layers), model.layers)
        share *= Fraction(model.finer[tensor], model.sizes.entries(*roles) or 1)
        moved = share * sum(held.get(role, 0) for role in roles)
        numbers[entry] -= moved
        numbers[ENTRY_BYTES[finer]] += moved
    return {each: number for each, number in numbers.items() if number}


def entries_of_rank(model: FitModel, options: FitOptions) -> dict[str, Fraction]:
    """Return the parameters of the fullest rank by role.

    Latent projections are whole on every rank, and a rank has one head of keys and values at least.
    """
    held = {
        role: Fraction(weights.entries, ranks_of(role, options))
        for role, weights in model.sizes.weights.items()
    }
    t, e, hidden = options.tensor_parallel, options.expert_parallel, model.sizes.hidden
    if "expert" in held:  # whole experts: the fullest rank has one more than others
        held["expert"] *= Fraction(-(-model.experts // e) * e, model.experts)
    if "attention" in held and t > 1:
        held["attention"] += model.latent_weights * Fraction(t - 1, t)
        held["attention"] += sum(
            one.layers * (1 - Fraction(one.kv_heads, t)) * (one.key_dim + one.value_dim) * hidden
            for one in model.sizes.attention if one.kv_heads < t
        )  # fmt: skip
    return {role: x * stage_share(role, model, options) for role, x in held.items()}


def layer_share(model: FitModel, options: FitOptions) -> Fraction:
    """Return the share of all layers that the fullest stage of the pipeline has."""
    return Fraction(-(-model.layers // options.pipeline), model.layers or 1)


def stage_share(role: str, model: FitModel, options: FitOptions) -> Fraction:
    """Return the share of a role's weights that the fullest stage of the pipeline has.

    The first stage has the embedding and the last one the head, so the fullest has the larger.
    """
    if options.pipeline == 1:
        return Fraction(1)
    if role not in ("embedding", "head"):
        return layer_share(model, options)
    larger = max(("embedding", "head"), key=model.sizes.entries)
    return Fraction(role == larger)


def weight_formula(model: FitModel, options: FitOptions) -> str:
    """Return the bytes of a rank's weights as text: entries by the bytes of each."""
    terms = sorted(entries_by_bytes(model, options).items())
    return " + ".join(str(number) if each == 1 else f"{each}*{number}" for each, number in terms)


def ranks_of(role: str, options: FitOptions) -> int:
    """Return among how many ranks a role's weights are divided.

    Experts are divided among the same ranks as all else: with more expert than tensor parallelism
    groups of ranks share them, with less the ranks of an expert share its matrices.
    """
    if role == "expert":
        return max(options.tensor_parallel, options.expert_parallel)
    return 1 if role in _ON_EVERY_RANK else options.tensor_parallel


def _entry_bytes(role: str, name: str, entry: Fraction) -> Fraction:
    """Return the bytes of an entry of a role, where matrices are in a format."""
    if entry >= HALF:
        return entry
    matrix = role in MATRICES and role not in ("router", "shared gate", "head", "indexer")
    if name == "mxfp4":
        matrix = role == "expert"
    if name == "mxfp4_moe" and role == "expert":
        return ENTRY_BYTES["mxfp4"]
    if name in GGUF:
        head = max(entry, ENTRY_BYTES["q6_k"]) if role == "head" else entry
        return head if matrix or role in ("embedding", "head") else Fraction(SINGLE)
    return entry if matrix else Fraction(HALF)


# -- cache ---------------------------------------------------------------------------------


def row_bytes(one: LayerCache, options: FitOptions) -> Fraction:
    """Return the bytes that one layer keeps of a token on one rank.

    Latent rows in ``fp8_ds_mla``, as of sparse attention in fp8: numbers of a byte with a scale for
    each 128, the rotary part in half precision; an indexer's key with one scale.
    """
    name, of_values = options.cache_formats()
    heads = -(-one.heads // options.tensor_parallel) if one.heads else 0
    row = heads * (one.key_dim * ENTRY_BYTES[name] + one.value_dim * ENTRY_BYTES[of_values])
    index = one.index * ENTRY_BYTES[name]
    if name == "fp8_ds_mla" or (one.index and name == "fp8"):
        row = one.key_dim * (1 + Fraction(SINGLE, 128)) + one.value_dim * Fraction(HALF)
        index = one.index + Fraction(SINGLE) if one.index else Fraction(0)
    return row + index


def state_bytes(one: LayerCache, options: FitOptions) -> int:
    """Return the bytes of one layer's state and convolution tail of a sequence, on one rank."""
    ranks = options.tensor_parallel
    return -(-one.state // ranks) * SINGLE + -(-one.tail // ranks) * HALF


def aligned_block(
    model: FitModel, options: FitOptions, *, alignment: int = 16, drafts: int = 0,
    state_entry: int = SINGLE,
) -> tuple[int, Fraction]:  # fmt: skip
    """Return the tokens of a block that is not below a state, and the share the state is padded by.

    Engines with one pool for all layers (vLLM) make an attention layer's page as large as the
    state of a recurrent one: a·ceil(state/(a·row)) tokens, with multiples of a = ``alignment``. The
    tail has a row more for each of the ``drafts`` that are decoded at once. Raises
    :class:`RequestError` for a model without both kinds of layers.
    """
    t = options.tensor_parallel
    states = [x for x in model.caches if _has_state(x)]
    rows = [row_bytes(x, options) for x in model.caches if x.heads]
    if not states or not rows:
        raise RequestError(f"{model.sizes.name} has no layers of both kinds, with states and rows")
    one = max(states, key=lambda x: x.state)
    tail = one.tail // max(one.taps, 1) * (one.taps + drafts)
    state = -(-one.state // t) * state_entry + -(-tail // t) * HALF
    row = max(rows)
    block = alignment * ceil(Fraction(state) / (alignment * row))
    return block, block * row / state - 1


def page_tokens(model: FitModel, options: FitOptions) -> int:
    """Return the tokens of a page: a block, of hybrids so many that it is not below a state.

    Blocks of one token are none: each layer then has what it needs (llama.cpp, SGLang).
    """
    kinds = any(x.heads for x in model.caches), any(map(_has_state, model.caches))
    if options.block_size == 1 or not all(kinds):
        return options.block_size
    return aligned_block(model, options, alignment=options.block_size)[0]


def _kept(model: FitModel, options: FitOptions) -> Iterator[tuple[Fraction, int, Fraction]]:
    """Yield of each kind of layers the bytes of a token's rows, their window, the bytes of states.

    Where states are in pages (:func:`page_tokens`), a group of layers has as many as there are of
    the rarer kind: groups share a page's number, and the last one may have empty places.
    """
    tokens, share = page_tokens(model, options), layer_share(model, options)
    page = tokens * max(row_bytes(x, options) for x in model.caches)
    rows, states = (
        sum(x.layers for x in model.caches if of(x)) for of in (lambda x: x.heads, _has_state)
    )
    group = max(1, min(rows, states))
    for one in model.caches:
        held = one.layers * Fraction(state_bytes(one, options))
        if rows and _has_state(one) and options.block_size > 1:
            held = -(-one.layers // group) * group * page
        window = 0 if options.uncapped else one.window
        yield share * one.layers * row_bytes(one, options), window, share * held


def _has_state(one: LayerCache) -> bool:
    return bool(one.state or one.tail)


def cache_bytes(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes of one sequence's cache on the fullest rank, in whole pages."""
    page, total = page_tokens(model, options), Fraction(0)
    here = -(-tokens // options.context_parallel)
    for row, window, state in _kept(model, options):
        seen = min(here, window) if window else here
        total += -(-seen // page) * page * row + state
    return ceil(total)


def cache_formula(model: FitModel, options: FitOptions) -> str:
    """Return the bytes of B sequences' caches after N tokens as text."""
    terms, page = [], page_tokens(model, options)
    n = "N" if options.context_parallel == 1 else f"ceiling(N/{options.context_parallel})"
    for row, window, state in _kept(model, options):
        seen = f"Min({n}, {window})" if window else n
        if row:
            terms.append(
                f"{page * row}*B*ceiling({seen}/{page})" if page > 1 else f"{row}*B*{seen}"
            )
        if state:
            terms.append(f"{state}*B")
    return " + ".join(terms)
