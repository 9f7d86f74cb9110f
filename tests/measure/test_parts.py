"""A training step's and a decoder's memory in parts, against tensors one can add up."""

import pytest
import torch

from attnprof.measure import point
from attnprof.measure.memory import adamw_bytes, measure_parts
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.subject import build_subject

QUICK = Budget(samples=3, min_time_s=0, max_time_s=0.1, warmup_s=0)
B, N, H, D = 2, 40, 2, 8
WIDTH = H * D
ROOM = N  # tokens: a module built for a length has caches of that length


def request(mechanism="standard", **changes):
    given = {"batch_size": B, "budget": QUICK, "counts": False, "check": False, **changes}
    return PointRequest(mechanism, N, H, D, **given)


def parts(asked):
    return measure_parts(build_subject(asked), asked.phase, "cpu", torch)


@pytest.mark.parametrize("phase", ["train", "backward"])
@pytest.mark.parametrize("size", [4, 8])
def test_a_training_step_of_standard_attention_in_parts(phase, size):
    found = parts(request(phase=phase, dtype={4: "float32", 8: "float64"}[size]))
    weights = 4 * (WIDTH * WIDTH + WIDTH)
    tokens = B * N * WIDTH
    assert found["gradients_bytes"] == size * (weights + tokens)
    assert found["optimizer_bytes"] == 2 * size * weights
    # autograd keeps q, k, v, the softmax weights, the heads' outputs and the divisor of the
    # scores, a number of double precision; the output is alive, too
    assert found["activations_bytes"] == size * (5 * tokens + B * H * N * N) + 8
    assert len(found) == 3


def test_the_moments_are_those_that_torch_keeps():
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3, bias=False))
    module[1].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(2, 5)).sum().backward()
    optimizer.step()
    kept = [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
    assert adamw_bytes(module) == sum(v.nbytes for v in kept)


def test_a_cache_counts_with_its_room_to_grow():
    found = parts(request(phase="decode"))
    assert found["kv_cache_bytes"] == found["state_bytes"] == 2 * 4 * B * ROOM * WIDTH
    assert len(found) == 2


def test_a_recurrent_state_is_no_cache():
    found = parts(request("linear", phase="decode"))
    assert found["kv_cache_bytes"] == 0
    assert found["state_bytes"] == 4 * B * H * D * (D + 1)  # sums of k v and of k


def test_a_forward_pass_has_no_parts():
    assert parts(request()) == {}


def test_the_record_has_them():
    row = point.measure_point(request(phase="train"))
    assert row.activations_bytes < row.peak_bytes_measured
    assert row.optimizer_bytes == 2 * 4 * row.parameters
    assert (row.reserved_bytes, row.workspace_bytes) == (None, None)
