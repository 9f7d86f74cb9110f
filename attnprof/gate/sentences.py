"""Causes in words: what was done, and what that does to the metrics."""

from attnprof.gate.rules import FORMULA, TIME, Cause
from attnprof.units import format_ratio, plural, quantity_text

#: Metrics that are told before others, and how many operations are named.
TOTALS = ("bytes_moved", "flops", "peak_bytes")
MOST_NAMES = 6


def cause_text(cause: Cause) -> str:
    """``my.py:15 +clone → bytes moved 1.55×``."""
    left = len(cause.operations) - MOST_NAMES
    names = [*cause.operations[:MOST_NAMES], *([f"and {left} more"] if left > 0 else [])]
    said = (", " if any(" " in name for name in names) else " ").join(names)
    return " → ".join(filter(None, (f"{cause.place} {said}".strip(), effect_text(cause))))


def effects(cause: Cause) -> list[str]:
    """What it does to the totals, else to the first metric that has a number."""
    plain = [name for name in cause.metrics if not name.startswith(FORMULA)]
    shown = [name for name in (TIME, *TOTALS, "parameters") if name in plain] or plain[:1]
    return [f"{quantity_text(name)} {span_text(*cause.metrics[name])}".strip() for name in shown]


def effect_text(cause: Cause) -> str:
    """``bytes moved 1.55×, FLOPs 1.003×, + 2·B·N²·h FLOPs and 7 more metrics``."""
    said, why = effects(cause), cause.why[:1]
    if [*cause.metrics] == [TIME] and len(cause.cases) == 1 and why:  # the ratio with its bounds
        said, why = [f"time {why[0]}"], cause.why[1:]
    left = len(cause.metrics) - len(said) - any(name.startswith(FORMULA) for name in cause.metrics)
    more = f" and {plural(left, 'more metric')}" if left > 0 else ""
    return ", ".join([*said, *why]) + more


def span_text(low: float | None, high: float | None) -> str:
    """``1.55×``, or ``1.17× to 1.84×`` where it differs between cases."""
    if low is None or high is None:
        return ""
    return " to ".join(dict.fromkeys(f"{format_ratio(one)}×" for one in (low, high)))
