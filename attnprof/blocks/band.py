"""A band of neighbours cut into blocks (sizes in closed form: ``counting/band.py``)."""

from __future__ import annotations

import torch
from torch import Tensor

from attnprof.blocks.gathered import Block, hidden


def band_mask(rows: int, before: int, after: int, like: Tensor) -> Tensor:
    """(rows, before + rows + after): hides what is outside a block's band, neighbours full."""
    shape, device = (rows, before + rows + after), like.device
    below = torch.ones(shape, dtype=torch.bool, device=device).tril_(-1)
    above = torch.ones(shape, dtype=torch.bool, device=device).triu_(before + after + 1)
    return hidden(below.logical_or_(above), like)


def band_blocks(
    span: range, rows: int, before: int, after: int, like: Tensor, open_keys: int = 0
) -> list[Block]:
    """Blocks of ``rows`` rows over the tokens of ``span``.

    A row sees ``before`` tokens back and ``after`` ahead inside the span, and the first
    ``open_keys`` tokens of the sequence. The mask has the format of ``like``.
    """
    if not span:
        return []
    mask = band_mask(min(rows, len(span)), before, after, like)
    front = (slice(0, open_keys),) if open_keys else ()
    found = []
    for start in range(span.start, span.stop, rows):
        end = min(start + rows, span.stop)
        low, high = max(span.start, start - before), min(span.stop, end + after)
        left = low - (start - before)
        seen = mask[: end - start, left : left + high - low]
        found.append(Block(slice(start, end), (*front, slice(low, high)), seen, open_keys))
    return found
