"""How many experts each token chooses: products of grouped rows read the weights of chosen ones."""

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules import name_of, tensors_in
from attnprof.trace.run.expert_rows import follow, unread_bytes
from attnprof.trace.sizes import product, size_of

#: Operations whose last result is a place among real numbers.
_CHOICES = frozenset({"aten.topk", "aten.max", "aten.sort", "aten.argmax"})


class Choices:
    """The number of rows that last chose among each number of experts, and ``notes`` on them.

    In a ``routed`` run the rows of an expert are followed to the products that read its weights.
    """

    def __init__(self, *, routed: bool = False) -> None:
        self._routed = routed
        self._rows: dict[Size, Size] = {}
        self.notes: list[str] = []

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Remember how many rows chose, if this operation chooses, and follow them."""
        if self._routed:
            name = name_of(func).removeprefix("aten.")
            follow(name, tensors_in((args, kwargs)), tensors_in(out))
        if name_of(func) not in _CHOICES or not args[0].is_floating_point():
            return
        scores, place = args[0], 2 if name_of(func) == "aten.topk" else 1
        dim = kwargs.get("dim", args[place] if len(args) > place else -1)
        if scores.dim() and isinstance(dim, int):
            others = [size for n, size in enumerate(scores.shape) if n != dim % scores.dim()]
            self._rows[size_of(scores.shape[dim])] = product(others)

    def each(self, experts: Size, places: Size) -> int:
        """Return how many experts each row has chosen, if all rows together chose ``places``.

        1 if that is not known: each place is then taken for another row. A note says which bytes
        are read.
        """
        import sympy

        number = sympy.sympify(places) / self._rows.get(experts, places)
        each = int(number) if number.is_Integer else 1
        self._note(experts, each)
        return each

    def unread(self, rows: Any, weights: Any) -> Size:
        """Return the bytes of an expert's weights that a product of its rows leaves unread."""
        unread, route = unread_bytes(rows, weights) if self._routed else (0, None)
        if route is not None:
            self._note(size_of(route.experts), route.each)
        return unread

    def _note(self, experts: Size, each: int) -> None:
        note = (
            f"of {experts} experts only the weights are read that rows meet, on average "
            f"{experts}*(1 - (1 - {each}/{experts})**rows) if each row chooses {each} evenly"
        )
        if note not in self.notes:
            self.notes.append(note)
