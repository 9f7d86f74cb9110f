"""One search: over a grid, between two orders, past refusals and ties."""

import pytest

from attnprof.crossovers.search import OrderSearch, nearest_to_middle
from attnprof.errors import RequestError


def searched(a, b, grid, refused=lambda _: False):
    def both(place):
        if refused(place):
            raise RequestError(f"{place} is refused")
        return a(place), b(place)

    search = OrderSearch(both)
    search.outwards(grid)
    search.narrow(nearest_to_middle)
    return search


@pytest.mark.parametrize(
    ("plateau", "crossings"), [(range(33, 34), [33]), (range(33, 74), [33, 74]), ((), [33])]
)
def test_every_change_of_order_is_found_and_a_single_tie_is_what_follows(plateau, crossings):
    def a(n):
        return 0 if n in plateau else -1 if n < 33 else 1

    assert searched(a, lambda _: 0, [1, 64, 4096]).crossings == crossings


def test_a_place_is_asked_for_once_whether_it_runs_or_not():
    asked = []

    def refused(place):
        asked.append(place)
        return place % 3 != 0

    found = searched(lambda n: n, lambda _: 100, range(1, 200, 7), refused)
    assert found.crossings == [102]
    assert len(asked) == len(set(asked))
    assert str(found.first_refusal) == "1 is refused"


def test_places_nearest_to_the_middle_lie_between_the_ends():
    assert list(nearest_to_middle(3, 8)) == [5, 6, 4, 7]
    assert list(nearest_to_middle(3, 8, 1)) == [5]
    assert list(nearest_to_middle(7, 8)) == []
