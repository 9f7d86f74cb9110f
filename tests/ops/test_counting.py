"""What counting tensors count: operations, lifetimes, repetition, the backward pass in order."""

from collections import Counter as Multiset
from itertools import product

import numpy as np
import pytest
import sympy
import torch

from attnprof.algebra.maxima import maximum_of
from attnprof.blocks.gathered import in_band
from attnprof.costs import (
    Cost,
    ceil_div,
    exact_div,
    floor_div,
    maximum,
    minimum,
    more_than_one,
    not_dearer,
    scaled,
)
from attnprof.ops.counter import Counter, as_flag
from attnprof.ops.functional import arange
from attnprof.ops.loops import in_blocks
from attnprof.ops.tensor import Tensor


def test_a_product_counts_multiplications_and_additions():
    counter = Counter(4)
    Tensor.leaf(counter, 2, 3, 5).bmm(Tensor.leaf(counter, 2, 5, 7))
    total = counter.table(0).total
    assert (total.multiplications, total.additions) == (210, 210)
    assert (total.matmul_flops, total.macs, total.dot_outputs) == (420, 210, 42)
    assert total.bytes_moved == 4 * (30 + 70 + 42)
    assert total.operations == 420 - 42


def test_memory_dies_with_its_last_holder():
    counter = Counter(1)
    x = Tensor.leaf(counter, 10)
    a = x.clone()
    b = a.view(5, 2)
    del a
    x.clone()
    assert counter.table(0).peak() == 20
    del b
    x.clone()
    assert counter.table(0).peak() == 20


def test_what_autograd_saves_stays_until_its_backward_ran():
    counter = Counter(1, grad=True)
    x = Tensor.leaf(counter, 8)
    first = x.exp()
    second = first.exp()
    del first
    second.backward()
    names = [stage.name for stage in counter.stages]
    assert names == ["first", "second", "second: grad", "first: grad"]
    # first and second, the gradient of first and that of x
    assert counter.table(0).peak() == 4 * 8


def test_a_tensor_used_twice_gets_its_gradients_added():
    counter = Counter(1, grad=True)
    x = Tensor.leaf(counter, 6)
    out = x * x
    out.backward()
    added = [stage for stage in counter.stages if stage.name == "add gradients"]
    assert [stage.cost.additions for stage in added] == [6]


def test_no_gradient_is_computed_for_what_needs_none():
    counter = Counter(1, grad=True)
    a, b = Tensor.leaf(counter, 1, 2, 3), Tensor.external(counter, (1, 3, 4))
    product = a.bmm(b)
    product.backward()
    assert [stage.name for stage in counter.stages] == ["product", "product: grad of the first"]


@pytest.mark.parametrize(("n", "chunk"), [(1, 4), (4, 4), (9, 4), (12, 4), (3, 8)])
def test_a_repeated_part_counts_its_times_and_peaks_once(n, chunk):
    def scan(n):
        counter = Counter(1)
        x = Tensor.leaf(counter, n)
        for rows in in_blocks(x, n, chunk):
            x[rows] / 2
        Tensor.leaf(counter, chunk).clone()
        return counter.table(0)

    symbol = sympy.Symbol("n", positive=True)
    whole, symbolic = scan(n), scan(symbol)
    assert whole.total.divisions == n
    assert whole.peak() == chunk
    assert sympy.sympify(symbolic.total.divisions).subs(symbol, n) == n
    assert symbolic.peak().subs(symbol, n) == chunk


@pytest.mark.parametrize("item_size", [1, 4])
def test_whole_numbers_and_masks_cost_bytes_and_no_flops(item_size):
    counter = Counter(item_size)
    x = Tensor.leaf(counter, 6, 4)
    place = x.max(-1, keepdim=True)[1]
    counter.stages.clear()
    numbers = (place - arange(place, 3)).remainder_(2).minimum(place * 2)
    mask = numbers > 1
    picked = x.index_select(0, (mask * 5).sort(dim=1)[1].view(-1))
    total = counter.table(0).total
    assert total.flops == 0
    sizes = place.item_size, numbers.item_size, mask.item_size, picked.item_size
    assert sizes == ((8, 8, 1, 4) if item_size == 4 else (1, 1, 1, 1))
    assert picked.shape == (18, 4)
    below = x < 0
    assert counter.stages[-1].cost.other == x.count
    assert below.whole


