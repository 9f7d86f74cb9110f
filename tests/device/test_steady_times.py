"""Times are freed of what slows a whole processor down."""

import math
import random

import pytest

from attnprof.device.steady_times import TimeReading, steady, usual_of

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
        {place: [readings(place, slower, draw, scatter) for slower in own] for place in TRUE}
        for own in weather
    ]


def test_a_slow_pass_says_the_same_as_a_fast_one():
    weather = [[0.3, 0.1, 0.0], [0.0, 0.1, 0.4], [0.2, 0.0, 0.5]]
    found = steady(passes(weather, scatter=0.005), math.log(5e-6))
    for place, (seconds, _) in TRUE.items():
        assert found[place] == pytest.approx([math.log(seconds)] * 3, abs=0.06)
        assert max(found[place]) - min(found[place]) < 0.08


def test_without_weather_times_are_as_they_were_read():
    found = steady(passes([[0.0] * 5, [0.0] * 5]))
    assert found == {
        place: pytest.approx([math.log(seconds)] * 2) for place, (seconds, _) in TRUE.items()
    }


def test_a_place_of_few_readings_follows_the_reference_like_its_kind():
    made = passes([[-0.3, 0.0, 0.3] * 4])
    made[0]["other"] = [TimeReading(math.log(4.2e-4) + 0.6 * 0.3, math.log(5e-6) + 0.3)]
    kind = {"other": "product"}
    found = steady(made, math.log(5e-6), lambda place: kind.get(place, place))
    assert found["other"] == pytest.approx([math.log(4.2e-4)], abs=0.02)


def test_readings_at_the_usual_speed_are_told_alone():
    usual, slow = math.log(5e-6), math.log(7e-6)
    same = [TimeReading(1.0 + n / 100, usual) for n in range(3)]
    made = [{"one": [*same, *(TimeReading(3.0, slow) for _ in range(9))]}]
    assert steady(made, usual)["one"] == [1.01]


def test_a_place_that_one_pass_alone_has_has_one_value():
    made = passes([[0.0, 0.1], [0.1, 0.0]])
    made[1]["once"] = made[1]["memory"]
    assert [len(values) for values in steady(made).values()] == [2, 2, 2, 1]


def test_the_usual_speed_is_that_of_an_undisturbed_processor():
    fast, slow = [1.0, 1.01, 0.99], [1.6, 1.61, 1.59, 1.7] * 5
    assert usual_of([*fast, *slow]) == pytest.approx(1.0, abs=0.02)
    assert usual_of([0.5, *slow]) == pytest.approx(1.605, abs=0.02)  # one reading is no speed
    assert usual_of([2.5]) == 2.5
    with pytest.raises(ValueError, match="no references"):
        usual_of([])


def test_a_pass_without_readings_at_the_usual_speed_is_left_out_where_others_have_enough():
    made = passes([[0.0, 0.01, 0.02], [0.4, 0.5, 0.6]])
    assert [len(values) for values in steady(made, math.log(5e-6)).values()] == [1, 1, 1]
