"""Errors of approximations: those of loops over rows, none for what is exact, less for more."""

import math

import pytest
import torch

from attnprof import Workload, cost, registry
from attnprof.blocks.core import checked_sizes, seeded_core
from attnprof.errors import RequestError
from attnprof.measure.correctness import distance_from_standard
from attnprof.measure.request import PointRequest
from attnprof.measure.tradeoff import Terms, candidates, ladder, tradeoff_report
from attnprof.measure.tradeoff_inputs import (
    NORMS,
    STRUCTURES,
    ExactAttention,
    QueriesKeysValues,
    structured,
)
from tests.mechanisms.checks import loops

SHAPE = (1, 2, 24, 8)


def inputs(name="random", norms="spread", causal=False, shape=SHAPE):
    return structured(name, shape, norms=norms, causal=causal, seed=1)


def core_of(name, given, causal=False, seed=0, **params):
    spec = registry.get(name, **params)
    _, h, n, d = given.q.shape
    sizes = checked_sizes(spec, h * d, h, n, given.k.shape[1], given.v.shape[-1])
    core = seeded_core(spec, registry.module_of(name), sizes, seed).double()
    return torch.no_grad()(lambda q, k, v: core(q, k, v, causal))


def weights_by_loops(given, causal):
    """Softmax weights of each row: what it mixes of rows that are one at their own place."""
    rows = torch.eye(given.k.shape[2], dtype=torch.float64).expand(*given.k.shape[:2], -1, -1)
    return loops(given.q, given.k, rows, lambda i, j: not causal or j <= i)


@pytest.mark.parametrize("causal", [False, True])
def test_errors_are_those_of_loops_over_rows(causal):
    qkv = inputs("local", causal=causal)
    exact = weights_by_loops(qkv, causal)
    places = torch.arange(24)
    near = (places[:, None] - places).abs() <= 3
    window = exact * near
    window /= window.sum(-1, keepdim=True)
    distance = ExactAttention(qkv, causal=causal).distance(
        core_of("longformer", qkv, causal, window=3)
    )
    expected, windowed = exact @ qkv.v, window @ qkv.v
    assert distance.relative == pytest.approx(float((windowed - expected).norm() / expected.norm()))
    shares = [
        float((a - b).norm() / b.norm())
        for a, b in zip(windowed.reshape(-1, 8), expected.reshape(-1, 8), strict=True)
    ]
    assert distance.worst_row == pytest.approx(max(shares))
    apart = [
        sum(abs(float(x - y)) for x, y in zip(a, b, strict=True)) / 2
        for a, b in zip(window.reshape(-1, 24), exact.reshape(-1, 24), strict=True)
    ]
    assert distance.distribution == pytest.approx(sum(apart) / len(apart))


def test_grouped_heads_and_keys_of_another_length_are_those_of_loops():
    made = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, h, n, w, generator=made, dtype=torch.float64)
        for h, n, w in ((4, 6, 8), (2, 9, 8), (2, 9, 5))
    )
    qkv = QueriesKeysValues("x", q, k, v)
    exact = weights_by_loops(qkv, causal=False) @ v.repeat_interleave(2, 1)
    attention = ExactAttention(qkv, causal=False)
    assert torch.allclose(attention.output, exact)
    assert attention.distance(core_of("standard", qkv)).distribution < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "params"),
    [("standard", {}), ("sdpa", {}), ("longformer", {"window": 24}), ("sparse", {"stride": 24})],
)
def test_what_is_exact_differs_by_rounding(name, params, causal):
    qkv = inputs("peaked", causal=causal)
    distance = ExactAttention(qkv, causal=causal).distance(core_of(name, qkv, causal, **params))
    assert max(distance.relative, distance.worst_row, distance.distribution) < 1e-12


def test_landmarks_at_every_token_are_exact_once_the_inverse_is():
    qkv = inputs("peaked", norms="sphere")
    distance = ExactAttention(qkv, causal=False).distance(
        core_of("nystromformer", qkv, num_landmarks=24, iterations=40)
    )
    assert distance.relative < 1e-9


def test_performer_s_error_falls_with_its_features():
    qkv = inputs("low-rank", norms="sphere")
    exact = ExactAttention(qkv, causal=False)
    errors = []
    for features in (8, 128, 4096):
        cores = (core_of("performer", qkv, seed=s, num_features=features) for s in range(5))
        distances = sorted(exact.distance(core, distribution=False).relative for core in cores)
        errors.append(distances[2])
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.4 * errors[1]  # as 1 over the root: a sixth, up to chance


