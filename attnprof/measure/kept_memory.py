"""Keep freed memory in the process, so that no timed call pays page faults for getting it again."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

#: Parameters of glibc's ``mallopt`` (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
#: glibc's own: blocks that are mapped, and the largest size below which none is.
USUAL_MAPS, LARGEST_KEPT = 65536, 32 << 20


@contextmanager
def memory_kept() -> Iterator[bool]:
    """Have glibc keep freed memory while the body runs; yield whether it can.

    Afterwards blocks of ``LARGEST_KEPT`` bytes or more are mapped again, as glibc does once it has
    seen some of that size; but where what was kept left a hole as large, it is used without page
    faults. What is to pay for them is timed in another process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        yield False
        return
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20))
    try:
        yield min(mallopt(*one) for one in wanted) == 1
    finally:
        usual = (
            (_MMAP_MAX, USUAL_MAPS), (_MMAP_THRESHOLD, LARGEST_KEPT),
            (_TRIM_THRESHOLD, 2 * LARGEST_KEPT), (_TOP_PAD, 0),
        )  # fmt: skip
        for one in usual:
            mallopt(*one)
