"""003: the orders of growth it claims, and those of its classes and of what they compute."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from attnprof.algebra.orders import leading_terms
from attnprof.papers.approximation.program import DOCUMENT, STUDENTS, derived, longformer
from attnprof.papers.checks import READING, Check, Checks, formula

CLAIMS = "complexity_claims"
#: The claimed orders in this project's spelling; other letters than N are constants.
ORDERS = {"N*L": "N", "N*m": "N", "N*log(N)": "N log N", "N*sqrt(N)": "N^1.5"}
#: Mechanisms by what the document's table calls them.
IDS = {
    "standard_self_attention": "standard", "low_rank_factorization": "low-rank",
    "kernelized_attention": "linear", "sparse_transformer": "sparse",
}  # fmt: skip
DERIVED = "operations of its class, derived by running it on symbolic sizes; their power in N"


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


def _order(claim: str, name: str, *more: str, how: str = DERIVED, **said: Any) -> Check:
    """Powers of N, and of more sizes, in a class's operations."""
    return Check(
        claim,
        claimed(name),
        lambda: leading(derived(name), ("N", *more)),
        how=how,
        tables=(CLAIMS,),
        **said,
    )


CHECKS = Checks([
    _order("003-STD", "standard", note="4 N^2 d + 6 N^2 a sequence"),
    _order("003-LIN", "linformer", "L", how=f"{DERIVED} and L", note="8 N L d + 6 N L a sequence"),
    _order(
        "003-PERF-ORDER",
        "performer",
        note="8 N m d and less: linear in N, and in the number m of features, which it leaves out",
    ),
    _order(
        "003-LONG-COST",
        "longformer",
        why="the class computes all N^2 scores (4 N^2 d, as the standard one) and masks them "
        "afterwards, with an N x N mask beside; only a banded product would be O(N w), "
        "4 N (2w + 1) d",
    ),
])  # fmt: skip


@CHECKS.answers(
    "003-CROSS",
    {name: claimed(name)["N"] for name in STUDENTS},
    how="read in the listing: the decoder layer makes its cross-attention of the standard "
    "class, whatever class it is given; power in N of its own class twice and that one once",
    basis=READING,
    why="the decoder's cross-attention is the standard class in every model, so each of them "
    "stays quadratic in N",
)
def _whole_models() -> dict[str, int]:
    return {name: leading(2 * derived(name) + derived("standard"))["N"] for name in STUDENTS}


@cache
def kept(tokens: int, window: int) -> int:
    """Entries that the window's mask keeps, counted in the weights that come out."""
    import torch

    x = torch.zeros(1, tokens, 1)
    weights = longformer(x, x, torch.eye(tokens)[None], window=window)
    return int((weights > 0).sum())


@CHECKS.answers(
    "003-SPARSE-L",
    {"N": 1},
    how="entries that a window's mask keeps, counted for several N; the order of differences "
    "at which they become constant",
    note="N (2w + 1) - w (w + 1) entries; the time is linear only where nothing else is "
    "computed, unlike in the listing. The text says the mask omits L entries: it keeps L",
)
def _power_of_kept() -> dict[str, int]:
    counts = [kept(tokens, 4) for tokens in range(16, 17 + 8 * 6, 8)]
    power = 0
    while len(set(counts)) > 1:
        counts = [after - before for before, after in pairwise(counts)]
        power += 1
    return {"N": power}
