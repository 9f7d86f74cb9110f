"""Calls timed in turns."""

from __future__ import annotations

import time

import pytest
import torch

from attnprof.measure.clocks import Clock, time_in_turns
from attnprof.measure.request import Budget
from attnprof.measure.subject import Subject


class World:
    """Time that passes only when a call says so; keeps who was called."""

    def __init__(self):
        self.now, self.calls, self.threads = 0, [], set()

    def clock(self):
        return Clock(now_ns=lambda: self.now, cpu_ns=lambda: 0)

    def subject(self, name, seconds):
        def call():
            self.calls.append(name)
            self.threads.add(torch.get_num_threads())
            self.now += round(seconds * 1e9)

        return Subject(None, lambda: None, lambda: None, call)


BUDGET = Budget(samples=6, min_time_s=0, max_time_s=100, warmup_s=0, least=2)


def test_each_round_calls_every_subject_and_every_other_round_backwards():
    world = World()
    found = time_in_turns([world.subject("a", 1), world.subject("b", 2)], BUDGET, world.clock())
    assert found == [[1.0] * 6, [2.0] * 6]
    assert "".join(world.calls) == "ab" + "abbaabbaabba"  # a warming call each comes first


@pytest.mark.parametrize(("seconds", "rounds"), [(7, 2), (60, 1), (100, 1), (3, 4), (4, 3)])
def test_rounds_end_when_the_time_is_spent(seconds, rounds):
    world = World()
    budget = Budget(samples=6, min_time_s=0, max_time_s=10, warmup_s=0, least=1)
    found = time_in_turns([world.subject("a", seconds)], budget, world.clock())
    assert len(found[0]) == rounds


def test_the_least_number_of_rounds_is_made_however_long_they_take():
    world = World()
    found = time_in_turns([world.subject("a", 1000)], BUDGET, world.clock())
    assert len(found[0]) == BUDGET.least


def test_one_thread_computes_and_the_others_come_back():
    before, world = torch.get_num_threads(), World()
    time_in_turns([world.subject("a", 1)], BUDGET, world.clock())
    assert world.threads == {1}
    assert torch.get_num_threads() == before


def test_the_processor_clock_reads_the_time_of_this_thread_alone(monkeypatch):
    seconds = iter(range(100))
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(seconds) * 10**9)
    subject = Subject(None, lambda: None, lambda: None, lambda: None)
    budget = Budget(samples=3, min_time_s=0, max_time_s=90, warmup_s=0)
    assert time_in_turns([subject], budget) == [[1.0, 1.0, 1.0]]
