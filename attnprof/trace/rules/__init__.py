"""What every ATen operation costs: a table of rules, with a small function for each family.

Moves and views have no FLOPs; an operation without a rule is named as uncounted, never zero. An
operation that its kernel composes of others is expanded into them.
"""

from attnprof.trace.rules import (
    attention,
    convolution_workspaces,
    engine,
    entries,
    products,
    reductions,
)
from attnprof.trace.rules.replacements import expansion_of, result_of
from attnprof.trace.rules.table import check_registered, cost_of, name_of, tensors_in

__all__ = ["check_registered", "cost_of", "expansion_of", "name_of", "result_of", "tensors_in"]
_FAMILIES = (attention, convolution_workspaces, engine, entries, products, reductions)
