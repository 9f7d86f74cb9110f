"""Find the part (embedding, attention, mlp, …) and the layer of each module; name kinds of layers.

A kind's name says how its layers mix rows, and its experts: ``sliding 128``, ``latent · moe
256/8``. The attributes of modules tell: latent attention has the rank of its latents, a recurrence
its decays. The configuration tells which keys attention sees. Entry points: :func:`places`,
:func:`layer_names`, and :func:`distinct_names` for kinds of one name.
"""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from attnprof.models.hub_config import CHOSEN, EXPERTS, chosen_experts, first_number, text_config

PARTS = ("embedding", "attention", "mlp", "norm", "head", "other")
#: The path of a module's layer: up to the first number.
_LAYER = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")
_HEAD = re.compile(
    r"((\w+_)?heads?|embed_out|score|classifier|cls|pooler|qa_outputs|proj_out|predictions"
    r"|generator_predictions|final_logits_bias|vocab_\w+|output_projection"
    r"|(visual|text)_projection|entity_predictions|altup_unembed_projections|fc)"
)
#: Names and classes of modules that mix rows without attention.
_RECURRENT = re.compile(
    "mixer|mamba|recurrent_?block|short_?conv|[ms]lstm|modulation", re.IGNORECASE
)
#: Parts of modules inside a layer, by name and class.
_INSIDE = {
    "attention": re.compile(
        rf"att(ention|n)|delta_?net|^cross\b|{_RECURRENT.pattern}", re.IGNORECASE
    ),
    "mlp": re.compile(
        r"mlp|ffn|^ff\b|feed_?forward|intermediate|layer_?ff\b|dense_?relu|expert|moe|router"
        r"|^(fc|linear|w)_?\d|(?-i:^linear$)|^output\b|^(gate|up|down)_proj|^p(oint_?)?w(ise)?_?conv"
        r"|laurel|altup|^per_layer_",
        re.IGNORECASE,
    ),
}
#: Modules between the stages of a model of images.
_BETWEEN = re.compile(r"downsampl|patch_?merging", re.IGNORECASE)
#: Classes of layers inside layers, which have parts of their own.
_WHOLE = re.compile(r"((De|En)coder|Hybrid)Layer$")
#: Modules outside of layers that make rows of an input that is no token.
_FIRST = re.compile(
    r"conv(\dd)?_?\d*$|downsampl|patch|multi_modal_projector|(patch_)?merger|connector"
    r"|altup_projections|per_layer_model_projection"
)
#: Modules that scale every channel of a row or of a layer's result.
_NORM = re.compile(r"norm|^ln_|layernorm|layer_?scale", re.IGNORECASE)


@dataclass(frozen=True)
class ModulePlace:
    """Where a module stands: its part, one of :data:`PARTS`, and the path of its layer, or ""."""

    part: str
    layer: str = ""


def places(model: Any) -> dict[str, ModulePlace]:
    """Return every module's place, by its name in ``named_modules``."""
    modules = dict(model.named_modules())
    output = getattr(model, "get_output_embeddings", lambda: None)()
    heads = {name for name, module in modules.items() if module is output}
    return {name: _place(name, modules, heads) for name in modules}


def layers_of(places: Mapping[str, ModulePlace]) -> list[str]:
    """Return the paths of a model's layers, in order."""
    return list(dict.fromkeys(place.layer for place in places.values() if place.layer))


def _place(name: str, modules: Mapping[str, Any], heads: set[str]) -> ModulePlace:
    """Return a module's place, by the names and classes of the modules that it is inside of.

    ``heads`` are the paths of the model's output embeddings.
    """
    match = _LAYER.match(name)
    layer = match.group() if match else ""
    part = "other"
    for path in above(name):
        last, kind = path.rpartition(".")[2], type(modules[path]).__name__
        outside = not layer or layer.startswith(f"{path}.")
        if path in heads or (outside and _HEAD.fullmatch(last)):
            return ModulePlace("head", "" if outside else layer)
        if path.startswith(f"{layer}.") and layer and part == "other":
            part = _inside(last, kind)
        if _NORM.search(f"{last} {kind}") and not list(modules[path].children()):
            return ModulePlace("norm", layer)
        is_first = outside and _FIRST.match(last)
        between = _BETWEEN.search(f"{last} {kind}")
        if part == "other" and (is_first or between or "embed" in f"{last} {kind}".lower()):
            part = "embedding"
    if part == "other" and layer and name != layer:  # lists of attention, and of networks, apart
        part = _inside(layer.rpartition(".")[0].rpartition(".")[2], type(modules[layer]).__name__)
    return ModulePlace(part, layer)


