"""The C library's allocator: which results of calls get new memory, whose page faults cost time.

glibc maps a block of ``LARGEST_KEPT`` bytes or more for itself alone and gives it back when it is
freed; smaller ones it learns to keep. Earlier work of a process can change both.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Parameters of glibc's ``mallopt`` (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
#: glibc's own: how many blocks are mapped at most, and the size from which on all are.
USUAL_MAPS, LARGEST_KEPT = 65536, 32 << 20
#: A block that glibc learns to keep; it learns by the largest one that was freed so far.
KEPT = LARGEST_KEPT - (64 << 10)
#: One entry for each :func:`memory_kept` whose body runs.
_keeping: list[bool] = []


def let_allocator_learn() -> None:
    """Allocate and free the largest block that glibc learns to keep.

    A large program has done so anyway. Otherwise earlier work of the process decides whether calls
    pay page faults: a layer's scores may take twice as long in a new process as in one that has
    trained a model.
    """
    import torch

    torch.empty(KEPT, dtype=torch.uint8, device="cpu")


@contextmanager
def memory_kept() -> Iterator[bool]:
    """Have glibc keep freed memory while the body runs; yield whether it can.

    Afterwards blocks of ``LARGEST_KEPT`` bytes or more are mapped again, as glibc does once it has
    seen some of that size, but for those that fit into a hole (:func:`holes_filled`).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        yield False
        return
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20))
    _keeping.append(True)
    try:
        yield min(mallopt(*one) for one in wanted) == 1
    finally:
        _keeping.pop()
        usual = (
            (_MMAP_MAX, USUAL_MAPS), (_MMAP_THRESHOLD, LARGEST_KEPT),
            (_TRIM_THRESHOLD, 2 * LARGEST_KEPT), (_TOP_PAD, 0),
        )  # fmt: skip
        for one in usual:
            mallopt(*one)


@contextmanager
def holes_filled() -> Iterator[None]:
    """Take all free blocks of the heap that hold ``LARGEST_KEPT`` bytes while the body runs.

    glibc gives new memory, which costs page faults, to a result of that size, unless earlier work
    of the process left a hole for it: the time of a layer would depend on what was timed before.
    Nothing is taken where no block is mapped (:func:`memory_kept`, ``MALLOC_MMAP_MAX_=0``): there
    is no difference, and a calibration would look through its heap thousands of times.
    """
    libc = ctypes.CDLL(None)
    information = getattr(libc, "mallinfo2", None)
    blocks: list[int] = []
    is_mapping = not _keeping and os.environ.get("MALLOC_MMAP_MAX_") != "0"
    if information is not None and is_mapping:  # glibc, from 2.33 on
        information.restype, libc.malloc.restype = _MallocInfo, ctypes.c_void_p
        libc.free.argtypes = [ctypes.c_void_p]
        for _ in range(information().fordblks // LARGEST_KEPT):
            maps = information().hblks
            blocks.append(libc.malloc(ctypes.c_size_t(LARGEST_KEPT)))
            if information().hblks > maps:  # no hole was left
                break
    try:
        yield
    finally:
        for block in blocks:
            libc.free(block)


class _MallocInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2`` (malloc.h): free bytes, and blocks mapped one by one."""

    _fields_ = tuple(
        (name, ctypes.c_size_t) for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip
