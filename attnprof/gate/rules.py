"""The gate's verdicts, the rules that judge times, its options, and the wording of its results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.arguments import choice
from attnprof.errors import RequestError
from attnprof.record import CheckRecord
from attnprof.units import (
    format_bytes,
    format_count,
    format_ratio,
    format_time,
    plural,
    quantity_text,
)

OK, IMPROVED, REGRESSED = "ok", "improved", "regressed"
INCONCLUSIVE, NOT_COMPARABLE = "inconclusive", "not-comparable"
NEW, MISSING, ERROR = "new", "missing", "error"
VERDICTS = (OK, IMPROVED, REGRESSED, INCONCLUSIVE, NOT_COMPARABLE, NEW, MISSING, ERROR)

#: Verdicts from worst to best: got worse, could not be judged, judged and fine.
WORST_FIRST = (
    REGRESSED, ERROR, MISSING, INCONCLUSIVE, NOT_COMPARABLE, NEW, IMPROVED, OK,
)  # fmt: skip


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of these verdicts; ``ok`` if there are none."""
    return min(verdicts, key=WORST_FIRST.index, default=OK)


def exit_code(verdicts: Iterable[str], *, inconclusive_fails: bool = False) -> int:
    """Return 0 for fine, 1 if something got worse, 3 if something could not be judged.

    1 takes precedence over 3. ``missing`` and ``error`` could not be judged; ``inconclusive``
    counts as one of them only with ``inconclusive_fails``.
    """
    present = set(verdicts)
    if REGRESSED in present:
        return 1
    unjudged = {MISSING, ERROR} | ({INCONCLUSIVE} if inconclusive_fails else set())
    return 3 if present & unjudged else 0


@dataclass(frozen=True)
class Rule:
    """A rule on the ratio current / baseline of two times, known with an interval.

    A case regressed if the lower end exceeds 1 + ``bound`` and the median 1 + ``point``. It is ok
    if the upper end is below 1 + ``equal``. All else is undecided.
    """

    name: str
    bound: float
    point: float
    equal: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.bound <= self.point < 10 or self.equal <= 0:
            raise RequestError(
                f"rule {self.name}: needs 0 <= bound <= point and equal > 0; it has "
                f"{self.bound}, {self.point}, {self.equal}"
            )


RULES = {
    "sensitive": Rule("sensitive", 0.0, 0.03, 0.04),
    "default": Rule("default", 0.02, 0.02),
    "lenient": Rule("lenient", 0.1, 0.1),
}


def rule_named(name: str) -> Rule:
    """Return a preset rule; :class:`RequestError` lists the names."""
    return RULES[choice("rule", name, list(RULES))]


PASS, FAIL, RETRY = "pass", "fail", "retry"
POLICIES = (PASS, FAIL, RETRY)
ADVISE = "advise"


@dataclass(frozen=True)
class CheckOptions:
    """The options of a check; ``rule``, if not None, replaces every case's rule.

    ``inconclusive``: what an undecided time leads to: more pairs while the budget lasts, then a
    pass (``retry``); a pass at once (``pass``); exit code 3 (``fail``). ``budget_s``: seconds for
    all times together. Times stored on the same machine may ``fail`` a check or only ``advise``.
    ``limit_s``: seconds after which a process that counts or times one case is ended.
    """

    rule: str | None = None
    inconclusive: str = RETRY
    budget_s: float = 300.0
    timed: bool = True
    formulas: bool = True
    stored_times: str = ADVISE
    limit_s: float | None = None

    def __post_init__(self) -> None:
        rule_named("default" if self.rule is None else self.rule)
        choice("--inconclusive", self.inconclusive, POLICIES)
        choice("--stored-times", self.stored_times, (ADVISE, FAIL))
        if self.limit_s is not None and not 0 < self.limit_s < 1e9:
            raise RequestError(f"--limit {self.limit_s}: give seconds above 0, like 60")
        if not 0 < self.budget_s < 1e9:
            raise RequestError(f"--budget {self.budget_s}: give seconds above 0, like 300")


TIME = "time"
#: The metric of a record on a case without metrics: it could not run, or is new.
WHOLE = "case"
FORMULA = "formula:"
#: The place of a difference that several lines cause in unknown shares.
TOGETHER = "together"


