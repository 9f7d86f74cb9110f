"""Which dimensions of a shape together become which dimensions of another one."""

from collections.abc import Iterable

from attnprof.costs import Number, is_plain, is_symbolic, same_size

Shape = tuple[Number, ...]


def product(shape: Iterable[Number]) -> Number:
    """The number of entries of a shape."""
    count: Number = 1
    for size in shape:
        count = count * size
    return count


def viewed_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of a view of known sizes, or None where there is no such view: as torch has it.

    Dimensions that follow one another in memory are a chunk; a new dimension lies in one chunk.
    """
    if not shape:
        return (1,) * len(new)
    found: list[Number] = []  # innermost first
    sizes = list(new)
    step, entries = strides[-1], 1
    for place in reversed(range(len(shape))):
        entries *= shape[place]
        if place and (shape[place - 1] == 1 or strides[place - 1] == entries * step):
            continue
        seen = 1
        while sizes and (seen < entries or sizes[-1] == 1):
            found.append(seen * step)
            seen *= sizes.pop()
        if seen != entries:
            return None
        step, entries = strides[place - 1] if place else 1, 1
    return tuple(reversed(found))


#: A dimension, or the outer or inner part of one: its size, its place, by how much its stride
#: is that of the dimension.
_Piece = tuple[Number, int, Number]


def groups(old: Shape, new: Shape) -> list[tuple[list[_Piece], list[int]]]:
    """Which dimensions together become which others, in the smallest possible groups."""
    found: list[tuple[list[_Piece], list[int]]] = []
    rest: list[_Piece] = [(size, place, 1) for place, size in enumerate(old)]
    places = list(range(len(new)))
    while rest or places:
        left, right = rest[:1], places[:1]
        rest, places = rest[1:], places[1:]
        a, b = product(size for size, _, _ in left), product(new[p] for p in right)
        while not same_size(a, b):
            inner = _inner(a, b, left)
            if inner is not None:
                size, place, step = left.pop()
                left.append((size / inner, place, step * inner))
                rest, a = [(inner, place, step), *rest], b
            elif rest and (_is_part(a, b) or not places):
                left, rest, a = [*left, rest[0]], rest[1:], a * rest[0][0]
            elif places:
                right, places, b = [*right, places[0]], places[1:], b * new[places[0]]
            else:
                raise ValueError(f"{old} cannot be viewed as {new}")
        found.append((left, right))
    return found


def _inner(a: Number, b: Number, left: list[_Piece]) -> Number | None:
    """What a product of symbols has too much of, if its last factor can be cut there."""
    if not left or not is_symbolic(a, b):
        return None
    more = a / b
    size = left[-1][0] / more
    whole = more.as_numer_denom()[1] == 1 and size.as_numer_denom()[1] == 1
    return more if whole and size != 1 else None


def _is_part(a: Number, b: Number) -> bool:
    """Whether a product of sizes lacks factors of another one."""
    if not is_symbolic(a, b):
        less = a < b if is_plain(a, b) else a <= b
        return bool(less.all() if hasattr(less, "all") else less)
    return bool((b / a).as_numer_denom()[1] == 1)
