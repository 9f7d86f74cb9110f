"""How far from softmax attention: nothing for what is exact, less for larger parameters."""

import pytest

from attnprof.measure.correctness import distance_from_standard
from attnprof.measure.request import PointRequest


def distance(name, causal=False, **params):
    from attnprof import registry

    spec = registry.get(name, **params)
    return distance_from_standard(PointRequest(name, 48, 2, 8, causal=causal, params=spec.params))


@pytest.mark.parametrize("causal", [False, True])
def test_exact_mechanisms_are_at_no_distance(causal):
    assert distance("standard", causal) == 0
    assert distance("sdpa", causal) < 1e-12
    assert distance("longformer", causal, window=48) < 1e-12


def test_more_is_nearer():
    windows = [distance("longformer", window=w) for w in (4, 16, 40)]
    assert windows == sorted(windows, reverse=True)
    assert distance("linear") > 0.1


def test_what_has_no_queries_has_no_distance():
    assert distance("he") is None
