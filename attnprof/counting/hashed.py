"""The fixed layout of hashed attention: sorted rows, windows of keys, groups of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from attnprof.costs import Number, at_least_one, ceil_div, floor_div, maximum, minimum

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

    def places(self, rounds: Number) -> Number:
        """Sorted rows of so many rounds, and what windows read beyond both ends."""
        return self.back + rounds * self.rows + self.ahead

    @cached_property
    def together(self) -> Number:
        """Rounds of a pass: as many as make one group, and at least one."""
        return maximum(1, floor_div(GROUP, self.blocks))

    def passes(self, rounds: int) -> list[tuple[Number, Number]]:
        """How many passes over how many rounds each: whole ones, and the last one."""
        whole = floor_div(rounds, self.together)
        rest = rounds - whole * self.together
        return [(whole, self.together), (at_least_one(rest), rest)]

    def groups(self, rounds: Number) -> list[tuple[Number, Number]]:
        """How many groups of how many blocks each a pass has: whole ones, and the last one."""
        blocks = rounds * self.blocks
        whole = floor_div(blocks, GROUP)
        rest = blocks - whole * GROUP
        return [(whole, GROUP), (at_least_one(rest), rest)]
