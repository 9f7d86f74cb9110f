"""One search over a grid; crossings of measured peaks, and of costs that are derived."""

import pytest
import torch

from attnprof import registry
from attnprof.crossovers.axis import CrossoverAxis
from attnprof.crossovers.order_search import OrderSearch, nearest_to_middle
from attnprof.crossovers.peaks import peak_of, search_lengths, search_near, search_values
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting
from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.request.lookup import target_of
from attnprof.workload import Workload


def pair(a, b, runs=lambda _: True):
    """Both costs at a place; a refusal where it does not run."""

    def both(place):
        if not runs(place):
            raise RequestError(f"{place} is refused")
        return a(place), b(place)

    return both


def over_grid(both, grid):
    search = OrderSearch(both)
    search.try_all(grid)
    search.narrow(nearest_to_middle)
    return search


@pytest.mark.parametrize(
    ("plateau", "crossings"), [(range(33, 34), [33]), (range(33, 74), [33, 74]), ((), [33])]
)
def test_every_change_of_order_is_found_and_a_single_tie_is_what_follows(plateau, crossings):
    def a(n):
        return 0 if n in plateau else -1 if n < 33 else 1

    assert over_grid(pair(a, lambda _: 0), [1, 64, 4096]).crossings == crossings


def test_a_place_is_tried_once_whether_it_runs_or_not():
    tried = []

    def runs(place):
        tried.append(place)
        return place % 3 == 0

    search = over_grid(pair(lambda n: n, lambda _: 100, runs), range(1, 200, 7))
    assert search.crossings == [102]
    assert len(tried) == len(set(tried))
    assert str(search.first_refusal) == "1 is refused"


def test_places_nearest_to_the_middle_lie_between_the_ends():
    assert list(nearest_to_middle(3, 8)) == [5, 6, 4, 7]
    assert list(nearest_to_middle(3, 8, 1)) == [5]
    assert list(nearest_to_middle(7, 8)) == []


# -- over lengths ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("condition", "b", "crossings", "step"),
    [
        (lambda _: True, lambda n: 1000 * n + 1, [1001], 1),
        (lambda _: True, lambda n: 1000 * n, [1000], 1),
        (lambda _: True, lambda n: n**3 // 8 if n > 8 else 0, [9], 1),
        (lambda n: n % 64 == 0, lambda n: 1000 * n, [1024], 64),
        (lambda n: 2 <= n <= 4096, lambda n: 3000 * n + 1, [3001], 1),
        (lambda n: n <= 2500, lambda n: 3000 * n, [], 1),
        (lambda n: n > 100, lambda n: 1000 * n + 1, [1001], 1),
    ],
)
def test_crossings_are_found_where_both_run(condition, b, crossings, step):
    search, apart = search_lengths(pair(lambda n: n * n, b, condition))
    assert (search.crossings, apart) == (crossings, step)
    assert all(map(condition, search.signs))


@pytest.mark.parametrize(
    ("search", "first"), [(search_lengths, 2), (lambda both: search_values(both, range(1, 99)), 1)]
)
def test_what_runs_nowhere_is_said_with_its_first_reason(search, first):
    with pytest.raises(CannotRunError, match=f"{first} is refused"):
        search(pair(int, int, lambda _: False))


def test_no_length_is_tried_that_may_not_fit():
    search, _ = search_lengths(lambda n: (4 * n**2, 1))
    assert 4 * max(search.costs) ** 2 <= 2**31


@pytest.mark.parametrize("guess", [12, 40, 97, 98, 99, 300, 1500])
def test_a_crossing_is_found_from_any_guess_nearby(guess):
    assert search_near(lambda n: (97.5, n), guess).crossings == [98]


def test_a_crossing_that_is_not_there_is_said():
    with pytest.raises(CannotRunError, match="no sign change"):
        search_near(lambda _: (1, 0), 10)


# -- over values -----------------------------------------------------------------------------
@pytest.mark.parametrize("crossing", [2, 3, 17, 100, 500])
@pytest.mark.parametrize("guesses", [(), (90.5,), (3.2, 400.0)])
def test_the_crossing_is_the_first_value_of_the_new_sign(crossing, guesses):
    both = pair(lambda n: 10 * n, lambda _: 10 * crossing - 5)
    search = search_values(both, range(1, 513), guesses)
    assert search.crossings == [crossing]
    assert len(search.signs) < 40


def test_values_that_are_refused_are_passed_over():
    both = pair(lambda n: n, lambda _: 50, lambda n: n % 12 == 0)
    search = search_values(both, range(1, 513))
    assert search.crossings == [60]
    assert all(value % 12 == 0 for value in search.signs)


