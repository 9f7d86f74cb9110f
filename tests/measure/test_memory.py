"""Peaks from hand-written events, a fake CUDA allocator and real tensors; memory in parts."""

from types import SimpleNamespace

import pytest
import torch

from attnprof.measure import point
from attnprof.measure.memory import (
    MARK,
    Event,
    adamw_bytes,
    measure_held,
    measure_parts,
    measure_peak,
    peak_of,
)
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import Subject, build_subject
from tests.measure.samples import QUICK

KERNEL = "aten::_scaled_dot_product_flash_attention_for_cpu"


def memory(at, size):
    return Event("[memory]", at, at, size)


def test_the_peak_is_the_largest_running_sum_with_what_was_saved_before_the_mark():
    events = [memory(i, size) for i, size in enumerate([10, 20, -10, 5, -25])]
    assert peak_of(events).bytes == 30
    before = [memory(1, 100), memory(2, -90)]
    during = [memory(11, 30), memory(12, -30)]
    assert peak_of([*before, Event(MARK, 10, 20), *during]).bytes == 40


def test_scratch_of_fused_kernels_and_products_is_told_apart_and_no_other():
    events = [
        memory(1, 100),
        Event(KERNEL, 2, 9),
        memory(3, 50),  # the output: it stays
        memory(4, 30),  # scratch
        memory(5, -30),
        memory(20, 10),
    ]
    peak = peak_of(events)
    assert (peak.bytes, peak.kernel, peak.workspace) == (180, KERNEL, 30)
    assert peak.without_workspace == 160
    product = Event("aten::bmm", 0, 9)  # its result stays, too
    events = [product, memory(1, 100), memory(2, 30), memory(3, 50), memory(4, -50), memory(5, -30)]
    peak = peak_of(events)
    assert (peak.bytes, peak.kernel, peak.without_workspace) == (180, "aten::bmm", 100)
    events = [Event("aten::softmax", 0, 9), memory(1, 8), memory(2, 4), memory(3, -4)]
    assert peak_of(events).workspace == 0


def subject_of(prepare, call, reset=lambda: None):
    return Subject(None, reset, prepare, call)


def test_the_cpu_allocator_is_measured_to_the_byte_and_its_lines_do_not_reach_stderr(capfd):
    def call():
        first = torch.empty(1000)
        second = torch.empty(500)
        del first
        return second, torch.empty(1, dtype=torch.uint8)

    assert measure_peak(subject_of(lambda: None, call), "cpu", torch).bytes == 6000
    assert capfd.readouterr().err == ""


