"""A band of neighbours cut into blocks: how many blocks of which sizes, in closed form."""

from __future__ import annotations

from attnprof.costs import Cost, Number, ceil_div, is_plain, maximum, minimum
from attnprof.counting.engine import Tensor
from attnprof.counting.gathered import Blocks
from attnprof.counting.tape import Tape


def reached(count: Number) -> Number:
    """1 where a count is one or more, else 0."""
    return minimum(1, maximum(0, count))


def band_blocks(
    n: Number, rows: Number, before: Number, after: Number, open_keys: Number = 0
) -> list[Blocks]:
    """Blocks of ``rows`` rows (at least ``before`` and ``after``) over n tokens.

    A row sees ``before`` tokens back, ``after`` ahead, and ``open_keys`` gathered in front. Only
    the first, the last and the last block but one differ from those in the middle.
    """
    count = ceil_div(n, rows)
    last = n - (count - 1) * rows
    only = reached(count) - reached(count - 1)
    sizes = [
        ("only block", only, minimum(n, rows), minimum(n, rows)),
        ("first block", reached(count - 1), rows, minimum(n, rows + after)),
        ("middle blocks", maximum(0, count - 3), rows, rows + before + after),
        ("last block but one", reached(count - 2), rows, rows + before + minimum(after, last)),
        ("last block", reached(count - 1), last, last + before),
    ]
    pieces = 1 if is_plain(open_keys) and open_keys == 0 else 2
    groups = [
        Blocks(name, times, height, keys + open_keys, pieces, open_keys=open_keys)
        for name, times, height, keys in sizes
    ]
    return [group for group in groups if not (is_plain(group.times) and group.times == 0)]


def write_band_mask(tape: Tape, rows: Number, before: Number, after: Number) -> Tensor:
    """The booleans all blocks share: two triangles, joined into the first."""
    shape = (rows, before + rows + after)
    mask = tape.booleans("band mask", *shape)
    above = tape.booleans("band mask, above", *shape)
    mask = tape.emit("band mask, both", shape, Cost(), [mask, above], item_size=1, into=mask)
    tape.free(above)
    return mask
