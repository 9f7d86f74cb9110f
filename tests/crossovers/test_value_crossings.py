"""Measured crossovers over other sizes than the length: by made-up peaks and by the allocator."""

import pytest

from attnprof import registry
from attnprof.crossovers.axis import CrossoverAxis
from attnprof.crossovers.peaks import peak_of, search_values
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting
from attnprof.errors import CannotRunError, RequestError
from attnprof.workload import Workload


def searched(a, b, values=range(1, 513), guesses=(), takes=lambda _: True):
    def both(value):
        if not takes(value):
            raise RequestError(f"{value} is not taken")
        return a(value), b(value)

    return search_values(both, list(values), guesses)


@pytest.mark.parametrize("crossing", [2, 3, 17, 100, 500])
@pytest.mark.parametrize("guesses", [(), (90.5,), (3.2, 400.0)])
def test_the_crossing_is_the_first_value_of_the_new_sign(crossing, guesses):
    found = searched(lambda n: 10 * n, lambda _: 10 * crossing - 5, guesses=guesses)
    assert found.crossings == [crossing]
    assert len(found.signs) < 40


def test_values_that_are_refused_are_passed_over():
    found = searched(lambda n: n, lambda _: 50, takes=lambda n: n % 12 == 0)
    assert found.crossings == [60]
    assert all(value % 12 == 0 for value in found.signs)


def test_a_single_tie_belongs_to_what_follows():
    assert searched(lambda n: n, lambda _: 50).crossings == [50]


def test_several_crossings_are_found_by_the_guesses():
    found = searched(lambda n: (n - 70) * (n - 75), lambda _: 0, guesses=(70.0, 75.0))
    assert found.crossings == [70, 75]


def test_where_nothing_runs_the_first_refusal_is_told():
    with pytest.raises(CannotRunError, match="1 is not taken"):
        searched(int, int, takes=lambda _: False)


def test_values_that_would_take_too_much_memory_are_not_looked_at():
    found = searched(lambda n: n << 20, lambda _: 0, values=range(1, 1 << 20))
    assert max(found.signs) < 1 << 16
    assert "memory" in found.end


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
