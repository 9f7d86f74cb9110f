"""001: the model sizes of Tables 1, 3 and 4."""

from __future__ import annotations

from functools import partial

from attnprof.papers.checks import Check, rounded
from attnprof.papers.neural_attention.models import (
    CLASSES,
    MILLION,
    language_model,
    projection,
    rows_by_projection,
    settings,
    vision_model,
    workload,
)

PRINTED = rows_by_projection("table01_wikitext103_perplexity", "params_M")
_TABLES = {"cifar10": "table03_cifar10", "cifar100": "table04_cifar100"}
VISION = {
    name: {dataset: rows_by_projection(t, "params_M")[name] for dataset, t in _TABLES.items()}
    for name in ("dot", "d'=2")
}
HALF_DIGIT = 500
WIDEST = 512


def millions(name: str) -> float:
    """Size of the language model with the public code's network, in millions."""
    return language_model(name) / MILLION


def all_sizes() -> dict[str, float]:
    """The three sizes with Neural Attention."""
    return {name: millions(name) for name in PRINTED if name != "dot"}


def one_hidden_layer(name: str, width: int) -> int:
    """Parameters that Eq 4 to 9 add with one hidden layer of this width."""
    head_dim = workload("nlp").head_dim
    projected = projection(name)
    reduced = projected or head_dim
    down = 2 * head_dim * reduced if projected else 0
    return down + width * (2 * reduced + 2) + 1


def smallest_with_one_width() -> float:
    """Millions at d' = 16, at least, if one hidden width explains the other printed sizes.

    The dot product's size, d' = 2 and no projection bound the width and the base; each printed
    size stands for what rounds to it.
    """
    others = {name: round(PRINTED[name] * MILLION) for name in PRINTED if name != "d'=16"}
    sizes = []
    for width in range(1, WIDEST + 1):
        extra = {name: 0 if name == "dot" else one_hidden_layer(name, width) for name in others}
        low = max(others[name] - HALF_DIGIT - extra[name] for name in others)
        high = min(others[name] + HALF_DIGIT - extra[name] for name in others)
        if low <= high:
            sizes.append(low + one_hidden_layer("d'=16", width))
    return min(sizes) / MILLION


def vision_sizes() -> dict[str, float]:
    """What 90 classes more add to either model; the two printed sizes, and what is between them."""
    sizes = {
        (name, dataset): vision_model(name, dataset) / MILLION
        for name in ("dot", "d'=2") for dataset in CLASSES
    }  # fmt: skip
    return {
        **{f"90 classes more, {n}": sizes[n, "cifar100"] - sizes[n, "cifar10"] for n in VISION},
        "dot": sizes["dot", "cifar10"],
        "d'=2": sizes["d'=2", "cifar100"],
        "d'=2 less dot": sizes["d'=2", "cifar10"] - sizes["dot", "cifar10"],
    }


def vision_printed() -> dict[str, float]:
    """The same from Tables 3 and 4."""
    more = {
        f"90 classes more, {name}": round(size["cifar100"] - size["cifar10"], 3)
        for name, size in VISION.items()
    }
    own = {name: size["cifar10"] for name, size in VISION.items()}
    return {**more, **own, "d'=2 less dot": round(own["d'=2"] - own["dot"], 3)}


#: What the vision models' sizes rest on that the document does not give.
UNKNOWN = "it needs the widths of the feed-forward layer and of the scoring network"

CHECKS = [
    Check(
        "001-PAR-base",
        PRINTED["dot"],
        partial(millions, "dot"),
        how=f"{settings('nlp')['layers']} layers of bias-free attention, feed-forward network and "
        "norms, untied embedding and output with bias, final norm, added up",
        agree=rounded(3),
        lacking="the vocabulary and the feed-forward width; with the public code's 28,996 and 1024 "
        "it has 46,527,812 parameters",
        tables=("1",),
    ),
    Check(
        "001-PAR-h-single",
        PRINTED["d'=16"],
        smallest_with_one_width,
        how="all widths h of Eq 4 to 9 that give the other three printed sizes to their last "
        "digit; the smallest size they allow at d' = 16",
        agree=rounded(3),
        why="d' = 2 and no projection need 124 h - 256 = 10,000 +- 1,000, so h is 75 to 90; then "
        "d' = 16 has at least 46.532 M. The public code has a second hidden layer that Eq 4 to 9 "
        "leave out: 2d' -> d' -> d'/2 -> 1",
        tables=("1",),
    ),
    Check(
        "001-PAR-h-two",
        {name: size for name, size in PRINTED.items() if name != "dot"},
        all_sizes,
        how="the base model plus our module's projections with bias and network "
        "2d' -> d' -> d'/2 -> 1 (275, 2,753 and 10,369 parameters)",
        agree=rounded(3),
        lacking="the vocabulary, the feed-forward width and the scoring network's second layer "
        "and biases; with the public code's it has 46,528,087, 46,530,565 and 46,538,181",
        tables=("1",),
    ),
    Check(
        "001-PAR-cifar",
        vision_printed(),
        vision_sizes,
        how="what the output layer has more for 100 classes than for 10, in millions: 90 rows of "
        "768 weights and a bias, whatever stands before it",
        agree=rounded(3),
        unchecked=dict.fromkeys(("dot", "d'=2", "d'=2 less dot"), UNKNOWN),
        why="both tables print the dot product's model with 10 classes (47,402,506) beside the "
        "neural model with 100 (47,472,119): 69,210 of the 69,613 between them are the output "
        "layer for 90 more classes, Neural Attention itself adds 403 (sizes with the public code's "
        "widths)",
        tables=("3", "4"),
    ),
]
