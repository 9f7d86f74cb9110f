"""Bytes of a model's parts on one rank: weights, cache, activations, and what is sent.

They are sums over what the model's own code has (:mod:`attnprof.models.mfu_sizes`) and keeps
(:mod:`attnprof.models.cache_layout`), in the formats and pages of engines.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
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
from attnprof.models.storage import CACHES, ENTRY_BYTES, GGUF, WEIGHTS, format_named, format_of_file

#: Tokens of a prompt that an engine takes at once, if it is not told otherwise.
CHUNK = 8192
#: The share of a memory that engines use, if they are not told otherwise.
UTILIZATION = 0.9
#: Bytes of an entry of activations, and of a logit; of a state and of a convolution's tail.
_HALF, _SINGLE = 2, 4
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
        format_named(self.cache_dtype or "bfloat16", "--cache-dtype", CACHES)


@dataclass(frozen=True)
class FitModel:
    """A model as it is laid out: its sizes, and what layers keep.

    ``inner`` entries a token are made inside a layer's feed-forward network, on average: gate, up
    and product, or before and after the activation; of experts those that a token meets.
    """

    sizes: ModelSizes
    caches: Sequence[LayerCache]
    fields: Mapping[str, Any]
    inner: int
    chosen: int
    expert_layers: int = 0
    latent_weights: int = 0

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.sizes.layers or sum(one.layers for one in self.caches)


def fit_model(config: str | PathLike[str] | Mapping[str, Any]) -> FitModel:
    """Return the layout of a model: a path, a name, or the fields of a ``config.json``."""
    import torch

    known = config_of(config)
    name = config if isinstance(config, str) else "the configuration"
    subject = hub_subject(known, str(name).rpartition("/")[2] or str(name))
    whole = configuration(known, str(name))
    sizes = subject_sizes(subject, text_config(whole))
    if whole.is_encoder_decoder:
        note = "rows of its encoder's tokens are kept, too: as many as of its own"
        sizes = replace(sizes, notes=(*sizes.notes, note))
    with torch.device("meta"):
        weights = dict(subject.build().named_parameters())
    latent = sum(x.numel() for key, x in weights.items() if "_a_proj" in key)
    with_experts = {key.partition(".experts.")[0] for key in weights if ".experts." in key}
    met = sizes.active("mlp", "expert", "shared expert")
    inner = -(-met // (sizes.hidden * sizes.layers)) if sizes.hidden and sizes.layers else 0
    chosen = subject.chosen if subject.experts > 1 else 1
    return FitModel(sizes, cache_layout(subject), known, inner, chosen, len(with_experts), latent)


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
    name, entry, _ = weight_format(model, options)
    held = entries_of_rank(model, options)
    return ceil(sum(number * _entry_bytes(role, name, entry) for role, number in held.items()))


def entries_of_rank(model: FitModel, options: FitOptions) -> dict[str, Fraction]:
    """Return the parameters of the fullest rank by role.

    Latent projections are whole on every rank, and a rank has one head of keys and values at least.
    """
    held = {
        role: Fraction(weights.entries, ranks_of(role, options))
        for role, weights in model.sizes.weights.items()
    }
    t, hidden = options.tensor_parallel, model.sizes.hidden
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
    name, entry, _ = weight_format(model, options)
    by_bytes = defaultdict[Fraction, Fraction](Fraction)
    for role, number in entries_of_rank(model, options).items():
        by_bytes[_entry_bytes(role, name, entry)] += number
    terms = sorted((each, number) for each, number in by_bytes.items() if number)
    return " + ".join(str(number) if each == 1 else f"{each}*{number}" for each, number in terms)


def ranks_of(role: str, options: FitOptions) -> int:
    """Return among how many ranks a role's weights are divided."""
    if role == "expert" and options.expert_parallel > 1:
        return options.expert_parallel
    return 1 if role in _ON_EVERY_RANK else options.tensor_parallel


def _entry_bytes(role: str, name: str, entry: Fraction) -> Fraction:
    """Return the bytes of an entry of a role, where matrices are in a format."""
    if entry >= _HALF:
        return entry
    matrix = role in MATRICES and role not in ("router", "shared gate", "head", "indexer")
    if name == "mxfp4":
        matrix = role == "expert"
    if name in GGUF:
        return entry if matrix or role in ("embedding", "head") else Fraction(_SINGLE)
    return entry if matrix else Fraction(_HALF)


# -- cache ---------------------------------------------------------------------------------


