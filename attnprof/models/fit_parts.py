"""Bytes of a model's weights, caches and activations on one rank, and bytes that it sends.

They are sums over a model's layout (:mod:`attnprof.models.fit_layout`), in the formats and pages of
engines. Activations of training are sums over the tensors that a layer keeps for its backward pass,
in half precision, after Korthikanti et al. (arXiv 2205.05198, equation 1: s·b·h·(34 + 5·a·s/h) for
a layer with dropout), here for the layers that a model has, with dropout if its configuration has
some.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil

from attnprof.errors import RequestError
from attnprof.models import fit_formats
from attnprof.models.conventions import MATRICES
from attnprof.models.fit_formats import ENTRY_BYTES
from attnprof.models.fit_layout import FitModel, LayerCache
from attnprof.models.fit_options import FitOptions, TrainingOptions

#: Bytes of an entry of activations, and of a logit; of a state and of a convolution's tail.
HALF, SINGLE = 2, 4
#: Roles of weights that every rank of tensor parallelism holds whole.
_ON_EVERY_RANK = ("norm", "latent norm", "router", "shared gate", "vector", "indexer")


# -- weights -------------------------------------------------------------------------------


def weight_format(model: FitModel, options: FitOptions) -> tuple[str, Fraction, str]:
    """Return the format of matrices, its bytes an entry, and the source of that choice."""
    if options.dtype is not None:
        name = fit_formats.format_named(options.dtype, "--dtype", fit_formats.WEIGHTS)
        return name, ENTRY_BYTES[name], "--dtype"
    entries = Counter[fit_formats.StoredFormat]()
    for by_format in model.stored.values():
        entries.update({one: number for one, number in by_format.items() if one})
    if entries:
        [(most, _)] = entries.most_common(1)
        return most.name, most.entry, "quantization_config of the file"
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
    by_role, numbers = entries_of_rank(model, options), defaultdict[Fraction, Fraction](Fraction)
    for role, number in by_role.items():
        by_format = model.stored.get(role) if options.dtype is None else None
        if not by_format:
            numbers[_entry_bytes(role, name, entry)] += number
            continue
        for stored, of_role in by_format.items():
            each = stored.entry if stored else Fraction(HALF)
            numbers[each] += number * Fraction(of_role, by_format.total())
    for tensor, finer, in_layers in fit_formats.MIXTURES.get(name, ()):
        layers = Fraction(in_layers(model.layers), model.layers)
        moved = layers * sum(
            by_role[role] * Fraction(entries, model.sizes.entries(role))
            for role, entries in model.finer[tensor].items() if role in by_role
        )  # fmt: skip
        numbers[entry] -= moved
        numbers[ENTRY_BYTES[finer]] += moved
    return {each: number for each, number in numbers.items() if number}


def entries_of_rank(model: FitModel, options: FitOptions) -> dict[str, Fraction]:
    """Return the parameters of the fullest rank by role.

    Latent projections are whole on every rank, and a rank has one head of keys and values at least.
    """
    by_role = {
        role: Fraction(weights.entries, ranks_of(role, options))
        for role, weights in model.sizes.weights.items()
    }
    t, e, hidden = options.tensor_parallel, options.expert_parallel, model.sizes.hidden
    if "expert" in by_role:  # whole experts: the fullest rank has one more than others
        by_role["expert"] *= Fraction(-(-model.experts // e) * e, model.experts)
    if "attention" in by_role and t > 1:
        by_role["attention"] += model.latent_weights * Fraction(t - 1, t)
        by_role["attention"] += sum(
            one.layers * (1 - Fraction(one.kv_heads, t)) * (one.key_dim + one.value_dim) * hidden
            for one in model.sizes.attention if one.kv_heads < t
        )  # fmt: skip
    by_role = {role: x * stage_share(role, model, options) for role, x in by_role.items()}
    return by_role | ({"idle": Fraction(model.idle, t)} if model.idle else {})


def trained_entries(model: FitModel, options: FitOptions) -> Fraction:
    """Return the parameters of the fullest rank that a step over text changes."""
    by_role = entries_of_rank(model, options)
    return sum(by_role.values(), Fraction(0)) - by_role.get("idle", 0)


def layer_share(
    model: FitModel, options: FitOptions, kind: str | LayerCache | None = None
) -> Fraction:
    """Return the share of all layers that the fullest stage of the pipeline has.

    Of a role's weights or a cache that not all layers have, that of the stage with most of it.
    """
    counts = model.by_layer.get(kind) if kind is not None else None
    if not counts:
        return Fraction(-(-model.layers // options.pipeline), model.layers or 1)
    size, stages = -(-max(model.layers, 1 + max(counts)) // options.pipeline), Counter[int]()
    for number, count in counts.items():
        stages[number // size] += count
    return Fraction(max(stages.values()), counts.total())


def stage_share(role: str, model: FitModel, options: FitOptions) -> Fraction:
    """Return the share of a role's weights that the fullest stage of the pipeline has.

    The first stage has the embedding and the last one the head, so the fullest has the larger.
    """
    if options.pipeline == 1:
        return Fraction(1)
    if role not in ("embedding", "head"):
        return layer_share(model, options, role)
    larger = max(("embedding", "head"), key=model.sizes.entries)
    return Fraction(role == larger)


def weight_formula(model: FitModel, options: FitOptions) -> str:
    """Return the bytes of a rank's weights as text: entries by the bytes of each."""
    terms = sorted(entries_by_bytes(model, options).items())
    return " + ".join(str(number) if each == 1 else f"{each}*{number}" for each, number in terms)


