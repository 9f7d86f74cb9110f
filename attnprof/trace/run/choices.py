"""How many tokens choose among experts, as the kernel that multiplies grouped rows needs to know.

Its rows are the tokens' choices: of 4 tokens that choose 2 of 8 experts each it has 8. Which ones
they meet depends on how many tokens choose, and on how many each of them chooses.
"""

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules import name_of
from attnprof.trace.sizes import numel, size_of

#: Operations that choose the largest of some scores, or so many of them, with the place of their
#: argument that says along which dimension, and its default.
_CHOICES = {"aten.topk": (2, -1), "aten.max": (1, None), "aten.argmax": (1, None)}


class Choices:
    """The tokens of the last choice among each number of scores."""

    def __init__(self) -> None:
        self._tokens: dict[Size, Size] = {}

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note an operation that chooses."""
        place, default = _CHOICES.get(name_of(func), (0, None))
        dim = kwargs.get("dim", args[place] if place and len(args) > place else default)
        if place and isinstance(dim, int) and not isinstance(dim, bool) and args[0].dim():
            scores = args[0]
            self._tokens[size_of(scores.shape[dim])] = numel(scores.select(dim, 0))

    def among(self, number: Size) -> Size | None:
        """Return the tokens of the last choice among so many; None where there was none."""
        return self._tokens.get(number)
