"""Seconds between measured sizes."""

import pytest

from attnprof.device.tables import TimeTable


def test_what_was_measured_is_given_back():
    table = TimeTable({(16, 4): 3.0, (64, 4): 5.0, (16, 8): 7.0, (64, 8): 11.0})
    assert table.at((64, 8)) == pytest.approx(11.0)
    assert table.at((16, 4)) == pytest.approx(3.0)


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


def test_a_place_that_took_too_long_has_the_time_of_less_work_grown():
    table = TimeTable({(1, 1): 1.0, (1, 10): 8.0, (10, 1): 9.0})
    assert table.at((10, 10)) == pytest.approx(90.0)
