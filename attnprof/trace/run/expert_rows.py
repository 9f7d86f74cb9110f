"""Rows of one expert, followed from the choice to the products that read the expert's weights.

A loop over experts multiplies the rows of each by weights of its own. Under even routing few rows
are spread over as many experts as they can meet, while rows that choose at random meet some experts
twice: of 8 experts 2 rows that choose 2 each meet 8·(1 - (6/8)²) = 3.5, not 4. So tensors that are
made of chosen places are marked with the choice, and :func:`unread_bytes` says what such a product
leaves unread on average.
"""

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules import name_of, tensors_in
from attnprof.trace.rules.workspaces import words
from attnprof.trace.run.experts import ROWS, Route, as_number
from attnprof.trace.sizes import expected_bytes, nbytes, product, size_of

#: Operations that give some rows of their operand, or rows that an operand of indices picks.
_PICKS = words("""
    index index_select embedding gather masked_select split split_with_sizes unbind slice select
    narrow tensor_split chunk
""")


def follow(name: str, operands: list[Any], results: list[Any]) -> None:
    """Mark results that are made of chosen places, or of rows that these picked."""
    marked = [x for x in operands if hasattr(x, ROWS)]
    if not marked:
        return
    route = getattr(marked[0], ROWS)
    rows = {as_number(x.shape[0]) for x in marked if x.dim()}
    for result in results:
        picked = name in _PICKS or (result.dim() > 0 and as_number(result.shape[0]) in rows)
        is_new = all(result is not x for x in operands)
        if not result.is_floating_point() or (picked and is_new):
            setattr(result, ROWS, route)


def unread_bytes(rows: Any, weights: Any) -> tuple[Size, Route | None]:
    """Return the bytes of weights that a product leaves unread on average, and by which choice.

    Products whose rows are not the share of one expert leave no bytes unread.
    """
    route: Route | None = getattr(rows, ROWS, None)
    if route is None or not isinstance(experts := size_of(route.experts), int):
        return 0, None
    number = as_number(route.rows)
    shares = {number // experts, -(-number // experts)}
    if not rows.dim() or as_number(rows.shape[0]) not in shares:
        return 0, None
    total = size_of(route.rows)
    tokens = total // route.each if isinstance(total, int) else total / route.each
    met, whole = min(number, experts), nbytes(weights)
    if met == experts:
        return whole - expected_bytes(whole, experts, route.each, tokens), route
    # each expert that is met stands for some of those that are not
    return whole - -(-expected_bytes(whole * experts, experts, route.each, tokens) // met), route


# -- how many experts each token chooses -------------------------------------------------
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
