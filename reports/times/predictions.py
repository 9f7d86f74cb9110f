"""Predicted times against measured ones: layers and races drawn at random.

As torch runs by default: its wait policy, the C library's allocator, time that passes. Each
setting (threads and number format) is calibrated first, into ``devices/cpu.json``, unless it is
there; a calibration's own check draws other layers. A layer is predicted by the machine's speed at
that moment, as ``predict`` reads it, and then timed. Rows that are in the CSV files are not
measured again; ``--predict`` predicts them again, by the calibration that is there, and the layers
of that one's own check::

    python reports/run.py times/predictions [--threads 1,2] [--dtype float32,bfloat16]
                                            [--points 100] [--races 20] [--passes 3]
                                        [--output reports/times/zen5/predictions]

``--output`` is the place of another processor's tables and page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, starmap
from math import exp, inf, log
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from rows import earlier, grouped, save, table

from attnprof import registry
from attnprof.device import calibration
from attnprof.device.checked_layers import SelfCheck
from attnprof.device.machine_reading import MachineReading, read_machine
from attnprof.device.operations import operations_of
from attnprof.device.prediction import Predictor
from attnprof.device.self_check import (
    HEADS,
    LENGTHS,
    LISTING_S,
    LONGEST_S,
    SHORTEST_S,
    WIDTHS,
    drawn_points,
    measure_in_new_process,
)
from attnprof.errors import AttnprofError
from attnprof.measure.clocks import Clock, time_in_turns
from attnprof.measure.environment import device_name
from attnprof.measure.point import fit
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.subject import build_subject
from attnprof.mechanisms.extractors import Extractor

HERE = Path(__file__).with_suffix("")
#: What draws the layers and the races; a calibration's check is drawn by 0.
SEED = 42
#: Of a race those are timed that are predicted to take at most so many times the fastest.
CONTENDERS = 2.0
#: A winner that takes up to so many times the fastest is right within noise.
ALIKE = 1.1
#: Looks at a machine of another speed, seconds apart, before crossings are timed all the same.
LOOKS, BETWEEN_S = 8, 1.0
BUDGET = Budget(samples=20, min_time_s=0.0, max_time_s=1.5, warmup_s=0.05, least=5)


@dataclass(frozen=True)
class Point:
    """A layer; seconds. ``times`` are the medians of each pass, ``quiet`` its fastest quarters.

    ``slowdown``, ``swing``: of the :class:`MachineReading` before, of several passes the mean and
    the largest. Rows of before have no ``quiet``, and were timed while the machine was read to be
    about as fast as it was calibrated; ``repeated`` counts timings that were made again for that.
    """

    threads: int
    dtype: str
    mechanism: str
    phase: str
    seq_len: int
    num_heads: int
    head_dim: int
    causal: bool
    predicted_s: float
    low_s: float
    high_s: float
    dearest: str
    times: str = ""
    repeated: int = 0
    quiet: str = ""
    slowdown: float = 1.0
    swing: float = 1.0

    @property
    def reading(self) -> MachineReading:
        """The machine's speed before the layer was timed."""
        return MachineReading(self.slowdown, self.swing)

    @property
    def passes(self) -> list[float]:
        """Seconds in each pass."""
        return [float(one) for one in self.times.split()]

    @property
    def error(self) -> float:
        """Factor between prediction and measurement, above or below, minus one."""
        return off(self.predicted_s, median(self.passes))

    @property
    def least_error(self) -> float:
        """The same, of the calls that others disturbed least."""
        return off(self.predicted_s, min(map(float, (self.quiet or self.times).split())))

    @property
    def covered(self) -> bool:
        """Whether the interval has the measured median."""
        return self.low_s <= median(self.passes) <= self.high_s

    @property
    def request(self) -> PointRequest:
        """What is timed."""
        return PointRequest(
            self.mechanism, self.seq_len, self.num_heads, self.head_dim, phase=self.phase,
            dtype=self.dtype, causal=self.causal, threads=self.threads,
        )  # fmt: skip


@dataclass(frozen=True)
class Race:
    """Mechanisms at one shape: which was predicted to be fastest, and which was."""

    threads: int
    dtype: str
    shape: str
    mechanisms: int
    predicted: str
    measured: str
    slower: float  #: times the fastest's time that the predicted winner took


def off(one: float, other: float) -> float:
    """By how large a share the larger is above the smaller."""
    return exp(abs(log(one / other))) - 1


