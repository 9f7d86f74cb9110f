"""The numbers of a model that conventions for MFU need, from its own code.

The model is built without values and runs once over a few tokens (:mod:`attnprof.models.text_run`).
The run shows how many rows each module multiplies. The attention registry gets the shapes of
attention; a layer that does not ask the registry is counted as it runs. The sizes of a recurrent
layer's state are attributes of its module. A token meets as many experts as the configuration says.
Entry point: :func:`sizes_of`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from os import PathLike
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.conventions import (
    CAUSAL,
    FULL,
    MATRICES,
    AttentionShape,
    Mask,
    MixerShape,
    ModelSizes,
    RoleWeights,
)
from attnprof.models.hub_config import LAYERS, configuration, field_of, first_number, text_config
from attnprof.models.names import named
from attnprof.models.parts import above, is_recurrent, layers_of
from attnprof.models.sources import hub_subject
from attnprof.models.text_run import TOKENS, TextRun, counted_products, text_run
from attnprof.models.whole import WholeModel
from attnprof.units import plural

#: The start of a note on modules that have no part in the counts.
IDLE = "not counted, since text alone does not run it"
_EXPERTS = re.compile(r"(?:^|[._])experts?(?:\.|$)")
_SHARED = re.compile(r"shared_?(expert|mlp)|residual_mlp")
_ROUTER = re.compile(r"router|^gate$|^wg$|classifier")
_VECTORS = re.compile(r"A_log|^[AD]$|dt_bias|position|token|scale|query|memory|sinks|slope|lambda")
#: Fields of a config.json for layers that predict further tokens. Types' defaults for them do not
#: count: they also name further layers for models released without any.
_FURTHER = (
    "num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers",
    "num_mtp_modules",
)  # fmt: skip


def sizes_of(model: str | PathLike[str] | Mapping[str, Any]) -> ModelSizes:
    """Return the sizes of a model: a path, a name, or the fields of a ``config.json``.

    Raises :class:`RequestError` if it is no model of tokens, and :class:`CannotRunError` without
    transformers or if the model does not run without values.
    """
    named_model = named(model)
    fields, name = named_model.fields, named_model.name
    subject, config = hub_subject(fields, name), configuration(fields, name)
    subject = replace(subject, notes=(*named_model.notes, *subject.notes))
    sizes = subject_sizes(subject, text_config(config))
    return replace(sizes, images=image_shape(config), mtp_layers=further_layers(fields))


def further_layers(fields: Mapping[str, Any]) -> int:
    """Return how many layers that predict further tokens a ``config.json`` names."""
    text = fields.get("text_config")
    text = text if isinstance(text, Mapping) else {}
    further = [fields.get(name) or text.get(name) for name in _FURTHER]
    return next((int(x) for x in further if isinstance(x, int)), 0)


def subject_sizes(subject: WholeModel, config: Any, run: TextRun | None = None) -> ModelSizes:
    """Return the sizes of a model; ``config`` is the part of its configuration about text.

    ``run`` is its run over a few tokens, if it was made already.
    """
    if fixed := [name for name in subject.inputs if name not in ("input_ids", "decoder_input_ids")]:
        raise RequestError(
            f"{subject.name} takes {', '.join(fixed)}: FLOPs a token and fit are of models of "
            "tokens; type attnprof model for a pass over it"
        )
    run = run or text_run(subject)
    hidden = first_number(config, ("hidden_size", "d_model", "n_embd"))
    layers = first_number(config, LAYERS)
    weights, left_out = _weights(run, subject)
    attention, notes = with_unrecorded(run, subject, attention_shapes(run))
    mixers = together(filter(None, (mixer_of(run.modules[name]) for name in sorted(run.active))))
    if not attention and not mixers and not run.swapped:
        notes = (*notes, "what its layers do between tokens is not known: products alone count")
    if left_out:
        modules = ", ".join(f"{name} ({number:,} parameters)" for name, number in left_out.items())
        notes = (*notes, f"{IDLE}: {modules}")
    sizes = ModelSizes(
        name=subject.name, hidden=hidden, weights=weights, attention=attention, mixers=mixers,
        layers=layers, tied=run.tied, mtp_matrices=_last_layer(run, subject),
        usual_length=subject.usual_length, notes=(*subject.notes, *notes),
    )  # fmt: skip
    return replace(sizes, symbols=_symbols(sizes, config))


# -- weights ---------------------------------------------------------------------------


def _weights(run: TextRun, subject: WholeModel) -> tuple[dict[str, RoleWeights], dict[str, int]]:
    """Return the parameters of text by role, and entries of modules that do not run over text."""
    entries, active = defaultdict[str, int](int), defaultdict[str, Fraction](Fraction)
    left_out = defaultdict[str, int](int)
    share = Fraction(subject.chosen, subject.experts)
    for name, weight in run.model.named_parameters():
        owner, role = name.rpartition(".")[0], role_of(run, name, weight)
        if not role:
            outermost = next((path for path in above(owner) if not _runs(run, path)), owner)
            left_out[re.sub(r"\.\d+\.", ".*.", outermost)] += weight.numel()
            continue
        times = share if _is_expert(run, owner) else Fraction(1)
        outside = not run.places[owner].layer
        if role in MATRICES and outside and run.rows.get(owner) == Fraction(1, TOKENS):
            role = "pooled"
        if role in ("attention", "mlp"):  # some models run the same layers several times
            rows = (run.rows.get(one, Fraction(0)) for one in {*run.holders(weight)})
            times = max(times, sum(rows, Fraction(0)))
        entries[role] += weight.numel()
        active[role] += weight.numel() * times
    for name, buffer in run.model.named_buffers():  # experts' biases that training sets by a rule
        if name.endswith("correction_bias") and _runs(run, name.rpartition(".")[0]):
            entries["vector"] += buffer.numel()
    return {role: RoleWeights(entries[role], round(active[role])) for role in entries}, left_out


def _is_expert(run: TextRun, owner: str) -> bool:
    """Return whether a module belongs to routed experts, by its path or the name of its class."""
    named = _EXPERTS.search(owner) or type(run.modules[owner]).__name__.endswith("Experts")
    return bool(named) and not _SHARED.search(owner) and ".router" not in owner


def _runs(run: TextRun, owner: str) -> bool:
    """Return whether a module runs over text; experts do where the module does that holds them."""
    while _is_expert(run, owner) and not run.ran(owner):
        owner = owner.rpartition(".")[0]
    return run.ran(owner)


def role_of(run: TextRun, name: str, weight: Any) -> str:
    """Return the role of a parameter, by its module's class, place and name; empty if unused."""
    owner, _, last = name.rpartition(".")
    owner = next((one for one in run.holders(weight) if _runs(run, one)), owner)
    if not _runs(run, owner):
        return ""
    output = run.model.get_output_embeddings() if run.tied else None
    if output is not None and weight is output.weight:
        return "head"
    module, place = run.modules[owner], run.places[owner]
    kind, inner = type(module).__name__, owner.rpartition(".")[2]
    table = place.part == "embedding" and "Linear" not in kind
    norm = place.part == "norm" or (weight.ndim == 1 and "norm" in f"{inner} {kind}".lower())
    shared = _SHARED.search(owner)
    router = _ROUTER.search(inner) or "Router" in kind or "router" in owner
    roles = {
        "bias": last.endswith("bias"),
        "embedding": kind.endswith("Embedding") or table,
        "convolution": kind in ("Conv1d", "Conv2d") and weight.ndim > 2,
        "latent norm": norm and re.search(r"(q|kv)_a_|latent", inner),
        "norm": norm,
        "vector": weight.ndim < 2 or _VECTORS.search(last),
        "head": place.part == "head",
        "expert": _is_expert(run, owner),
        "indexer": "indexer" in owner,
        "attention": place.part == "attention",
        "shared gate": shared and weight.shape[:1] == (1,),
        "shared expert": shared,
        "router": router and not kind.endswith("MLP"),
    }
    return next((role for role, holds in roles.items() if holds), "mlp")


