"""The table of rules, and how a family enters it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from attnprof.trace.events import Size
from attnprof.trace.sizes import is_floating, numel

#: multiplications, additions, divisions, exponentials, others, FLOPs of matrix products
M, A, D, E, OTHER, MM = (
    "multiplications", "additions", "divisions", "exponentials", "other", "matmul_flops",
)  # fmt: skip

Counts = dict[str, Size]
#: A rule gives None where it does not know this case: the operation is then named.
Rule = Callable[..., Mapping[str, Size] | None]

Known = TypeVar("Known", bound=Rule)

RULES: dict[str, Rule] = {}
#: Operations whose rule takes the call as one object with the schema's argument names.
BY_NAME: set[str] = set()


@dataclass(frozen=True)
class Found:
    """What one operation costs.

    ``uncounted`` names it where ``counts`` leave something out, ``scratch`` where its kernel takes
    memory that ``workspace`` does not know.
    """

    counts: Mapping[str, Size] = field(default_factory=dict)
    bytes_moved: Size = 0
    workspace: Size = 0
    uncounted: str = ""
    touched: Size = 0
    scratch: str = ""


def rule(*names: str) -> Callable[[Known], Known]:
    """Enter a function for these operations (without ``aten::``, overload or final ``_``)."""

    def enter(function: Known) -> Known:
        _enter(names, function)
        return function

    return enter


def rule_by_name(*names: str) -> Callable[[Known], Known]:
    """The same for ``function(out, call)``, where ``call.query`` is the argument ``query``.

    For kernels that differ in the order of their arguments, not in their names.
    """
    BY_NAME.update(names)
    return rule(*names)


def per_entry(names: str, **kinds: int) -> None:
    """So many operations for each entry of the (first) result, where it is floating point.

    Complex results are not counted this way: the rule does not know them.
    """

    def counts(out: Any, *_args: Any, **_named: Any) -> Counts | None:
        first = first_of(out)
        if first.is_complex():
            return None
        if not is_floating(first):
            return {}
        return {kind: times * numel(first) for kind, times in kinds.items()}

    _enter(names.split(), counts)


def _enter(names: Any, function: Rule) -> None:
    for name in names:
        if name in RULES:
            raise ValueError(f"{name} has two rules")
        RULES[name] = function


def first_of(out: Any) -> Any:
    """The result, or the first of several."""
    return out[0] if isinstance(out, tuple | list) else out


def product_counts(macs: Size, *, of_complex: bool = False) -> Counts:
    """A matrix product of so many multiply-adds; a complex one is four real ones."""
    real = 4 * macs if of_complex else macs
    return {M: real, A: real, MM: 2 * real}


def entries(count: Size, *, real: bool = True, **kinds: int) -> Counts:
    """So many operations of each kind for each of ``count`` real entries; else nothing."""
    return {kind: times * count for kind, times in kinds.items() if times} if real else {}


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
