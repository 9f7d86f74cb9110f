"""Speed up torch's arithmetic on symbolic sizes: keep results, answer trivial questions."""

from collections.abc import Callable
from typing import Any

import sympy

from attnprof.trace.run.remainders import node_in_blocks


def once_each(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an operation on two symbolic sizes that keeps its results for a run."""

    def found(one: Any, other: Any) -> Any:
        known = getattr(one.shape_env, "worked_out", None)
        if known is None:
            return operation(one, other)
        asked = operation, one._expr, other._expr, one.pytype, other.pytype
        if asked not in known:
            known[asked] = node_in_blocks(operation(one, other))
        return known[asked]

    return found


def at_once(question: Callable[..., bool]) -> Callable[..., bool]:
    """Return a question to a comparison, answered without torch if plainly true or false.

    Most comparisons are of a size with itself.
    """

    def answered(node: Any, *place: Any) -> bool:
        known = node._expr
        return known is sympy.true or (known is not sympy.false and question(node, *place))

    return answered