def test_a_single_tie_belongs_to_what_follows_and_guesses_find_several_crossings():
    assert search_values(lambda n: (n, 50), range(1, 513)).crossings == [50]
    search = search_values(lambda n: ((n - 70) * (n - 75), 0), range(1, 513), (70.0, 75.0))
    assert search.crossings == [70, 75]


def test_values_that_would_take_too_much_memory_are_not_looked_at():
    search = search_values(lambda n: (n << 20, 0), range(1, 1 << 20))
    assert max(search.signs) < 1 << 16
    assert "memory" in search.end


# -- rows ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("a", "b", "over", "last"),
    [("taylor-direct", "taylor-efficient", "d", 32), ("standard", "longformer", "window", 200)],
)
def test_the_measured_value_is_where_the_allocator_turns(a, b, over, last):
    sides = registry.configured([a, b], {})
    axis, workload = CrossoverAxis(over, last=last), Workload(100, 1, 8)
    meeting = Meeting(*sides, workload, axis=axis)
    (row,) = crossover_report(meeting, [100], ["measured"], ["memory"], environment={}).records

    def difference(value):
        placed, sizes = axis.placed(sides, workload, value, 100)
        one, other = (peak_of(side, sizes, "core") for side in placed)
        return one - other

    assert row.verdict == "crosses"
    assert difference(row.first_value) * difference(row.first_value - 1) <= 0
    assert difference(row.first_value - 1) != 0
    assert row.crossover_seq_len is None


def test_code_is_derived_over_the_length_alone():
    sides = registry.configured(["standard", "linear"], {})
    meeting = Meeting(*sides, Workload(64, 1, 8), axis=CrossoverAxis("d"))
    with pytest.raises(RequestError, match="--over d"):
        crossover_report(meeting, [64], ["derived"], environment={})


def taylor(head_dims, kinds, metrics=("memory",), heads=1, batch=1):
    sides = registry.configured(["taylor-direct", "taylor-efficient"], {})
    meeting = Meeting(*sides, Workload(1, heads, head_dims[0], batch))
    return crossover_report(meeting, head_dims, kinds, metrics, environment={}).records


def test_derived_memory_crossovers_are_those_the_allocator_shows_which_is_asked_of_memory_alone():
    kinds, widths = ("published", "derived", "measured"), [8, 16, 32, 64]
    rows = taylor(widths, kinds, ("flops", "memory"))
    assert {row.kind for row in rows if row.metric == "flops"} == {"published", "derived"}
    by_kind = {(row.head_dim, row.kind): row for row in rows if row.metric == "memory"}
    for width in widths:
        published, derived, measured = (by_kind[width, kind] for kind in kinds)
        assert derived.first_seq_len == measured.first_seq_len
        assert published.first_seq_len != derived.first_seq_len
        order = measured.cheaper_below, measured.cheaper_above
        assert order == ("taylor-direct", "taylor-efficient")


def test_derived_crossovers_are_those_of_the_closed_forms():
    pairs = {}
    for row in taylor([8, 12], ("formula", "derived"), ("flops", "memory"), heads=2, batch=3):
        key = (row.head_dim, row.metric)
        pairs.setdefault(key, []).append((row.first_seq_len, row.closed_form))
    assert len(pairs) == 4
    assert all(formula == derived for formula, derived in pairs.values())


def scores(q, k, v):
    """The rows of more than 64 tokens are taken by halves."""
    halves = q.chunk(2, -2) if q.shape[-2] > 64 else [q]
    return torch.cat([half @ k.mT @ v for half in halves], -2)


def states(q, k, v):
    return q @ (k.mT @ v)


def test_a_derived_crossover_in_a_branch_for_short_lengths_is_found_as_well():
    sides = [target_of(run, inputs=[f"{x}: B, h, N, d" for x in "qkv"]) for run in (scores, states)]
    meeting = Meeting(*sides, Workload(1, 1, 16))
    (row,) = crossover_report(meeting, [16], ["derived"], ["flops"], environment={}).records
    assert (row.all_crossings, row.first_seq_len) == ([16.0], 16)  # 4*N**2*d against 4*N*d**2


def test_a_kind_may_be_asked_for_alone_and_unknown_ones_are_refused():
    assert [r.kind for r in taylor([8], ("measured",))] == ["measured"]
    with pytest.raises(RequestError, match="guessed"):
        taylor([8], ("guessed",))
