"""Rows of one expert, followed from the choice to the products that read the expert's weights.

A loop over experts multiplies the rows of each by weights of its own. Under even routing few rows
are spread over as many experts as they can meet, while rows that choose at random meet some experts
twice: of 8 experts 2 rows that choose 2 each meet 8·(1 - (6/8)²) = 3.5, not 4. So tensors that are
made of chosen places are marked with the choice, and :func:`unread_bytes` says what such a product
leaves unread on average.
"""

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.workspaces import words
from attnprof.trace.run.experts import ROWS, Route, as_number
from attnprof.trace.sizes import expected_bytes, nbytes, size_of

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