def _last_layer(run: TextRun, subject: WholeModel) -> int:
    """Return the matrix entries that a token meets in the last layer, as in an MTP layer."""
    last_layer = next(reversed(layers_of(run.places)), None)
    total, share = Fraction(0), Fraction(subject.chosen, subject.experts)
    for name, weight in run.model.named_parameters():
        if run.places[name.rpartition(".")[0]].layer == last_layer:
            role = role_of(run, name, weight)
            if role in ("attention", "mlp", "expert", "shared expert"):
                total += weight.numel() * (share if role == "expert" else 1)
    return int(total)


# -- symbols of hand-written formulas --------------------------------------------------


def _symbols(sizes: ModelSizes, config: Any) -> dict[str, int]:
    """Return the sizes that a formula may name: short symbols, and fields of the configuration."""
    first = max(sizes.attention, key=lambda x: x.layers, default=None)
    by_symbol = {
        "P": sum(x.entries for x in sizes.weights.values()),
        "A": sum(x.active for x in sizes.weights.values()),
        "E": sizes.entries("embedding"), "L": sizes.layers, "D": sizes.hidden,
        "V": first_number(config, ("vocab_size",)),
    }  # fmt: skip
    if first is not None:
        by_symbol |= {"h": first.heads, "g": first.kv_heads, "d": first.key_dim}
        windows = [x.mask.size for x in sizes.attention if x.mask.size]
        by_symbol |= {"w": windows[0]} if windows else {}
    named = {x: field_of(config, x) for x in config.to_dict()}
    numbers = {
        name: value for name, value in named.items()
        if type(value) is int and value > 0 and "token_id" not in name
    }  # fmt: skip
    return {**numbers, **by_symbol}


