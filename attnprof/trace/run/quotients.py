"""Sizes that code makes tensors of and sizes again: quotients by ``torch.div``, their sums."""

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
    """Patches for the time of a symbolic run."""
    yield patch.object(torch, "div", _divided)
    for name, rule in _ON_TENSORS.items():
        yield patch.object(torch.Tensor, name, _followed(getattr(torch.Tensor, name), rule))


def _is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _divided(one: Any, other: Any, *, rounding_mode: Any = None, **how: Any) -> Any:
    """A quotient that, of sizes, is one where code makes a size of it again."""
    made = _div(one, other, rounding_mode=rounding_mode, **how)
    if rounding_mode and _is_size(one) and _is_size(other):
        made.item_memo = one // other
    return made


def _followed(plain: Any, rule: Callable[[Any, Any], Any]) -> Any:
    """An operation on a tensor that, of one that is a size, gives a size."""

    def method(tensor: Any, other: Any) -> Any:
        made = plain(tensor, other)
        known = getattr(tensor, "item_memo", None) if _is_size(other) else None
        if known is not None and isinstance(made, torch.Tensor):
            made.item_memo = rule(known, other)  # type: ignore[attr-defined]
        return made

    return method