@dataclass(frozen=True)
class Cause:
    """A line of code and its effect on metrics of some cases; or a metric without such a line.

    ``operations``: the changes there: ``+clone``, ``−mul``, ``larger cat``, ``softmax in
    float64``. ``metrics``: least and greatest current / baseline over the cases, by this line
    alone; null if the baseline is 0 or has no number. ``why``: differences of formulas, and
    reasons.
    """

    verdict: str
    place: str
    operations: Sequence[str]
    metrics: Mapping[str, Sequence[float | None]]
    why: Sequence[str]
    cases: Sequence[str]


def is_worth_showing(record: CheckRecord, common: str | None) -> bool:
    """Return whether a record is not ok, or has a reason that is not ``common`` to all."""
    if record.verdict == NOT_COMPARABLE and common:
        return record.why not in ("", common)
    return record.verdict != OK or bool(record.why and record.metric != TIME)


def _value(value: Any, unit: str) -> str:
    """Return a value with its unit; bytes both short and exact."""
    if value is None or isinstance(value, str):
        return ""
    if unit == "s":
        return format_time(value)
    exact = format_count(value)
    if unit not in ("bytes", "B"):
        return exact
    short = format_bytes(value)
    return short if short == f"{exact} B" else f"{short} [{exact}]"


def time_text(record: CheckRecord) -> str:
    """Return ``1.103× (1.085 to 1.121)``, a ratio of times with its bounds; "" for none."""
    if record.ratio is None:
        return ""
    if record.ci_low is None or record.ci_high is None:
        return f"{record.ratio:.3f}×"
    return f"{record.ratio:.3f}× ({record.ci_low:.3f} to {record.ci_high:.3f})"


def sentence(record: CheckRecord) -> str:
    """Return the change of one metric: its name, ``1,024 → 2,048 (2.000×)``, why."""
    before, after = (_value(x, record.unit) for x in (record.baseline, record.current))
    values = f"{before or '–'} → {after or '–'}" if before or after else ""
    if record.ratio is not None and values:
        values += f" ({record.ratio:.3f}×)"
    name = "" if record.metric == WHOLE else record.metric
    head = " ".join(filter(None, (name, time_text(record) if name == TIME else values)))
    return ": ".join(filter(None, (head, record.why))) or record.verdict


def without_repeats(records: Sequence[CheckRecord]) -> list[CheckRecord]:
    """Return the records, each repeated reason replaced by "as above"."""
    reasons: set[str] = set()
    result = []
    for record in records:
        again = record.why in reasons and record.why != ""
        result.append(replace(record, why="as above", place="") if again else record)
        reasons.add(record.why)
    return result


#: Metrics that are shown first.
TOTALS = ("bytes_moved", "flops", "peak_bytes")
#: Most operations that a cause names.
MOST_NAMES = 6


def cause_text(cause: Cause) -> str:
    """Return ``my.py:15 +clone → bytes moved 1.55×``."""
    left = len(cause.operations) - MOST_NAMES
    names = [*cause.operations[:MOST_NAMES], *([f"and {left} more"] if left > 0 else [])]
    operations = (", " if any(" " in name for name in names) else " ").join(names)
    return " → ".join(filter(None, (f"{cause.place} {operations}".strip(), effect_text(cause))))


def effects(cause: Cause) -> list[str]:
    """Return a cause's ratios of time and the totals, else of the first metric with a number."""
    plain = [name for name in cause.metrics if not name.startswith(FORMULA)]
    shown = [name for name in (TIME, *TOTALS, "parameters") if name in plain] or plain[:1]
    return [f"{quantity_text(name)} {span_text(*cause.metrics[name])}".strip() for name in shown]


def effect_text(cause: Cause) -> str:
    """Return ``bytes moved 1.55×, FLOPs 1.003×, + 2·B·N²·h FLOPs and 7 more metrics``."""
    parts, why = effects(cause), cause.why[:1]
    if [*cause.metrics] == [TIME] and len(cause.cases) == 1 and why:  # the ratio with its bounds
        parts, why = [f"time {why[0]}"], cause.why[1:]
    left = len(cause.metrics) - len(parts) - any(name.startswith(FORMULA) for name in cause.metrics)
    more = f" and {plural(left, 'more metric')}" if left > 0 else ""
    return ", ".join([*parts, *why]) + more


def span_text(low: float | None, high: float | None) -> str:
    """Return ``1.55×``, or ``1.17× to 1.84×`` where it differs between cases."""
    if low is None or high is None:
        return ""
    return " to ".join(dict.fromkeys(f"{format_ratio(one)}×" for one in (low, high)))
