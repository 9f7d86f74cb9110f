"""Shapes at which formulas are verified: of all magnitudes, and where code likes to branch."""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import isqrt, log2

from attnprof.trace.request.target import largest

#: Shapes that are drawn to find those inside a domain; sizes of a class that are all run.
_TRIES, _FEW = 1500, 20
#: Shapes at which conditions are compared, to find equal ones.
_SHAPES = 400
#: What code rounds lengths up to.
_BLOCK = 64
#: Functions that draw a size, given a random generator, the largest size and the hint.
_KINDS: tuple[Callable[[random.Random, int, int], int], ...] = (
    lambda chance, _, __: chance.randint(2, 9),
    lambda chance, _, hint: chance.randint(max(2, hint // 2), hint + max(2, hint // 2)),
    lambda chance, most, _: 2 ** chance.randint(2, int(log2(most))) + chance.randint(-1, 1),
    lambda chance, most, _: int(2 ** chance.uniform(1, log2(most))),
    lambda chance, most, _: chance.randint(2, isqrt(most)) ** 2 + chance.randint(-1, 1),
)


def shapes_in(
    hints: Mapping[str, int], inside: Callable[[Mapping[str, int]], bool]
) -> Iterator[dict[str, int]]:
    """Yield shapes inside a domain, each once and none the hints; hints of 1 stay 1.

    Every size is in turn small, near its hint, a power of two, a square, any, or next to one of
    these; every third shape is in the hint's class modulo 64. The same shapes in every call.
    """
    chance = random.Random(0)  # noqa: S311 - no secret
    shapes = [dict(hints)]
    for attempt in range(_TRIES):
        shape = dict(hints)
        for place, (name, hint) in enumerate(hints.items()):
            if hint == 1:
                continue
            most = largest(name, hint)
            size = _KINDS[(attempt + 2 * place) % len(_KINDS)](chance, most, hint)
            if attempt % 3 == 2:
                size -= (size - hint) % _BLOCK
            shape[name] = size if 2 <= size <= most else hint
        if shape not in shapes and inside(shape):
            shapes.append(shape)
            yield shape


@lru_cache(maxsize=64)
def of_all_magnitudes(names: tuple[str, ...]) -> list[dict[str, int]]:
    """Return shapes of the named sizes, half of them multiples of a power of two."""
    chance, shapes = random.Random(0), []  # noqa: S311 - no secret
    for count in range(_SHAPES):
        most = 34 if count % 4 == 3 else 14
        sizes = [max(2, int(2 ** chance.uniform(1, most))) for _ in names]
        unit = 2 ** chance.randint(0, 8) if count % 2 else 1
        shapes.append({name: -(-x // unit) * unit for name, x in zip(names, sizes, strict=True)})
    return shapes


def telling_sizes(sizes: range, most: int) -> list[int]:
    """Return ``most`` sizes of a class, or all if they are few, in order; the same in every call.

    Both ends, powers of two, squares and sizes next to these, and at least a third of random ones:
    where code rounds a float of a size, it differs at sizes that have nothing in common.
    """
    if len(sizes) <= min(_FEW, most):
        return [*sizes]
    chance = random.Random(len(sizes))  # noqa: S311 - no secret
    low, high = sizes[0], sizes[-1]
    powers = [2**k for k in range(1, high.bit_length()) if low <= 2**k]
    roots = range(isqrt(low) + 1, isqrt(high) + 1)
    squares = [chance.choice(roots) ** 2 for _ in range(2)] if roots else []
    neighbours = [size + step for size in (*powers[-3:], *squares) for step in (-1, 1)]
    chance.shuffle(neighbours)
    others = [int(2 ** chance.uniform(log2(low), log2(high))) for _ in range(most)]
    likely = (low, high, *powers[::-1], *neighbours[:3], sizes[1], *squares)
    wanted = (*likely[: most - most // 3], *others, *likely)
    indexes = (min(max(round((size - low) / sizes.step), 0), len(sizes) - 1) for size in wanted)
    return sorted([*dict.fromkeys(sizes[place] for place in indexes)][:most])


def small_sizes(
    hints: Mapping[str, int], least: Mapping[str, int], holds: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """Return sizes of short runs, at the first width inside: code may make 1 of a smaller one."""
    shapes = ({**hints, "B": 2, "h": 2, "d": width, **least} for width in (8, 16, 32))
    return next(filter(holds, shapes), {**hints, "B": 2, "h": 2, "d": 8, **least})
