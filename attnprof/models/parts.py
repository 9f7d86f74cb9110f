"""Which part of a model a parameter belongs to, and how many parameters a part has."""

from collections import Counter
from typing import Any

#: Parts by the name of a module that all of a part's parameters are in.
PARTS = {
    "embedding": "embedding", "attention": "attention", "cross": "attention", "mlp": "mlp",
    "norms": "norm", "norm": "norm", "head": "head",
}  # fmt: skip


def part_of(name: str) -> str:
    """The part of a parameter or module by its name, like ``body.layers.0.mlp.up.weight``."""
    return next((PARTS[word] for word in name.split(".") if word in PARTS), "other")


def parts(model: Any) -> dict[str, int]:
    """Parameters of a model by part, in the order of :data:`PARTS`; tied and shared ones once."""
    found: Counter[str] = Counter(dict.fromkeys(PARTS.values(), 0))
    for name, weights in model.named_parameters():
        found[part_of(name)] += weights.numel()
    return dict(found)


def layer_kinds(model: Any) -> dict[str, int]:
    """How many layers there are of each kind, in their order: mechanism, and whether it crosses."""
    from attnprof.models.layers import TransformerLayer

    kinds: Counter[str] = Counter()
    for layer in model.modules():
        if isinstance(layer, TransformerLayer):
            crosses = "" if layer.cross is None else ", cross-attention"
            kinds[f"{layer.attention.spec.name}{crosses}"] += 1
    return dict(kinds)
