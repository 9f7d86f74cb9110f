"""Experts that tokens choose, as the kernels that multiply grouped rows need to know them."""

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules import name_of, tensors_in
from attnprof.trace.sizes import numel, size_of


class Choices:
    """The last choice among each number of real numbers: its places, and how many of a row."""

    def __init__(self) -> None:
        self._last: dict[Size, tuple[Size, Size]] = {}

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Remember the result of an operation that chooses."""
        if name_of(func) != "aten.topk":
            return
        scores, places = args[0], tensors_in(out)[-1]
        dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
        if scores.dim():
            chosen = numel(places), size_of(places.shape[dim])
            self._last[size_of(scores.shape[dim])] = chosen

    def among(self, number: Size) -> tuple[Size | None, Size]:
        """Places of the last choice among so many, and how many of each row; None where unknown."""
        return self._last.get(number, (None, 1))
