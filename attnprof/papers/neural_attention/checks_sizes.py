"""001: the model sizes of Tables 1, 3 and 4, and shapes, dimensions and growth."""

from functools import cache

import sympy

from attnprof import registry
from attnprof.algebra.orders import leading_terms
from attnprof.costs import exact_div
from attnprof.papers.checks import Ours, Printed
from attnprof.papers.neural_attention import models
from attnprof.papers.neural_attention.checks_costs import ACCURACIES
from attnprof.papers.neural_attention.models import MILLION, attention, settings, workload
from attnprof.workload import Workload

SIZES = models.rows_by_projection("table01_wikitext103_perplexity", "params_M")
VISION = {
    name: {data: models.rows_by_projection(t, "params_M")[name] for data, t in ACCURACIES.items()}
    for name in ("dot", "d'=2")
}
HALF_DIGIT = 500
WIDEST = 512
#: Sizes that tell rows from columns, and what they are called.
TOKENS, WIDTH = 7, 4
LETTERS = {TOKENS: "n", WIDTH: "d"}
#: The dot product and Neural Attention with each projection that is tested.
ROWS = ("dot", "d'=2", "d'=16", "none")


def millions(name: str) -> float:
    """Size of the language model with the public code's network, in millions."""
    return models.language_model(name) / MILLION


@cache
def output_shape(name: str) -> list[str]:
    """The shape of a mechanism's output for one head of n tokens, run for real."""
    import torch

    from attnprof.blocks.assemble import attend_core

    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, TOKENS, WIDTH, generator=made) for _ in range(3))
    with torch.no_grad():
        out = attend_core(registry.get(name), registry.module_of(name), q, k, v, False, 0, None)
    return [LETTERS[size] for size in out.shape[2:]]


def one_hidden_layer(name: str, width: int) -> int:
    """Parameters that Eq 4 to 9 add with one hidden layer of this width."""
    head_dim = workload("nlp").head_dim
    projected = models.projection(name)
    reduced = projected or head_dim
    down = 2 * head_dim * reduced if projected else 0
    return down + width * (2 * reduced + 2) + 1


def smallest_with_one_width() -> float:
    """Millions at d' = 16, at least, if one hidden width explains the other printed sizes.

    The dot product's size, d' = 2 and no projection bound the width and the base; each printed
    size stands for what rounds to it.
    """
    others = {name: round(SIZES[name] * MILLION) for name in SIZES if name != "d'=16"}
    sizes = []
    for width in range(1, WIDEST + 1):
        extra = {name: 0 if name == "dot" else one_hidden_layer(name, width) for name in others}
        low = max(others[name] - HALF_DIGIT - extra[name] for name in others)
        high = min(others[name] + HALF_DIGIT - extra[name] for name in others)
        if low <= high:
            sizes.append(low + one_hidden_layer("d'=16", width))
    return min(sizes) / MILLION


def vision_sizes() -> dict[str, float]:
    """Sizes of the vision models, and how they differ, in millions."""
    sizes = {
        (name, dataset): models.vision_model(name, dataset) / MILLION
        for name in VISION for dataset in models.CLASSES
    }  # fmt: skip
    return {
        **{f"90 classes more, {n}": sizes[n, "cifar100"] - sizes[n, "cifar10"] for n in VISION},
        "dot": sizes["dot", "cifar10"],
        "d'=2": sizes["d'=2", "cifar100"],
        "d'=2 less dot": sizes["d'=2", "cifar10"] - sizes["dot", "cifar10"],
    }


def graph_dimensions() -> dict[str, int]:
    """Dimension of the graph over q = k = (x, y), and of the space it lies in.

    The rank of (x, y) -> (q1, q2, k1, k2, z)'s Jacobian, the same for any smooth z.
    """
    x, y = sympy.symbols("x y")
    z = sympy.Function("z")(x, y)
    graph = sympy.Matrix([x, y, x, y, z])
    return {"graph": graph.jacobian([x, y]).rank(), "space": graph.rows}


def growth() -> dict[str, int]:
    """The power of n in the leading term of each row's operations."""
    n, h, d = sympy.symbols("n h d", positive=True)
    found = {}
    for name in ROWS:
        cost = attention(name).cost(Workload(n, h, d), "core")
        terms = leading_terms(cost.flops, ["n"]) or []
        found[name] = max(int(term.along({"n": 1})[0]) for term in terms)
    return found


PRINTED: Printed = {
    "001-PAR-base": SIZES["dot"],
    "001-D64-NLP": int(settings("nlp")["d_head"]),
    "001-D64-VIS": int(settings("vision")["d_head_printed"]),
    "001-PAR-h-two": {name: size for name, size in SIZES.items() if name != "dot"},
    "001-PAR-h-single": SIZES["d'=16"],
    "001-SEQ785": int(settings("vision")["seq_len"]),
    "001-PAR-cifar": {
        **{
            f"90 classes more, {name}": round(size["cifar100"] - size["cifar10"], 3)
            for name, size in VISION.items()
        },
        **{name: size["cifar10"] for name, size in VISION.items()},
        "d'=2 less dot": round(VISION["d'=2"]["cifar10"] - VISION["dot"]["cifar10"], 3),
    },
    "001-ON2": dict.fromkeys(ROWS, 2),
}
OURS: Ours = {
    "001-PAR-base": lambda: millions("dot"),
    "001-D64-NLP": lambda: int(workload("nlp").head_dim),
    "001-D64-VIS": lambda: int(workload("vision").head_dim),
    "001-PAR-h-two": lambda: {name: millions(name) for name in SIZES if name != "dot"},
    "001-EQ10-shape": lambda: {"Eq 1": output_shape("standard"), "Eq 10": output_shape("neural")},
    "001-SEQ785": lambda: (
        1 + int(exact_div(*(int(settings("vision")[name]) for name in ("image", "patch")))) ** 2
    ),
    "001-PAR-h-single": smallest_with_one_width,
    "001-PAR-cifar": vision_sizes,
    "001-MANIFOLD": graph_dimensions,
    "001-ON2": growth,
}
