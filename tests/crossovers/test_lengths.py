"""Lengths at which costs are known: found from a predicate, searched for crossings."""

import pytest

from attnprof.crossovers.axis import LONGEST, Lengths
from attnprof.crossovers.solve import bisected

PREDICATES = {
    "from two on": (lambda n: n >= 2, [(2, None)], 1),
    "multiples of 64": (lambda n: n % 64 == 0, [(64, None)], 64),
    "a table of positions": (lambda n: 2 <= n <= 4096, [(2, 4096)], 1),
    "blocks up to 4,096": (lambda n: n % 64 == 0 and 64 <= n <= 4096, [(64, 4096)], 64),
    "a class apart": (lambda n: n % 256 == 37 and n < 5000, [(37, 4901)], 256),
    "above a branch": (lambda n: n > 307, [(308, None)], 1),
    "two branches": (lambda n: 2 <= n <= 128 or n >= 308, [(2, 128), (308, None)], 1),
    "no multiples": (lambda n: n % 64 != 0, [(1, None)], 1),
    "long ones only": (lambda n: n >= 10_000, [(10_000, None)], 1),
    "a single one": (lambda n: n == 100, [(100, 100)], 1),
    "none": (lambda _: False, [], 1),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_stretches_and_steps_are_found(name):
    holds, stretches, step = PREDICATES[name]
    known = Lengths(holds)
    assert (known.stretches, known.step) == (stretches, step)
    assert all(holds(length) and length <= 2 * LONGEST for length in known.grid())


@pytest.mark.parametrize("name", [name for name in PREDICATES if name != "none"])
def test_only_known_lengths_are_looked_at_and_the_first_of_them_is_found(name):
    holds, stretches, _ = PREDICATES[name]
    middle = stretches[0][0] + 640
    asked = []

    def difference(length):
        assert holds(length)
        asked.append(length)
        return length - middle

    found = bisected(difference, Lengths(holds))
    wanted = next((n for n in range(middle, middle + 400) if holds(n)), None)
    if wanted is None:
        assert found.verdict in ("never", "always") or stretches[1:]
    else:
        assert found.first == wanted
    assert asked
