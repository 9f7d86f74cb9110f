"""Where two counts of the same run differ, by how much and why: expressions, not tolerances."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.costs import CostTable
from attnprof.gate.exact import chosen
from attnprof.trace.events import KINDS, Size, Trace, added, peak

#: Bytes of a number that autograd saves, as the 8.0 of ``x / 8.0``; dispatched operations show
#: it as a number, closed forms count the tensor that torch makes of it.
NUMBER = 8


@dataclass(frozen=True)
class Difference:
    """What a closed form, or another counter, has more (``amount``) than the derived count."""

    quantity: str
    amount: Any
    why: str

    def __str__(self) -> str:
        return f"{self.quantity}: {self.amount} ({self.why})"


def closed_form(table: CostTable) -> dict[str, Any]:
    """A cost table in the quantities of a derivation."""
    total = table.total
    counts = {kind: getattr(total, kind) for kind in KINDS}
    return {
        **counts,
        "flops": total.flops,
        "bytes_moved": total.bytes_moved,
        "peak_bytes": table.peak(),
        "parameters": table.parameters,
    }


def differences_to_form(
    derived: Mapping[str, Any], form: Mapping[str, Any], at: Mapping[str, int]
) -> list[Difference]:
    """Every quantity in which a closed form is not the derived count, as polynomials.

    Where a form branches (``Min``, ``Max``, ``Piecewise``) the branch at ``at`` is compared; a
    peak, as the largest of the same candidates.
    """
    return [
        difference
        for quantity, value in form.items()
        for difference in _difference(quantity, value, derived[quantity], at)
    ]


def _difference(quantity: str, form: Any, derived: Any, at: Mapping[str, int]) -> list[Difference]:
    import sympy

    form, derived = sympy.sympify(form), sympy.sympify(derived)
    if quantity != "peak_bytes":
        amount = sympy.expand(chosen(form, at) - chosen(derived, at))
        return [Difference(quantity, amount, "unexplained")] if amount else []
    ours, theirs = _candidates(form, at), _candidates(derived, at)
    odd = {h: c for h, c in (*ours.items(), *theirs.items()) if (h in ours) != (h in theirs)}
    both = [held for held in ours if held in theirs]
    if not both or any(_is_ever_largest(held, both) for held in odd):
        return [Difference(quantity, odd, "unexplained")]
    gaps = {ours[held] - theirs[held] for held in both}
    numbers = max(gaps) // NUMBER
    if gaps <= {NUMBER * count for count in range(numbers + 1)}:
        why = f"up to {numbers} numbers that autograd saves, {NUMBER} bytes each"
        return [Difference(quantity, NUMBER * numbers, why)] if numbers else []
    return [Difference(quantity, form - derived, "unexplained")]


def _candidates(most: Any, at: Mapping[str, int]) -> dict[Any, int]:
    """What may be held at most, without its constant, and the largest constant it comes with."""
    import sympy

    most = chosen(most, at, sympy.Piecewise)
    constants: dict[Any, int] = {}
    for candidate in most.args if isinstance(most, sympy.Max) else (most,):
        constant, held = sympy.expand(chosen(candidate, at)).as_coeff_Add()
        constants[held] = max(int(constant), constants.get(held, 0))
    return {h: c for h, c in constants.items() if not _below_another(h, constants)}


def _below_another(held: Any, constants: Mapping[Any, int]) -> bool:
    """Whether another candidate is at least as large at all sizes of one or more."""
    return any(
        other != held and all(c >= 0 for c in (other - held).as_coefficients_dict().values())
        for other in constants
    )


def _is_ever_largest(held: Any, others: Sequence[Any]) -> bool:
    """Whether a candidate is above all others at one of many shapes, from tiny to huge."""
    import sympy

    names = sorted({name for x in (held, *others) for name in x.free_symbols}, key=str)
    draw = random.Random(len(names))
    numbers = sympy.lambdify(names, [held, *others], "math")
    for _ in range(2000):
        value, *rest = numbers(*(round(2 ** draw.uniform(0, 20)) for _ in names))
        if value > max(rest):
            return True
    return False


def held_by_tensors(trace: Trace, phase: str) -> Size:
    """The peak without what kernels take inside themselves, which closed forms leave out."""
    calls = [replace(call, workspace=0) for call in trace.calls]
    return peak(Trace(calls, trace.parameters), phase)


def differences_to_torch(trace: Trace, phase: str, counted: int) -> list[Difference]:
    """Where ``FlopCounterMode`` says something else than the products of a run."""
    executed = added([call.counts.get("matmul_flops", 0) for call in trace.part(phase)])
    blind = _fused_on_cpu(trace, phase)
    rows = [
        Difference("matmul_flops", -flops, f"torch counts {op} on a CPU as 0")
        for op, flops in blind.items()
    ]
    rest = counted - executed + sum(blind.values())
    return rows + ([Difference("matmul_flops", rest, "unexplained")] if rest else [])


def _fused_on_cpu(trace: Trace, phase: str) -> dict[str, Size]:
    """Products inside fused attention kernels of the CPU, by operation."""
    products: dict[str, Size] = {}
    for call in trace.part(phase):
        if "_for_cpu" in call.op:
            products[call.op] = products.get(call.op, 0) + call.counts["matmul_flops"]
    return products
