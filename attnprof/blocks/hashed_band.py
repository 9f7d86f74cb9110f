"""Weights of blocks over overlapping windows, stored so that their transpose is one product.

Block b of ``ROWS`` rows has the window of places b·ROWS … b·ROWS + w - 1. Its weight of row r and
place p stands at r·w + p, rows and places counted over all blocks. So the weights a block of
places gets from all rows that see it are a matrix too, of w rows: gradients of keys and values
need no sum over shifted windows.
"""

from __future__ import annotations

from typing import Any

from attnprof.blocks.hashing import ROWS
from attnprof.costs import exact_div


class Band:
    """Memory for weights like ``like`` (g, ROWS, w), zeros between and around.

    ``blocks`` (g, ROWS, w) is the same by blocks of rows, ``places`` (g + more, w, ROWS) by
    blocks of places, of which there are ``more`` = w / ROWS - 1 in addition.
    """

    def __init__(self, like: Any) -> None:
        self.count, _, window = like.shape
        self.more = exact_div(window, ROWS) - 1
        self.padded = self.count + 2 * self.more
        step = ROWS * (window + 1)
        memory = like.new_zeros(self.padded * step)
        self.blocks = memory.as_strided(like.shape, (step, window, 1), self.more * step)
        shape = (self.count + self.more, window, ROWS)
        self.places = memory.as_strided(shape, (step, window, 1), self.more * ROWS)

    def rows(self, width: Any) -> Any:
        """Zeros for rows (…, width) of all blocks, with as many around as windows reach."""
        return self.blocks.new_zeros(self.padded * ROWS, width)

    def inside(self, rows: Any) -> Any:
        """(g, ROWS, width): where the blocks' own rows stand among such zeros."""
        start = self.more * ROWS
        return rows[start : start + self.count * ROWS].view(self.count, ROWS, -1)

    def transposed(self, rows: Any) -> Any:
        """(g + more, ROWS, width): weightsᵀ rows, by blocks of places."""
        width = rows.shape[-1]
        shape = (*self.places.shape[:2], width)
        return self.places.transpose(1, 2).bmm(rows.as_strided(shape, (ROWS * width, width, 1)))
