"""Sizes at which a mixture of experts spreads its rows evenly over the experts."""

from collections.abc import Sequence
from math import gcd

from attnprof.trace.request.target import Sizes, Target
from attnprof.trace.solve.budget import Runs


def evenly(
    target: Target, phases: Sequence[str], hints: dict[str, int], asked: Sizes
) -> dict[str, int]:
    """Return hints at which each expert gets as many rows, and more of them than experts exist."""
    if not target.routed:
        return hints
    trace = Runs(target, phases).at(hints)
    free = [name for name in ("N", *hints) if name in hints and name not in asked]
    for rows, experts in trace.routes:
        name = next((name for name in free if rows % hints[name] == 0), "")
        if not name:
            continue
        each = rows // hints[name]
        unit = experts // gcd(experts, each)
        least = max(hints[name], -(-experts * experts // each) + unit)
        hints = {**hints, name: unit * (-(-least // unit) | 1)}
    return hints
