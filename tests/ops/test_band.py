"""Blocks over a band of neighbours: those that the counter gets are those that run."""

from collections import Counter as Multiset

import pytest
import torch

from attnprof.blocks.gathered import in_band
from attnprof.ops.counter import Counter
from attnprof.ops.tensor import Tensor

BANDS = [(64, 128, 128), (64, 128, 0), (65, 129, 129), (64, 100, 100), (64, 10, 10), (5, 4, 0)]


def lengths(*slices):
    return tuple(part.stop - part.start for part in slices)


@pytest.mark.parametrize(("rows", "before", "after"), BANDS)
def test_the_counter_gets_the_blocks_that_run_each_kind_once(rows, before, after):
    for n in [1, rows - 1, rows, rows + 1, 2 * rows, 3 * rows, 3 * rows + 7, 4 * rows, 1000]:
        runs = [lengths(*part) for part in in_band(torch.empty(0), n, rows, before, after)]
        counter, told = Counter(4), Multiset()
        like = Tensor.given(counter, (1,))
        for own, seen, columns in in_band(like, n, rows, before, after):
            like.new_zeros(1)
            times = counter.stages[-1].cost.bytes_moved // 4
            told[lengths(own, seen, columns)] += times
        assert told == Multiset(runs)


def test_blocks_stand_where_the_band_begins():
    found = list(in_band(torch.empty(0), 5, 2, 1, 1, first=10))
    rows = [(own.start, own.stop) for own, _, _ in found]
    seen = [(keys.start, keys.stop) for _, keys, _ in found]
    columns = [(place.start, place.stop) for _, _, place in found]
    assert rows == [(10, 12), (12, 14), (14, 15)]
    assert seen == [(10, 13), (11, 15), (13, 15)]
    assert columns == [(1, 4), (0, 4), (0, 2)]
