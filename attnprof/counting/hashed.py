"""The fixed layout of hashed attention: sorted rows, windows of keys, groups of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from attnprof.costs import Number, ceil_div, floor_div, minimum

#: Sorted rows of a block: few enough that a window is hardly longer than what rows may see.
ROWS = 32
#: Blocks of a group: its scores stay in the processor's cache.
GROUP = 64
#: Tokens hashed at a time.
HASHED = 512


@dataclass(frozen=True)
class Plan:
    """Tokens sorted by bucket stand in ``blocks`` blocks of ``ROWS``.

    What a row may see lies at most ``back`` places before its block and ``ahead`` after it,
    whatever the buckets are, so every block reads one window of fixed length.
    """

    seq_len: Number
    num_buckets: Number
    bucket_size: int
    causal: bool

    @cached_property
    def blocks(self) -> Number:
        """Blocks of rows; the last one is filled up."""
        return ceil_div(self.seq_len, ROWS)

    @cached_property
    def back(self) -> Number:
        """Places before a block: own and previous chunk, 2·bucket_size - 1 in whole blocks."""
        return ROWS * minimum(-(-(2 * self.bucket_size - 1) // ROWS), self.blocks - 1)

    @cached_property
    def ahead(self) -> Number:
        """Places after a block: the rest of the chunk, none if causal."""
        if self.causal:
            return 0
        return ROWS * minimum(-(-(self.bucket_size - 1) // ROWS), self.blocks - 1)

    @cached_property
    def window(self) -> Number:
        """Keys a block reads."""
        return self.back + ROWS + self.ahead

    @cached_property
    def rows(self) -> Number:
        """Sorted rows, filled up to whole blocks."""
        return self.blocks * ROWS

    @cached_property
    def places(self) -> Number:
        """Sorted rows and what windows read beyond both ends."""
        return self.back + self.rows + self.ahead

    @cached_property
    def groups(self) -> tuple[Number, Number]:
        """Whole groups, and the blocks of the last one."""
        whole = floor_div(self.blocks, GROUP)
        return whole, self.blocks - whole * GROUP
