"""A band of neighbours cut into blocks of rows, and a depthwise convolution by such blocks."""

from collections.abc import Iterator
from typing import Any

from attnprof.blocks.gathered import hidden
from attnprof.costs import ceil_div, is_plain, maximum, minimum
from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, empty_like, put_product
from attnprof.ops.loops import each, turns

#: A block's rows, the tokens they see, and where these stand in the block's whole band, from
#: ``before`` the first row to ``after`` the last one.
Seen = tuple[slice, slice, slice]


def in_band(
    like: Any, n: Any, rows: Any, before: Any, after: Any, first: Any = 0
) -> Iterator[Seen]:
    """Blocks of ``rows`` rows over n tokens, of which a row sees ``before`` back, ``after`` ahead.

    The tokens start at number ``first``. A symbol of rows: more than before and after. The
    counter gets each kind of block once, times its number (:func:`turns`).
    """
    every = _every_block(n, rows, before, after, first)
    return turns(like, every, _blocks_alike(n, rows, before, after))


def _every_block(n: int, rows: int, before: int, after: int, first: int) -> Iterator[Seen]:
    for start in range(0, n, rows):
        end = min(start + rows, n)
        low, high = max(0, start - before), min(n, end + after)
        columns = slice(low - (start - before), high - (start - before))
        yield slice(first + start, first + end), slice(first + low, first + high), columns


def _blocks_alike(n: Any, rows: Any, before: Any, after: Any) -> Iterator[tuple[str, Any, Seen]]:
    """Only as many blocks as the band reaches at each end differ from those in the middle."""
    count = ceil_div(n, rows)
    last = n - (count - 1) * rows
    front = _reached_blocks(before, rows)
    back = 0 if is_plain(after) and after == 0 else _reached_blocks(after, rows)
    for i in range(front):
        height, seen = minimum(rows, n - i * rows), minimum(n, (i + 1) * rows + after)
        yield f"block {i + 1}", happens(count - i), _sizes(height, seen)
    middle = maximum(0, count - front - back - 1)
    yield "middle blocks", middle, _sizes(rows, rows + before + after)
    for j in range(back, 0, -1):
        ahead = minimum(after, last + (j - 1) * rows)
        name = f"block {j + 1} from the end"
        yield name, happens(count - front - j), _sizes(rows, rows + before + ahead)
    yield "last block", happens(count - front), _sizes(last, last + before)


def _reached_blocks(reach: Any, rows: Any) -> int:
    """Blocks of ``rows`` rows that ``reach`` tokens touch: one where either is a symbol."""
    return max(1, ceil_div(reach, rows)) if is_plain(reach, rows) else 1


def happens(count: Any) -> Any:
    """1 where a count is one or more, else 0."""
    return minimum(1, maximum(0, count))


def _sizes(height: Any, seen: Any) -> Seen:
    return slice(0, height), slice(0, seen), slice(0, seen)


def band_mask(rows: Any, before: Any, after: Any, like: Any) -> Any:
    """(rows, before + rows + after): hides what is outside a block's band, neighbours full."""
    shape = (rows, before + rows + after)
    mask = like.new_ones(shape, dtype=bool).tril_(-1)
    above = like.new_ones(shape, dtype=bool).triu_(before + after + 1)
    mask.logical_or_(above)
    del above
    return hidden(mask, like)


# -- a depthwise convolution along the tokens as products with a band matrix --------------------
#: rows of a block of the convolution
ROWS = 64


def _band(kernel: Any) -> Any:
    """(h, ROWS, ROWS + size - 1) with kernel (h, size) from the diagonal on, zeros elsewhere."""
    skewed = _skewed(kernel)
    skewed[:, :, : kernel.shape[1]].copy_(kernel.unsqueeze(1))
    return _straight(skewed)


def _skewed(kernel: Any) -> Any:
    """Zeros in the band's memory, rows one entry longer: each starts on the diagonal."""
    heads, size = kernel.shape
    return kernel.new_zeros(heads, ROWS, ROWS + size)


def _straight(skewed: Any) -> Any:
    """The band itself, a view."""
    heads, rows, width = skewed.shape
    return skewed.view(heads, rows * width)[:, : rows * (width - 1)].view(heads, rows, width - 1)


def _convolved(x: Any, kernel: Any) -> Any:
    out, band = empty_like(x), _band(kernel)
    half = kernel.shape[1] // 2
    for sample in each(x, 0, x.shape[0]):
        for rows, seen, columns in in_band(x, x.shape[2], ROWS, half, half):
            height = slice(0, rows.stop - rows.start)
            put_product(out[sample, :, rows], band[:, height, columns], x[sample, :, seen])
    return out


def _convolution_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    x, kernel = saved
    to_x = _convolved(grad, kernel.flip(1))
    size, skewed = kernel.shape[1], _skewed(kernel)
    to_band = _straight(skewed)
    for sample in each(x, 0, x.shape[0]):
        for rows, seen, columns in in_band(x, x.shape[2], ROWS, size // 2, size // 2):
            place = to_band[:, : rows.stop - rows.start, columns]
            add_product(place, grad[sample, :, rows], x[sample, :, seen].transpose(1, 2))
    to_kernel = skewed[:, :, :size].sum(1)
    return to_x, to_kernel


#: Σ over taps of kernel (h, size), of odd size, times x (b, h, n, d) moved along the tokens.
#:
#: A block of rows is one product with the band matrix of the kernel: more operations than the
#: taps have, on a processor's fastest path.
band_convolution = Function(
    lambda x, kernel: (_convolved(x, kernel), (x, kernel)), _convolution_grads
)
