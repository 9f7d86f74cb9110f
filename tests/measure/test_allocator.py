"""Which results of calls get new memory from the C library."""

import ctypes
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from attnprof.measure import allocator

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def printed_numbers(setup, *runs):
    """Return numbers that a new process prints, whose allocator nothing sets from outside.

    Each of the ``runs`` is a fork of it, as it is after ``setup``.
    """
    fork = "if os.fork() == 0:\n    exec({!r})\n    sys.stdout.flush()\n    os._exit(0)\nos.wait()"
    code = "\n".join(["import os, sys", setup, *map(fork.format, runs)])
    settings = {
        name: text for name, text in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300,
        env=settings,
    )  # fmt: skip
    return list(map(int, done.stdout.split()))


def test_what_a_process_did_before_does_not_decide_which_calls_pay_page_faults():
    setup = """
import resource, torch
from attnprof.measure.allocator import KEPT, let_allocator_learn
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [torch.ones(2**20) for _ in range(6)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
    # 60 tensors of 1,024 pages are new or are not; without a first block it is the place of others
    # in memory that decides
    (freed,), (learned,) = (
        printed_numbers(f"{setup}\ntorch.ones(8)\n{first}\nfaults()\nprint(faults())")
        for first in ("large = bytearray(KEPT); del large", "let_allocator_learn()")
    )  # each by a process of its own: a fork has a heap that has grown already
    if freed > 1000:
        pytest.skip("this C library keeps no large blocks, whatever was freed before")
    assert learned < 1000


def test_a_hole_of_earlier_work_does_not_spare_large_results_their_page_faults():
    setup = """
import ctypes, resource
from attnprof.measure.allocator import let_allocator_learn, memory_kept
from attnprof.measure.clocks import Clock, sample
from attnprof.measure.request import Budget
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
counts = []
def new(mebibytes):
    return malloc(ctypes.c_size_t(mebibytes << 20))
def call():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = new(40)
    ctypes.memset(block, 1, 40 << 20)
    free(block)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    run = """
let_allocator_learn()
earlier = [new(20) for _ in range(4)]
above = new(20)
for block in earlier:
    free(block)
{}
print(sorted(counts)[len(counts) // 2])
"""
    timed = "sample(Clock(), lambda: None, call, Budget(samples=5, min_time_s=0.0, warmup_s=0.0))"
    runs = "[call() for _ in range(9)]", timed, f"with memory_kept(): {timed}"
    plain, held, kept = printed_numbers(setup, *map(run.format, runs))
    pages = (40 << 20) // 4096
    if plain > pages / 10:
        pytest.skip("earlier work left no hole in this C library's heap")
    assert held == pytest.approx(pages, rel=0.05)
    assert kept < pages / 10


def test_the_heap_is_not_looked_through_where_no_block_is_mapped(monkeypatch):
    """Each look takes milliseconds in a heap of many pieces, and a calibration times thousands."""
    looks = []
    libc = ctypes.CDLL(None)

    def look():
        looks.append(1)
        return libc.mallinfo2()

    library = SimpleNamespace(
        mallinfo2=look, mallopt=libc.mallopt, malloc=libc.malloc, free=libc.free
    )
    libc.mallinfo2.restype = allocator._MallocInfo
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: library)
    with allocator.memory_kept(), allocator.holes_filled():
        assert looks == []
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0")
    with allocator.holes_filled():
        assert looks == []
    monkeypatch.delenv("MALLOC_MMAP_MAX_")
    with allocator.holes_filled():
        assert looks