class FakeAllocator:
    """What ``torch.cuda`` answers; 512-byte blocks, requested bytes kept where told to."""

    def __init__(self, requested):
        self.now = self.peak = self.asked = self.asked_peak = 0
        self.reserved = self.reserved_peak = self.workspaces = 0
        self.requested = requested

    def synchronize(self):
        pass

    def reset_peak_memory_stats(self):
        self.peak, self.asked_peak = self.now, self.asked
        self.reserved_peak = self.reserved

    def empty_cache(self):
        self.reserved = self.now

    def clear_workspaces(self):
        self.now -= self.workspaces
        self.workspaces = 0

    def take(self, size):
        self.now += -(-size // 512) * 512
        self.asked += size
        self.reserved = max(self.reserved, self.now)
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.peak, self.asked_peak = max(self.peak, self.now), max(self.asked_peak, self.asked)

    def give(self, size):
        self.now -= -(-size // 512) * 512
        self.asked -= size

    def memory_stats(self):
        statistics = {
            "allocated_bytes.all.current": self.now, "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.reserved_peak,
        }  # fmt: skip
        if self.requested:
            statistics["requested_bytes.all.current"] = self.asked
            statistics["requested_bytes.all.peak"] = self.asked_peak
        return statistics


@pytest.mark.parametrize(("requested", "expected"), [(True, 100 + 700), (False, 512 + 1024)])
def test_the_cuda_peak_is_the_increment_over_what_was_live_before_the_saved_tensors(
    requested, expected
):
    cuda = FakeAllocator(requested)
    cuda.take(12345)  # parameters
    saved = []

    def reset():
        while saved:
            cuda.give(saved.pop())

    def prepare():  # the forward pass: 5000 at its own peak, 100 saved
        cuda.take(5000)
        cuda.give(5000)
        cuda.take(100)
        saved.append(100)

    def call():
        cuda.take(700)
        cuda.give(700)

    subject = subject_of(prepare, call, reset)
    peak = measure_peak(subject, "cuda", fake_torch(cuda))
    assert peak.bytes == expected
    assert peak.libraries == 0


def fake_torch(cuda):
    bindings = SimpleNamespace(_cuda_clearCublasWorkspaces=cuda.clear_workspaces)
    return SimpleNamespace(cuda=cuda, _C=bindings)


def test_what_a_gpu_reserves_and_what_its_libraries_hold_are_told_apart():
    cuda = FakeAllocator(requested=True)
    cuda.take(1024)  # parameters
    cuda.take(1 << 20)
    cuda.give(1 << 20)  # a block of an earlier point, kept for reuse

    def call():
        if not cuda.workspaces:  # at the first product
            cuda.workspaces = 8192
            cuda.take(cuda.workspaces)
        cuda.take(2048)
        cuda.give(2048)

    peak = measure_peak(subject_of(lambda: None, call), "cuda", fake_torch(cuda))
    assert (peak.bytes, peak.reserved, peak.libraries) == (2048, 2048, 8192)
    assert cuda.now == 1024


def test_what_a_call_leaves_is_counted_on_a_gpu_as_on_a_cpu():
    cuda = FakeAllocator(requested=True)
    cuda.take(512)

    def make():
        cuda.take(4096)
        cuda.give(1024)

    assert measure_held(make, "cuda", fake_torch(cuda)) == 3072
    made = measure_held(lambda: [torch.zeros(100), torch.zeros(50).sum()], "cpu", torch)
    assert made == 404


B, N, H, D = 2, 40, 2, 8
WIDTH = H * D
ROOM = N  # tokens: a module built for a length has caches of that length


def request(mechanism="standard", **changes):
    fields = {"batch_size": B, "budget": QUICK, "counts": False, "check": False, **changes}
    return PointRequest(mechanism, N, H, D, **fields)


def parts(asked):
    return measure_parts(build_subject(asked), asked.phase, "cpu", torch)


@pytest.mark.parametrize(("phase", "size"), [("train", 4), ("backward", 8)])
def test_a_training_step_of_standard_attention_in_parts(phase, size):
    by_part = parts(request(phase=phase, dtype={4: "float32", 8: "float64"}[size]))
    weights = 4 * (WIDTH * WIDTH + WIDTH)
    tokens = B * N * WIDTH
    assert by_part["gradients_bytes"] == size * (weights + tokens)
    assert by_part["optimizer_bytes"] == 2 * size * weights
    # autograd keeps q, k, v, the softmax weights, the heads' outputs and the divisor of the
    # scores, a number of double precision; the output is alive, too
    assert by_part["activations_bytes"] == size * (5 * tokens + B * H * N * N) + 8
    assert len(by_part) == 3


def test_the_moments_are_those_that_torch_keeps():
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3, bias=False))
    module[1].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(2, 5)).sum().backward()
    optimizer.step()
    kept = [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
    assert adamw_bytes(module) == sum(v.nbytes for v in kept)


def test_a_cache_counts_with_its_room_to_grow_and_a_recurrent_state_is_none():
    by_part = parts(request(phase="decode"))
    assert by_part["kv_cache_bytes"] == by_part["state_bytes"] == 2 * 4 * B * ROOM * WIDTH
    assert len(by_part) == 2
    by_part = parts(request("linear", phase="decode"))
    assert by_part["kv_cache_bytes"] == 0
    assert by_part["state_bytes"] == 4 * B * H * D * (D + 1)  # sums of k v and of k
    assert parts(request()) == {}  # a forward pass has none


def test_the_record_has_them():
    row = point.measure_point(request(phase="train"))
    assert row.activations_bytes < row.peak_bytes_measured
    assert row.optimizer_bytes == 2 * 4 * row.parameters
    assert (row.reserved_bytes, row.workspace_bytes) == (None, None)
