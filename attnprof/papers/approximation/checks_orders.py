"""003: the orders of growth it claims, against its classes' counts as they run."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise

from attnprof.papers.approximation.growth import claimed, leading
from attnprof.papers.approximation.program import CLASSES, derived, longformer
from attnprof.papers.checks import READING, Check

TABLES = ("complexity_claims",)
DERIVED = "operations of its class, derived by running it on symbolic sizes; their power in N"


def order(name: str, *more: str) -> dict[str, int]:
    """Powers of N, and of more sizes, in a class's operations."""
    return leading(derived(name), ("N", *more))


def whole_models() -> dict[str, dict[str, int]]:
    """Powers of N in the attention of a whole model: own for itself, standard across."""
    return {
        name: leading(2 * derived(name) + derived("standard"))
        for name in CLASSES
        if name != "standard"
    }


@cache
def kept(tokens: int, window: int) -> int:
    """Entries that the window's mask keeps, counted in the weights that come out."""
    import torch

    x = torch.zeros(1, tokens, 1)
    weights = longformer(x, x, torch.eye(tokens)[None], window=window)
    return int((weights > 0).sum())


def power_of_kept(window: int = 4) -> dict[str, int]:
    """Power of N in the number of kept entries: how often their differences vary."""
    counts = [kept(tokens, window) for tokens in range(16, 17 + 8 * 6, 8)]
    power = 0
    while len(set(counts)) > 1:
        counts = [after - before for before, after in pairwise(counts)]
        power += 1
    return {"N": power}


CHECKS = [
    Check(
        "003-STD",
        claimed("standard"),
        partial(order, "standard"),
        how=DERIVED,
        note="4 N^2 d + 6 N^2 a sequence",
        tables=TABLES,
    ),
    Check(
        "003-LIN",
        claimed("linformer"),
        partial(order, "linformer", "L"),
        how=DERIVED + " and L",
        note="8 N L d + 6 N L a sequence",
        tables=TABLES,
    ),
    Check(
        "003-PERF-ORDER",
        claimed("performer"),
        partial(order, "performer"),
        how=DERIVED,
        note="8 N m d and less: linear in N, and in the number m of features, which it leaves out",
        tables=TABLES,
    ),
    Check(
        "003-LONG-COST",
        claimed("longformer"),
        partial(order, "longformer"),
        how=DERIVED,
        why="the class computes all N^2 scores (4 N^2 d, as the standard one) and masks them "
        "afterwards, with an N x N mask beside; only a banded product would be O(N w), "
        "4 N (2w + 1) d",
        tables=TABLES,
    ),
    Check(
        "003-CROSS",
        {name: claimed(name)["N"] for name in CLASSES if name != "standard"},
        lambda: {name: powers["N"] for name, powers in whole_models().items()},
        how="read in the listing: the decoder layer makes its cross-attention of the standard "
        "class, whatever class it is given; power in N of its own class twice and that one once",
        basis=READING,
        why="the decoder's cross-attention is the standard class in every model, so each of them "
        "stays quadratic in N",
    ),
    Check(
        "003-SPARSE-L",
        {"N": 1},
        power_of_kept,
        how="entries that a window's mask keeps, counted for several N; the order of differences "
        "at which they become constant",
        note="N (2w + 1) - w (w + 1) entries; the time is linear only where nothing else is "
        "computed, unlike in the listing. The text says the mask omits L entries: it keeps L",
    ),
]
