"""The paired rule against simulated machines: silent on the same, loud on the slower."""

import math
import random

import pytest

from attnprof.errors import RequestError
from attnprof.gate.paired import LOOKS, RULES, Rule, bounds_of_median, judge, rule_named
from attnprof.gate.verdicts import VERDICTS, exit_code


def pairs(chance, slowdown, noise=0.06, outliers=0.05):
    """80 log-ratios of a machine with jitter and, sometimes, a pause on either side."""
    found = []
    for _ in range(80):
        jitter = chance.gauss(0, noise)
        if chance.random() < outliers:
            jitter += chance.choice((-1, 1)) * chance.random()
        found.append(math.log(1 + slowdown) + jitter)
    return found


def verdict(ratios, rule):
    for look in LOOKS:
        found = judge(ratios[:look], rule, last=look == LOOKS[-1])
        if found.verdict != "inconclusive":
            return found.verdict
    return "inconclusive"


def share(slowdown, rule, wanted, trials=120, **machine):
    chance = random.Random(f"{slowdown}{rule}")
    found = [verdict(pairs(chance, slowdown, **machine), RULES[rule]) for _ in range(trials)]
    return sum(v == wanted for v in found) / trials


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


def test_bounds_hold_the_median_as_often_as_they_say():
    chance = random.Random(2)
    held = 0
    for trial in range(300):
        low, high = bounds_of_median([chance.gauss(0, 1) for _ in range(40)], 0.05, trial)
        held += low <= 0 <= high
    assert 0.84 <= held / 300 <= 0.96


def test_bounds_repeat():
    values = [0.1, -0.2, 0.05, 0.3]
    assert bounds_of_median(values, 0.01) == bounds_of_median(values, 0.01)


def test_two_pairs_at_least():
    with pytest.raises(ValueError, match="two pairs"):
        judge([0.1], RULES["default"])


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
