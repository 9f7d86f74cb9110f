"""Times of two sides taken in turns: short blocks of calls, in random order, several processes."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field

from attnprof.gate.paired import LOOKS, MORE_LOOKS, PAIRS, Judgement, Rule, judge
from attnprof.gate.sides import Side, SideError
from attnprof.gate.verdicts import INCONCLUSIVE
from attnprof.measure.request import PointRequest

#: Seconds of one block.
BLOCK_S = 0.006


@dataclass
class Race:
    """Pairs of two sides so far; seconds are of one call, by processor and by wall clock."""

    rule: Rule
    log_ratios: list[float] = field(default_factory=list)
    wall_log_ratios: list[float] = field(default_factory=list)
    baseline_s: list[float] = field(default_factory=list)
    current_s: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    found: Judgement | None = None

    def look(self, *, last: bool) -> bool:
        """Judge what is there; whether that is the end."""
        self.found = judge(self.log_ratios, self.rule, last=last)
        return last or self.found.verdict != INCONCLUSIVE


def race(
    baseline: Side, current: Side, request: PointRequest, rule: Rule, *,
    limit_s: float = 30.0, more: bool = True, seed: int = 0,
) -> Race:  # fmt: skip
    """Take turns until the rule is sure, the looks are used up, or ``limit_s`` is spent.

    ``more`` allows looks beyond the planned ones while the result is open. Raises
    :class:`SideError` where a side cannot run it.
    """
    chance, start = random.Random(seed), time.monotonic()  # noqa: S311 - an order, no secret
    looks = LOOKS + MORE_LOOKS if more else LOOKS
    found, calls = Race(rule), 0
    while True:
        calls = _one_process(baseline, current, request, found, calls, chance)
        found.spent_s = time.monotonic() - start
        processes = len(found.log_ratios) // PAIRS
        late = found.spent_s * (1 + 1 / processes) > limit_s
        last = late or processes >= looks[-1]
        if (processes in looks or last) and found.look(last=last):
            return found


def block_calls(call_s: float) -> int:
    """How many calls make a block."""
    return max(1, round(BLOCK_S / max(call_s, 1e-7)))


def _one_process(
    baseline: Side, current: Side, request: PointRequest, found: Race, calls: int,
    chance: random.Random,
) -> int:  # fmt: skip
    """Pairs of one fresh process of each side; how many calls make a block."""
    try:
        for side in (baseline, current):
            side.ask_open(request)
        seconds = [side.opened() for side in (baseline, current)]
        calls = calls or block_calls(max(seconds))
        for _ in range(PAIRS):
            _pair(baseline, current, calls, found, chance)
    finally:
        for side in (baseline, current):
            side.close()
    return calls


def _pair(baseline: Side, current: Side, calls: int, found: Race, chance: random.Random) -> None:
    first = chance.random() < 0.5
    order = (baseline, current) if first else (current, baseline)
    times = {id(side): side.block(calls) for side in order}
    (old, old_wall), (new, new_wall) = times[id(baseline)], times[id(current)]
    if min(old, new, old_wall, new_wall) <= 0:
        raise SideError("a block of calls took no time at all: the clock cannot tell them apart")
    found.log_ratios.append(math.log(new / old))
    found.wall_log_ratios.append(math.log(new_wall / old_wall))
    found.baseline_s.append(old / calls)
    found.current_s.append(new / calls)
