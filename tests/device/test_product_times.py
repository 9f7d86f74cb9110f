"""Times of products between those that were measured."""

import math
import random
from dataclasses import replace

import pytest
import torch

from attnprof.device.product_times import (
    AS_A_BATCH,
    FIRST_TRANSPOSED,
    ON_CPU,
    ON_GPU,
    PLAIN,
    SECOND_TRANSPOSED,
    Likeness,
    ProductTimes,
    layout_of,
    product_shapes,
    transposed,
)


def shapes_of(count):
    return product_shapes(replace(ON_CPU, count=count))


def kernel(batch, m, n, k, layout):
    """A made-up kernel: calls, work in registers of 16 columns, packing of what is transposed."""
    work = 2 * batch * m * k * (math.ceil(n / 16) * 16) / 5e10
    packed = batch * n * k * 1e-9 * (layout == SECOND_TRANSPOSED)
    return 2e-6 + batch * 5e-7 + work + packed + batch * m * n * 2e-10


@pytest.fixture(scope="module")
def known():
    return ProductTimes({shape: kernel(*shape) for shape in shapes_of(500)})


def test_other_shapes_of_a_kernel_have_its_times(known):
    others = shapes_of(700)[500:]
    errors = sorted(abs(math.log(known.at(*shape) / kernel(*shape))) for shape in others)
    assert errors[len(errors) // 2] < 0.03
    assert errors[int(0.9 * len(errors))] < 0.1


@pytest.mark.parametrize("layout", [PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED])
def test_beyond_what_was_measured_time_grows_with_the_work(known, layout):
    large, twice = known.at(8, 8192, 8192, 64, layout), known.at(16, 8192, 8192, 64, layout)
    assert twice / large == pytest.approx(2.0, rel=0.1)


def test_a_kernel_that_is_slow_at_odd_widths_is_predicted_so():
    def slow(batch, m, n, k, layout):
        return kernel(batch, m, n, k, layout) * (3.0 if n % 2 else 1.0)

    known = ProductTimes({shape: slow(*shape) for shape in shapes_of(600)})
    draw = random.Random(2)
    shapes = [(1, 8 * draw.randint(10, 90), draw.randint(40, 700), 64, PLAIN) for _ in range(60)]
    errors = sorted(abs(math.log(known.at(*shape) / slow(*shape))) for shape in shapes)
    assert errors[len(errors) // 2] < 0.12


def test_shapes_are_the_same_every_time_and_no_two_alike():
    shapes = shapes_of(300)
    assert shapes == shapes_of(300)
    assert len(set(shapes)) == 300


def test_a_gpu_is_asked_for_long_sums_of_few_rows_and_columns():
    long = [shape for shape in product_shapes(ON_GPU) if shape[3] > 8 * max(shape[1:3])]
    assert len(long) > 0.25 * ON_GPU.count


def test_where_alignment_tells_kernels_apart_it_is_learnt_from_fewer_shapes():
    def slow(batch, m, n, k, layout):
        aligned = (k if layout == SECOND_TRANSPOSED else n) % 8 == 0
        return kernel(batch, m, n, k, layout) * (1.0 if aligned else 6.0)

    def error(aligned):
        known = ProductTimes({one: slow(*one) for one in shapes_of(400)}, Likeness(aligned=aligned))
        return sorted(abs(math.log(known.at(*x) / slow(*x))) for x in shapes_of(500)[400:])[50]

    assert error(1.0) < error(0.0)


def test_layouts_are_read_off_strides():
    x, y = torch.empty(2, 3, 4), torch.empty(2, 4, 5)
    assert layout_of(x, y) == PLAIN
    assert layout_of(x, torch.empty(2, 5, 4).mT) == SECOND_TRANSPOSED
    assert layout_of(torch.empty(2, 4, 3).mT, y) == FIRST_TRANSPOSED
    one, by_columns = torch.empty(1, 3, 4), torch.empty(1, 5, 4).mT
    assert layout_of(one, by_columns) == SECOND_TRANSPOSED + AS_A_BATCH
    assert layout_of(one[0], by_columns[0]) == SECOND_TRANSPOSED
    for layout in (PLAIN, SECOND_TRANSPOSED, FIRST_TRANSPOSED):
        assert transposed(layout + AS_A_BATCH) == transposed(layout)