def test_weights_that_are_none_are_told():
    qkv = inputs()
    exact = ExactAttention(qkv, causal=False)
    assert exact.distance(core_of("linformer", qkv, proj_len=4)).weights == (
        "some of its weights are negative"
    )
    assert "linear" in exact.distance(lambda _q, _k, v: v.square()).weights
    assert exact.distance(lambda _q, _k, v: v * math.nan) is None


@pytest.mark.parametrize("causal", [False, True])
def test_structures_are_what_they_are_called(causal):
    shape = (1, 1, 256, 64)
    tops = {}
    for name in STRUCTURES:
        qkv = inputs(name, "sphere", causal, shape)
        weights = ExactAttention(qkv, causal=causal).weights(slice(None))[0, 0]
        tops[name] = float(weights.max(-1)[0].mean())
        places = torch.arange(256)
        far = float((weights * (places[:, None] - places).abs()).sum(-1).mean())
        assert (far < 16) == (name == "local")
        lengths = qkv.k.norm(dim=-1)
        assert torch.allclose(lengths, lengths[..., :1])
        spread = inputs(name, "spread", causal, shape).k.norm(dim=-1)
        assert float(spread.max() / spread.min()) > 3
    assert tops.pop("peaked") > 0.8
    assert max(tops.values()) < 0.4
    rank = torch.linalg.matrix_rank(inputs("low-rank", "sphere", causal, shape).q[0, 0])
    assert rank == 4
    assert set(NORMS) == {"sphere", "spread"}


def test_a_ladder_has_shares_of_the_default_up_to_the_length():
    assert ladder(256, 1024) == [64, 128, 256, 512, 1024]
    assert ladder(256, 300) == [64, 128, 256, 300]
    assert ladder(2, 300) == [1, 2, 4, 8]  # half of 1 is 0, which is none


def test_parameters_come_from_the_registry_and_their_values_from_the_request():
    settings = candidates(["standard", "longformer"], {}, 1024, 64)
    windows = [c.mechanism.params["window"] for c in settings if c.name == "longformer"]
    assert windows == [64, 128, 256, 512, 1024]
    assert [c.name for c in settings].count("standard") == 1
    choices = candidates(
        ["longformer"], {"window": ["8", "16"], "global_tokens": ["0", "1"]}, 64, 8
    )
    pairs = [(c.mechanism.window, c.mechanism.global_tokens) for c in choices]
    assert pairs == [(8, 0), (8, 1), (16, 0), (16, 1)]
    with pytest.raises(RequestError, match="no parameter 'rank'"):
        candidates(["longformer"], {"rank": ["8"]}, 64, 8)


def test_random_weights_are_drawn_several_times_and_costs_are_the_closed_forms():
    settings = candidates(["linear", "performer"], {"num_features": ["8"]}, 24, 8)
    report = tradeoff_report(settings, [inputs()], Terms(seeds=4), None, {})
    linear, performer = report.records
    assert (linear.seeds, performer.seeds) == (1, 4)
    assert linear.error_relative_low == linear.error_relative == linear.error_relative_high
    assert performer.error_relative_low < performer.error_relative < performer.error_relative_high
    table = cost("performer", Workload(24, 2, 8), "core", num_features=8)
    assert (performer.flops, performer.peak_bytes) == (table.flops, table.peak())
    assert performer.bytes_moved == table.total.bytes_moved
    assert tradeoff_report(settings, [inputs()], Terms(seeds=4), None, {}).records == [
        linear, performer,
    ]  # fmt: skip


def test_what_is_not_beaten_is_marked():
    settings = candidates(["standard", "longformer", "sparse"], {}, 24, 8)
    rows = tradeoff_report(settings, [inputs("local")], Terms(), None, {}).records
    errors = [0.0 if row.error_relative < 1e-9 else row.error_relative for row in rows]
    for row, error in zip(rows, errors, strict=True):
        beaten = any(
            (other.flops <= row.flops and its < error) or (other.flops < row.flops and its <= error)
            for other, its in zip(rows, errors, strict=True)
        )
        assert row.pareto is not beaten


def distance(name, causal=False, **params):
    spec = registry.get(name, **params)
    return distance_from_standard(PointRequest(name, 48, 2, 8, causal=causal, params=spec.params))


@pytest.mark.parametrize("causal", [False, True])
def test_exact_mechanisms_are_at_no_distance(causal):
    assert distance("standard", causal) == 0
    assert distance("sdpa", causal) < 1e-12
    assert distance("longformer", causal, window=48) < 1e-12


def test_more_is_nearer_and_what_has_no_queries_has_no_distance():
    windows = [distance("longformer", window=w) for w in (4, 16, 40)]
    assert windows == sorted(windows, reverse=True)
    assert distance("linear") > 0.1
    assert distance("he") is None