#: Tokens of a chunk in delta layers: a default in their code.
_DELTA_CHUNK = 64
_BLOCK = 256  # of lightning attention


def attention_shapes(run: TextRun) -> list[AttentionShape]:
    """Return the shapes of attention, alike layers together."""
    modules = {id(module): module for module in run.modules.values()}
    most = max(map(_chosen_keys, modules.values()), default=0)
    return together(_with_indexer(shape, modules.get(owner), most) for owner, shape in run.calls)


def _chosen_keys(indexer: Any) -> int:
    """Return how many tokens or rows an indexer chooses for a query; 0 for other modules."""
    if "indexer" not in type(indexer).__name__.lower():
        return 0
    blocks = first_number(indexer, ("topk_blocks",)) * first_number(indexer, ("block_size",))
    return blocks or first_number(indexer, ("index_topk", "token_budget"))


def _with_indexer(shape: AttentionShape, module: Any, most: int) -> AttentionShape:
    """Return the shape of a call with what the indexer of its module scores and chooses.

    Layers may share the ``most`` keys that another one's chose. Blocks of keys count as if they
    ended with the query. A compressor makes rows for blocks of tokens, all of which are seen unless
    an indexer chooses among them.
    """
    compressor = getattr(module, "compressor", None)
    indexer = getattr(compressor or module, "indexer", None)

    def size(*names: str) -> int:
        return first_number(indexer, names)

    if block := size("index_kpool", "compress_ratio", "compress_rate"):
        shape = replace(shape, index_mask=Mask("rows", block))
    heads, width = size("index_n_heads", "n_heads", "num_heads"), size("index_head_dim", "head_dim")
    shape = replace(shape, index_heads=heads, index_dim=width)
    if block := first_number(compressor, ("compress_rate",)):
        window = Mask("window", shape.mask.size)  # of keys that stand before the rows
        return replace(shape, mask=window, rows=Mask("rows", block, _chosen_keys(indexer)))
    chooses = indexer is not None or getattr(module, "skip_topk", False)
    return replace(shape, mask=Mask("window", most)) if chooses and shape.mask == CAUSAL else shape


def together(shapes: Iterable[Any]) -> list[Any]:
    """Return each shape of a layer once, with the number of its layers."""
    return [replace(shape, layers=number) for shape, number in Counter(shapes).items()]


