"""What every ATen operation costs: one table, one small function a family.

A rule gets the result, then the operation's own arguments, and returns counts by kind. Moves and
views have no FLOPs; an operation without a rule is named, never silently zero.
"""

from attnprof.trace.rules import attention, pointwise, products, reductions, transforms
from attnprof.trace.rules.costing import cost_of
from attnprof.trace.rules.table import Found, known_operations

__all__ = ["Found", "cost_of", "known_operations"]
_FAMILIES = (attention, pointwise, products, reductions, transforms)
