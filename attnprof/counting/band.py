"""A band of neighbours cut into blocks: how many blocks of which sizes, in closed form."""

from __future__ import annotations

from attnprof.costs import Cost, Number, ceil_div, is_plain, maximum, minimum
from attnprof.counting.engine import Tensor
from attnprof.counting.gathered import Blocks, write_hidden
from attnprof.counting.tape import Tape

#: rows of a block of a convolution as a band matrix
CONVOLUTION_ROWS = 64


def reached(count: Number) -> Number:
    """1 where a count is one or more, else 0."""
    return minimum(1, maximum(0, count))


def neighbours(reach: Number, rows: Number) -> int:
    """Blocks of ``rows`` rows that ``reach`` tokens touch: one where either is a symbol."""
    plain = is_plain(reach) and is_plain(rows)
    return max(1, int(ceil_div(reach, rows))) if plain else 1


def band_blocks(
    n: Number, rows: Number, before: Number, after: Number, open_keys: Number = 0
) -> list[Blocks]:
    """Blocks of ``rows`` rows over n tokens (a symbol of rows: more than before and after).

    A row sees ``before`` tokens back, ``after`` ahead, and ``open_keys`` gathered in front. Only
    as many blocks as the band reaches at each end differ from those in the middle.
    """
    count = ceil_div(n, rows)
    last = n - (count - 1) * rows
    front = neighbours(before, rows)
    back = 0 if is_plain(after) and after == 0 else neighbours(after, rows)
    sizes: list[tuple[str, Number, Number, Number]] = []
    for i in range(front):
        height = minimum(rows, n - i * rows)
        keys = minimum(n, (i + 1) * rows + after)
        sizes.append((f"block {i + 1}", reached(count - i), height, keys))
    middle = maximum(0, count - front - back - 1)
    sizes.append(("middle blocks", middle, rows, rows + before + after))
    for j in range(back, 0, -1):
        ahead = minimum(after, last + (j - 1) * rows)
        name = f"block {j + 1} from the end"
        sizes.append((name, reached(count - front - j), rows, rows + before + ahead))
    sizes.append(("last block", reached(count - front), last, last + before))
    pieces = 1 if is_plain(open_keys) and open_keys == 0 else 2
    groups = [
        Blocks(name, times, height, keys + open_keys, pieces, open_keys=open_keys)
        for name, times, height, keys in sizes
    ]
    return [group for group in groups if not (is_plain(group.times) and group.times == 0)]


def write_band_mask(tape: Tape, rows: Number, before: Number, after: Number) -> Tensor:
    """The mask all blocks share: two triangles of booleans, joined into the first."""
    shape = (rows, before + rows + after)
    mask = tape.booleans("band mask", *shape)
    above = tape.booleans("band mask, above", *shape)
    mask = tape.emit("band mask, both", shape, Cost(), [mask, above], item_size=1, into=mask)
    tape.free(above)
    return write_hidden(tape, mask)
