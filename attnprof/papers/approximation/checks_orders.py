"""003: the orders of growth it claims, and those of its classes and of what they compute."""

import re
from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

from attnprof.algebra.orders import leading_terms
from attnprof.papers.approximation.program import DOCUMENT, STUDENTS, derived, longformer
from attnprof.papers.checks import Ours, Printed, formula

CLAIMS = "complexity_claims"
#: The claimed orders in this project's spelling; other letters than N are constants.
ORDERS = {"N*L": "N", "N*m": "N", "N*log(N)": "N log N", "N*sqrt(N)": "N^1.5"}
#: Mechanisms by what the document's table calls them.
IDS = {
    "standard_self_attention": "standard", "low_rank_factorization": "low-rank",
    "kernelized_attention": "linear", "sparse_transformer": "sparse",
}  # fmt: skip


def mechanism_id(row: dict[str, str]) -> str:
    """This project's name for a row's mechanism."""
    return IDS.get(row["mechanism"], row["mechanism"])


def claimed_text(mechanism: str) -> str:
    """What stands in the first O(…) that is claimed for a mechanism's time: ``N*L``."""
    rows = {mechanism_id(row): row["time_claimed"] for row in DOCUMENT.rows(CLAIMS)}
    found = re.match(r"O\((.*?)\)(?: |;|$)", rows[mechanism])
    assert found, rows[mechanism]
    return found[1]


def claimed_order(mechanism: str) -> str:
    """The same as an order in N."""
    text = claimed_text(mechanism)
    return ORDERS.get(text, text)


def claimed(mechanism: str) -> dict[str, int]:
    """The claimed powers, by size: O(N*L) is N 1, L 1."""
    powers = {}
    for factor in claimed_text(mechanism).split("*"):
        name, _, power = factor.partition("^")
        powers[name] = int(power or 1)
    return powers


def leading(expression: Any, sizes: Sequence[str] = ("N",)) -> dict[str, int]:
    """Powers of the sizes in the term that leads as they grow; ValueError without a single one."""
    terms = leading_terms(formula(expression), sizes)
    if terms is None or len(terms) != 1:
        raise ValueError(f"no single term of {expression} leads in {', '.join(sizes)}")
    (term,) = terms
    return {size: int(term.growth.get(size, (0, 0))[0]) for size in sizes}


def executed(name: str) -> dict[str, int]:
    """Powers of N, and of Linformer's L, in the operations of a class."""
    return leading(derived(name), ("N", "L") if name == "linformer" else ("N",))


def whole_models() -> dict[str, int]:
    """Powers of N in models whose decoder has its own class twice and the standard one once."""
    return {name: leading(2 * derived(name) + derived("standard"))["N"] for name in STUDENTS}


@cache
def kept(tokens: int, window: int) -> int:
    """Entries that the window's mask keeps, counted in the weights that come out."""
    import torch

    x = torch.zeros(1, tokens, 1)
    weights = longformer(x, x, torch.eye(tokens)[None], window=window)
    return int((weights > 0).sum())


def power_of_kept() -> dict[str, int]:
    """The order of differences at which the numbers of kept entries become constant."""
    counts = [kept(tokens, 4) for tokens in range(16, 17 + 8 * 6, 8)]
    power = 0
    while len(set(counts)) > 1:
        counts = [after - before for before, after in pairwise(counts)]
        power += 1
    return {"N": power}


#: Mechanisms whose claimed order is held against that of their class.
CLASSES = {
    "003-STD": "standard", "003-LIN": "linformer", "003-PERF-ORDER": "performer",
    "003-LONG-COST": "longformer",
}  # fmt: skip
PRINTED: Printed = {
    **{claim: claimed(name) for claim, name in CLASSES.items()},
    "003-CROSS": {name: claimed(name)["N"] for name in STUDENTS},
}
OURS: Ours = {
    **{claim: partial(executed, name) for claim, name in CLASSES.items()},
    "003-CROSS": whole_models,
    "003-SPARSE-L": power_of_kept,
}
