"""A growing cache of tokens for decoding."""

from __future__ import annotations

from torch import Tensor


class TokenCache:
    """Rows of shape (batch, tokens, width), appended one at a time.

    Capacity doubles when it runs out, so a token costs a constant number of copies on average;
    ``capacity`` (the sequence length, where known) avoids growth altogether.
    """

    def __init__(self, batch: int, width: int, like: Tensor, capacity: int | None = None) -> None:
        self.rows = like.new_empty(batch, capacity or 64, width)
        self.length = 0

    def append(self, row: Tensor) -> Tensor:
        """Add (batch, 1, width) and return all (batch, tokens, width) so far, as a view."""
        if self.length == self.rows.shape[1]:
            bigger = self.rows.new_empty(
                self.rows.shape[0], 2 * self.rows.shape[1], self.rows.shape[2]
            )
            bigger[:, : self.length] = self.rows
            self.rows = bigger
        self.rows[:, self.length : self.length + 1] = row
        self.length += 1
        return self.seen

    def advance(self, tokens: int) -> None:
        """As after so many tokens with random rows, from an empty cache."""
        batch, room, width = self.rows.shape
        while room < tokens + 1:  # the growth that appending would have done
            room *= 2
        self.rows = self.rows.new_empty(batch, room, width).normal_()
        self.length = tokens

    @property
    def seen(self) -> Tensor:
        """(batch, tokens, width) appended so far."""
        return self.rows[:, : self.length]