def main() -> None:
    """Calibrate, measure what is missing, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--races", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3, help="times that a point is timed, apart")
    parser.add_argument("--predict", action="store_true", help="predict rows that are there again")
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    base, devices = options.output, options.output.with_name("devices") / "cpu.json"
    tables = base.with_suffix(".csv"), base.with_name(f"{base.name}_races.csv")
    refuse_rows_of_another_machine(tables, devices)
    points, races = earlier(tables[0], Point), earlier(tables[1], Race)
    for threads, dtype in product(map(int, options.threads.split(",")), options.dtype.split(",")):
        torch.set_num_threads(threads)
        predictor = Predictor(calibrated(devices, threads, dtype))
        if options.predict:
            predictor = Predictor(check_predicted_again(predictor, dtype))
            calibration.save(predictor.calibration, devices)
        timed_rows = [row for row in points if (row.threads, row.dtype) == (threads, dtype)]
        points = [row for row in points if row not in timed_rows]
        if options.predict:
            timed_rows = [predicted_again(row, predictor) for row in timed_rows]
        if len(timed_rows) < options.points:
            timed_rows += drawn(predictor, threads, dtype, options.points)[len(timed_rows) :]
        for _ in range(options.passes):
            for place, row in enumerate(timed_rows):
                timed_rows[place] = timed(row, options.passes, predictor)
                save(tables[0], Point, [*points, *timed_rows])
        points += timed_rows
        race_count = sum((race.threads, race.dtype) == (threads, dtype) for race in races)
        for race in raced(predictor, threads, dtype, options.races, race_count):
            races.append(race)
            save(tables[1], Race, races)
    name = device_name("cpu")
    known = [c for c in map(calibration.Calibration.from_dict, calibration.entries(devices))
             if c.ceilings.name == name]  # fmt: skip
    command = f"python reports/run.py times/predictions{output_flag(base, HERE)}"
    base.with_suffix(".md").write_text(page(command, points, races, known), encoding="utf-8")


def output_flag(base: Path, usual: Path) -> str:
    """Return the option by which a page lies elsewhere than usual."""
    path, root = base.absolute(), usual.parents[2]
    return "" if base == usual else f" --output {os.path.relpath(path, root)}"


def refuse_rows_of_another_machine(tables: Iterable[Path], devices: Path) -> None:
    """End the script where tables have rows, but no calibration beside them is of this machine."""
    known = map(calibration.Calibration.from_dict, calibration.entries(devices))
    names = {one.ceilings.name for one in known}
    rows = [table for table in tables if table.exists()]
    if rows and device_name("cpu") not in names:
        raise SystemExit(
            f"{rows[0]} has rows of another machine than {device_name('cpu')}: type --output with "
            "a folder of its own"
        )


def calibrated(path: Path, threads: int, dtype: str) -> calibration.Calibration:
    """Return the calibration of a setting, made where there is none.

    It is made by the command, in a process of its own: one that has kept memory for its tables
    pays fewer page faults for what it times afterwards.
    """
    name = device_name("cpu")
    known = calibration.load(name, threads, path) if path.exists() else None
    if known is None or dtype not in known.tables:
        flags = ["--dtype", dtype, "--threads", str(threads), "--calibration", str(path)]
        command = [sys.executable, "-m", "attnprof", "calibrate", *flags]
        subprocess.run(command, check=True)  # noqa: S603 - our own command
        known = calibration.load(name, threads, path)
    if known is None:
        raise SystemExit(f"{path} has no calibration of {name} with {threads} threads")
    return known


def check_predicted_again(predictor: Predictor, dtype: str) -> calibration.Calibration:
    """Return a calibration whose own check has its layers as they are predicted now."""
    known, draws = predictor.calibration, drawn_points(dtype, "cpu")
    layers = []
    for layer in known.checks[dtype].layers:  # in the order in which they were drawn
        shape = (layer.mechanism, layer.phase, layer.seq_len, layer.num_heads, layer.head_dim)
        request = next(
            one for one in draws
            if (one.mechanism, one.phase, one.seq_len, one.num_heads, one.head_dim) == shape
        )  # fmt: skip
        seconds = predictor.times(dtype).of(operations_of(request))
        layers.append(replace(layer, predicted_s=seconds))
    return replace(known, checks={**known.checks, dtype: SelfCheck(tuple(layers))})


def drawn(predictor: Predictor, threads: int, dtype: str, count: int) -> list[Point]:
    """The first points that run in a fair time, predicted."""
    rows: list[Point] = []
    requests = drawn_points(dtype, "cpu", SEED)
    while len(rows) < count:
        request = replace(next(requests), threads=threads)
        with suppress(AttnprofError):  # what a mechanism cannot do
            if fit(request)[0]:
                continue
            row = predicted(request, predictor)
            build_subject(request)
            if SHORTEST_S < row.predicted_s < LONGEST_S:
                rows.append(row)
    return rows


def predicted(request: PointRequest, predictor: Predictor) -> Point:
    """A row without times."""
    row = Point(
        request.threads or 1, request.dtype, request.mechanism, request.phase, request.seq_len,
        request.num_heads, request.head_dim, request.causal, 0.0, 0.0, 0.0, "",
    )  # fmt: skip
    return predicted_again(row, predictor, LISTING_S)


def predicted_again(row: Point, predictor: Predictor, most_s: float = inf) -> Point:
    """Return a row as it is predicted now, by the machine's speed that it was timed at."""
    record = replace(predictor, reading=row.reading).point(row.request, most_s)
    dearest = record.operations[0]["name"] if record.operations else ""
    return replace(
        row, predicted_s=record.time_s or 0.0, low_s=record.ci_low_s or 0.0,
        high_s=record.ci_high_s or 0.0, dearest=dearest,
    )  # fmt: skip


