"""Times between measured sizes, freed of what slows a processor, and what calls cost in a row."""

import math
import random
from dataclasses import replace

import pytest
import torch

from attnprof.device.call_costs import (
    CALLS,
    CODE_BYTES,
    FLUSH_INTERVAL,
    MAX_OTHERS,
    REPEATS,
    CallCosts,
)
from attnprof.device.product_times import (
    AS_A_BATCH,
    CPU_PRODUCTS,
    FIRST_TRANSPOSED,
    GPU_PRODUCTS,
    PLAIN,
    SECOND_TRANSPOSED,
    Likeness,
    ProductTimes,
    VectorTimes,
    layout_of,
    product_shapes,
    transposed,
    vector_shapes,
)
from attnprof.device.steady_times import TimeReading, steady, usual_reference
from attnprof.device.tables import TimeTable
from attnprof.device.times import Times


def test_what_was_measured_is_given_back_and_what_took_too_long_is_less_work_grown():
    table = TimeTable({(16, 4): 3.0, (64, 4): 5.0, (16, 8): 7.0, (64, 8): 11.0})
    assert table.at((64, 8)) == pytest.approx(11.0)
    assert table.at((16, 4)) == pytest.approx(3.0)
    assert TimeTable({(1, 1): 1.0, (1, 10): 8.0, (10, 1): 9.0}).at((10, 10)) == pytest.approx(90.0)


@pytest.mark.parametrize("power", [0, 1, 2, 0.5])
def test_powers_of_a_size_are_met_in_between_and_beyond_work_grows(power):
    table = TimeTable({(n,): 1e-9 * n**power for n in (4, 64, 1024)})
    for n in (5, 17, 300, 1000):
        assert table.at((n,)) == pytest.approx(1e-9 * n**power)
    assert table.at((4096,)) == pytest.approx(4 * table.at((1024,)))
    assert table.at((1,)) == pytest.approx(table.at((4,)))


def test_products_of_powers_are_met_in_every_direction():
    table = TimeTable({(m, n): 2e-9 * m * n**2 for m in (1, 8, 64) for n in (2, 32)})
    assert table.at((5, 9)) == pytest.approx(2e-9 * 5 * 81)


#: Seconds of made-up operations, and how much of a slower reference each follows.
TRUE = {"small": (5e-6, 1.0), "product": (4e-4, 0.6), "memory": (9e-3, 0.3)}


def readings(place, slower, draw, scatter=0.0):
    seconds, share = TRUE[place]
    noise = draw.gauss(0.0, scatter)
    return TimeReading(math.log(seconds) + share * slower + noise, math.log(5e-6) + slower)


def passes(weather, scatter=0.0):
    """One pass each: a list of how much slower than usual the processor was at its readings."""
    draw = random.Random(1)
    return [
        {place: [readings(place, slower, draw, scatter) for slower in day] for place in TRUE}
        for day in weather
    ]


def test_a_slow_pass_says_the_same_as_a_fast_one():
    weather = [[0.3, 0.1, 0.0], [0.0, 0.1, 0.4], [0.2, 0.0, 0.5]]
    times = steady(passes(weather, scatter=0.005), math.log(5e-6))
    for place, (seconds, _) in TRUE.items():
        assert times[place] == pytest.approx([math.log(seconds)] * 3, abs=0.06)
        assert max(times[place]) - min(times[place]) < 0.08


def test_without_weather_times_are_as_they_were_read():
    times = steady(passes([[0.0] * 5, [0.0] * 5]))
    assert times == {
        place: pytest.approx([math.log(seconds)] * 2) for place, (seconds, _) in TRUE.items()
    }


def test_a_place_of_few_readings_follows_the_reference_like_its_kind():
    made = passes([[-0.3, 0.0, 0.3] * 4])
    made[0]["other"] = [TimeReading(math.log(4.2e-4) + 0.6 * 0.3, math.log(5e-6) + 0.3)]
    kind = {"other": "product"}
    times = steady(made, math.log(5e-6), lambda place: kind.get(place, place))
    assert times["other"] == pytest.approx([math.log(4.2e-4)], abs=0.02)


def test_readings_at_the_usual_speed_are_told_alone():
    usual, slow = math.log(5e-6), math.log(7e-6)
    same = [TimeReading(1.0 + n / 100, usual) for n in range(3)]
    made = [{"one": [*same, *(TimeReading(3.0, slow) for _ in range(9))]}]
    assert steady(made, usual)["one"] == [1.01]


def test_the_usual_speed_is_that_of_an_undisturbed_processor():
    fast, slow = [1.0, 1.01, 0.99], [1.6, 1.61, 1.59, 1.7] * 5
    assert usual_reference([*fast, *slow]) == pytest.approx(1.0, abs=0.02)
    one_reading = [0.5, *slow]
    assert usual_reference(one_reading) == pytest.approx(1.605, abs=0.02)  # which is no speed
    assert usual_reference([2.5]) == 2.5
    with pytest.raises(ValueError, match="no references"):
        usual_reference([])


