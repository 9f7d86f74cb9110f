"""What code takes from the values of tensors, in a run on real ones, and whether it had to."""

from __future__ import annotations

from typing import Any

import torch

from attnprof.trace.events import Decision
from attnprof.trace.rules import name_of, tensors_in

_NUMBERS, _SHAPES = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
#: Its result's size depends on values only where it takes masks.
_INDEX = torch.ops.aten.index.Tensor


class Values:
    """Follows which tensors are made of inputs and weights; others depend on sizes alone.

    The truth value number ``flipped``, of all that the code takes, is turned round.
    """

    def __init__(self, flipped: int | None = None) -> None:
        self._flipped = flipped
        self._made_of_them: set[int] = set()

    def given(self, tensors: Any) -> None:
        """Inputs and weights."""
        self._made_of_them |= {_key(tensor) for tensor in tensors_in(tensors)}

    def after(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        line: str,
        decisions: list[Decision],
    ) -> Any:
        """The operation's result, turned round where that was asked; decisions are added."""
        by_values = self._depends((args, kwargs))
        tags = getattr(func, "tags", ())
        asked = _masks(args) if func is _INDEX else (args, kwargs)
        if asked and (_NUMBERS in tags or _SHAPES in tags):
            truth = isinstance(out, bool)
            depends = self._depends(asked)
            decisions.append(Decision(name_of(func), line, depends, truth, _SHAPES in tags))
            if truth and len(decisions) - 1 == self._flipped:
                return not out
        self._follow(func, by_values, out)
        return out

    def _depends(self, value: Any) -> bool:
        return any(_key(tensor) in self._made_of_them for tensor in tensors_in(value))

    def _follow(self, func: Any, by_values: bool, out: Any) -> None:
        name = name_of(func).removeprefix("aten.")
        blank = name.endswith("_like") or name.startswith("new_")  # of the shape alone
        for tensor in tensors_in(out):
            if by_values and not blank:
                self._made_of_them.add(_key(tensor))
            elif blank or not _may_alias(func):
                self._made_of_them.discard(_key(tensor))


def _masks(args: tuple[Any, ...]) -> list[Any]:
    """The indices that pick by their values, not by their number."""
    return [x for x in tensors_in(args[1]) if x.dtype in {torch.bool, torch.uint8}]


def _may_alias(func: Any) -> bool:
    """Whether a result may lie in the storage of an argument."""
    schema = getattr(func, "_schema", None)
    return schema is None or any(argument.alias_info for argument in schema.arguments)


def _key(tensor: Any) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
