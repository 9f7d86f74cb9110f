"""Keep sizes symbolic that code makes tensors of and sizes again: quotients by ``torch.div``.

A quotient remembers its size, as do its sums and products, and torch's ``item()`` gives it back.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch

_div: Any = torch.div
_ON_TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "__add__": operator.add,
    "__radd__": operator.add,
    "__sub__": operator.sub,
    "__mul__": operator.mul,
    "__rmul__": operator.mul,
}


def patches() -> Iterator[Any]:
    """Yield patches for the time of a symbolic run."""
    yield patch.object(torch, "div", _divided)
    for name, rule in _ON_TENSORS.items():
        yield patch.object(torch.Tensor, name, _following_sizes(getattr(torch.Tensor, name), rule))


def _is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _divided(one: Any, other: Any, *, rounding_mode: Any = None, **how: Any) -> Any:
    """Return ``torch.div``'s result; of two sizes, with their quotient remembered as its size."""
    made = _div(one, other, rounding_mode=rounding_mode, **how)
    if rounding_mode and _is_size(one) and _is_size(other):
        made.item_memo = one // other
    return made


def _following_sizes(plain: Any, rule: Callable[[Any, Any], Any]) -> Any:
    """Return an operation on tensors that gives a result with a size if the operand has one."""

    def method(tensor: Any, other: Any) -> Any:
        made = plain(tensor, other)
        known = getattr(tensor, "item_memo", None) if _is_size(other) else None
        if known is not None and isinstance(made, torch.Tensor):
            made.item_memo = rule(known, other)  # type: ignore[attr-defined]
        return made

    return method
