"""What calls cost more because others come between."""

import pytest

from attnprof.device.call_costs import AGAIN, CALLS, EVERY, FLUSHED, CallCosts
from attnprof.device.tables import TimeTable

FLUSHES = len(CALLS) // EVERY


def costs(plain, broken):
    """Calls of 1 s again and again, in turns, and with memory of 7 s in between."""
    seconds = {
        "alone": AGAIN,
        "sequence": plain,
        "broken sequence": broken + 7 * FLUSHES,
        "flush": 7,
    }
    return CallCosts({name: TimeTable({(16,): float(s)}) for name, s in seconds.items()})


def test_a_share_is_what_turns_take_more_than_calls_again_and_again():
    found = costs(1.5, 2.5)
    assert found.share(len(CALLS), 0.0) == pytest.approx(0.5)
    assert found.share(len(CALLS), 100 * FLUSHED) == pytest.approx(1.5)
    assert 0.5 < found.share(len(CALLS), 0.3 * FLUSHED) < 1.5


def test_few_different_operations_are_less_dear():
    found = costs(1.5, 2.5)
    assert found.share(len(CALLS) // 4, 0.0) == pytest.approx(found.share(len(CALLS), 0.0) / 2)


def test_turns_that_are_no_slower_add_nothing():
    assert costs(0.9, 0.8).share(len(CALLS), 1e9) == 0.0