def timed(row: Point, passes: int, predictor: Predictor) -> Point:
    """Return a row with one more pass, in a process of its own, unless it has so many."""
    done = len(row.passes)
    if done >= passes:
        return row
    known = predictor.calibration
    request = replace(row.request, budget=next(drawn_points(row.dtype, "cpu")).budget)
    reading = read_machine(known, known.conditions)
    calls = sorted(measure_in_new_process(request, row.threads))
    mean = exp((done * log(row.slowdown) + log(reading.slowdown)) / (done + 1))
    row = replace(
        row, times=f"{row.times} {median(calls):.6g}".strip(),
        quiet=f"{row.quiet} {calls[len(calls) // 4]:.6g}".strip(),
        slowdown=float(f"{mean:.4g}"), swing=float(f"{max(row.swing, reading.swing):.4g}"),
    )  # fmt: skip
    return predicted_again(row, predictor)


def has_calibrated_speed(known: calibration.Calibration) -> bool:
    """Return whether the machine is now as fast as when it was calibrated."""
    reading = read_machine(known, known.conditions)
    return reading.slowdown == reading.swing == 1.0


def wait_until_calibrated_speed(known: calibration.Calibration) -> None:
    """Look at the machine until it is as fast as it was calibrated, for a while at most."""
    for _ in range(LOOKS):
        if has_calibrated_speed(known):
            return
        time.sleep(BETWEEN_S)


def groups() -> dict[str, list[str]]:
    """Mechanisms that are raced together; extractors, which beat all others, are left out."""
    kinds: dict[str, list[str]] = {"softmax attention": [], "other functions": []}
    for name in registry.names():
        spec = registry.get(name)
        if not isinstance(spec, Extractor):
            exact = spec.to_softmax[0] == "same"
            kinds["softmax attention" if exact else "other functions"].append(name)
    return kinds


def raced(
    predictor: Predictor, threads: int, dtype: str, count: int, done_before: int
) -> Iterator[Race]:  # fmt: skip
    """Mechanisms predicted at random shapes, the fastest of each group timed in turns."""
    random = Random(SEED)  # noqa: S311 - which shapes, no secret
    for turn in range(count):
        length = round(exp(random.uniform(*map(log, LENGTHS))) / 64 + 1) * 64
        heads, width = random.choice(HEADS), random.choice(WIDTHS)
        phase = random.choice(("forward", "train"))
        point = partial(PointRequest, seq_len=length, num_heads=heads, head_dim=width, phase=phase,
                       dtype=dtype)  # fmt: skip
        for place, (group, names) in enumerate(groups().items()):
            if 2 * turn + place < done_before:
                continue
            seconds: dict[str, float] = {}
            for name in names:
                with suppress(AttnprofError):
                    if not fit(point(name))[0]:
                        build_subject(point(name))
                        seconds[name] = predictor.point(point(name), 1.0).time_s or 0.0
            best = min(seconds, key=seconds.__getitem__)
            near = [
                name for name, time_s in seconds.items() if time_s <= CONTENDERS * seconds[best]
            ]
            subjects = [build_subject(point(one)) for one in near]
            samples = time_in_turns(subjects, BUDGET, Clock(), threads)
            times = dict(zip(near, map(median, samples), strict=True))
            first = min(times, key=times.__getitem__)
            yield Race(
                threads, dtype, f"{group}, {length} tokens, {heads} heads of {width}, {phase}",
                len(seconds), best, first, times[best] / times[first],
            )  # fmt: skip


