"""Races of sides that only say how long they took, and the rule against simulated machines."""

import math
import random

import pytest

from attnprof.errors import RequestError
from attnprof.gate import times
from attnprof.gate.counts import Case
from attnprof.gate.rules import RULES, VERDICTS, CheckOptions, Rule, exit_code, rule_named
from attnprof.gate.times import LOOKS, MORE_LOOKS, PAIRS, judge, power, race, race_cases
from attnprof.gate.trees import TreeError
from attnprof.measure.request import PointRequest

REQUEST = PointRequest("standard", 64, 2, 8)
CASE = Case(REQUEST)


class FakeSide:
    """Takes ``call_s`` a call, times noise and ``late``; ``log`` hears the order of blocks."""

    def __init__(self, call_s, noise=0.01, seed=0, log=None, wall=1.0, name="", late=lambda _: 1.0):
        self.call_s, self.noise, self.wall, self.name, self.late = call_s, noise, wall, name, late
        self.chance = random.Random(seed)
        self.log = [] if log is None else log
        self.opened_times = self.servers = 0
        self.is_open = self.is_ready = False

    def restart(self):
        assert not self.is_open
        self.servers, self.is_ready = self.servers + 1, False

    def ready(self):
        self.is_ready = True

    def ask_open(self, request):
        assert not self.is_open
        self.is_open, self.answered = True, False
        self.opened_times += 1

    def opened(self):
        self.answered = True
        return self.call_s

    def block(self, calls):
        assert self.is_open
        assert self.answered
        self.log.append(self.name)
        noise = math.exp(self.chance.gauss(0, self.noise))
        seconds = calls * self.call_s * self.late(self) * noise
        return seconds, seconds * self.wall

    def close(self):
        self.is_open = False


def run(slowdown, noise=0.01, **options):
    base, head = FakeSide(1e-3, noise, 1), FakeSide(1e-3 * (1 + slowdown), noise, 2)
    return race(base, head, REQUEST, RULES["default"], **options)


@pytest.mark.parametrize(("slowdown", "verdict"), [
    (0.0, "ok"), (0.1, "regressed"), (-0.2, "improved"),
])  # fmt: skip
def test_a_quiet_race_ends_at_the_first_look(slowdown, verdict):
    outcome = run(slowdown)
    assert outcome.judgement.verdict == verdict
    assert outcome.judgement.processes == LOOKS[0]
    assert len(outcome.log_ratios) == LOOKS[0] * PAIRS
    assert outcome.judgement.ratio == pytest.approx(1 + slowdown, rel=0.02)


def test_an_open_race_takes_more_looks_only_where_allowed():
    noisy = {"slowdown": 0.035, "noise": 0.15}
    assert run(**noisy, more=False).judgement.processes <= LOOKS[-1]
    assert run(**noisy, more=True).judgement.processes <= MORE_LOOKS[-1]
    assert run(**noisy, more=True).judgement.processes > LOOKS[-1]


