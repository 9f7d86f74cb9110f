"""Predict what torch's caching allocator holds on a CUDA device, by replaying a trace's tensors.

The model (:class:`CachingAllocator`) follows ``c10/cuda/CUDACachingAllocator.cpp`` at default
settings: one stream, no expandable segments, nothing freed for want of memory. It is tested on
sequences worked by hand; it has not yet been compared with a device.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from attnprof.algebra.values import evaluate
from attnprof.trace.events import Trace

MIB = 1 << 20
#: Every block is a multiple of this.
_ROUND = 512
#: Up to here a request is small and shares a segment of ``_SMALL_SEGMENT`` with others.
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
#: Below ``_LARGE`` a request shares a segment of ``_LARGE_SEGMENT``; above, it has its own,
#: a multiple of ``_LARGE_ROUND``.
_LARGE, _LARGE_SEGMENT, _LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB
#: Bytes that the first product on a stream takes from the allocator, and keeps; on Hopper and
#: Blackwell. From ``parseChosenWorkspaceSize`` in torch's ``CublasHandlePool.cpp``; cuBLASLt shares
#: them by default.
CUBLAS_WORKSPACE, HOPPER_WORKSPACE = 8 * MIB + 128 * 1024, 32 * MIB


@dataclass(frozen=True)
class CudaPeaks:
    """Peak bytes of a phase, beyond what was held before it.

    ``requested`` is what tensors need; ``allocated`` adds rounding to whole blocks and ends too
    small to split off (``torch.cuda.max_memory_allocated``); ``reserved`` is what the device has
    given an allocator that had nothing to spare (``max_memory_reserved``).
    """

    requested: int
    allocated: int
    reserved: int


class SegmentPart(NamedTuple):
    """A piece of a segment; pieces sort by size, then address: the first that fits is the best."""

    size: int
    address: int
    small: bool
    requested: int = 0


@dataclass
class _Level:
    """Bytes held now, and the most held so far."""

    now: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


@dataclass
class CachingAllocator:
    """The allocator: ``take`` allocates a number of bytes, ``give`` frees a block."""

    requested: _Level = field(default_factory=_Level)
    allocated: _Level = field(default_factory=_Level)
    reserved: _Level = field(default_factory=_Level)
    _end: int = 0
    _free: dict[bool, list[SegmentPart]] = field(default_factory=lambda: {True: [], False: []})

    def take(self, size: int) -> SegmentPart | None:
        """Return a block of at least ``size`` bytes; None for no bytes at all."""
        if size == 0:
            return None
        rounded = -(-size // _ROUND) * _ROUND
        small = rounded <= _SMALL
        free = self._free[small]
        place = bisect_left(free, (rounded, 0))
        if place < len(free):
            block = free.pop(place)
        else:  # new memory from the device, beside no other segment
            segment = -(-rounded // _LARGE_ROUND) * _LARGE_ROUND
            if rounded < _LARGE:
                segment = _SMALL_SEGMENT if small else _LARGE_SEGMENT
            block = SegmentPart(segment, self._end, small)
            self._end += segment + _ROUND
            self.reserved.add(segment)
        rest = block.size - rounded
        if rest >= _ROUND if small else rest > _SMALL:
            insort(free, SegmentPart(rest, block.address + rounded, small))
            block = block._replace(size=rounded)
        self.requested.add(size)
        self.allocated.add(block.size)
        return block._replace(requested=size)

    def give(self, block: SegmentPart | None) -> None:
        """Free a block and merge it with its free neighbours."""
        if block is None:
            return
        self.requested.add(-block.requested)
        self.allocated.add(-block.size)
        free, end = self._free[block.small], block.address + block.size
        neighbours = [b for b in free if b.address == end or b.address + b.size == block.address]
        for other in neighbours:
            free.remove(other)
        whole = [block, *neighbours]
        size, address = sum(b.size for b in whole), min(b.address for b in whole)
        insort(free, SegmentPart(size, address, block.small))


def predict_cuda(
    trace: Trace, phase: str = "train", sizes: Mapping[str, int] | None = None
) -> CudaPeaks:
    """Return the peaks of a phase on a CUDA device, from the tensors of a run.

    ``sizes`` are needed for a symbolic run. ``backward`` counts from the end of the forward pass
    on. The scratch memory of kernels is left out, as a trace has that of the CPU's; for products
    see :data:`CUBLAS_WORKSPACE`. A trace of fused attention has the tensors of the CPU's kernel.
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
