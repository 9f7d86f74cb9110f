"""Orders of growth: what the document claims, and those of counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from attnprof.papers.agreement import formula
from attnprof.papers.documents import document
from attnprof.papers.leading import leading_terms

CLAIMS = "complexity_claims"
#: Mechanisms by what the document's table calls them.
IDS = {
    "standard_self_attention": "standard",
    "low_rank_factorization": "low-rank",
    "kernelized_attention": "linear",
    "sparse_transformer": "sparse",
}


def claimed_text(mechanism: str) -> str:
    """What stands in the first O(…) that is claimed for a mechanism's time: ``N*L``."""
    rows = {mechanism_id(row): row["time_claimed"] for row in document("003").rows(CLAIMS)}
    found = re.match(r"O\((.*?)\)(?: |;|$)", rows[mechanism])
    assert found, rows[mechanism]
    return found[1]


def mechanism_id(row: dict[str, str]) -> str:
    """This project's name for a row's mechanism."""
    return IDS.get(row["mechanism"], row["mechanism"])


def claimed(mechanism: str) -> dict[str, int]:
    """The claimed powers, by size: O(N*L) is N 1, L 1."""
    powers = {}
    for factor in claimed_text(mechanism).split("*"):
        name, _, power = factor.partition("^")
        powers[name] = int(power or 1)
    return powers


def leading(expression: Any, sizes: Sequence[str] = ("N",)) -> dict[str, int]:
    """Powers of the sizes in the term that leads as they grow.

    Raises ValueError where several lead, or none can be told.
    """
    terms = leading_terms(formula(expression), sizes)
    if terms is None or len(terms) != 1:
        raise ValueError(f"no single term of {expression} leads in {', '.join(sizes)}")
    (term,) = terms
    return {size: int(term.growth.get(size, (0, 0))[0]) for size in sizes}
