"""The paired rule against simulated machines: silent on the same, loud on the slower."""

import math
import random

import pytest

from attnprof.errors import RequestError
from attnprof.gate.rules import RULES, VERDICTS, Rule, exit_code, rule_named
from attnprof.gate.times import (
    LOOKS,
    MORE_LOOKS,
    PAIRS,
    bounds_of_median,
    judge,
    power,
    processes_for,
)


def pairs(chance, slowdown, noise=0.06, process_noise=0.01, outliers=0.05):
    """Log-ratios of a machine with jitter, processes that differ, and pauses on either side."""
    found = []
    for number in range(MORE_LOOKS[-1] * PAIRS):
        if number % PAIRS == 0:
            process = chance.gauss(0, process_noise)
        jitter = chance.gauss(0, noise)
        if chance.random() < outliers:
            jitter += chance.choice((-1, 1)) * chance.random()
        found.append(math.log(1 + slowdown) + process + jitter)
    return found


def judged(ratios, rule):
    looks = LOOKS + MORE_LOOKS
    for look in looks:
        found = judge(ratios[: look * PAIRS], rule, last=look == looks[-1])
        if found.verdict != "inconclusive":
            break
    return found


def share(slowdown, rule, wanted, trials=120, **machine):
    chance = random.Random(f"{slowdown}{rule}")
    found = [judged(pairs(chance, slowdown, **machine), RULES[rule]) for _ in range(trials)]
    return sum(item.verdict == wanted for item in found) / trials


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


def test_faster_code_is_improved():
    assert share(-0.2, "default", "improved") >= 0.95


def test_processes_that_differ_raise_no_alarm():
    assert share(0.0, "default", "regressed", noise=0.02, process_noise=0.04) <= 1 / 120


@pytest.mark.parametrize(("count", "alpha"), [(8, 0.004), (16, 0.004), (40, 0.05)])
def test_bounds_are_wrong_as_seldom_as_they_say(count, alpha):
    chance, trials = random.Random(2), 4000
    above = 0
    for _ in range(trials):
        low, _high = bounds_of_median([chance.expovariate(1) for _ in range(count)], alpha)
        above += low > math.log(2)  # the median of that distribution
    assert above / trials <= alpha + 3 * math.sqrt(alpha / trials)


def test_few_processes_decide_nothing():
    assert bounds_of_median([0.1] * 7, 0.004) is None
    assert judge([0.5] * (7 * PAIRS), RULES["default"], last=True).verdict == "inconclusive"
    assert judge([0.5] * (8 * PAIRS), RULES["default"]).verdict == "regressed"


def test_the_power_it_states_is_the_power_it_has():
    chance, rule = random.Random(5), RULES["default"]
    found = [judge(pairs(chance, 0.0)[: 16 * PAIRS], rule) for _ in range(200)]
    said = sum(power(item, rule, 0.05) for item in found) / len(found)
    seen = [judge(pairs(chance, 0.05)[: 16 * PAIRS], rule).verdict for _ in range(200)]
    assert said == pytest.approx(seen.count("regressed") / len(seen), abs=0.15)


def test_more_processes_are_asked_for_smaller_slowdowns():
    found = judge(pairs(random.Random(1), 0.0)[: 16 * PAIRS], RULES["default"])
    assert processes_for(found, RULES["default"], 0.05) >= processes_for(
        found, RULES["default"], 0.2
    )
    assert processes_for(found, RULES["lenient"], 0.05) is None


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


def test_inconclusive_fails_only_where_asked():
    assert exit_code(["inconclusive"], inconclusive_fails=True) == 3
