"""What every ATen operation costs: one table, one small function a family.

A rule gets the result, then the operation's own arguments, and returns counts by kind. Moves and
views have no FLOPs; an operation without a rule is named, never silently zero. What a kernel
makes of other operations, and torch counts as one, is expanded into them.
"""

from attnprof.trace.rules import (
    activations,
    arithmetic,
    attention,
    convolution_workspaces,
    convolutions,
    losses,
    norms,
    products,
    reductions,
    scatters,
    transforms,
)
from attnprof.trace.rules.cost import cost_of, name_of, tensors_in
from attnprof.trace.rules.expansions import expansion_of, result_of
from attnprof.trace.rules.table import Found, known_operations

__all__ = [
    "Found",
    "cost_of",
    "expansion_of",
    "known_operations",
    "name_of",
    "result_of",
    "tensors_in",
]
_FAMILIES = (
    activations, arithmetic, attention, convolution_workspaces, convolutions, losses, norms,
    products, reductions, scatters, transforms,
)  # fmt: skip
