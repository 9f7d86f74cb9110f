"""What torch's caching allocator would hold on a CUDA device: a trace replayed through a model.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` at default settings (one stream, no
expandable segments, nothing freed for want of memory). The model is read from that source and
tested on sequences worked by hand; it has not yet been held against a device.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from attnprof.trace.events import Trace
from attnprof.trace.sizes import evaluate

MIB = 1 << 20
#: Every block is a multiple of this.
_ROUND = 512
#: Up to here a request is small and shares a segment of ``_SMALL_SEGMENT`` with others.
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
#: Below ``_LARGE`` a request shares a segment of ``_LARGE_SEGMENT``; above, it has its own,
#: a multiple of ``_LARGE_ROUND``.
_LARGE, _LARGE_SEGMENT, _LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB


@dataclass(frozen=True)
class CudaPeaks:
    """Peak bytes, above what was there before.

    ``requested`` is the tensors' own, ``allocated`` with blocks rounded up and ends left unsplit
    (``torch.cuda.max_memory_allocated``), ``reserved`` what the device has given out
    (``max_memory_reserved``) to an allocator that had nothing to spare.
    """

    requested: int
    allocated: int
    reserved: int


class SegmentPart(NamedTuple):
    """A piece of a segment; the best fit is the smallest, of these the first in memory."""

    size: int
    address: int
    small: bool
    requested: int = 0


@dataclass
class _Level:
    """Bytes now, and the most there were."""

    now: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


@dataclass
class CachingAllocator:
    """The allocator: ``take`` a number of bytes, ``give`` them back."""

    requested: _Level = field(default_factory=_Level)
    allocated: _Level = field(default_factory=_Level)
    reserved: _Level = field(default_factory=_Level)
    _end: int = 0
    _free: dict[bool, list[SegmentPart]] = field(default_factory=lambda: {True: [], False: []})

    def take(self, size: int) -> SegmentPart | None:
        """A block of at least ``size`` bytes; None for no bytes at all."""
        if size == 0:
            return None
        rounded = -(-size // _ROUND) * _ROUND
        small = rounded <= _SMALL
        free = self._free[small]
        place = bisect_left(free, (rounded, 0))
        if place < len(free):
            found = free.pop(place)
        else:  # new memory from the device, beside no other segment
            segment = -(-rounded // _LARGE_ROUND) * _LARGE_ROUND
            if rounded < _LARGE:
                segment = _SMALL_SEGMENT if small else _LARGE_SEGMENT
            found = SegmentPart(segment, self._end, small)
            self._end += segment + _ROUND
            self.reserved.add(segment)
        rest = found.size - rounded
        if rest >= _ROUND if small else rest > _SMALL:
            insort(free, SegmentPart(rest, found.address + rounded, small))
            found = found._replace(size=rounded)
        self.requested.add(size)
        self.allocated.add(found.size)
        return found._replace(requested=size)

    def give(self, block: SegmentPart | None) -> None:
        """The block is free again and grows together with free neighbours."""
        if block is None:
            return
        self.requested.add(-block.requested)
        self.allocated.add(-block.size)
        free, end = self._free[block.small], block.address + block.size
        beside = [b for b in free if b.address == end or b.address + b.size == block.address]
        for other in beside:
            free.remove(other)
        whole = [block, *beside]
        size, address = sum(b.size for b in whole), min(b.address for b in whole)
        insort(free, SegmentPart(size, address, block.small))


def predict_cuda(
    trace: Trace, phase: str = "train", sizes: Mapping[str, int] | None = None
) -> CudaPeaks:
    """Peaks of a phase on a CUDA device, from the tensors of a run.

    ``sizes`` are needed for a symbolic run. ``backward`` counts from the end of the forward pass
    on. What kernels take for themselves is left out: it is the CPU's in a trace; for products see
    :func:`cublas_workspace`. A trace of fused attention has the tensors of the CPU's kernel.
    """
    allocator = CachingAllocator()
    blocks: dict[int, SegmentPart | None] = {}
    started = phase != "backward"
    for call in trace.calls:
        if not started and call.part == "backward":
            for level in (allocator.requested, allocator.allocated, allocator.reserved):
                level.peak = level.now
            started = True
        for number in call.died:
            allocator.give(blocks.pop(number))
        for number, size in call.born:
            blocks[number] = allocator.take(int(evaluate(size, sizes or {})))
    return CudaPeaks(allocator.requested.peak, allocator.allocated.peak, allocator.reserved.peak)


def cublas_workspace(capability: tuple[int, int]) -> int:
    """Bytes that the first product takes from the allocator, once a stream, and keeps.

    By compute capability; from ``parseChosenWorkspaceSize`` in torch's ``CublasHandlePool.cpp``
    (32 MiB on Hopper and Blackwell, else 8.125 MiB). cuBLASLt shares it by default.
    """
    return 32 * MIB if capability[0] in {9, 10, 12} else 8 * MIB + 128 * 1024