def page(
    command: str, points: Sequence[Point], races: Sequence[Race],
    known: Sequence[calibration.Calibration],
) -> str:  # fmt: skip
    """The page: settings, the points that are farthest off, mechanisms, races."""
    checks = "; ".join(
        f"{one.threads} thread{'s' * (one.threads > 1)}, {dtype}: {check}"
        for one in known for dtype, check in one.checks.items()
    )  # fmt: skip
    best = "the fastest quarter of a pass's calls" if points[0].quiet else "the fastest"
    origin = (
        f"Written by `{command}` with the calibrations `devices/cpu.json`: "
        f"{known[0].ceilings.name}, torch {torch.__version__}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. "
        "Torch's own wait policy and the C library's allocator; layers, sizes and phases drawn by "
        f"seed {SEED}, each timed {_times(min(len(row.passes) for row in points))} in processes "
        f"of their own, and told by the median of these; *at best* is {best}. "
        f"The intervals are of 95 %. {_speeds(points)}"
        f"What the calibrations say of themselves, by other layers: {checks}."
    )
    right = sum(race.slower <= ALIKE for race in races)
    summary = (
        "Mechanisms of one kind at a random shape; those predicted to take up to "
        f"{CONTENDERS:g} times the fastest were timed in turns. In {right} of {len(races)} the "
        f"predicted winner takes at most {ALIKE - 1:.0%} more than the fastest."
    )
    worst = sorted(points, key=lambda row: -row.error)[:20]
    lines = [
        "# Predicted times against measured ones", "", origin, "",
        *table("setting | >points | >median error | >nine in ten | >at best | >in the interval",
               starmap(settings_row, in_order(points, setting))),
        "", "## Farthest off", "",
        *table("setting | layer | >predicted | measured, by pass | dearest operation",
               map(farthest_row, worst)),
        "", "## By mechanism", "",
        *table("mechanism | >points | >median error | >predicted / measured",
               starmap(mechanism_row, in_order(points, lambda row: row.mechanism))),
        "", "## Which is fastest", "", summary, "",
        *table("setting | shape | predicted | measured | >winner takes more", map(race_row, races)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _speeds(points: Sequence[Point]) -> str:
    """Return sentences on the machine's speed while layers were timed."""
    slowdowns = sorted(row.slowdown for row in points)
    if slowdowns[0] == slowdowns[-1] == 1.0:
        return (
            "A layer is timed while the machine is as fast as it was calibrated, by the reference "
            f"operation before and after; {sum(row.repeated for row in points)} timings were made "
            "again. "
        )
    low, high = (slowdowns[int(share * (len(slowdowns) - 1))] for share in (0.1, 0.9))
    return (
        "A layer is predicted by the machine's speed at that moment, as `predict` reads it, and "
        f"then timed: in eight of ten it was {low:.2f} to {high:.2f} times as slow as calibrated, "
        f"{median(slowdowns):.2f} at the median. "
    )


def _times(passes: int) -> str:
    return "once," if passes == 1 else f"{passes} times, minutes apart,"


def setting(row: Point | Race) -> str:
    """Return threads and number format."""
    return f"{row.threads} thread{'s' * (row.threads > 1)}, {row.dtype}"


def in_order(
    points: Sequence[Point], key: Callable[[Point], str]
) -> Iterable[tuple[str, list[Point]]]:
    """Return points by a key, in its order."""
    return sorted(grouped(points, key).items())


def settings_row(name: str, group: Sequence[Point]) -> tuple[Any, ...]:
    """Return a line of the first table."""
    errors, best = sorted(row.error for row in group), median(row.least_error for row in group)
    shares = (median(errors), errors[int(0.9 * (len(group) - 1))], best)
    covered = sum(row.covered for row in group) / len(group)
    return name, len(group), *(f"{share:.1%}" for share in shares), f"{covered:.0%}"


def farthest_row(row: Point) -> tuple[Any, ...]:
    """Return a line of the second."""
    layer = (f"{row.mechanism}, {row.phase}{', causal' * row.causal}, {row.seq_len} tokens, "
             f"{row.num_heads} × {row.head_dim}")  # fmt: skip
    times = ", ".join(f"{1e3 * one:.3g}" for one in row.passes)
    return setting(row), layer, f"{1e3 * row.predicted_s:.3g} ms", f"{times} ms", row.dearest


def mechanism_row(name: str, group: Sequence[Point]) -> tuple[Any, ...]:
    """Return a line of the third."""
    ratio = exp(median(log(row.predicted_s / median(row.passes)) for row in group))
    return name, len(group), f"{median(row.error for row in group):.0%}", f"{ratio:.2f}"


def race_row(race: Race) -> tuple[Any, ...]:
    """Return a line of the last."""
    predicted = f"{race.predicted} of {race.mechanisms}"
    return setting(race), race.shape, predicted, race.measured, f"{race.slower - 1:.0%}"
