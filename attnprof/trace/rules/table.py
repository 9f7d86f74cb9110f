"""The table of rules, and how a family enters it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.sizes import is_floating, numel

#: multiplications, additions, divisions, exponentials, others, FLOPs of matrix products
M, A, D, E, OTHER, MM = (
    "multiplications", "additions", "divisions", "exponentials", "other", "matmul_flops",
)  # fmt: skip

Counts = dict[str, Size]
Rule = Callable[..., Mapping[str, Size]]

RULES: dict[str, Rule] = {}


@dataclass(frozen=True)
class Found:
    """What one operation costs; ``uncounted`` names it where ``counts`` leave something out."""

    counts: Mapping[str, Size] = field(default_factory=dict)
    bytes_moved: Size = 0
    workspace: Size = 0
    uncounted: str = ""
    touched: Size = 0


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function for these operations (without ``aten::``, overload or final ``_``)."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def per_entry(names: str, **kinds: int) -> None:
    """So many operations for each entry of the (first) result, where it is floating point."""

    def counts(out: Any, *_args: Any, **_named: Any) -> Counts:
        first = first_of(out)
        if not is_floating(first):
            return {}
        return {kind: times * numel(first) for kind, times in kinds.items()}

    RULES.update(dict.fromkeys(names.split(), counts))


def first_of(out: Any) -> Any:
    """The result, or the first of several."""
    return out[0] if isinstance(out, tuple | list) else out


def product_counts(macs: Size) -> Counts:
    """A matrix product of so many multiply-adds."""
    return {M: macs, A: macs, MM: 2 * macs}


def summed(*parts: Mapping[str, Size]) -> Counts:
    """Counts added kind by kind (a ``Counter`` would compare expressions with zero)."""
    total: Counts = {}
    for part in parts:
        for kind, count in part.items():
            total[kind] = total[kind] + count if kind in total else count
    return total


def known_operations() -> Counter[str]:
    """Names with a rule; for a table of what is covered."""
    return Counter(RULES)
