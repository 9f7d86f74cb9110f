"""The numbers of a model that conventions for MFU need, from its own code.

The model is built without values and runs once over a few tokens: modules that run tell how many rows
they multiply, the attention registry tells heads, widths and masks (:mod:`.attention_calls`), and
what a recurrent layer carries stands in its module. Experts do not run: a token meets as many of
them as its configuration says. Entry point: :func:`sizes_of`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from os import PathLike
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.models.attention_calls import KERNEL, AttentionCall, recorded_attention
from attnprof.models.config import presets
from attnprof.models.conventions import AttentionShape, MixerShape, ModelSizes, Weights
from attnprof.models.flops_terms import CAUSAL, FULL, Mask
from attnprof.models.hub import hub_subject
from attnprof.models.hub_config import configuration, field_of, first_number, text_config
from attnprof.models.names import named
from attnprof.models.parts import ModulePlace, is_recurrent, places
from attnprof.models.whole import WholeModel
from attnprof.user_code import error_text, is_place

#: Tokens of the run: a few, since nothing depends on them.
_TOKENS = 8
#: Chunks of delta layers, whose code has it as the default of a function.
_DELTA_CHUNK = 64
_EXPERTS = re.compile(r"(?:^|[._])experts?(?:\.|$)")
_SHARED = re.compile(r"shared_?(expert|mlp)|residual_mlp")
_ROUTER = re.compile(r"router|^gate$|^wg$|classifier")
_VECTORS = re.compile(r"A_log|^[AD]$|dt_bias|position|token|scale|query|memory|sinks|slope|lambda")
#: Fields of configurations for layers that predict further tokens.
_FURTHER = ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")


def sizes_of(model: str | PathLike[str] | Mapping[str, Any]) -> ModelSizes:
    """Return the sizes of a model: a path, a name, or the fields of a ``config.json``.

    Raises :class:`RequestError` for what is no model of tokens, and :class:`CannotRunError` without
    transformers or if the model does not run without values.
    """
    fields, name, notes = model, "the configuration", tuple[str, ...]()
    if not isinstance(model, Mapping):
        source = str(model)
        if is_place(source) or source.endswith(".toml") or source in presets():
            raise RequestError(
                f"{source}: FLOPs a token are told of models of transformers; give a config.json, "
                "its folder or a name (attnprof list --models)"
            )
        found = named(source)
        fields, name, notes = found.fields, found.name, found.notes
    subject = hub_subject(fields, name)
    subject = replace(subject, notes=(*notes, *subject.notes))
    return subject_sizes(subject, text_config(configuration(fields, name)))


def subject_sizes(subject: WholeModel, config: Any) -> ModelSizes:
    """Return the sizes of a model that is described, with the text part of its configuration."""
    if not {"input_ids", "decoder_input_ids"} & {*subject.inputs}:
        taken = ", ".join(subject.inputs)
        raise RequestError(f"{subject.name} takes {taken}: FLOPs a token are of models of tokens")
    run = _run(subject)
    hidden = first_number(config, ("hidden_size", "d_model", "n_embd"))
    attention = tuple(_attention(run, config))
    layers = first_number(config, ("num_hidden_layers", "n_layer", "num_layers"))
    weights, left_out = _weights(run, subject)
    attention, notes = _with_unrecorded(run, subject, attention)
    sizes = ModelSizes(
        name=subject.name, hidden=hidden, weights=weights, attention=attention,
        mixers=tuple(_mixers(run)), layers=layers, tied=run.tied,
        mtp_layers=first_number(config, _FURTHER), mtp_matrices=_last_layer(run, subject),
        usual_length=subject.usual_length,
        notes=(*subject.notes, *notes, *_note_left_out(left_out)),
    )  # fmt: skip
    return replace(sizes, symbols=_symbols(sizes, config))


# -- the run ---------------------------------------------------------------------------


@dataclass
class _Run:
    """A run without values: rows that modules multiplied for each token, and attention's calls."""

    model: Any
    rows: Mapping[str, Fraction]
    ran: set[str]
    calls: Sequence[AttentionCall]

    def __post_init__(self) -> None:
        self.places: Mapping[str, ModulePlace] = places(self.model)
        self.modules: Mapping[str, Any] = dict(self.model.named_modules())
        output = getattr(self.model, "get_output_embeddings", lambda: None)()
        inputs = getattr(self.model, "get_input_embeddings", lambda: None)()
        self.tied = output is not None and output.weight is getattr(inputs, "weight", None)


