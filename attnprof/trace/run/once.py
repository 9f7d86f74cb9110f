"""Arithmetic on sizes that torch works out once in a run, and questions it need not be asked."""

from collections.abc import Callable
from typing import Any

import sympy

from attnprof.trace.run.remainders import in_blocks


def once_each(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operation on two of torch's sizes that is worked out once in a run."""

    def found(one: Any, other: Any) -> Any:
        known = getattr(one.shape_env, "worked_out", None)
        if known is None:
            return operation(one, other)
        asked = operation, one._expr, other._expr, one.pytype, other.pytype
        if asked not in known:
            known[asked] = in_blocks(operation(one, other))
        return known[asked]

    return found


def at_once(question: Callable[..., bool]) -> Callable[..., bool]:
    """A question to a comparison that torch is not asked where it is true, or false, as it stands.

    Most compare a size with itself.
    """

    def answered(node: Any, *place: Any) -> bool:
        known = node._expr
        return known is sympy.true or (known is not sympy.false and question(node, *place))

    return answered
