"""A maximum of many sums has those that are the largest somewhere."""

import itertools

import pytest
import sympy

from attnprof.algebra.maxima import maximum_of

B, N, h, d = sympy.symbols("B N h d", positive=True)


def test_a_maximum_has_no_means_of_others():
    ends = [12 * N**2 + d, N**2 + 12 * d]
    between = [(12 - i) * N**2 + (i + 1) * d for i in range(1, 11)]
    assert set(maximum_of([*between, *ends]).args) == set(ends)
    assert len(maximum_of([ends[0], 8 * N**2 + 6 * d, ends[1]]).args) == 3


def test_a_maximum_among_others_is_part_of_one():
    inner = sympy.Max(4096 * B, 2048 * B + 3000, evaluate=False)
    assert set(maximum_of([4128 * B, inner]).args) == {4128 * B, 2048 * B + 3000}


@pytest.mark.parametrize(
    ("sides", "most"),
    [
        ([B * N * h, N * h, N], 1),  # sizes are at least 1
        ([B * N**2 + 8, N**2 + 8 * N], 2),
        ([4 * B * N * d + 2 * N + 1, 4 * N * d - 3 * N, 2 * B * N * d + 2 * d], 1),
        ([B * N - d * h, B * N + d * h - 1, B * h, 2 * d * h - B], 3),
        ([2 * N * sympy.floor(N / 4), N * sympy.floor(N / 4), N - 1], 2),
    ],
)
def test_sums_that_are_never_the_largest_are_left_out(sides, most):
    found = maximum_of(sides)
    kept = found.args if isinstance(found, sympy.Max) else [found]
    assert len(kept) <= most
    for point in itertools.product((1, 2, 3, 9), repeat=4):
        at = dict(zip((B, N, h, d), point, strict=True))
        assert max(x.subs(at) for x in sides) == max(x.subs(at) for x in kept)