def ranks_of(role: str, options: FitOptions) -> int:
    """Return the number of ranks that divide the weights of a role among them.

    Experts are divided among the ranks of tensor parallelism as well. With more expert than tensor
    parallelism, ranks have different experts; with less, several ranks share each expert's
    matrices.
    """
    if role == "expert":
        return max(options.tensor_parallel, options.expert_parallel)
    return 1 if role in _ON_EVERY_RANK else options.tensor_parallel


def _entry_bytes(role: str, name: str, entry: Fraction) -> Fraction:
    """Return the bytes of an entry of a role, if matrices in layers are in the format ``name``."""
    if entry >= HALF or role == "idle":
        return max(entry, Fraction(HALF))
    matrix = role in MATRICES and role not in ("router", "shared gate", "head", "indexer")
    if name == "mxfp4":
        matrix = role == "expert"
    if name == "mxfp4_moe" and role == "expert":
        return ENTRY_BYTES["mxfp4"]
    if name in fit_formats.GGUF:
        head = max(entry, ENTRY_BYTES["q6_k"]) if role == "head" else entry
        return head if matrix or role in ("embedding", "head") else Fraction(SINGLE)
    return entry if matrix else Fraction(HALF)


# -- cache ---------------------------------------------------------------------------------


def row_bytes(one: LayerCache, options: FitOptions) -> Fraction:
    """Return the bytes that one layer keeps of a token on one rank."""
    return sum(row_parts(one, options), Fraction(0))


