"""Find the part (embedding, attention, mlp, …) and the layer that each module belongs to."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


def _place(name: str, modules: Mapping[str, Any], heads: set[str]) -> ModulePlace:
    match = _LAYER.match(name)
    layer = match.group() if match else ""
    part = "other"
    for path in _above(name):
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


def _above(name: str) -> Iterator[str]:
    """Yield the paths of all modules that a module is inside of, outermost first, then its own."""
    parts = name.split(".") if name else []
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _inside(last: str, kind: str) -> str:
    """Return the part of a module in a layer, by class first: hybrids name all mixers alike."""
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
    from attnprof.models.layers import TransformerLayer

    kinds: Counter[str] = Counter()
    for layer in model.modules():
        if isinstance(layer, TransformerLayer):
            crosses = "" if layer.cross is None else ", cross-attention"
            kinds[f"{layer.attention.spec.name}{crosses}"] += 1
    return dict(kinds)
