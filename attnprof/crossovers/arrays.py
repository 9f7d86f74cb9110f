"""Try many lengths at once, as one array of sizes, which costs as much as a few lengths alone.

A search tries hundreds of lengths, and a mechanism's text is run for each. Run on an array it
gives all of them, unless it asks for one number or refuses a length; then nothing is kept.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from attnprof.crossovers.axis import Lengths
from attnprof.crossovers.order_search import OrderSearch, sign

#: Lengths of one array: those of all stages together take some ten megabytes.
ARRAY = 1024
#: Of lengths that an array holds, every so many is tried alone as well.
ALONE = 16


def try_as_array(
    search: OrderSearch, differences: Callable[[Sequence[int]], Sequence[int]],
    grid: Sequence[int],
) -> None:  # fmt: skip
    """Try ascending lengths at once: one array costs as much as a few lengths one by one.

    Every so many of them is tried alone, too. Nothing else is kept if one of those is refused or
    has another value in the array.
    """
    lengths = [length for length in grid if length > 1 and length not in search.costs]
    alone = [*lengths[::ALONE], *lengths[-1:]]
    search.try_all(alone)
    values = None if search.refused else _by_arrays(differences, lengths)
    if values and all(search.costs[length][0] == values[length] for length in alone):
        search.costs |= {length: (value, 0) for length, value in values.items()}
        search.signs |= {length: sign(value) for length, value in values.items()}


def _by_arrays(
    differences: Callable[[Sequence[int]], Sequence[int]], lengths: Sequence[int]
) -> dict[int, int] | None:
    """Return the difference at each length, or None where it cannot be had of many at once."""
    values = list[int]()
    try:
        for start in range(0, len(lengths), ARRAY):
            values += differences(lengths[start : start + ARRAY])
    except Exception:  # noqa: BLE001 - a text that asks for one number, or a refusal at a length
        return None
    return dict(zip(lengths, values, strict=True))


def try_all_between(
    search: OrderSearch, differences: Callable[[Sequence[int]], Sequence[int]], domain: Lengths,
    last: int,
) -> int:  # fmt: skip
    """Set the signs on both sides of each change up to ``last``; return it, or 0 if that fails.

    At length 1 tensors broadcast instead of being summed: arrays start at 2.
    """
    lengths = list(domain.within(2, last))
    if (values := _by_arrays(differences, lengths)) is None:
        return 0
    signs = {length: sign(value) for length, value in values.items()}
    tried = {length: sign(a - b) for length, (a, b) in search.costs.items()}
    if search.refused or any(tried.get(length, known) != known for length, known in signs.items()):
        return 0
    for before, after in pairwise(lengths):
        if signs[before] != signs[after]:
            search.signs |= {before: signs[before], after: signs[after]}
    return last
