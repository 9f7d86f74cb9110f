"""004's formulas as expressions: what it prints, and what its definitions count to.

Symbols: N tokens, d the width of a head, h heads. All are positive.
"""

from functools import cache
from typing import Any

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.crossovers.sides import Meeting, contests
from attnprof.crossovers.solve import solved
from attnprof.papers.documents import document
from attnprof.workload import Workload

DOCUMENT = document("004")
FORMS = ("taylor-direct", "taylor-efficient")
N, D, H = map(symbol, "Ndh")


def quoted(quantity: str) -> str:
    """A number of the running text, as it is printed there."""
    values = {row["quantity"]: row["value"] for row in DOCUMENT.rows("quoted_numbers")}
    return values[quantity]


@cache
def published(source: str) -> Any:
    """A printed form by its source (``004-EQ4``)."""
    forms = {form.source: form for name in FORMS for form in registry.get(name).published()}
    return forms[source]


def printed(source: str) -> Any:
    """Its closed form in N and d (and h)."""
    form = published(source)
    return form.formula(Workload(N, 1 if form.heads == "one" else H, D))


@cache
def stages(mechanism: str) -> dict[str, Any]:
    """FLOPs of each stage of a mechanism's definition, one head."""
    found: dict[str, Any] = {}
    for stage in registry.get(mechanism).definition(Workload(N, 1, D), "core"):
        found[stage.name] = found.get(stage.name, 0) + stage.cost.flops
    return found


def direct_flops() -> Any:
    """Eq 1, counted by our definition; its normalisation of rows came later (Sec 3.3)."""
    eq1 = ("scores", "Taylor map", "row sums", "normalisation", "weighted values")
    return sum(stages("taylor-direct")[name] for name in eq1)


def squared_flops() -> Any:
    """Eq 2, counted by our definition."""
    squared = ("box products", "A_mod", "squared part")
    return sum(stages("taylor-efficient")[name] for name in squared)


def efficient_flops() -> Any:
    """Eq 3 as it is printed: one factor ½, two sums of N × (d+1), and the division by Eq 1."""
    counted = stages("taylor-efficient")
    linear = counted["keysᵀ values"] + counted["linear part"]
    half = counted["factors"] / 3  # Algorithm 1 has three factors, Eq 3 one
    return squared_flops() + linear + half + counted["sums"] + counted["division"]


#: N0 and N1, and the metric of ``attnprof crossover`` that each is of.
METRICS = {"N0": "flops", "N1": "memory"}
WIDTHS = tuple(int(row["d"]) for row in DOCUMENT.rows("table02_transition_points"))


@cache
def crossing(name: str, head_dim: int) -> tuple[Any, str | None]:
    """All crossings of the printed forms at one width, and the last one's closed form in d."""
    direct, efficient = map(registry.get, FORMS)
    meeting = Meeting(direct, efficient, Workload(1, 1, head_dim))
    (contest,) = contests(meeting, kinds=("published",), metrics=(METRICS[name],))
    return solved(meeting, contest, head_dim)


def first_lengths(head_dim: int) -> dict[str, int]:
    """The first whole lengths from which on the efficient form is not dearer."""
    return {name: int(crossing(name, head_dim)[0].first_seq_len) for name in METRICS}