def above(name: str) -> Iterator[str]:
    """Yield the paths of all modules that one is inside of, outermost first, then its own."""
    return accumulate(name.split(".") if name else (), "{}.{}".format)


def _inside(last: str, kind: str) -> str:
    """Return the part of a module in a layer, by its class, then by its name.

    In hybrids all mixers have one name.
    """
    names = [last] if _WHOLE.search(kind) else [kind, last]
    matching = (part for text in names for part in _INSIDE if _INSIDE[part].search(text))
    return next(matching, "other")


def is_recurrent(module: Any) -> bool:
    """Return whether a module of the part attention is a state-space or convolutional mixer."""
    return bool(_RECURRENT.search(type(module).__name__))


def parts(model: Any) -> dict[str, int]:
    """Return a model's parameters by part, in the order of :data:`PARTS`; shared ones once.

    ``other`` is left out if there are none.
    """
    where = places(model)
    counts: Counter[str] = Counter(dict.fromkeys(PARTS[:-1], 0))
    for name, weights in model.named_parameters():
        counts[where[name.rpartition(".")[0]].part] += weights.numel()
    return dict(counts)


def layer_kinds(model: Any) -> dict[str, int]:
    """Return the number of layers of each kind: mechanism, and whether it crosses."""
    from attnprof.models.transformer import TransformerLayer

    kinds: Counter[str] = Counter()
    for layer in model.modules():
        if isinstance(layer, TransformerLayer):
            crosses = "" if layer.cross is None else ", cross-attention"
            kinds[f"{layer.attention.spec.name}{crosses}"] += 1
    return dict(kinds)


# -- names of kinds of layers ----------------------------------------------------------------
#: Attributes of modules for the number of experts, and for how many of them see a token.
_EXPERTS, _CHOSEN = (*EXPERTS, "num_routed_experts"), ("top_k", *CHOSEN)
_MIXES = re.compile(r"att|delta|mixer|mamba|conv(olution)?$|recurrent|lstm|ssm", re.IGNORECASE)
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)
#: Words in the names of classes that are the same for all kinds of mixers.
_EMPTY = {"attention", "attn", "mixer", "layer", "block", "net", "self", "text", "module", "model"}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")
#: Ends of attributes of modules whose attention sees windows or blocks alone.
_BLOCKS = {"window_size": "window", "chunk_length": "chunked", "block_size": "blocks"}
#: Attributes that number a module.
_NUMBERS = re.compile(r"(^|_)(idx|index|id|layer_num\w*)$|^training$|^depth$")


def layer_names(
    model: Any, layers: Sequence[str], places: Mapping[str, ModulePlace], types: Sequence[str]
) -> list[str]:
    """Return the name of each layer; its type or its class, if its modules tell none.

    ``types`` of another number than the layers are ignored. Names with a swapped mechanism, in
    brackets, stay.
    """
    modules = dict(model.named_modules())
    types = types if len(types) == len(layers) else [""] * len(layers)
    is_swapped = any(name.endswith(")") for name in types)
    usual = [kind or type(modules[path]).__name__ for path, kind in zip(layers, types, strict=True)]
    if is_swapped or not hasattr(getattr(model, "config", None), "get_text_config"):
        return usual
    text = text_config(model.config)

    def name_of(path: str, kind: str) -> str:
        names = [
            "cross" if _CROSS.search(x.removeprefix(path)) else
            _mixer_name(model, modules[x], text, kind)
            for x in mixers(modules, path, places)
        ]  # fmt: skip
        mixed = " + ".join(dict.fromkeys(filter(None, names)))
        return " · ".join(filter(None, (mixed, _experts(modules[path], text))))

    named = zip(layers, types, usual, strict=True)
    return [name_of(path, kind) or name for path, kind, name in named]