def test_a_race_ends_when_its_time_is_up(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(times.time, "monotonic", lambda: float(next(clock)))
    outcome = run(0.5, limit_s=3.0)
    assert outcome.judgement.processes < LOOKS[0]
    assert outcome.judgement.verdict == "inconclusive"  # so few processes prove nothing


def test_each_process_is_opened_and_closed_and_the_order_is_mixed():
    log = []
    base, head = FakeSide(1e-3, name="base", log=log), FakeSide(1e-3, name="head", log=log)
    race(base, head, REQUEST, RULES["default"], seed=3)
    assert base.opened_times == head.opened_times == LOOKS[0]
    assert not base.is_open
    assert not head.is_open
    firsts = log[::2]
    assert 0.2 < firsts.count("base") / len(firsts) < 0.8
    assert sorted(log[:2]) == ["base", "head"]


def test_blocks_fill_their_time_and_a_clock_that_stands_still_is_an_error():
    assert times.block_calls(1e-3) == 6
    assert times.block_calls(1.0) == 1
    with pytest.raises(TreeError, match="no time at all"):
        race(FakeSide(0.0), FakeSide(0.0), REQUEST, RULES["default"])


def test_a_case_that_fails_is_an_error_and_the_others_go_on():
    class Broken(FakeSide):
        def opened(self):
            self.is_open = False
            raise TreeError("it fell over")

    cases = [CASE, Case(PointRequest("standard", 128, 2, 8))]
    records, _ = race_cases(Broken(1e-3), FakeSide(1e-3), cases, CheckOptions())
    assert [r.verdict for r in records.values()] == ["error", "error"]
    assert "fell over" in records[CASE.name].why


@pytest.mark.parametrize(("wall", "verdict", "said"), [
    (1.5, "regressed", "waits more"), (1.05, "ok", ""), (0.5, "ok", ""),
])  # fmt: skip
def test_waiting_shows_by_the_wall_clock_alone(wall, verdict, said):
    base, head = FakeSide(1e-3, seed=1), FakeSide(1e-3, seed=2, wall=wall)
    records, _ = race_cases(base, head, [CASE], CheckOptions())
    record = records[CASE.name]
    assert record.verdict == verdict
    assert record.ratio == pytest.approx(1, rel=0.02)
    assert record.wall_ratio == pytest.approx(wall, rel=0.05)
    assert said in record.why


def test_a_noisy_wall_clock_decides_nothing():
    base, head = FakeSide(1e-3, seed=1), FakeSide(1e-3, seed=2)
    chance = random.Random(4)
    outcome = race(base, head, REQUEST, RULES["default"])
    outcome.wall_log_ratios = [chance.gauss(0.15, 0.5) for _ in outcome.log_ratios]
    assert times.raced_record(CASE, outcome).verdict == "ok"


def test_power_is_told_where_it_is_low_with_what_more_time_gives():
    base, head = FakeSide(1e-3, 0.2, 1), FakeSide(1e-3, 0.2, 2)
    outcome = race(base, head, REQUEST, RULES["default"], more=False)
    (said,) = times.power_text(CASE, outcome)
    assert "slowdown of 10 %" in said
    assert "s more for 99 %" in said
    quiet = race(FakeSide(1e-3, seed=1), FakeSide(1e-3, seed=2), REQUEST, RULES["default"])
    assert times.power_text(CASE, quiet) == []
    cases = [CASE, Case(PointRequest("standard", 128, 2, 8))]  # of all where it is good
    _, (said,) = race_cases(FakeSide(1e-3), FakeSide(1e-3, seed=2), cases, CheckOptions())
    assert said.startswith("a slowdown of 10 % would have been seen with a probability of at")


@pytest.mark.parametrize(("now", "policy", "verdict"), [
    (1.0, "advise", "ok"), (1.5, "advise", "inconclusive"), (1.5, "fail", "regressed"),
    (0.5, "fail", "improved"),
])  # fmt: skip
def test_stored_times_fail_only_where_that_is_asked(now, policy, verdict):
    stored = [[1e-3 * (1 + 0.001 * p)] * 5 for p in range(8)]
    options = CheckOptions(stored_times=policy)
    record = times.stored_record(CASE, stored, FakeSide(1e-3 * now), options)
    assert record.verdict == verdict


def slow_at_first(later=lambda: 1.0):
    """Slower by a tenth in as many processes as a first look asks for."""
    return lambda side: 1.1 if side.opened_times <= LOOKS[0] else later()


def raced(head, **options):
    return race(FakeSide(1e-3, seed=1), head, REQUEST, RULES["default"], **options)


def test_a_slowdown_that_a_second_race_does_not_see_is_no_alarm():
    outcome = raced(FakeSide(1e-3, seed=2, late=slow_at_first()))
    assert (outcome.alarm.verdict, outcome.judgement.verdict) == ("regressed", "ok")
    record = times.raced_record(CASE, outcome)
    assert record.verdict == "ok"
    assert "a second one did not confirm it" in record.why


def test_a_second_race_that_stays_open_is_no_alarm():
    """It is so noisy that nothing is decided, though slow at the median."""
    chance = random.Random(3)
    noisy = slow_at_first(lambda: math.exp(chance.gauss(0, 0.5)))
    head = FakeSide(1.05e-3, seed=3, late=noisy)
    outcome = raced(head, more=False)
    assert (outcome.alarm.verdict, outcome.judgement.verdict) == ("regressed", "inconclusive")
    assert outcome.judgement.ratio > 1.02
    assert head.opened_times == LOOKS[0] + (*LOOKS, *MORE_LOOKS)[-1]


def test_a_slowdown_is_an_alarm_once_two_races_saw_it():
    base, head = FakeSide(1e-3, seed=1), FakeSide(1.1e-3, seed=2)
    outcome = race(base, head, REQUEST, RULES["default"])
    assert outcome.alarm.verdict == outcome.judgement.verdict == "regressed"
    assert head.opened_times == 2 * LOOKS[0]
    assert base.servers == head.servers == 1
    assert base.is_ready
    assert head.is_ready


def test_a_slowdown_of_one_server_is_no_alarm():
    """Of all processes of the first, whose code lies badly."""
    outcome = raced(FakeSide(1e-3, seed=2, late=lambda side: 1.0 if side.servers else 1.05))
    assert (outcome.alarm.verdict, outcome.judgement.verdict) == ("regressed", "ok")


def test_starting_servers_does_not_use_up_the_time_of_a_race(monkeypatch):
    """A start of minutes leaves the second race as many processes as the first one had."""
    passed = [0.0]

    class SlowToStart(FakeSide):
        def restart(self):
            super().restart()
            passed[0] += 300

        def block(self, calls):
            passed[0] += 0.01
            return super().block(calls)

    monkeypatch.setattr(times.time, "monotonic", lambda: passed[0])
    sides = SlowToStart(1e-3, seed=1), SlowToStart(1.1e-3, seed=2)
    outcome = race(*sides, REQUEST, RULES["default"], limit_s=10)
    assert outcome.judgement.verdict == "regressed"
    assert outcome.spent_s < 10


def pairs(chance, slowdown, noise=0.06, process_noise=0.01, outliers=0.05):
    """Log-ratios of a machine with jitter, processes that differ, and pauses on either side."""
    ratios = []
    for number in range(MORE_LOOKS[-1] * PAIRS):
        if number % PAIRS == 0:
            process = chance.gauss(0, process_noise)
        jitter = chance.gauss(0, noise)
        if chance.random() < outliers:
            jitter += chance.choice((-1, 1)) * chance.random()
        ratios.append(math.log(1 + slowdown) + process + jitter)
    return ratios


def judged(ratios, rule):
    looks = LOOKS + MORE_LOOKS
    for look in looks:
        verdict = judge(ratios[: look * PAIRS], rule, last=look == looks[-1])
        if verdict.verdict != "inconclusive":
            break
    return verdict


def share(slowdown, rule, wanted, trials=120, **machine):
    chance = random.Random(f"{slowdown}{rule}")
    verdicts = [judged(pairs(chance, slowdown, **machine), RULES[rule]) for _ in range(trials)]
    return sum(item.verdict == wanted for item in verdicts) / trials


@pytest.mark.parametrize("rule", ["default", "sensitive", "lenient"])
def test_unchanged_code_raises_no_alarm(rule):
    assert share(0.0, rule, "regressed") <= 1 / 120
    assert share(0.0, rule, "inconclusive") <= 0.1


@pytest.mark.parametrize(("slowdown", "rule", "least"), [
    (0.10, "default", 0.95), (0.20, "default", 0.99), (0.05, "sensitive", 0.8),
    (0.30, "lenient", 0.95),
])  # fmt: skip
def test_a_slowdown_is_caught(slowdown, rule, least):
    assert share(slowdown, rule, "regressed") >= least


def test_faster_code_is_improved_and_processes_that_differ_raise_no_alarm():
    assert share(-0.2, "default", "improved") >= 0.95
    assert share(0.0, "default", "regressed", noise=0.02, process_noise=0.04) <= 1 / 120


@pytest.mark.parametrize(("count", "alpha"), [(8, 0.004), (16, 0.004), (40, 0.05)])
def test_bounds_are_wrong_as_seldom_as_they_say(count, alpha):
    chance, trials = random.Random(2), 4000
    above = 0
    for _ in range(trials):
        low, _high = times.bounds_of_median([chance.expovariate(1) for _ in range(count)], alpha)
        above += low > math.log(2)  # the median of that distribution
    assert above / trials <= alpha + 3 * math.sqrt(alpha / trials)


def test_few_processes_decide_nothing():
    assert times.bounds_of_median([0.1] * 7, 0.004) is None
    assert judge([0.5] * (7 * PAIRS), RULES["default"], last=True).verdict == "inconclusive"
    assert judge([0.5] * (8 * PAIRS), RULES["default"]).verdict == "regressed"


def test_the_power_it_states_is_the_power_it_has():
    chance, rule = random.Random(5), RULES["default"]
    verdicts = [judge(pairs(chance, 0.0)[: 16 * PAIRS], rule) for _ in range(200)]
    said = sum(power(item, rule, 0.05) for item in verdicts) / len(verdicts)
    judged = [judge(pairs(chance, 0.05)[: 16 * PAIRS], rule).verdict for _ in range(200)]
    assert said == pytest.approx(judged.count("regressed") / len(judged), abs=0.15)


def test_more_processes_are_asked_for_smaller_slowdowns():
    verdict = judge(pairs(random.Random(1), 0.0)[: 16 * PAIRS], RULES["default"])
    small, large = (times.processes_for(verdict, RULES["default"], x) for x in (0.05, 0.2))
    assert small >= large
    assert times.processes_for(verdict, RULES["lenient"], 0.05) is None


def test_rules_are_named_and_make_sense():
    assert rule_named("default").bound == 0.02
    with pytest.raises(RequestError, match="sensitive"):
        rule_named("sensitiv")
    with pytest.raises(RequestError, match="bound"):
        Rule("odd", 0.2, 0.1)


@pytest.mark.parametrize(("verdicts", "code"), [
    ([], 0), (["ok", "improved", "new", "not-comparable", "inconclusive"], 0),
    (["ok", "regressed", "error"], 1), (["missing"], 3), (["error", "ok"], 3),
])  # fmt: skip
def test_exit_codes(verdicts, code):
    assert set(verdicts) <= set(VERDICTS)
    assert exit_code(verdicts) == code
    assert exit_code(["inconclusive"], inconclusive_fails=True) == 3
