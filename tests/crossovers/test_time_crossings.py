"""Where times cross is found by few lengths, with an interval that keeps its promise."""

import random
from math import exp, log

import pytest

from attnprof.crossovers.time_search import BUILD_S, TimeSearch, root_of_line
from attnprof.errors import CannotRunError, RequestError
from attnprof.processes.progress import Progress, Step, waiting


def clock(a, b, *, noise=0.03, seed=0, refused=lambda _: False):
    """Calls of two made-up sides whose times scatter, more often upwards."""
    chance = random.Random(seed)

    def compare(length, budget):
        if refused(length):
            raise CannotRunError(f"no {length}")
        return tuple(
            [cost(length) * exp(abs(chance.gauss(0, noise))) for _ in range(budget.samples)]
            for cost in (a, b)
        )

    return compare


def quadratic(crossing):
    return lambda n: 1e-9 * n**2 + 1e-4, lambda n: 1e-9 * n * crossing + 1e-4


def searched(compare, *, step=1, **how):
    search = TimeSearch(compare, lambda n: -(-n // step) * step, **how)
    search.run()
    return search


@pytest.mark.parametrize("crossing", [150, 1100, 9000])
@pytest.mark.parametrize("guessed", [0.5, 1.0, 1.7, None])
def test_the_crossing_is_found_with_few_lengths(crossing, guessed):
    guesses = [crossing * guessed] if guessed else []
    search = searched(clock(*quadratic(crossing), noise=0.01), guesses=guesses)
    (found,) = search.crossings
    assert found.at == pytest.approx(crossing, rel=0.05)
    assert len(search.seen) <= 17


def test_the_interval_has_the_crossing_as_often_as_it_says():
    inside = 0
    for seed in range(200):
        (found,) = searched(clock(*quadratic(700), seed=seed), guesses=[800]).crossings
        inside += found.low is not None and found.low <= 700 <= found.high
    assert inside >= 0.92 * 200


@pytest.mark.parametrize(("faster", "sign"), [(2.0, 1), (0.5, -1)])
def test_one_that_is_faster_at_every_length_never_crosses(faster, sign):
    search = searched(clock(lambda n: faster * 1e-6 * n, lambda n: 1e-6 * n))
    assert search.crossings == []
    assert {search.sign_at(n) for n in search.seen} == {sign}


def test_times_that_cannot_be_told_apart_do_not_cross():
    search = searched(clock(lambda n: 1e-6 * n, lambda n: 1e-6 * n, noise=0.2))
    assert len(search.crossings) <= 1
    assert all(one.low is None or one.low < one.at < one.high for one in search.crossings)


def test_several_crossings_are_told():
    def a(n):
        return 1e-6 * n * exp(0.5 if 100 < n < 4000 else -0.5)

    assert len(searched(clock(a, lambda n: 1e-6 * n)).crossings) == 2


def test_no_length_is_timed_that_should_take_longer_than_allowed():
    timed = []

    def cost(n):
        timed.append(n)
        return 1e-7 * n**2

    search = searched(clock(cost, lambda n: 2e-7 * n**2), most_s=1.0)
    assert cost(max(timed)) <= 1.0
    assert "more than 1 s" in search.end


def test_lengths_that_do_not_run_are_passed_over_and_an_end_is_told():
    compare = clock(*quadratic(1000), refused=lambda n: n < 50 or n > 3000)
    search = searched(compare, guesses=[900])
    assert search.crossings[0].at == pytest.approx(1000, rel=0.1)
    assert search.ends[1] <= 3000
    assert search.end.startswith("no ")


def test_all_calls_are_counted_also_of_lengths_looked_at_twice():
    calls = []

    def cost(n):
        calls.append(n)
        return 1e-9 * n**2 + 1e-4

    search = searched(clock(cost, lambda n: 1.5e-7 * n + 1e-4, noise=0.1), guesses=[150])
    assert search.timed_calls == 2 * len(calls)
    assert len(calls) > sum(len(one.a_s) for one in search.seen.values())


def test_only_lengths_that_both_take_are_timed():
    search = searched(clock(*quadratic(1000)), step=64, guesses=[1000])
    assert all(n % 64 == 0 for n in search.seen)
    assert search.crossings[0].at == pytest.approx(1000, rel=0.1)


def test_where_nothing_runs_the_first_refusal_is_raised():
    def refuse(length, _):
        raise RequestError(f"not {length}")

    with pytest.raises(RequestError, match="not 16"):
        searched(refuse)


def test_few_lengths_on_a_line_by_chance_do_not_make_a_certain_answer():
    x = [log(n) for n in (100, 200, 400)]
    found = root_of_line(x, [a - log(300) for a in x])
    assert found.at == pytest.approx(300)
    assert found.low < 0.95 * 300
    assert found.high > 1.05 * 300


def test_an_end_that_the_scatter_leaves_open_is_not_told():
    found = root_of_line([1.0, 2.0, 3.0, 4.0], [0.1, -0.2, 0.2, -0.1])
    assert found.low is None
    assert found.high is None


@pytest.mark.parametrize("seed", range(40))
def test_a_crossing_lies_between_lengths_that_differ_however_flat_the_curves(seed):
    def slower(n):
        return 1e-4 * (1.02 if n < 300 else 0.98) * (n / 300) ** 0.001

    search = searched(clock(slower, lambda _: 1e-4, noise=0.02, seed=seed))
    for one in search.crossings:
        before = {search.sign_at(n) for n in search.seen if n <= one.at}
        after = {search.sign_at(n) for n in search.seen if n >= one.at}
        assert {1, -1} <= before | after
        assert before - {0}
        assert after - {0}


@pytest.mark.parametrize("seed", range(30))
def test_a_crossing_of_flat_curves_has_an_interval_of_lengths_whose_order_was_seen(seed):
    def flat(n):
        return 1e-4 * (n / 300) ** 0.04

    search = searched(clock(flat, lambda _: 1e-4, noise=0.05, seed=seed), guesses=[300])
    for one in search.crossings:
        assert None not in (one.low, one.high)
        assert one.low <= one.at <= one.high
    if len(search.crossings) == 1:
        assert 50 < search.crossings[0].at < 1800


@pytest.mark.parametrize(("crossing", "scale"), [(700, 1.0), (9000, 1.0), (700, 30.0)])
def test_a_search_says_about_how_long_it_takes_and_where_the_crossing_lies(crossing, scale):
    spent, told = [0.0], []
    a, b = quadratic(crossing)

    def compare(length, budget):
        times = scale * a(length), scale * b(length)
        pairs = min(budget.samples, max(budget.least, int(budget.max_time_s / sum(times))))
        spent[0] += BUILD_S + (pairs + 1) * sum(times)
        return clock(lambda _: times[0], lambda _: times[1], noise=0.01)(length, budget)

    class Listener(Progress):
        def tell(self, text, done=None, total=None, left_s=None, **_how):
            told.append((text, left_s, spent[0]))

    with waiting(Listener(Step("searching"))):
        searched(compare, guesses=[0.8 * crossing], title="one and other")
    assert told[0][1] is None  # nothing was timed yet
    _, forecast, before = next(one for one in told if one[1] is not None)
    assert 1 / 4 < forecast / (spent[0] - before) < 4
    assert before < spent[0] / 3
    text, left_s, _ = told[-1]
    assert "they cross between" in text
    assert 0 < left_s < forecast