def distinct_names(
    modules: Mapping[str, Any], name: str, kinds: Sequence[Sequence[str]]
) -> list[str]:
    """Return distinct names for kinds of layers (paths) of one name: with a differing module."""
    names = [name]
    for paths in kinds[1:]:
        title = f"{name} · {_difference(modules[kinds[0][0]], modules[paths[0]], paths)}"
        if title in names:  # several kinds differ from the first alike, as in a pyramid
            title += f" at {_positions(paths)}"
        names.append(title)
    return names


def _positions(paths: Sequence[str]) -> str:
    return ", ".join(path.rpartition(".")[2] for path in paths)


def mixers(modules: Mapping[str, Any], path: str, places: Mapping[str, ModulePlace]) -> list[str]:
    """Return the paths of a layer's modules that mix rows, the outermost of each."""
    paths = list[str]()
    for name, _ in modules[path].named_modules(prefix=path):
        if name not in places:  # a module shared by layers has the path of the first layer
            continue
        inside = any(name.startswith(f"{outer}.") for outer in paths)
        has_weights = next(modules[name].parameters(), None) is not None
        if places[name].part == "attention" and has_weights and not inside:
            paths += [] if type(modules[name]).__name__ == "ModuleList" else [name]
    by_class = [x for x in paths if _MIXES.search(type(modules[x]).__name__)]
    # one matrix that is no convolution weighs the results of layers, not of tokens
    matrices = {x: sum(w.dim() > 1 for w in modules[x].parameters()) for x in by_class}
    of_tokens = [
        x for x in by_class
        if matrices[x] > 1 or "conv" in type(modules[x]).__name__.lower()
    ]  # fmt: skip
    return of_tokens or by_class or paths


def _mixer_name(model: Any, mixer: Any, text: Any, layer_type: str) -> str:
    """Return how a module mixes rows: ``latent``, ``mamba-2``, ``sliding 128`` and so on."""
    parts = [part for part in mixer.modules() if not hasattr(part, "weight")] or [mixer]
    window = _keys_seen(mixer, text, layer_type)
    if any(hasattr(part, "kv_lora_rank") and hasattr(part, "kv_b_proj") for part in parts):
        return "latent" if window == "full" else f"latent, {window}"
    recurrence = next(filter(None, map(_recurrence, parts)), "")
    if recurrence:
        return recurrence
    words = _mixer_words(type(model).__name__, type(mixer).__name__)
    attends = any("att" in type(part).__name__.lower() for part in mixer.modules())
    linear = layer_type in ("linear_attention", "conv") or not attends
    return " ".join(words) or layer_type.replace("_", " ") if linear else window


def _recurrence(module: Any) -> str:
    """Return the name of a module's recurrence, by the shapes of its decays; "" without any."""
    decay = getattr(module, "A_log", None)
    if decay is None:
        return "rwkv" if hasattr(module, "time_decay") else ""
    if sum(size > 1 for size in decay.shape) > 1:  # (channels, states) or (heads, channels, states)
        return "mamba"
    if getattr(module, "D", None) is not None:
        return "mamba-2"
    steps = getattr(module, "dt_bias", None)
    return "gated delta" if steps is None or steps.numel() == decay.numel() else "kimi delta"


def _keys_seen(mixer: Any, text: Any, layer_type: str) -> str:
    """Return which keys attention sees: ``full``, ``sliding 128``, ``chunked 8192`` and so on."""
    window = first_number(text, ("sliding_window", "window_size", "local_attention"))
    types = (vars(part).get("attention_type") for part in mixer.modules())
    kind = layer_type or str(next(filter(None, types), ""))
    kind = kind.removesuffix("_attention").replace("_", " ")
    if kind in ("sliding", "hybrid sliding", "local"):
        return f"sliding {window}" if window else "sliding"
    if kind in ("global", "original full"):
        return "full"
    if kind == "chunked":
        return f"chunked {first_number(text, ('attention_chunk_size',))}"
    if kind == "indexed":
        return f"top {first_number(text, ('index_topk', 'indexer_top_k'))}"
    if kind in ("", "hybrid", "sparse", "dense", "moe"):
        usual = None if layer_type else _window_of(mixer, text)
        size = getattr(mixer, "sliding_window", usual)
        return f"sliding {size}" if isinstance(size, int) and size > 1 else _blocks_of(mixer)
    return kind


