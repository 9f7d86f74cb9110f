"""000's counts as formulas in l, d_m and h: as printed, and from the definitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import sympy

from attnprof import registry
from attnprof.costs import CostTable, exact_div
from attnprof.workload import Workload


@cache
def symbols() -> tuple[Any, Any, Any]:
    """Context length, model width, heads."""
    found: tuple[Any, Any, Any] = sympy.symbols("l d_m h", positive=True)
    return found


def _workload(phase: str) -> Workload:
    length, width, heads = symbols()
    return Workload(length, heads, width / heads, phase=phase)


@cache
def eq24(mechanism: str) -> Any:
    """Eq 24 as printed."""
    printed = registry.get(mechanism).published()
    (entry,) = (one for one in printed if one.source == "000-EQ24")
    return entry.formula(_workload("train"))


@cache
def definition(mechanism: str) -> CostTable:
    """The steps of a definition's forward pass, without biases."""
    return registry.get(mechanism, bias=False).definition(_workload("forward"))


@cache
def multiply_adds(mechanism: str) -> Any:
    """Multiplications and additions of all matrix products, forward and backward."""
    table = registry.get(mechanism, bias=False).cost(_workload("train"))
    return sympy.expand(table.matmul_flops)


@cache
def results_counted(mechanism: str) -> Any:
    """Eq 24's own convention: one operation for each result, the backward pass twice the forward.

    A product counts its results instead of its multiplications and additions; scaling,
    exponentials, row sums and normalisation count one an entry.
    """
    total = definition(mechanism).total
    return sympy.expand(3 * (total.dot_outputs + total.flops - total.matmul_flops))


@cache
def weights(mechanism: str) -> Any:
    """Parameters without biases, as the remarks count them."""
    return sympy.expand(registry.get(mechanism, bias=False).parameters(_workload("forward")))


@cache
def products(mechanism: str) -> Any:
    """Matrix products of one forward pass as the definitions write them: one a head each.

    Everything but the last, the product with W^O, is there for each head.
    """
    stages = [stage for stage in definition(mechanism) if stage.cost.matmul_flops != 0]
    return (len(stages) - 1) * symbols()[2] + 1


@cache
def parameters(mechanism: str, d_model: int, seq_len: int = 1, heads: int = 1) -> int:
    """Parameters of a layer whose maps all have a bias; the length matters to Super alone."""
    sizes = Workload(seq_len, heads, exact_div(d_model, heads))
    return int(registry.get(mechanism).parameters(sizes))


def implied_seq_len(count: float, d_model: int) -> int | None:
    """The length at which Super's layer has that many parameters; None where no length has."""
    from math import isqrt

    rest = int(count) - parameters("efficient", d_model)
    length = isqrt(max(rest, 0))
    return length if length and parameters("super", d_model, length) == count else None


def value_at(count: Callable[[str], Any], mechanism: str, seq_len: int, width: int, h: int) -> int:
    """One of the counts above at whole sizes."""
    return int(_evaluator(count, mechanism)(seq_len, width, h))


@cache
def _evaluator(count: Callable[[str], Any], mechanism: str) -> Any:
    return sympy.lambdify(symbols(), count(mechanism), modules="math")
