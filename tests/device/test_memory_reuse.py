"""How long ago memory was used, where new tensors take what others freed."""

from math import inf

import pytest
import torch

from attnprof.device.memory_reuse import Memory, MemoryUse
from attnprof.device.operations import operations_of
from attnprof.measure.request import PointRequest


def test_memory_was_last_used_as_many_bytes_ago_as_lie_between():
    memory, x, y = Memory(), torch.empty(100), torch.empty(50)
    assert memory.used([x]) == MemoryUse((inf,), 400)
    assert memory.used([y]) == MemoryUse((inf,), 200)
    assert memory.used([x]) == MemoryUse((200,), 400)
    assert memory.used([x.view(10, 10), y]) == MemoryUse((0,), 600)  # the largest one decides
    assert memory.passed == 400 + 200 + 400 + 600


def test_a_new_tensor_takes_what_one_of_its_size_freed_last():
    memory, first, second, other = Memory(), *(torch.empty(n) for n in (64, 64, 32))
    for x in (first, second, other):
        memory.used([x])
    del first, second, x
    assert memory.used([torch.empty(64)]) == MemoryUse((128,), 256)
    assert memory.used([torch.empty(64)]) == MemoryUse((0,), 256)  # what the last line freed
    kept = torch.empty(64)
    assert memory.used([kept]) == MemoryUse((0,), 256)
    assert memory.used([torch.empty(64)]) == MemoryUse(
        (256 * 4 + 128,), 256
    )  # what the first one freed
    assert memory.used([torch.empty(16)]) == MemoryUse((inf,), 64)


def test_several_tensors_are_as_far_away_as_their_mean():
    assert MemoryUse((300.0,), 100).away(1000) == pytest.approx(3)
    assert MemoryUse((0.0, 1500.0), 100).away(10_000) == pytest.approx(
        3
    )  # 1 + away: once and 16 times
    assert MemoryUse((inf,), 100).away(1000) == pytest.approx(10)
    assert MemoryUse((), 0).away(1000) == 0


def test_a_loop_finds_its_memory_again():
    work = operations_of(PointRequest("neural", 1024, 4, 32, scope="core"))
    sums = [one.away for one in work.operations if one.name == "add" and one.sizes[0] > 2**16]
    assert len(sums) > 9
    assert sorted(sums)[-2] < 2  # all but the first one
    assert max(one.away for one in work.operations) * 4 <= sum(work.moved)
