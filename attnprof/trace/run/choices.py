"""Experts that tokens choose, as kernels that multiply rows in groups need to know them."""

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules import name_of
from attnprof.trace.sizes import product, size_of

#: Operations whose last result is a place among real numbers.
_CHOICES = frozenset({"aten.topk", "aten.max", "aten.sort", "aten.argmax"})


class Choices:
    """The rows that last chose among each number of real numbers; ``notes`` say what follows."""

    def __init__(self) -> None:
        self._rows: dict[Size, Size] = {}
        self.notes: list[str] = []

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember how many rows chose, if this operation chooses."""
        if name_of(func) not in _CHOICES or not args[0].is_floating_point():
            return
        scores, place = args[0], 2 if name_of(func) == "aten.topk" else 1
        dim = kwargs.get("dim", args[place] if len(args) > place else -1)
        if scores.dim() and isinstance(dim, int):
            others = [size for n, size in enumerate(scores.shape) if n != dim % scores.dim()]
            self._rows[size_of(scores.shape[dim])] = product(others)

    def each(self, experts: Size, places: Size) -> int:
        """Return how many experts each row has chosen, where ``places`` are those of all rows.

        1 where that is not known: then each place is one of its own. A note says what bytes follow.
        """
        import sympy

        number = sympy.sympify(places) / self._rows.get(experts, places)
        each = int(number) if number.is_Integer else 1
        note = (
            f"of {experts} experts only the weights are read that rows meet, on average "
            f"{experts}*(1 - (1 - {each}/{experts})**rows) if each row chooses {each} evenly"
        )
        if note not in self.notes:
            self.notes.append(note)
        return each
