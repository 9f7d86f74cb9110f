"""The closed form of a band's blocks against the blocks that run."""

from collections import Counter

import pytest
import torch

from attnprof.blocks.band import band_blocks as executed
from attnprof.counting.band import band_blocks as counted

BANDS = [(64, 128, 128), (64, 128, 0), (65, 129, 129), (64, 100, 100), (64, 10, 10), (5, 4, 0)]


@pytest.mark.parametrize(("rows", "before", "after"), BANDS)
def test_the_closed_form_names_the_blocks_that_run(rows, before, after):
    for n in [1, rows - 1, rows, rows + 1, 2 * rows, 3 * rows, 3 * rows + 7, 4 * rows, 1000]:
        blocks = executed(range(n), rows, before, after, torch.empty(0))
        found = Counter(
            (b.rows.stop - b.rows.start, sum(k.stop - k.start for k in b.keys)) for b in blocks
        )
        told = Counter()
        for group in counted(n, rows, before, after):
            told[group.rows, group.keys] += group.times
        assert told == found
