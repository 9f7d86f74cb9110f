"""What each rule of predicted times gains: predictions without it, against the same measurements.

For the layers of ``predictions.csv`` with the calibrations ``devices/cpu.json``, here and in the
folder of another kind of processor, and for those of ``h200/points.csv``. A rule is switched off,
and everything is predicted again; the bias that this brings in each phase is taken out, as a
calibration's own check would. Any machine will do: nothing is measured. Rows of other machines are
kept: those of processors whose calibrations are of an older version, and the GPU's, which take a
quarter of an hour and are made where ``--gpu`` says so::

    python reports/run.py times/prediction_rules [--gpu]
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

from rows import earlier, grouped, save, table
from times.gpu_crossovers import FOLDER, point_request
from times.gpu_crossovers_tables import TimedPoint
from times.predictions import Point, in_order, setting

from attnprof.device import calibration, machine_reading
from attnprof.device.call_costs import CallCosts
from attnprof.device.machine_reading import MachineReading
from attnprof.device.operations import Demand, operations_of
from attnprof.device.prediction import Predictor
from attnprof.device.product_times import PLAIN, ProductTimes
from attnprof.device.times import GpuTimes, Times

HERE = Path(__file__).with_suffix("")


def _zeros(_: Any, kinds: Sequence[Any], __: Any) -> list[float]:
    return [0.0 for _ in kinds]


def _plain_layout(at: Callable[..., float]) -> Callable[..., float]:
    return lambda self, batch, m, n, k, _=PLAIN: at(self, batch, m, n, k, PLAIN)


#: Operations of a call, its phase, its measured seconds, and the machine's slowdown meanwhile.
Measured = tuple[Demand, str, float, float]
GPU = "NVIDIA H200"
#: Folders with the layers and the calibrations of a processor, and what its name lacks.
PROCESSORS = {HERE.parent: "", HERE.with_name("xeon6"): "", HERE.with_name("zen4"): ", disturbed"}
#: Rules that went, as they gained nothing on either machine: what a layer's median error was
#: without them on a CPU's one thread (100 layers) and on the GPU (85), in float32.
GONE = (
    ("memory used long before", "7.7% to 7.1%", "8.1% to 8.4%"),
    ("operations priced as others", "7.7% to 7.8%", "8.1% as before"),
    ("prime factors of transforms", "7.7% as before", "8.1% as before"),
)
#: The rule that predictions with memory kept go without.
FAULTS = "page faults of new memory"
#: What stands in a rule's place when it is off: the object and its attribute, and the other value.
RULES: Mapping[str, Sequence[tuple[Any, str, Any]]] = {
    "operations cost more after others": [(CallCosts, "shares", _zeros)],
    "autograd nodes": [(Times, "node_s", 0.0)],
    "Python functions": [(Times, "function_s", 0.0)],
    "jumps between pieces": [
        (kind, "_broken_s", lambda _, seconds, *__: seconds) for kind in (Times, GpuTimes)
    ],
    "strided copies": [(kind, "_strided_s", lambda *_: 0.0) for kind in (Times, GpuTimes)],
    "arithmetic of single operations": [(Times, "_arithmetic_s", lambda *_: 0.0)],
    "layouts of products": [(ProductTimes, "at", _plain_layout(ProductTimes.at))],
    FAULTS: [],
    "weights from memory": [(Times, "_far_weights", lambda *_: (0, 0.0))],
    "each operation in its own number format": [(Times, "in_format_of", lambda self, _: self)],
    "factors that oneDNN packs": [(Times, "_packing_s", lambda *_: 0.0)],
    "the machine's speed now": [(machine_reading, "FOLLOWED", 0.0)],
}


@dataclass(frozen=True)
class Row:
    """A setting without a rule: the median error, and what nine in ten stay within."""

    machine: str
    setting: str
    rule: str
    points: int
    median_error: float
    ninth_error: float


def main() -> None:
    """Predict without each rule, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="predict the GPU's layers again, too")
    options = parser.parse_args()
    path = HERE.with_suffix(".csv")
    rows = [row for folder, more in PROCESSORS.items() for row in processor_rows(folder, more)]
    rows += gpu_rows() if options.gpu else []
    made = {row.machine for row in rows}
    rows += [row for row in earlier(path, Row) if row.machine not in made]
    save(path, Row, rows)
    path.with_suffix(".md").write_text(page(rows), encoding="utf-8")


