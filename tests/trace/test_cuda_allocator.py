"""The model of CUDA's caching allocator: sequences worked by hand, and what always holds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof import registry
from attnprof.trace.events import Call, Trace, peak
from attnprof.trace.report.cuda_allocator import MIB, CachingAllocator, CudaPeaks, predict_cuda
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.run.runs import record


def after(*sizes):
    allocator = CachingAllocator()
    return allocator, [allocator.take(size) for size in sizes]


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (0, 0, 0),
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # the last 1 MiB is not worth a block of its own
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # half a KiB more is
        (13 * MIB, 14 * MIB, 14 * MIB),
    ],
)
def test_one_request(size, allocated, reserved):
    allocator, _ = after(size)
    levels = allocator.requested, allocator.allocated, allocator.reserved
    assert tuple(level.peak for level in levels) == (size, allocated, reserved)


def test_small_requests_share_a_segment_until_it_is_full():
    allocator, _ = after(MIB, MIB)
    assert allocator.reserved.now == 2 * MIB
    allocator.take(512)
    assert allocator.reserved.now == 4 * MIB


def test_neighbours_grow_together():
    allocator, (first, second, _) = after(4 * MIB, 4 * MIB, 12 * MIB)
    assert allocator.reserved.now == 20 * MIB  # the third is what the others leave of it
    allocator.give(first)
    allocator.give(second)
    allocator.take(8 * MIB)  # fits only if both are one
    assert allocator.reserved.now == 20 * MIB


def test_the_best_fit_is_taken_not_the_first():
    allocator, (wide, _, narrow, _) = after(5 * MIB, 2 * MIB, 3 * MIB, 10 * MIB - 512)
    allocator.give(wide)
    allocator.give(narrow)  # free now: 5 MiB; 3 MiB; ends of segments
    block = allocator.take(3 * MIB)
    assert block.address == narrow.address


def test_a_large_block_keeps_an_end_of_a_mebibyte():
    allocator, (_, wide) = after(4 * MIB, 20 * MIB)
    allocator.give(wide)
    assert allocator.take(19 * MIB).size == 20 * MIB  # 1 MiB more than asked
    assert allocator.reserved.now == 40 * MIB
    allocator.give(allocator.take(3 * MIB))
    assert allocator.take(16 * MIB - MIB - 512).size == 15 * MIB - 512  # just over 1 MiB is split
    assert allocator.reserved.now == 40 * MIB


def test_small_and_large_requests_do_not_share():
    allocator, (large,) = after(4 * MIB)
    allocator.give(large)
    allocator.take(512)
    assert allocator.reserved.now == 22 * MIB


moves = st.lists(st.tuples(st.booleans(), st.integers(0, 40 * MIB), st.integers(0, 99)))


@given(moves)
def test_what_always_holds(steps):
    allocator, held, levels = CachingAllocator(), [], []
    for gives, size, which in steps:
        if gives and held:
            allocator.give(held.pop(which % len(held)))
        else:
            held.append(allocator.take(size))
        levels = [allocator.requested.now, allocator.allocated.now, allocator.reserved.now]
        assert levels == sorted(levels)
        used = [block for block in held if block]
        spans = sorted((b.address, b.address + b.size) for b in used)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert levels[1] == sum(block.size for block in used)
        free = sum(b.size for blocks in allocator._free.values() for b in blocks)
        assert levels[1] + free == levels[2]
    for block in held:
        allocator.give(block)
    assert (allocator.requested.now, allocator.allocated.now) == (0, 0)
    free = sorted((b.address, b.address + b.size) for bs in allocator._free.values() for b in bs)
    assert all(end < start for (_, end), (start, _) in pairwise(free))  # whole segments


def test_a_phase_starts_where_the_one_before_ended():
    calls = [
        Call("a", {}, 0, "forward", "", born=((1, 600), (2, 5000))),
        Call("b", {}, 0, "backward", "", born=((3, 100),), died=(2,)),
    ]
    assert predict_cuda(Trace(calls)) == CudaPeaks(5600, 1024 + 5120, 2 * MIB)
    assert predict_cuda(Trace(calls), "backward") == CudaPeaks(5600, 1024 + 5120, 2 * MIB)
    assert predict_cuda(Trace(calls[:1]), "forward").requested == 5600


@pytest.mark.parametrize(("name", "training"), [("standard", False), ("performer", True)])
def test_requested_bytes_are_the_derived_peak_without_kernels_own_memory(name, training):
    target = mechanism_target(registry.get(name))
    trace = record(target, {"B": 2, "N": 300, "h": 4, "d": 16}, training=training)
    prediction = predict_cuda(trace)
    assert all(call.workspace == 0 for call in trace.calls)
    assert prediction.requested == peak(trace, "train")
    assert prediction.requested <= prediction.allocated <= prediction.reserved