def _run(subject: WholeModel) -> _Run:
    """Run a model over a few tokens without values."""
    import torch

    from attnprof.trace.run.worlds import meta_world

    rows, ran = defaultdict[str, Fraction](Fraction), set[str]()

    def note(name: str, module: Any, inputs: Any, _result: Any) -> None:
        ran.add(name)
        first = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
        width = getattr(module, "in_features", None) or getattr(module, "nx", None)
        if first is not None and width:
            rows[name] += Fraction(first.numel(), width * _TOKENS)

    with meta_world(subject.dtype), recorded_attention() as calls, _without_experts():
        try:
            model = subject.build().eval()
            _set_kernel(model)
            for name, module in model.named_modules():
                module.register_forward_hook(partial(note, name))
            with torch.no_grad():
                model(**subject.example({"B": 1, "N": _TOKENS, "M": _TOKENS}, "meta"))
        except Exception as error:
            raise CannotRunError(
                f"{subject.name} does not run without values, so its FLOPs a token are not known: "
                f"{error_text(error)}"
            ) from error
    return _Run(model, rows, ran, calls)


def _set_kernel(model: Any) -> None:
    """Make all attention of a model go through our kernel."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = KERNEL  # noqa: SLF001 - checked otherwise


@contextmanager
def _without_experts() -> Iterator[None]:
    """Give what experts get instead of running them: which tokens they see is not known."""
    from unittest.mock import patch

    import torch

    usual = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **how: Any) -> Any:
        if type(module).__name__.endswith("Experts") and args:
            return torch.empty_like(args[0])
        return usual(module, *args, **how)

    with patch.object(torch.nn.Module, "__call__", call):
        yield


# -- weights ---------------------------------------------------------------------------


def _weights(run: _Run, subject: WholeModel) -> tuple[dict[str, Weights], dict[str, int]]:
    """Return the parameters of text by role, and entries of modules that do not run over text."""
    entries, active = defaultdict[str, int](int), defaultdict[str, Fraction](Fraction)
    left_out = defaultdict[str, int](int)
    share = Fraction(subject.chosen, subject.experts)
    output = run.model.get_output_embeddings() if run.tied else None
    for name, weight in run.model.named_parameters():
        owner, _, last = name.rpartition(".")
        if not _runs(run, owner):
            left_out[_outermost(run, owner)] += weight.numel()
            continue
        tied = output is not None and weight is output.weight
        role = "head" if tied else _role(run, owner, last, weight)
        times = share if _is_expert(owner) else Fraction(1)
        if role in ("attention", "mlp"):  # some models run the same layers several times
            times = max(times, run.rows.get(owner, Fraction(0)))
        entries[role] += weight.numel()
        active[role] += weight.numel() * times
    for name, buffer in run.model.named_buffers():  # experts' biases that training sets by a rule
        if name.endswith("correction_bias") and _runs(run, name.rpartition(".")[0]):
            entries["vector"] += buffer.numel()
    return {role: Weights(entries[role], round(active[role])) for role in entries}, left_out


def _is_expert(owner: str) -> bool:
    """Return whether a module is of experts of which a token meets some."""
    return bool(_EXPERTS.search(owner)) and not _SHARED.search(owner)


def _outermost(run: _Run, owner: str) -> str:
    """Return the outermost module around one that does not run."""
    parts = owner.split(".")
    paths = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((path for path in paths if not _runs(run, path)), owner)


def _note_left_out(left_out: Mapping[str, int]) -> Iterator[str]:
    if left_out:
        parts = ", ".join(f"{name} ({number:,} parameters)" for name, number in left_out.items())
        yield f"not counted, since text alone does not run it: {parts}"


def _runs(run: _Run, owner: str) -> bool:
    """Return whether a module runs over text, or is inside one that does and is no module apart."""
    while owner and owner not in run.ran:
        if not _EXPERTS.search(owner) and not _used_inside(run, owner):
            return False
        owner = owner.rpartition(".")[0]
    return True


def _used_inside(run: _Run, owner: str) -> bool:
    """Return whether a module that did not run may be read by the module that it is in."""
    return owner.rpartition(".")[0] in run.ran and not list(run.modules[owner].children())


def _role(run: _Run, owner: str, last: str, weight: Any) -> str:
    """Return the role of a parameter, by its module's class, place and name."""
    module, place = run.modules[owner], run.places[owner]
    kind, inner = type(module).__name__, owner.rpartition(".")[2]
    if last.endswith("bias"):
        return "bias"
    if kind.endswith("Embedding") or (place.part == "embedding" and "Linear" not in kind):
        return "embedding"
    if kind in ("Conv1d", "Conv2d") and weight.ndim > 2:
        return "convolution"
    if place.part == "norm" or (weight.ndim == 1 and "norm" in f"{inner} {kind}".lower()):
        return "latent norm" if re.search(r"(q|kv)_a_|latent", inner) else "norm"
    if weight.ndim < 2 or _VECTORS.search(last):
        return "vector"
    if place.part == "head":
        return "head"
    if _is_expert(owner):
        return "expert"
    return _matrix_role(owner, inner, kind, place.part, weight)


