"""What calls cost more because others come between."""

import pytest

from attnprof.device.call_costs import AGAIN, CALLS, CODE_BYTES, EVERY, MOST_AMONG, CallCosts
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


def shares(found, kinds, moved=0):
    return found.shares(kinds, [moved] * len(kinds))


def test_a_share_is_what_turns_take_more_than_calls_again_and_again():
    found, turns = costs(1.5, 2.5), range(len(CALLS))
    assert shares(found, turns) == pytest.approx([0.5] * len(CALLS))
    assert shares(found, turns, CODE_BYTES) == pytest.approx([1.5] * len(CALLS))
    (some, *_) = shares(found, turns, CODE_BYTES // len(CALLS) // 3)
    assert 0.5 < some < 1.5


def test_what_comes_again_soon_is_less_dear():
    found = costs(1.5, 2.5)
    again, other, once = shares(found, "aab"), shares(found, "abc"), shares(found, "a")
    assert once == [0.0]
    assert again[1] == 0.0 < again[0] < other[0]
    assert other == pytest.approx([0.5 * 2 / (len(CALLS) - 1)] * 3)
    assert max(shares(found, range(100))) == pytest.approx(MOST_AMONG * 0.5)


def test_bytes_count_since_an_operation_of_the_same_kind():
    far, near = costs(1.5, 2.5).shares("abab", [0, CODE_BYTES, 0, 0])[2:]
    assert far > near


def test_turns_that_are_no_slower_add_nothing():
    assert shares(costs(0.9, 0.8), "abc", CODE_BYTES) == [0.0] * 3
