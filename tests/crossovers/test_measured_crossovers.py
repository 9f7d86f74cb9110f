"""Crossovers of running code: derived from it, and measured by the allocator."""

import pytest

from attnprof import registry
from attnprof.crossovers.peaks import search_near
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting
from attnprof.errors import CannotRunError, RequestError
from attnprof.workload import Workload


def taylor(head_dims, kinds, metrics=("memory",), heads=1, batch=1):
    a, b = registry.configured(["taylor-direct", "taylor-efficient"], {})
    workload = Workload(1, heads, head_dims[0], batch)
    return crossover_report(
        Meeting(a, b, workload), head_dims, kinds, metrics, environment={}
    ).records


@pytest.mark.parametrize("head_dim", [8, 16, 32, 64])
def test_the_derived_memory_crossover_is_the_one_the_allocator_shows(head_dim):
    published, derived, measured = taylor([head_dim], ("published", "derived", "measured"))
    assert derived.first_seq_len == measured.first_seq_len
    assert published.first_seq_len != derived.first_seq_len
    assert (measured.cheaper_below, measured.cheaper_above) == ("taylor-direct", "taylor-efficient")


def test_derived_crossovers_are_those_of_the_closed_forms():
    found = taylor([8, 12], ("formula", "derived"), ("flops", "memory"), heads=2, batch=3)
    pairs = {}
    for record in found:
        key = (record.head_dim, record.metric)
        pairs.setdefault(key, []).append((record.first_seq_len, record.closed_form))
    assert len(pairs) == 4
    assert all(formula == derived for formula, derived in pairs.values())


def test_flops_are_not_measured():
    kinds = [r.kind for r in taylor([8], ("derived", "measured"), ("flops", "memory"))]
    assert kinds == ["derived", "derived", "measured"]


def test_measured_alone_shows_no_derived_row():
    assert [r.kind for r in taylor([8], ("measured",))] == ["measured"]


@pytest.mark.parametrize("guess", [12, 40, 97, 98, 99, 300, 1500])
def test_a_crossing_is_found_from_any_guess_nearby(guess):
    assert search_near(lambda n: (97.5, n), guess).crossings == [98]


def test_a_crossing_that_is_not_there_is_said():
    with pytest.raises(CannotRunError, match="no sign change"):
        search_near(lambda _: (1, 0), 10)


def test_unknown_kinds_are_refused():
    with pytest.raises(RequestError, match="guessed"):
        taylor([8], ("guessed",))
