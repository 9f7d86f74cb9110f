"""001: shapes, dimensions and growth."""

from __future__ import annotations

from functools import cache, partial

import sympy

from attnprof import registry
from attnprof.algebra.orders import leading_terms
from attnprof.costs import exact_div
from attnprof.papers.checks import Check
from attnprof.papers.neural_attention.models import attention, settings
from attnprof.workload import Workload

#: Sizes that tell rows from columns, and what they are called.
TOKENS, WIDTH = 7, 4
#: The dot product and Neural Attention with each projection that is tested.
ROWS = ("dot", "d'=2", "d'=16", "none")
LETTERS = {TOKENS: "n", WIDTH: "d"}


@cache
def output_shape(name: str) -> tuple[str, ...]:
    """The shape of a mechanism's output for one head of n tokens, run for real."""
    import torch

    from attnprof.blocks.assemble import attend_core

    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, TOKENS, WIDTH, generator=made) for _ in range(3))
    with torch.no_grad():
        out = attend_core(registry.get(name), registry.module_of(name), q, k, v, False, 0, None)
    return tuple(LETTERS[size] for size in out.shape[2:])


def output_shapes() -> dict[str, list[str]]:
    """Eq 1 and Eq 10."""
    return {"Eq 1": list(output_shape("standard")), "Eq 10": list(output_shape("neural"))}


def graph_dimensions() -> dict[str, int]:
    """Dimension of the graph over q = k = (x, y), and of the space it lies in.

    The rank of (x, y) -> (q1, q2, k1, k2, z)'s Jacobian, the same for any smooth z.
    """
    x, y = sympy.symbols("x y")
    z = sympy.Function("z")(x, y)
    graph = sympy.Matrix([x, y, x, y, z])
    return {"graph": graph.jacobian([x, y]).rank(), "space": graph.rows}


def tokens() -> int:
    """Patches of an image and the class token."""
    told = settings("vision")
    return int(exact_div(int(told["image"]), int(told["patch"])) ** 2 + 1)


def head_width(task: str) -> int:
    """The model's width divided among the heads."""
    told = settings(task)
    return int(exact_div(int(told["d_model"]), int(told["heads"])))


def growth() -> dict[str, int]:
    """Power of n in what the mechanisms compute, from their closed forms in n, h and d."""
    n, h, d = sympy.symbols("n h d", positive=True)
    found = {}
    for name in ROWS:
        cost = attention(name).cost(Workload(n, h, d), "core")
        terms = leading_terms(cost.flops, ["n"]) or []
        found[name] = max(int(term.along({"n": 1})[0]) for term in terms)
    return found


CHECKS = [
    Check(
        "001-EQ10-shape",
        {"Eq 1": ["n", "n"], "Eq 10": ["n", "n"]},
        output_shapes,
        how="both equations run on one head of 7 tokens and width 4; the shapes of what comes out",
        why="softmax(A / sqrt d) V is n x d, as Sec 1.1 says; n x n is the matrix A within it",
    ),
    Check(
        "001-MANIFOLD",
        {"graph": 3, "space": 5},
        graph_dimensions,
        how="rank of the Jacobian of (x, y) -> (x, y, x, y, z(x, y))",
        why="two parameters x, y make a surface: a 2-dimensional manifold, which can be drawn in "
        "three dimensions",
    ),
    Check(
        "001-SEQ785",
        int(settings("vision")["seq_len"]),
        tokens,
        how="(224 / 8) squared patches and one class token",
    ),
    Check(
        "001-D64-NLP",
        int(settings("nlp")["d_head"]),
        partial(head_width, "nlp"),
        how="d_model divided by the number of heads, of the same section",
        tables=("1",),
    ),
    Check(
        "001-D64-VIS",
        int(settings("vision")["d_head_printed"]),
        partial(head_width, "vision"),
        how="d_model divided by the number of heads, of the same section",
        why="768 / 8 = 96; 64 is the language model's width (512 / 8), carried over",
        tables=("3", "4", "7", "8"),
    ),
    Check(
        "001-ON2",
        dict.fromkeys(ROWS, 2),
        growth,
        how="power of n in the leading term of the operations that the dot product and, as "
        "Algorithm 1 executes it, each row of Table 6 take, for any h and d",
    ),
]
