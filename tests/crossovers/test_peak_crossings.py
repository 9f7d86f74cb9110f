"""Crossings of measured peaks, searched where code runs."""

import pytest

from attnprof.crossovers.peaks import search_lengths
from attnprof.errors import CannotRunError, RequestError


def only(condition, peak):
    def peaks(length):
        if not condition(length):
            raise RequestError(f"{length} tokens are refused")
        return peak(length)

    return peaks


def always(_):
    return True


@pytest.mark.parametrize(
    ("condition", "b", "crossings", "step"),
    [
        (always, lambda n: 1000 * n + 1, [1001], 1),
        (always, lambda n: 1000 * n, [1000], 1),
        (always, lambda n: n**3 // 8 if n > 8 else 0, [9], 1),
        (lambda n: n % 64 == 0, lambda n: 1000 * n, [1024], 64),
        (lambda n: 2 <= n <= 4096, lambda n: 3000 * n + 1, [3001], 1),
        (lambda n: n <= 2500, lambda n: 3000 * n, [], 1),
        (lambda n: n > 100, lambda n: 1000 * n + 1, [1001], 1),
    ],
)
def test_crossings_are_found_where_both_run(condition, b, crossings, step):
    a = only(condition, lambda n: n * n)
    found, apart = search_lengths(lambda n: (a(n), b(n)))
    assert found.crossings == crossings
    assert apart == step
    assert all(map(condition, found.signs))


def test_what_runs_nowhere_is_said_with_its_reason():
    with pytest.raises(CannotRunError, match="2 tokens are refused"):
        search_lengths(only(lambda _: False, lambda n: (n, n)))


def test_no_length_is_tried_that_may_not_fit():
    asked = []

    def peak(length):
        asked.append(length)
        return 4 * length**2

    search_lengths(lambda n: (peak(n), 1))
    assert 4 * max(asked) ** 2 <= 2**31
