"""Reformer against loops over its definition: hash, rank in the bucket, chunk, joined rounds."""

import copy
import math
from collections import Counter

import pytest
import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof import Workload, registry
from tests.mechanisms.checks import close, drawn, mixed
from tests.oracles.memory import held

SMALL = {"num_hashes": 2, "bucket_size": 3, "num_buckets": 4}


def buckets_of(q, rotations):
    """Bucket of each row of q (n, d) by the directions (half, d) and their opposites."""
    if rotations.shape[0] == 0:
        return [0] * len(q)
    return [int(torch.cat([rotations @ x, -(rotations @ x)]).argmax()) for x in q]


def sees(buckets, size, causal, with_itself):
    """For each token the tokens it sees in one round."""
    n = len(buckets)
    chunk = [buckets[:i].count(buckets[i]) // size for i in range(n)]
    return [
        [
            j
            for j in range(i + 1 if causal else n)
            if buckets[j] == buckets[i]
            and chunk[i] - chunk[j] in (0, 1)
            and (j != i or with_itself)
        ]
        for i in range(n)
    ]


def loops(q, v, rotations, size, causal, with_itself):
    n, d = q.shape
    rounds = [sees(buckets_of(q, r), size, causal, with_itself) for r in rotations]
    weights = []
    for i in range(n):
        row = Counter()  # a token that several rounds see counts as often
        for j in (j for visible in rounds for j in visible[i]):
            row[j] += math.exp(float(q[i] @ q[j]) / float(q[j].norm()) / math.sqrt(d))
        weights.append(row or {i: 1.0})
    return mixed(v, weights)


@pytest.mark.parametrize("with_itself", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "rounds", "size", "buckets"),
    [((3, 2, 37, 4), 2, 3, 4), ((1, 1, 70, 3), 3, 5, None), ((2, 1, 1, 4), 1, 2, None),
     ((1, 1, 45, 4), 2, 50, 1), ((1, 2, 90, 4), 1, 1, 2), ((1, 1, 150, 2), 1, 4, 6)],
)  # fmt: skip
def test_attend_is_the_definition(shape, rounds, size, buckets, causal, with_itself):
    torch.manual_seed(0)
    q, v = drawn(shape, 2)
    half = (buckets or 2 * math.ceil(shape[2] / 2 / size)) // 2
    (rotations,) = drawn((rounds, half, shape[3]), 1)
    got = attnprof.attend(
        "reformer", q, q, v, causal=causal, weights={"rotations": rotations}, num_hashes=rounds,
        bucket_size=size, num_buckets=buckets, self_attention=with_itself,
    )  # fmt: skip
    last = loops(q[-1, -1], v[-1, -1], rotations, size, causal, with_itself)
    close(got[-1, -1], last, 1e-10)


def test_keys_are_the_queries_and_k_is_not_read():
    q, k, v = drawn((1, 2, 20, 4))
    one, other = (attnprof.attend("reformer", q, keys, v, **SMALL) for keys in (q, k))
    assert torch.equal(one, other)
    layer = attnprof.build("reformer", 8, 2)
    assert {name for name, _ in layer.named_parameters()} == {
        "q_proj.weight", "v_proj.weight", "o_proj.weight",
    }  # fmt: skip


def test_rotations_are_the_same_in_training_and_after_loading_and_change_when_redrawn():
    x = torch.randn(1, 70, 8)
    first, second = (attnprof.build("reformer", 8, 2, bucket_size=4) for _ in range(2))
    y = first(x)
    assert torch.equal(first.eval()(x), y)
    first(x[:, :9])  # other lengths draw other rotations, and leave no trace
    assert torch.equal(first(x), y)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(x), y)
    second.core.redraw(5)
    assert not torch.allclose(second(x), y)
    first.core.redraw(5)
    assert torch.equal(first(x), second(x))


@pytest.mark.parametrize("causal", [False, True])
def test_float32_gradients_are_those_of_float64(causal):
    torch.manual_seed(0)
    layer, x = attnprof.build("reformer", 64, 4, 300, bucket_size=16), torch.randn(2, 300, 64)

    def grad(layer, x):
        x = x.clone().requires_grad_()
        layer(x, causal=causal).square().sum().backward()
        return x.grad

    expected = grad(copy.deepcopy(layer).double(), x.double())
    off = (grad(layer, x) - expected).abs().max() / expected.abs().max()
    # a token that sees itself alone scores -5e4: no digits are left there for a log-sum-exp
    assert off < 1e-5