@pytest.mark.parametrize("values", [(7, 2), (8, 4), (1, 3)])
def test_helpers_agree_on_ints_arrays_and_symbols(values):
    a, b = sympy.symbols("a b", positive=True)
    for helper in (floor_div, ceil_div, maximum, minimum, not_dearer):
        expected = helper(*values)
        assert helper(a, b).subs({a: values[0], b: values[1]}) == expected
        assert helper(np.array([values[0]]), values[1])[0] == expected


def test_exact_division_refuses_a_remainder():
    assert exact_div(12, 4) == 3
    with pytest.raises(ValueError, match="does not divide"):
        exact_div(12, 5)


def test_more_than_one_is_an_indicator():
    assert [more_than_one(size) for size in (1, 2, 9)] == [0, 1, 1]


def test_the_maximum_of_polynomials_drops_dominated_ones_and_keeps_crossing_ones():
    x, y = sympy.symbols("x y", positive=True)
    peak = maximum_of([x + y, 2 * x + y, x**2, sympy.Integer(0)])
    assert set(peak.args) == {2 * x + y, x**2}
    assert maximum_of([x, 2 * x]) == 2 * x


def test_costs_add_and_repeat():
    one = Cost(multiplications=1, additions=2, divisions=3, exponentials=4, other=5)
    assert (one + one) == 2 * one == one * 2
    assert (3 * one).flops == 45


@pytest.mark.parametrize("nothing", [0, sympy.Integer(0)])
def test_nothing_is_not_multiplied_by_an_expression(nothing):
    """Sympy would ask first whether the expression is finite, which may take minutes."""
    assert scaled(nothing, sympy.zoo) == 0


# -- blocks over a band of neighbours -----------------------------------------------------------
BANDS = [(64, 128, 128), (64, 128, 0), (65, 129, 129), (64, 100, 100), (64, 10, 10), (5, 4, 0)]


def lengths(*slices):
    return tuple(part.stop - part.start for part in slices)


@pytest.mark.parametrize(("rows", "before", "after"), BANDS)
def test_the_counter_gets_the_blocks_that_run_each_kind_once(rows, before, after):
    for n in [1, rows - 1, rows, rows + 1, 2 * rows, 3 * rows, 3 * rows + 7, 4 * rows, 1000]:
        runs = [lengths(*part) for part in in_band(torch.empty(0), n, rows, before, after)]
        counter, sizes = Counter(4), Multiset()
        like = Tensor.external(counter, (1,))
        for block, keys, columns in in_band(like, n, rows, before, after):
            like.new_zeros(1)
            times = counter.stages[-1].cost.bytes_moved // 4
            sizes[lengths(block, keys, columns)] += times
        assert sizes == Multiset(runs)


def test_blocks_stand_where_the_band_begins():
    blocks = list(in_band(torch.empty(0), 5, 2, 1, 1, first=10))
    rows = [(block.start, block.stop) for block, _, _ in blocks]
    seen = [(keys.start, keys.stop) for _, keys, _ in blocks]
    columns = [(place.start, place.stop) for _, _, place in blocks]
    assert rows == [(10, 12), (12, 14), (14, 15)]
    assert seen == [(10, 13), (11, 15), (13, 15)]
    assert columns == [(1, 4), (0, 4), (0, 2)]


a, b, c = sympy.symbols("a b c")


@pytest.mark.parametrize(
    ("value", "terms"),
    [
        ((1 - a) ** 2 * (1 - a * b), 2),
        (1 - (1 - a) * (1 - b), 3),
        ((a + b) ** 2, 3),
        ((a + b) ** 3 * c - a**2, 4),
    ],
)
def test_a_sum_of_products_of_flags_keeps_its_value_with_fewer_terms(value, terms):
    flag = as_flag(value)
    assert len(sympy.Add.make_args(flag)) == terms
    for numbers in product((0, 1), repeat=3):
        at = dict(zip((a, b, c), numbers, strict=True))
        assert flag.subs(at) == value.subs(at)
