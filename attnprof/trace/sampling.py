"""Sizes at which formulas are tried: of all magnitudes, and where code likes to branch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isqrt, log2

from attnprof.trace.symbols import largest

#: Shapes that are looked at for one inside a domain; sizes of a class that are all run.
_TRIES, _FEW = 1500, 20
#: What code rounds lengths up to.
_BLOCK = 64


def shapes_in(
    hints: Mapping[str, int], inside: Callable[[Mapping[str, int]], bool]
) -> Iterator[dict[str, int]]:
    """Shapes inside a domain, none of them the hints; sizes of 1 stay 1. Repeatable.

    Every size is in turn small, near its hint, a power of two, a square, any, or one beside
    those; every third shape is in the hint's class of blocks.
    """
    chance = random.Random(0)  # noqa: S311 - no secret
    seen = [dict(hints)]
    for attempt in range(_TRIES):
        shape = {
            name: _size(chance, name, hint, attempt + 2 * place, whole=attempt % 3 == 2)
            for place, (name, hint) in enumerate(hints.items())
        }
        if shape not in seen and inside(shape):
            seen.append(shape)
            yield shape


def _size(chance: random.Random, name: str, hint: int, kind: int, *, whole: bool) -> int:
    if hint == 1:
        return 1
    most = largest(name, hint)
    size = _KINDS[kind % len(_KINDS)](chance, most, hint)
    if whole:
        size -= (size - hint) % _BLOCK
    return size if 2 <= size <= most else hint


_KINDS: tuple[Callable[[random.Random, int, int], int], ...] = (
    lambda chance, _, __: chance.randint(2, 9),
    lambda chance, _, hint: chance.randint(max(2, hint // 2), hint + max(2, hint // 2)),
    lambda chance, most, _: 2 ** chance.randint(2, int(log2(most))) + chance.randint(-1, 1),
    lambda chance, most, _: int(2 ** chance.uniform(1, log2(most))),
    lambda chance, most, _: chance.randint(2, isqrt(most)) ** 2 + chance.randint(-1, 1),
)


def telling_sizes(sizes: range, start: int, most: int) -> list[int]:
    """Some of the sizes of a class, nearest to ``start`` first: all where they are few.

    Both ends, powers of two, squares, the sizes beside those, and others. Repeatable.
    """
    if len(sizes) <= min(_FEW, most):
        return sorted(sizes, key=lambda size: abs(size - start))
    chance = random.Random(len(sizes))  # noqa: S311 - no secret
    powers = [2**k for k in range(1, sizes[-1].bit_length()) if sizes[0] <= 2**k <= sizes[-1]]
    roots = range(isqrt(sizes[0]), isqrt(sizes[-1]) + 1)
    squares = [chance.choice(roots) ** 2 for _ in range(2)]
    beside = [size + 1 for size in (*powers[-3:], *squares)] + [size - 1 for size in squares]
    others = [int(2 ** chance.uniform(log2(sizes[0]), log2(sizes[-1]))) for _ in range(most)]
    known = {_nearest(sizes, size) for size in (*powers, *squares, *beside)}
    chosen = _some(chance, sorted(known), max(2, 2 * most // 3))
    chosen |= {sizes[0], sizes[1], sizes[-2], sizes[-1]}
    for size in others:
        if len(chosen) >= most:
            break
        chosen.add(_nearest(sizes, size))
    return sorted(chosen, key=lambda size: abs(size - start))


def _some(chance: random.Random, sizes: Sequence[int], count: int) -> set[int]:
    return set(sizes if len(sizes) <= count else chance.sample(sizes, count))


def _nearest(sizes: range, size: int) -> int:
    """The member of a class next to a size."""
    place = round((size - sizes[0]) / sizes.step)
    return sizes[min(max(place, 0), len(sizes) - 1)]