def _matrix_role(owner: str, inner: str, kind: str, part: str, weight: Any) -> str:
    if "indexer" in owner:
        return "indexer"
    if part == "attention":
        return "attention"
    if _SHARED.search(owner):
        return "shared gate" if weight.shape[0] == 1 else "shared expert"
    gate = _ROUTER.search(inner) or "Router" in kind or "router" in owner
    return "router" if gate and not kind.endswith("MLP") else "mlp"


# -- attention and recurrent layers -------------------------------------------------------


def _attention(run: _Run, config: Any) -> Iterator[AttentionShape]:
    """Yield the shapes of attention, alike layers together."""
    by_shape = defaultdict[AttentionShape, int](int)
    names = {id(module): name for name, module in run.modules.items()}
    top, heads, width = (
        first_number(config, (x,)) for x in ("index_topk", "index_n_heads", "index_head_dim")
    )
    for call in run.calls:
        owner = names.get(call.module, "")
        index = any("indexer" in x and x.startswith(f"{owner}.") for x in run.modules)
        sparse = top and index and call.mask.kind == "causal"
        shape = AttentionShape(
            0, call.heads, call.kv_heads, call.key_dim, call.value_dim,
            Mask("window", top) if sparse else call.mask,
            heads if index else 0, width if index else 0,
        )  # fmt: skip
        by_shape[shape] += 1
    yield from (replace(shape, layers=layers) for shape, layers in by_shape.items())


def _with_unrecorded(
    run: _Run, subject: WholeModel, found: tuple[AttentionShape, ...]
) -> tuple[tuple[AttentionShape, ...], tuple[str, ...]]:
    """Return attention with that of layers which do not ask the registry, and a note on it.

    What grows with the square of the length is counted on three short runs, as two products of
    equal width; whether keys ahead are masked is what the configuration says.
    """
    names = {id(module): name for name, module in run.modules.items()}
    covered = {run.places[names[x.module]].layer for x in run.calls if x.module in names}
    mixers = {run.places[name].layer for name in run.ran if _mixer(run.modules[name])}
    rest = {x.layer for name, x in run.places.items() if x.part == "attention" and name in run.ran}
    rest -= {"", *covered, *mixers}
    rest = {x for x in rest if not any(is_recurrent(m) for m in run.modules[x].modules())}
    if not rest:
        return found, ()
    short, middle, long = (_counted(subject, steps * _TOKENS) for steps in (1, 2, 3))
    square = (long - 2 * middle + short) // (2 * _TOKENS**2)  # FLOPs for each pair
    if square <= 0:
        return found, ()
    mask = CAUSAL if subject.caches else FULL
    note = f"attention of {len(rest)} layers is counted as it runs: it does not say its mask"
    layers, heads = len(rest), subject.num_heads
    if square % (4 * layers * heads):
        layers = heads = 1
    width = square // (4 * layers * heads)
    return (*found, AttentionShape(layers, heads, heads, width, width, mask)), (note,)