def with_unrecorded(
    run: TextRun, subject: WholeModel, recorded: list[AttentionShape]
) -> tuple[list[AttentionShape], tuple[str, ...]]:
    """Return attention, also of layers that do not ask the registry, and a note on these.

    Their FLOPs are the part of three short runs that grows with the square of the length, taken as
    two products of equal width. They are causal if the model keeps a cache.
    """
    names = {id(module): name for name, module in run.modules.items()}
    covered = {run.places[names[module]].layer for module, _ in run.calls if module in names}
    mixers = {run.places[name].layer for name in run.active if mixer_of(run.modules[name])}
    rest = {run.places[x].layer for x in run.active if run.places[x].part == "attention"}
    swapped = {run.places[name].layer for name in run.swapped}
    rest -= {"", *covered, *mixers, *swapped}
    rest = {x for x in rest if not any(is_recurrent(m) for m in run.modules[x].modules())}
    if not rest:
        return recorded, ()
    short, middle, long = (counted_products(subject, steps * TOKENS) for steps in (1, 2, 3))
    squares = {  # FLOPs for each pair
        name: (long[name] - 2 * middle[name] + short[name]) // (2 * TOKENS**2)
        for name in ("", *rest)
    }  # fmt: skip
    square, notes = squares.pop(""), list[str]()
    if without := [name for name, pairs in squares.items() if square <= 0 or not pairs]:
        notes.append(
            f"attention of {plural(len(without), 'layer')} is left out: it does not say its mask"
        )
        rest -= {*without}
    if not rest:
        return recorded, tuple(notes)
    mask = CAUSAL if subject.caches else FULL
    notes.append(
        f"attention of {plural(len(rest), 'layer')} is counted as it runs: it does not say its mask"
    )
    layers, heads = len(rest), subject.num_heads
    if square % (4 * layers * heads):
        layers = heads = 1
    width = square // (4 * layers * heads)
    return [*recorded, AttentionShape(layers, heads, heads, width, width, mask)], tuple(notes)


def mixer_of(module: Any) -> MixerShape | None:
    """Return the shape of a recurrent layer's state, by its module; None for other modules."""

    def size(*names: str) -> int:
        return first_number(module, names)

    kind, width = type(module).__name__, size("head_dim")
    heads = size("num_heads", "num_attention_heads")
    if states := size("ssm_state_size"):
        chunk, groups = size("chunk_size"), size("n_groups")
        if not groups or not chunk:
            return MixerShape(1, "scan", size("intermediate_size"), states, 1, 1)
        return MixerShape(1, "decay", heads, states, width, chunk, groups)
    if size("num_v_heads") and size("head_k_dim"):
        sizes = size("num_v_heads"), size("head_k_dim"), size("head_v_dim")
        return MixerShape(1, "delta", *sizes, _DELTA_CHUNK)
    if "Delta" in kind and width:
        return MixerShape(1, "delta", heads, width, width, _DELTA_CHUNK)
    if re.search("Lightning|LinearAttention", kind) and width:
        return MixerShape(1, "decay", heads, width, width, size("block_size") or _BLOCK)
    return None


@dataclass(frozen=True)
class ImageShape:
    """A vision transformer: multiply-adds a patch before merging and of merging, layers, width.

    ``merged`` patches become one token by one merge.
    """

    products: int
    merging: int
    merged: int
    layers: int
    width: int

    def flops(self, lengths: Sequence[int], convention: str, phase: str) -> int:
        """Return the FLOPs of images of so many patches each, attention full within each.

        ``verl`` merges once for every patch; ``executed`` once for each token, and has the fused
        kernel's recomputation. Other conventions have no images.
        """
        executed = convention == "executed"
        if convention not in ("verl", "executed"):
            return 0
        patches, pairs = sum(lengths), sum(n * n for n in lengths)
        merges = patches // self.merged if executed else patches
        each = 6 * (self.products * patches + self.merging * merges)
        attention = (14 if executed else 12) * pairs * self.layers * self.width
        if phase == "train":
            return each + attention
        return each // 3 + 4 * pairs * self.layers * self.width


def image_shape(config: Any) -> ImageShape | None:
    """Return the shape of a configuration's vision encoder; None without one, or of another kind.

    Known are encoders of patches that merge squares of them, as in Qwen's models with images.
    """
    vision = getattr(config, "vision_config", None)
    fields: Mapping[str, Any] = vision.to_dict() if vision is not None else {}
    names = ("in_channels", "temporal_patch_size", "patch_size", "patch_size")
    needed = ("depth", "hidden_size", "intermediate_size", "out_hidden_size", "spatial_merge_size")
    if not all(isinstance(fields.get(name), int) for name in (*names, *needed)):
        return None
    width, merged = fields["hidden_size"], fields["spatial_merge_size"] ** 2
    layer = width * (4 * width + 2 * fields["intermediate_size"])
    merging = (fields["out_hidden_size"] + width * merged) * width * merged
    deep = len(fields.get("deepstack_visual_indexes") or ())
    patch = width * prod(fields[name] for name in names)
    return ImageShape(
        patch + fields["depth"] * layer, merging * (1 + deep), merged, fields["depth"], width
    )