def row_bytes(one: LayerCache, options: FitOptions) -> Fraction:
    """Return the bytes that one layer keeps of a token on one rank.

    Latent rows in ``fp8_ds_mla``, as of sparse attention in fp8: numbers of a byte with a scale for
    each 128, the rotary part in half precision; an indexer's key with one scale.
    """
    name = format_named(options.cache_dtype or "bfloat16", "--cache-dtype", CACHES)
    entry = ENTRY_BYTES[name]
    heads = -(-one.heads // options.tensor_parallel) if one.heads else 0
    row = heads * (one.key_dim + one.value_dim) * entry
    index = one.index * entry
    if name == "fp8_ds_mla" or (one.index and name == "fp8"):
        row = one.key_dim * (1 + Fraction(_SINGLE, 128)) + one.value_dim * Fraction(_HALF)
        index = one.index + Fraction(_SINGLE) if one.index else Fraction(0)
    return row + index


def state_bytes(one: LayerCache, options: FitOptions) -> int:
    """Return the bytes of one layer's state and convolution tail of a sequence, on one rank."""
    ranks = options.tensor_parallel
    return -(-one.state // ranks) * _SINGLE + -(-one.tail // ranks) * _HALF


def aligned_block(
    model: FitModel, options: FitOptions, *, alignment: int = 16, drafts: int = 0,
    state_entry: int = _SINGLE,
) -> tuple[int, Fraction]:  # fmt: skip
    """Return the tokens of a block that is not below a state, and the share the state is padded by.

    Engines with one pool for all layers (vLLM) make an attention layer's page as large as the
    state of a recurrent one: a·ceil(state/(a·row)) tokens, with multiples of a = ``alignment``. The
    tail has a row more for each of the ``drafts`` that are decoded at once. Raises
    :class:`RequestError` for a model without both kinds of layers.
    """
    t = options.tensor_parallel
    states = [x for x in model.caches if x.state or x.tail]
    rows = [row_bytes(x, options) for x in model.caches if x.heads]
    if not states or not rows:
        raise RequestError(f"{model.sizes.name} has no layers of both kinds, with states and rows")
    one = max(states, key=lambda x: x.state)
    tail = one.tail // max(one.taps, 1) * (one.taps + drafts)
    state = -(-one.state // t) * state_entry + -(-tail // t) * _HALF
    row = max(rows)
    block = alignment * ceil(Fraction(state) / (alignment * row))
    return block, block * row / state - 1


def cache_bytes(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes of one sequence's cache on the fullest rank, in whole blocks."""
    block, total = options.block_size, Fraction(0)
    here = -(-tokens // options.context_parallel)
    for one in model.caches:
        seen = min(here, one.window) if one.window and not options.uncapped else here
        layers = one.layers * layer_share(model, options)
        pages = -(-seen // block) * block if one.heads else 0
        total += layers * (pages * row_bytes(one, options) + state_bytes(one, options))
    return ceil(total)


def cache_formula(model: FitModel, options: FitOptions) -> str:
    """Return the bytes of B sequences' caches after N tokens as text."""
    terms, block = [], options.block_size
    for one in model.caches:
        count = one.layers * layer_share(model, options)
        row, state = count * row_bytes(one, options), count * state_bytes(one, options)
        n = "N" if options.context_parallel == 1 else f"ceiling(N/{options.context_parallel})"
        seen = f"Min({n}, {one.window})" if one.window and not options.uncapped else n
        if row:
            terms.append(f"{block * row}*B*ceiling({seen}/{block})" if block > 1
                         else f"{row}*B*{seen}")  # fmt: skip
        if state:
            terms.append(f"{state}*B")
    return " + ".join(terms)


# -- activations and what is sent ------------------------------------------------------------


def activation_bytes(model: FitModel, options: FitOptions) -> tuple[int, str]:
    """Return the bytes of activations of a chunk of a prompt, and their formula in T tokens.

    A convention, not a measurement: the residual stream, the input and the result of a block, and
    gate, up and product of the feed-forward network, in half precision; logits of B tokens in
    float32 and half.
    """
    tokens = min(options.chunk, options.seq_len * options.batch_size)
    width = 4 * model.sizes.hidden + -(-model.inner // options.tensor_parallel)
    words = _words(model) * (_SINGLE + _HALF)
    formula = f"{_HALF * width}*T + {words}*B"
    return _HALF * width * tokens + words * options.batch_size, formula


def _words(model: FitModel) -> int:
    tables = model.sizes.entries("head") or model.sizes.entries("embedding")
    return tables // model.sizes.hidden if model.sizes.hidden else 0


def sent_bytes(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes that a rank sends in a step of so many tokens, in half precision.

    Two all-reductions a layer by rings, 2 (t - 1)/t of a row each; an all-to-all to experts and
    back; a row to the next stage; with context parallelism, results and their sums to all others.
    """
    row = _HALF * model.sizes.hidden * tokens
    t, e, c = options.tensor_parallel, options.expert_parallel, options.context_parallel
    layers = -(-model.layers // options.pipeline)
    total = layers * 2 * Fraction(2 * (t - 1), t) * row
    if "expert" in model.sizes.weights:
        total += (
            2
            * Fraction(e - 1, e)
            * row
            * model.chosen
            * ceil(model.expert_layers * layer_share(model, options))
        )
    total += row if options.pipeline > 1 else 0
    heads = max((x.heads * (x.value_dim + 1) for x in model.sizes.attention), default=0)
    total += layers * (c - 1) * _SINGLE * tokens * -(-heads // t)
    return ceil(total)


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number that fits, if all smaller ones do; :data:`LONGEST` at most."""
    low, high = 0, 1
    while high < LONGEST and fits(high):
        low, high = high, 2 * high
    if high >= LONGEST:
        return LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