def row_parts(one: LayerCache, options: FitOptions) -> tuple[Fraction, Fraction]:
    """Return the bytes of a token's keys and values, and of what no window limits, on one rank.

    Latent rows in ``fp8_ds_mla``, as of sparse attention in fp8: numbers of a byte with a scale for
    each 128, the rotary part in half precision. An indexer's key beside a latent row has numbers of
    a byte and one scale in every format (vLLM, SGLang).
    """
    name, of_values = options.cache_formats()
    heads = -(-one.heads // options.tensor_parallel) if one.heads else 0
    row = heads * (one.key_dim * ENTRY_BYTES[name] + one.value_dim * ENTRY_BYTES[of_values])
    sparse = bool(one.latent and one.index)
    if name == "fp8_ds_mla" or (sparse and name == "fp8"):
        row = one.key_dim * (1 + Fraction(SINGLE, 128)) + one.value_dim * Fraction(HALF)
    return row, Fraction(one.index + SINGLE if sparse else one.index * ENTRY_BYTES[name])


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
    one = max(states, key=lambda x: state_bytes(x, options))
    tail = one.tail + drafts * (one.tail // max(one.taps, 1))
    state = -(-one.state // t) * state_entry + -(-tail // t) * HALF
    row = max(rows)
    block = alignment * ceil(Fraction(state) / (alignment * row))
    return block, block * row / state - 1


def page_tokens(model: FitModel, options: FitOptions) -> int:
    """Return the tokens of a cache page: a block; in hybrids enough blocks to hold a state.

    Blocks of one token mean no pages: each layer then has the memory that it needs (llama.cpp,
    SGLang).
    """
    kinds = any(x.heads for x in model.caches), any(map(_has_state, model.caches))
    if options.block_size == 1 or not all(kinds):
        return options.block_size
    return aligned_block(model, options, alignment=options.block_size)[0]


def _kept(model: FitModel, options: FitOptions) -> Iterator[tuple[Fraction, int, Fraction]]:
    """Yield the bytes of a token's rows, their window, the bytes of states, for kinds of layers.

    If states are in pages (:func:`page_tokens`), layers form groups of as many layers as the rarer
    kind has. Groups share page numbers, and the last group may have empty places.
    """
    tokens = page_tokens(model, options)
    page = tokens * max(row_bytes(x, options) for x in model.caches)
    rows, states = (
        sum(x.layers for x in model.caches if of(x)) for of in (lambda x: x.heads, _has_state)
    )
    group = max(1, min(rows, states))
    for one in model.caches:
        share = layer_share(model, options, replace(one, layers=1))
        size = one.layers * Fraction(state_bytes(one, options))
        if rows and _has_state(one) and options.block_size > 1:
            size = -(-one.layers // group) * group * page
        size += one.layers * one.rest * Fraction(HALF)
        window, (row, index) = 0 if options.uncapped else one.window, row_parts(one, options)
        yield share * one.layers * (row if window else row + index), window, share * size
        if window and index:
            yield share * one.layers * index, 0, Fraction(0)


def _has_state(one: LayerCache) -> bool:
    return bool(one.state or one.tail)


def cache_bytes(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes of one sequence's cache on the fullest rank, in whole pages."""
    page, total = page_tokens(model, options), Fraction(0)
    rank_tokens = -(-tokens // options.context_parallel)
    for row, window, state in _kept(model, options):
        keys = min(rank_tokens, window) if window else rank_tokens
        total += -(-keys // page) * page * row + state
    return ceil(total)


def added_bytes(model: FitModel, options: FitOptions) -> int:
    """Return the bytes that one more token adds to a sequence's cache on one rank, on average.

    Pages aside; a window that is full adds nothing.
    """
    tokens = -(-options.seq_len // options.context_parallel)
    growing = (row for row, window, _ in _kept(model, options) if not window or tokens < window)
    return ceil(sum(growing, Fraction(0)) / options.context_parallel)


def cache_formula(model: FitModel, options: FitOptions) -> str:
    """Return the bytes of B sequences' caches after N tokens as text."""
    terms, page = [], page_tokens(model, options)
    n = "N" if options.context_parallel == 1 else f"ceiling(N/{options.context_parallel})"
    for row, window, state in _kept(model, options):
        keys = f"Min({n}, {window})" if window else n
        if row:
            terms.append(
                f"{page * row}*B*ceiling({keys}/{page})" if page > 1 else f"{row}*B*{keys}"
            )
        if state:
            terms.append(f"{state}*B")
    return " + ".join(terms)


# -- activations, and what is sent ---------------------------------------------------------


def activation_bytes(model: FitModel, options: FitOptions) -> tuple[int, str]:
    """Return the bytes of activations of a chunk of a prompt, and their formula in T tokens.

    A convention, not a measurement: the residual stream, the input and the result of a block, and
    gate, up and product of the widest feed-forward network, in half precision; logits of B tokens
    in float32 and half.
    """
    tokens = min(options.chunk, options.seq_len * options.batch_size)
    width = 4 * model.sizes.hidden + -(-model.widest // options.tensor_parallel)
    words = table_rows(model) * (SINGLE + HALF)
    formula = f"{HALF * width}*T + {words}*B"
    return HALF * width * tokens + words * options.batch_size, formula


def table_rows(model: FitModel) -> int:
    """Return the rows of the table that makes logits: the size of the vocabulary."""
    tables = model.sizes.entries("head") or model.sizes.entries("embedding")
    return tables // model.sizes.hidden if model.sizes.hidden else 0


def activation_bytes_per_token(model: FitModel, options: TrainingOptions, tokens: int) -> Fraction:
    """Return the bytes of activations that one token leaves in all layers of a rank.

    By ``recompute``: ``full`` keeps each layer's input. Otherwise a layer keeps the inputs of its
    two norms and of both blocks, queries, keys and values, the result of attention, and gate, up
    and product of the feed-forward network; ``none`` also the probabilities, a row of ``tokens``
    for every head. Dropout adds masks of one byte per entry: of both blocks' results, and of the
    probabilities, which are then kept before and after it.
    """
    hidden, t = model.sizes.hidden, options.tensor_parallel
    share, whole = layer_share(model, options), t if options.sequence_parallel else 1
    if options.recompute == "full":
        return share * model.layers * Fraction(HALF * hidden, whole)
    width = Fraction(model.layers * model.inner)
    for one in model.sizes.attention:
        rows = Fraction((one.heads + one.kv_heads) * (one.key_dim + one.value_dim))
        if options.recompute == "none":
            rows += one.heads * tokens * (Fraction(5, 2) if model.dropout else 1)
        width += one.layers * rows
    for mixer in model.sizes.mixers:
        width += mixer.layers * mixer.heads * 2 * (mixer.key_dim + mixer.value_dim)
    inputs = Fraction(model.layers * hidden * (4 * HALF + 2 * model.dropout), whole)
    return share * (inputs + HALF * width / t)


def sent_bytes(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes that a rank sends in a step of ``tokens`` tokens, in half precision.

    Tensor parallelism (t ranks): two all-reductions a layer by rings, 2 (t - 1)/t of a row each.
    Expert parallelism: an all-to-all to experts and back, among groups of ranks with other
    sequences. Pipeline: a row to the next stage. Context parallelism: results and their sums to all
    others.
    """
    row = HALF * model.sizes.hidden * tokens
    t, c = options.tensor_parallel, options.context_parallel
    groups = max(1, options.expert_parallel // t)
    layers = -(-model.layers // options.pipeline)
    total = layers * 2 * Fraction(2 * (t - 1), t) * row
    if "expert" in model.sizes.weights:
        chosen = model.chosen * ceil(model.expert_layers * layer_share(model, options))
        total += 2 * Fraction(groups - 1, groups) * row * chosen
    total += row if options.pipeline > 1 else 0
    heads = max((x.heads * (x.value_dim + 1) for x in model.sizes.attention), default=0)
    total += layers * (c - 1) * SINGLE * tokens * -(-heads // t)
    return ceil(total)