def processor_rows(folder: Path, more: str) -> Iterator[Row]:
    """Yield the rows of a processor, by its layers and calibrations; ``more`` ends its name."""
    entries = calibration.entries(folder / "devices" / "cpu.json")
    known = {one.threads: one for one in map(calibration.Calibration.from_dict, entries)}
    for name, layers in in_order(earlier(folder / "predictions.csv", Point), setting):
        threads, dtype = layers[0].threads, layers[0].dtype
        measured = [
            (operations_of(point.request, inf), point.phase, median(point.passes), point.slowdown)
            for point in layers
        ]
        machine = f"{known[threads].ceilings.name}{more}"
        yield from rows_of(machine, name, known[threads], dtype, measured)


def gpu_rows() -> Iterator[Row]:
    """Yield the rows of the GPU's layers; what a call asks for is the same without the GPU."""
    known = calibration.load_by_words(GPU, FOLDER / "device_1.json")
    for dtype, points in in_order(
        earlier(FOLDER / "points.csv", TimedPoint), lambda row: row.dtype
    ):
        measured = [
            (operations_of(point_request(point), inf), point.phase, point.measured_s, 1.0)
            for point in points
        ]
        yield from rows_of(GPU, dtype, known, dtype, measured)


def rows_of(
    machine: str, setting: str, known: Any, dtype: str, measured: Sequence[Measured]
) -> list[Row]:
    """Return a setting's rows: with all rules, and without each."""
    return [
        Row(machine, setting, rule, len(measured), *errors(known, dtype, measured, rule))
        for rule in ("", *RULES)
    ]


def errors(known: Any, dtype: str, measured: Sequence[Measured], rule: str) -> tuple[float, float]:
    """Return the median and the ninth tenth of errors without a rule, phases' bias taken out."""
    with without(rule):
        times = Predictor(known, kept=rule == FAULTS).times(dtype)
        ratios = [
            (phase, log(times.of(work) * MachineReading(slowdown).factor / seconds))
            for work, phase, seconds, slowdown in measured
        ]
    bias = {phase: median(one for where, one in ratios if where == phase) for phase, _ in ratios}
    off = sorted(exp(abs(one - bias[phase])) - 1 for phase, one in ratios)
    return median(off), off[int(0.9 * (len(off) - 1))]


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Inside, a rule is off."""
    with ExitStack() as stack:
        for owner, attribute, other in RULES.get(rule, ()):
            stack.enter_context(patch.object(owner, attribute, other))
        yield


def page(rows: Sequence[Row]) -> str:
    """Return a table a machine: a line a rule, a column a setting."""
    origin = (
        "Written by `python reports/run.py times/prediction_rules` from the layers of "
        "[predictions.md](predictions.md), of [a busy virtual machine](xeon6/predictions.md), of "
        "[a processor that others disturb](zen4/predictions.md), of "
        "[another processor](zen5/predictions.md), as its calibrations of an earlier version "
        "gave them, and of [a GPU](h200/crossovers.md): the median error and, in parentheses, "
        "what nine in ten stay within, all rules on and one of them off. Each phase's own bias "
        "is taken out. "
        "Weights are not read from memory in layers, but in whole models: [models.md](models.md)."
    )
    lines = ["# What each rule of predicted times gains", "", origin, ""]
    for machine, its_rows in grouped(rows, lambda row: row.machine).items():
        settings = list(dict.fromkeys(row.setting for row in its_rows))
        cells = {(row.setting, row.rule): row for row in its_rows}
        lines += [f"## {machine}", ""]
        lines += table(
            " | ".join(("without", *(f">{name}" for name in settings))),
            ((rule or "nothing: all rules", *(_cell(cells.get((name, rule))) for name in settings))
             for rule in dict.fromkeys(row.rule for row in its_rows)),
        )  # fmt: skip
        lines.append("")
    went = "; ".join(f"{rule} ({cpu} on a CPU, {gpu} on the GPU)" for rule, cpu, gpu in GONE)
    note = (
        f"Rules that went, with the median error in float32 as they were switched off: {went}. "
        "The calibrations of that time had tables for them."
    )
    lines.append(note)
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    return f"{row.median_error:.1%} ({row.ninth_error:.0%})" if row else "–"