def test_each_pass_has_a_value_but_for_places_it_lacks_or_a_processor_that_was_slow():
    made = passes([[0.0, 0.1], [0.1, 0.0]])
    made[1]["once"] = made[1]["memory"]
    assert [len(values) for values in steady(made).values()] == [2, 2, 2, 1]
    made = passes([[0.0, 0.01, 0.02], [0.4, 0.5, 0.6]])
    assert [len(values) for values in steady(made, math.log(5e-6)).values()] == [1, 1, 1]


FLUSHES = len(CALLS) // FLUSH_INTERVAL


def costs(plain, broken):
    """Calls of 1 s again and again, in turns, and with memory of 7 s in between."""
    broken += 7 * FLUSHES
    seconds = {"alone": REPEATS, "sequence": plain, "broken sequence": broken, "flush": 7}
    return CallCosts({name: TimeTable({(16,): float(s)}) for name, s in seconds.items()})


def shares(table, kinds, moved=0):
    return table.shares(kinds, [moved] * len(kinds))


def test_a_share_is_what_turns_take_more_than_calls_again_and_again():
    table, turns = costs(1.5, 2.5), range(len(CALLS))
    assert shares(table, turns) == pytest.approx([0.5] * len(CALLS))
    assert shares(table, turns, CODE_BYTES) == pytest.approx([1.5] * len(CALLS))
    (some, *_) = shares(table, turns, CODE_BYTES // len(CALLS) // 3)
    assert 0.5 < some < 1.5


def test_what_comes_again_soon_is_less_dear():
    table = costs(1.5, 2.5)
    again, other, once = shares(table, "aab"), shares(table, "abc"), shares(table, "a")
    assert once == [0.0]
    assert again[1] == 0.0 < again[0] < other[0]
    assert other == pytest.approx([0.5 * 2 / (len(CALLS) - 1)] * 3)
    assert max(shares(table, range(100))) == pytest.approx(MAX_OTHERS * 0.5)


def test_bytes_count_since_an_operation_of_the_same_kind():
    far, near = costs(1.5, 2.5).shares("abab", [0, CODE_BYTES, 0, 0])[2:]
    assert far > near
    assert shares(costs(0.9, 0.8), "abc", CODE_BYTES) == [0.0] * 3  # turns are no slower


def shapes_of(count):
    return product_shapes(replace(CPU_PRODUCTS, count=count))


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


def test_shapes_are_the_same_every_time_and_no_two_alike_and_a_gpu_s_have_long_sums():
    shapes = shapes_of(300)
    assert shapes == shapes_of(300)
    assert len(set(shapes)) == 300
    long = [shape for shape in product_shapes(GPU_PRODUCTS) if shape[3] > 8 * max(shape[1:3])]
    assert len(long) > 0.25 * GPU_PRODUCTS.count


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


def read_once(batch, m, n, k, layout):
    """A made-up processor that reads a matrix once, four times as slow beyond its cache."""
    entries = batch * m * n * k
    rate = 1e-10 if entries < 2e6 else 4e-10
    return 2e-6 + entries * rate * (2.0 if k > 1 and layout == PLAIN else 1.0)


@pytest.mark.parametrize(("limit", "most_error"), [(2e6, 0.05), (1e9, 0.12)])
def test_products_with_a_vector_take_what_reading_the_matrix_takes(limit, most_error):
    known = VectorTimes({shape: read_once(*shape) for shape in vector_shapes()})
    draw, shapes = random.Random(3), list[tuple[int, ...]]()
    for _ in range(200):
        batch, n, k = draw.choice((1, 3, 12)), draw.randint(16, 2000), draw.randint(16, 20_000)
        shapes += [(batch, 1, n, k, PLAIN), (batch, 1, n, k, SECOND_TRANSPOSED)]
        shapes += [(batch, n, k, 1, PLAIN)]
    within = [shape for shape in shapes if math.prod(shape[:4]) < limit]
    errors = sorted(abs(math.log(known.at(*shape) / read_once(*shape))) for shape in within)
    assert errors[len(errors) // 2] < most_error


def test_vectors_are_drawn_for_every_level_of_a_cache():
    shapes = vector_shapes()
    assert all(1 in (m, k) and 1 not in (m * k, n) for _, m, n, k, _ in shapes)
    sizes = [math.prod(shape[:4]) for shape in shapes]
    assert sum(size > 8e6 for size in sizes) > 20
    assert sum(size < 1e5 for size in sizes) > 20


def test_a_column_by_a_matrix_is_priced_as_a_row_by_the_transposed_one():
    times = Times({"vector product": TimeTable({s: read_once(*s) for s in vector_shapes()})})
    row, column = times.product(1, 1, 512, 64, SECOND_TRANSPOSED), times.product(1, 512, 1, 64)
    assert row == column
    assert times.product(1, 512, 1, 64, FIRST_TRANSPOSED) == times.product(1, 1, 512, 64)
