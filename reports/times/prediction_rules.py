"""What each rule of predicted times gains: predictions without it, against the same measurements.

For the layers of ``predictions.csv``, with the calibrations ``devices/cpu.json``. A rule is
switched off, and everything is predicted again; the bias that this brings is taken out, as a
calibration's own check would::

    python reports/run.py times/prediction_rules
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import exp, inf, log
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from rows import earlier, save
from times.predictions import Point, calibrated, grouped, setting

from attnprof.device.call_costs import CallCosts
from attnprof.device.operations import Demand, operations_of
from attnprof.device.prediction import Predictor
from attnprof.device.product_times import PLAIN, ProductTimes
from attnprof.device.times import Times
from attnprof.workload import ITEM_SIZES

HERE = Path(__file__).with_suffix("")


def _zeros(_: Any, kinds: Sequence[Any], __: Any) -> list[float]:
    return [0.0 for _ in kinds]


def _plain_layout(at: Callable[..., float]) -> Callable[..., float]:
    return lambda self, batch, m, n, k, _=PLAIN: at(self, batch, m, n, k, PLAIN)


#: What stands in a rule's place when it is off: the object and its attribute, and the other value.
RULES: Mapping[str, Sequence[tuple[Any, str, Any]]] = {
    "operations cost more after others": [(CallCosts, "shares", _zeros)],
    "autograd nodes": [(Times, "node_s", 0.0)],
    "Python functions": [(Times, "function_s", 0.0)],
    "jumps between pieces": [(Times, "_broken_s", lambda _, seconds, *__: seconds)],
    "strided copies": [(Times, "_strided_s", lambda *_: 0.0)],
    "arithmetic of single operations": [(Times, "_arithmetic_s", lambda *_: 0.0)],
    "layouts of products": [(ProductTimes, "at", _plain_layout(ProductTimes.at))],
    "page faults of new memory": [(Times, "fault_s", 0.0)],
}


@dataclass(frozen=True)
class Row:
    """A setting without a rule: the median error, and what nine in ten stay within."""

    setting: str
    rule: str
    points: int
    median_error: float
    ninth_error: float


def main() -> None:
    """Predict without each rule, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE)
    asked = parser.parse_args()
    points = earlier(asked.output.with_name("predictions.csv"), Point)
    devices = asked.output.with_name("devices") / "cpu.json"
    rows: list[Row] = []
    for name, own in grouped(points, setting):
        known = calibrated(devices, own[0].threads, own[0].dtype)
        work = [operations_of(point.request, inf) for point in own]
        rows += [
            Row(name, rule, len(own), *errors(known, own[0].dtype, work, own, rule))
            for rule in ("", *RULES)
        ]
    save(asked.output.with_suffix(".csv"), Row, rows)
    asked.output.with_suffix(".md").write_text(page(rows), encoding="utf-8")


def errors(
    known: Any, dtype: str, work: Sequence[Demand], points: Sequence[Point], rule: str
) -> tuple[float, float]:
    """The median and the ninth tenth of errors without a rule, their bias taken out."""
    fault_s = 0.0 if rule == "page faults of new memory" else known.fault_s
    with without(rule):
        times = Times(Predictor(known).times(dtype).tables, fault_s, ITEM_SIZES[dtype])
        ratios = [
            log(times.of(one) / median(point.passes))
            for one, point in zip(work, points, strict=True)
        ]  # fmt: skip
    bias = median(ratios)
    off = sorted(exp(abs(one - bias)) - 1 for one in ratios)
    return median(off), off[int(0.9 * (len(off) - 1))]


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Inside, a rule is off."""
    with ExitStack() as stack:
        for owner, attribute, other in RULES.get(rule, ()):
            if attribute != "fault_s":
                stack.enter_context(patch.object(owner, attribute, other))
        yield


def page(rows: Sequence[Row]) -> str:
    """A line a rule, a column a setting."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    cells = {(row.setting, row.rule): row for row in rows}
    made = (
        "Written by `python reports/run.py times/prediction_rules` from the layers of "
        "[predictions.md](predictions.md): the median error and, in parentheses, what nine in ten "
        "stay within, all rules on and one of them off. Each column's own bias is taken out."
    )
    lines = [
        "# What each rule of predicted times gains", "", made, "",
        f"| without | {' | '.join(settings)} |", f"|---|{'--:|' * len(settings)}",
    ]  # fmt: skip
    for rule in dict.fromkeys(row.rule for row in rows):
        own = [cells[name, rule] for name in settings]
        told = (f"{row.median_error:.1%} ({row.ninth_error:.0%})" for row in own)
        lines.append(f"| {rule or 'nothing: all rules'} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"
