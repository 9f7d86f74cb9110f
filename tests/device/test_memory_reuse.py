"""How long ago memory was used, where new tensors take what others freed."""

from math import inf

import torch

from attnprof.device.kernel_calls import KernelCall
from attnprof.device.memory_reuse import Memory
from attnprof.device.operations import Demand, operations_of
from attnprof.measure.request import PointRequest


def test_memory_was_last_used_as_many_bytes_ago_as_lie_between():
    memory, x, y = Memory(), torch.empty(100), torch.empty(50)
    assert memory.used([x]) == (inf, 400)
    assert memory.used([y]) == (inf, 200)
    assert memory.used([x]) == (200, 400)
    assert memory.used([x.view(10, 10), y]) == (0, 600)  # the largest one decides
    assert memory.passed == 400 + 200 + 400 + 600


def test_a_new_tensor_takes_what_one_of_its_size_freed_last():
    memory, first, second, other = Memory(), *(torch.empty(n) for n in (64, 64, 32))
    for x in (first, second, other):
        memory.used([x])
    del first, second, x
    assert memory.used([torch.empty(64)]) == (128, 256)
    assert memory.used([torch.empty(64)]) == (0, 256)  # what the last line freed
    kept = torch.empty(64)
    assert memory.used([kept]) == (0, 256)
    assert memory.used([torch.empty(64)]) == (256 * 4 + 128, 256)  # what the first one freed
    assert memory.used([torch.empty(16)]) == (inf, 64)


def test_a_loop_finds_its_memory_again():
    work = operations_of(PointRequest("neural", 1024, 4, 32, scope="core"))
    sums = [one.away for one in work.operations if one.name == "add" and one.sizes[0] > 2**16]
    assert len(sums) > 9
    assert sorted(sums)[-2] < 2  # all but the first one
    assert max(one.away for one in work.operations) * 4 <= work.bytes


def test_operations_repeated_at_once_find_their_code_again():
    alone, loop = ([KernelCall(name, "unary", (1,)) for name in names]
                   for names in ("abcdefghijkl", "ab" * 6))  # fmt: skip
    assert Demand(alone).followed == 12
    assert 2 < Demand(loop).followed < 4