def _blocks_of(mixer: Any) -> str:
    """Return the windows or blocks in a module's attributes, like ``blocks 64``, else ``full``."""
    for part in mixer.modules():
        for name, value in vars(part).items():
            size = value[0] if isinstance(value, tuple | list) and value else value
            word = next((_BLOCKS[end] for end in _BLOCKS if name.endswith(end)), "")
            if word and type(size) is int and size > 1:
                return f"{word} {size}"
    return "full"


def _window_of(mixer: Any, text: Any) -> int | None:
    """Return the window of all layers, if the configuration has one and the code reads it."""
    window = getattr(text, "sliding_window", None)
    if not isinstance(window, int):
        return None
    source = inspect.getsource(sys.modules[type(mixer).__module__])
    return window if "sliding_window" in source else None


def _mixer_words(model: str, mixer: str) -> list[str]:
    """Return the words of a mixer's class without its model's name.

    ``MiniMaxLightningAttention`` of ``MiniMaxForCausalLM`` is lightning.
    """
    prefix, words = _WORD.findall(model), _WORD.findall(mixer)
    while words and prefix and words[0] == prefix[0]:
        words, prefix = words[1:], prefix[1:]
    return [word.lower() for word in words if word.lower() not in _EMPTY]


def _experts(layer: Any, text: Any) -> str:
    """Return ``moe 128/8`` for a layer with 128 experts of which 8 see a token, else ""."""
    from torch import nn

    numbers = [
        len(part) if isinstance(part, nn.ModuleList) else first_number(part, _EXPERTS)
        for name, part in layer.named_modules()
        if name.rpartition(".")[2] == "experts"
    ]
    experts = max(numbers, default=0)
    if experts < 2:
        return ""
    chosen = [first_number(part, _CHOSEN) for part in layer.modules()]
    top = next(filter(None, chosen), 0) or chosen_experts(text)
    return f"moe {experts}/{top}" if top else f"moe {experts}"


def _difference(first: Any, layer: Any, paths: Sequence[str]) -> str:
    """Return how a layer differs from the first of its name: by a width, a module, a setting.

    If nothing differs, it is the positions of the layers of its kind, which have these ``paths``.
    """
    shapes, others = (
        {name: tuple(x.shape) for name, x in one.named_parameters()} for one in (layer, first)
    )
    for name in shapes:
        if name in others and shapes[name] != others[name]:
            pairs = list(zip(shapes[name], others[name], strict=False))
            size = next((x for x, y in pairs if x != y), shapes[name][0])
            return f"{_short(name)} {size}"
    if more := [name for name in shapes if name not in others]:
        return f"with {_short(more[0])}"
    if less := [name for name in others if name not in shapes]:
        return f"without {_short(less[0])}"
    usual = _settings(first)
    for name, value in _settings(layer).items():
        if name in usual and usual[name] != value:
            return f"{name.rpartition('.')[2]} {value}"
    return f"at {_positions(paths)}"


def _short(name: str) -> str:
    """Return a weight's module, and the weight's name unless that is ``weight``."""
    *owners, last = name.split(".")
    owner = next((x for x in reversed(owners) if not x.isdigit()), "")
    return f"{owner} {'' if last == 'weight' else last}".strip()


def _settings(layer: Any) -> dict[str, Any]:
    """Return the numbers and words that a layer's modules hold, by their paths."""
    return {
        f"{path}.{name}": value
        for path, module in layer.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str) and not _NUMBERS.search(name)
        and not name.startswith("_")
    }  # fmt: skip