def test_low_precision_stays_finite_and_keeps_its_format():
    dtype = torch.bfloat16
    layer = attnprof.build("reformer", 16, 2, 100, bucket_size=8).to(dtype)
    x = (30 * torch.randn(2, 100, 16)).to(dtype).requires_grad_()
    y = layer(x, causal=True)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == dtype
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("n", "phase", "causal"),
    [(129, "train", True), (2049, "train", False), (2049, "train", True)],
)
def test_torchs_counter_on_tensors_without_numbers_agrees(n, phase, causal):
    with torch.device("meta"):
        layer = attnprof.build("reformer", 2, 1, n, num_hashes=1)
        x = torch.randn(1, n, 2, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            y = layer(x, causal=causal)
            if phase == "train":
                y.backward(torch.ones_like(y))
    cost = attnprof.cost("reformer", Workload(n, 1, 2, causal=causal, phase=phase), num_hashes=1)
    assert counter.get_total_flops() == cost.matmul_flops


@pytest.mark.parametrize(("phase", "causal"), [("forward", True), ("train", False)])
def test_symbols_are_the_numbers_where_buckets_follow_the_length(phase, causal):
    n = sympy.Symbol("n", positive=True)
    table = attnprof.cost("reformer", Workload(n, 2, 8, 3, causal=causal, phase=phase))
    flops, peak = table.flops, table.peak()
    for size in (1, 64, 65, 513, 70_001):
        work = Workload(size, 2, 8, 3, causal=causal, phase=phase)
        expected = attnprof.cost("reformer", work)
        values = (flops.xreplace({n: size}), peak.xreplace({n: size}))
        assert values == (expected.flops, expected.peak())


def test_the_forward_peak_of_many_blocks_is_the_allocators():
    n = 2200
    peak = held(attnprof.build("reformer", 32, 2, n), torch.randn(1, n, 32))
    assert attnprof.cost("reformer", Workload(n, 2, 16)).peak() == pytest.approx(peak, rel=1e-3)


def test_hashing_is_a_quadratic_stage_of_its_own():
    def hashing(n, **params):
        table = attnprof.cost("reformer", Workload(n, 1, 64), "core", **params)
        return sum(s.cost.matmul_flops for s in table if s.name.startswith("rotated")), table

    (short, _), (long, table) = hashing(1 << 16), hashing(1 << 17)
    assert long == 4 * short == 8 * (1 << 34) * 64 // 64
    assert any("N^2" in note for note in table.notes)
    assert hashing(1 << 17, num_buckets=64)[0] == 2 * hashing(1 << 16, num_buckets=64)[0]


@pytest.mark.parametrize("with_itself", [False, True])
@pytest.mark.parametrize(("n", "size", "buckets"), [(1, 2, 4), (23, 3, 2), (24, 4, 2), (9, 2, 10)])
def test_the_definitions_pairs_are_those_of_evenly_filled_buckets(n, size, buckets, with_itself):
    spec = registry.get(
        "reformer", bucket_size=size, num_buckets=buckets, self_attention=with_itself
    )
    even = [i % buckets for i in range(n)]
    for causal in (False, True):
        work = Workload(n, 1, 4, causal=causal)
        pairs = [max(1, len(seen)) for seen in sees(even, size, causal, with_itself)]
        assert spec.pairs(work) == sum(pairs)
    steps = [spec.pairs(Workload(t, 1, 4, phase="decode")) for t in range(1, n + 1)]
    assert steps == pairs


def test_a_saved_layer_has_the_same_rotations_in_every_format():
    from attnprof.measure.request import PointRequest
    from attnprof.measure.subject import make_module

    drawn = {}
    for dtype in ("float64", "float32", "bfloat16"):
        layer = make_module(PointRequest("reformer", 256, 2, 16, dtype=dtype))
        drawn[dtype] = layer.core.rotations
        copy = make_module(PointRequest("reformer", 256, 2, 16, dtype=dtype, seed=5))
        copy.load_state_dict(layer.state_dict())
        assert torch.equal(copy.core.rotations, layer.core.rotations)
    assert torch.equal(drawn["float64"].float(), drawn["float32"])
    assert torch.equal(drawn["float32"].bfloat16(), drawn["bfloat16"])
