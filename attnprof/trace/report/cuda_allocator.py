"""What torch's caching allocator would hold on a CUDA device: a trace replayed through a model.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` at default settings (one stream, no
expandable segments, nothing freed for want of memory). The model is read from that source and
tested on sequences worked by hand; it has not yet been held against a device.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from attnprof.trace.evaluation import evaluate
from attnprof.trace.events import Trace

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


@dataclass(eq=False)
class _SegmentPart:
    """A piece of a segment, and its neighbours in it."""

    address: int
    size: int
    small: bool
    requested: int = 0
    used: bool = False
    before: _SegmentPart | None = None
    after: _SegmentPart | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Best fit: the smallest that is large enough, of these the first in memory."""
        return self.size, self.address


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
    _free: dict[bool, list[_SegmentPart]] = field(default_factory=lambda: {True: [], False: []})

    def take(self, size: int) -> _SegmentPart | None:
        """A block of at least ``size`` bytes; None for no bytes at all."""
        if size == 0:
            return None
        rounded = -(-size // _ROUND) * _ROUND
        block = self._found(rounded) or self._segment(rounded)
        rest = block.size - rounded
        if rest >= _ROUND if block.small else rest > _SMALL:
            self._split(block, rounded)
        block.used, block.requested = True, size
        self.requested.add(size)
        self.allocated.add(block.size)
        return block

    def give(self, block: _SegmentPart | None) -> None:
        """The block is free again and grows together with free neighbours."""
        if block is None:
            return
        block.used = False
        self.requested.add(-block.requested)
        self.allocated.add(-block.size)
        for other in (block.before, block.after):
            if other is not None and not other.used:
                self._merge(block, other)
        insort(self._free[block.small], block, key=lambda b: b.rank)

    def reset_peaks(self) -> None:
        """Peaks count from now on."""
        for level in (self.requested, self.allocated, self.reserved):
            level.peak = level.now

    def _found(self, rounded: int) -> _SegmentPart | None:
        free = self._free[rounded <= _SMALL]
        place = bisect_left(free, (rounded, 0), key=lambda b: b.rank)
        return free.pop(place) if place < len(free) else None

    def _segment(self, rounded: int) -> _SegmentPart:
        """New memory from the device."""
        if rounded <= _SMALL:
            size = _SMALL_SEGMENT
        elif rounded < _LARGE:
            size = _LARGE_SEGMENT
        else:
            size = -(-rounded // _LARGE_ROUND) * _LARGE_ROUND
        block = _SegmentPart(self._end, size, rounded <= _SMALL)
        self._end += size
        self.reserved.add(size)
        return block

    def _split(self, block: _SegmentPart, size: int) -> None:
        """The end of a block stays free."""
        rest = _SegmentPart(block.address + size, block.size - size, block.small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        insort(self._free[rest.small], rest, key=lambda b: b.rank)

    def _merge(self, block: _SegmentPart, other: _SegmentPart) -> None:
        self._free[other.small].remove(other)
        first, last = sorted((block, other), key=lambda b: b.address)
        block.address, block.size = first.address, first.size + last.size
        block.before, block.after = first.before, last.after
        if block.before is not None:
            block.before.after = block
        if block.after is not None:
            block.after.before = block


def predict_cuda(
    trace: Trace, phase: str = "train", sizes: Mapping[str, int] | None = None
) -> CudaPeaks:
    """Peaks of a phase on a CUDA device, from the tensors of a run.

    ``sizes`` are needed for a symbolic run. ``backward`` counts from the end of the forward pass
    on. What kernels take for themselves is left out: it is the CPU's in a trace; for products see
    :func:`cublas_workspace`. A trace of fused attention has the tensors of the CPU's kernel.
    """
    allocator = CachingAllocator()
    blocks: dict[int, _SegmentPart | None] = {}
    started = phase != "backward"
    for call in trace.calls:
        if not started and call.part == "backward":
            allocator.reset_peaks()
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
