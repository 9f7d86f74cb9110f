"""Orders of growth that 003 claims, and growth of its mechanisms: counted and measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from attnprof import registry
from attnprof.algebra import orders
from attnprof.algebra.orders import fitted, leading_terms
from attnprof.closed_form.growth import GrowthCase
from attnprof.papers.checks import formula
from attnprof.papers.documents import document
from attnprof.papers.measured import measured
from attnprof.workload import Workload

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


HEAD_DIM = 64
LENGTHS = tuple(2**power for power in range(9, 17))
#: Lengths at which a clock and an allocator are asked, and torch's counter.
SHORT = (512, 1024, 2048, 4096)
#: The families of its figures; the listing's own Longformer is dense.
DENSE = "longformer impl=dense-mask"
FAMILIES: dict[str, tuple[str, ...]] = {
    "D": (),
    "E": ("linformer", "nystromformer", "low-rank"),
    "F": ("performer", "linear"),
    "G": ("longformer", DENSE, "reformer", "sparse"),
}


def subject(label: str) -> GrowthCase:
    """A mechanism as ``list`` writes it, one head, its core."""
    name, *settings = label.split()
    params = dict(setting.split("=") for setting in settings)
    return GrowthCase(registry.get(name, **params), Workload(1, 1, HEAD_DIM), "core")


def points(label: str) -> list[dict[str, Any]]:
    """A row a length: closed forms everywhere, counted and measured at the short ones."""
    its = subject(label)
    clocked = {
        point["seq_len"]: point
        for point in measured("003", "growth")
        if point["mechanism"] == label
    }
    rows = []
    for n in LENGTHS:
        table = its.table(n)
        here = clocked.get(n, {})
        rows.append({
            "mechanism": label, "seq_len": n, "flops": int(table.flops),
            "matmul_flops": int(table.matmul_flops),
            "matmul_flops_counted": here.get("matmul_flops"),
            "peak_bytes": int(table.peak()), "peak_bytes_measured": here.get("peak_bytes"),
            "median_s": here.get("median_s"), "ci_low_s": here.get("ci_low_s"),
            "ci_high_s": here.get("ci_high_s"),
        })  # fmt: skip
    return rows


def exponent(rows: Sequence[dict[str, Any]], quantity: str) -> float:
    """The exponent of N in a count, over the longer half of the lengths."""
    return fitted([row["seq_len"] for row in rows], [row[quantity] for row in rows])


def clocked_exponent(rows: Sequence[dict[str, Any]]) -> float:
    """The exponent of N in the processor times, over all lengths that have one."""
    known = [row for row in rows if row["median_s"]]
    return orders.exponent([row["seq_len"] for row in known], [row["median_s"] for row in known])