def _counted(subject: WholeModel, tokens: int) -> int:
    """Return the FLOPs of products in a run over some tokens, without attention that is recorded."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from attnprof.trace.run.worlds import meta_world

    with meta_world(subject.dtype), recorded_attention(), _without_experts():
        model = subject.build().eval()
        _set_kernel(model)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(**subject.example({"B": 1, "N": tokens, "M": tokens}, "meta"))
    return int(counter.get_total_flops())


def _mixers(run: _Run) -> Iterator[MixerShape]:
    """Yield the recurrent layers, alike ones together."""
    alike = defaultdict[MixerShape, int](int)
    for name in sorted(run.ran):
        if shape := _mixer(run.modules[name]):
            alike[shape] += 1
    yield from (replace(shape, layers=layers) for shape, layers in alike.items())


def _mixer(module: Any) -> MixerShape | None:
    """Return what a recurrent layer's module carries; None for other modules."""
    kind = type(module).__name__
    number = lambda *names: next((int(x) for n in names if (x := getattr(module, n, None))), 0)  # noqa: E731
    if number("ssm_state_size"):
        if not number("n_groups") or not number("chunk_size"):
            return MixerShape(0, "scan", number("intermediate_size"), number("ssm_state_size"), 1, 1)
        return MixerShape(
            0, "decay", number("num_heads"), number("ssm_state_size"), number("head_dim"),
            number("chunk_size"), number("n_groups"),
        )  # fmt: skip
    if number("num_v_heads") and number("head_k_dim"):
        return MixerShape(
            0, "delta", number("num_v_heads"), number("head_k_dim"), number("head_v_dim"), _DELTA_CHUNK
        )
    if "Delta" in kind and number("head_dim"):
        heads, width = number("num_heads", "num_attention_heads"), number("head_dim")
        return MixerShape(0, "delta", heads, width, width, _DELTA_CHUNK)
    if re.search("Lightning|LinearAttention", kind) and number("head_dim"):
        heads, width = number("num_attention_heads", "num_heads"), number("head_dim")
        return MixerShape(0, "decay", heads, width, width, number("block_size") or 256)
    return None


def _last_layer(run: _Run, subject: WholeModel) -> int:
    """Return the matrix entries that a token meets in the last layer, as those of MTP layers are."""
    layers = list(dict.fromkeys(x.layer for x in run.places.values() if x.layer))
    if not layers:
        return 0
    total, share = Fraction(0), Fraction(subject.chosen, subject.experts)
    for name, weight in run.model.named_parameters():
        owner, _, last = name.rpartition(".")
        if run.places[owner].layer == layers[-1]:
            role = _role(run, owner, last, weight)
            if role in ("attention", "mlp", "expert", "shared expert"):
                total += weight.numel() * (share if role == "expert" else 1)
    return int(total)


# -- symbols of hand-written formulas --------------------------------------------------


def _symbols(sizes: ModelSizes, config: Any) -> dict[str, int]:
    """Return the sizes that a formula may name: short symbols, and fields of the configuration."""
    first = max(sizes.attention, key=lambda x: x.layers, default=None)
    found = {
        "P": sum(x.entries for x in sizes.weights.values()),
        "A": sum(x.active for x in sizes.weights.values()),
        "E": sizes.entries("embedding"), "L": sizes.layers, "D": sizes.hidden,
        "V": first_number(config, ("vocab_size",)),
    }  # fmt: skip
    if first is not None:
        found |= {"h": first.heads, "g": first.kv_heads, "d": first.key_dim}
        windows = [x.mask.size for x in sizes.attention if x.mask.size]
        found |= {"w": windows[0]} if windows else {}
    named = {x: field_of(config, x) for x in config.to_dict()}
    numbers = {
        name: value for name, value in named.items()
        if type(value) is int and value > 0 and "token_id" not in name
    }  # fmt: skip
    return {**numbers, **found}
