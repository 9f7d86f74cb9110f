"""Predicted crossovers in time against measured ones, and what the guided search saves.

As torch runs by default, float32: one thread in processor time, more in time that passes. A
calibration is made first, into ``devices/cpu.json``, unless it is there; every part then adds its
rows to a CSV beside the page, and rows that are there are not measured again; ``--predict``
predicts them again. ``--site`` is a folder with the package that a pair needs::

    python reports/run.py times/crossovers [taylor] [pairs] [grid] [recommend]
                                           [--threads 1] [--site FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import log, nan
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rows import earlier, save
from times.crossovers_tables import Crossing, OnGrid, Recommended, page
from times.predictions import (
    calibrated,
    output_flag,
    refuse_rows_of_another_machine,
    wait_until_calibrated_speed,
)

from attnprof import registry
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting, TimeTerms
from attnprof.device.recommendation import recommend
from attnprof.errors import AttnprofError
from attnprof.measure.clocks import time_in_turns
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.subject import build_subject
from attnprof.trace.request.lookup import target_of
from attnprof.workload import Workload

HERE = Path(__file__).with_suffix("")
#: Document 004's direct and efficient form, normalised or plain: width, heads, batch.
TAYLOR = [
    *((d, 1, 1, form) for form in ("normalised", "plain") for d in (8, 16, 32, 64)),
    (8, 16, 4, "normalised"), (16, 16, 2, "normalised"), (32, 16, 1, "plain"),
]  # fmt: skip
PLAIN = [f"{HERE.with_name('taylor_plain.py')}:{name}" for name in ("Direct", "Efficient")]
#: Pairs of layers, of 4 heads of width 32.
PAIRS = [
    ("standard", "linformer"), ("standard", "performer"), ("standard", "longformer"),
    ("sdpa", "taylor-efficient"), ("standard", "linear"), ("he", "standard"),
    ("sdpa", "longformer"), ("standard", "performer_pytorch:SelfAttention"),
]  # fmt: skip
#: Requests to recommend for: tokens, width, heads, phase, causal.
REQUESTS = [
    (512, 256, 4, "forward", False), (2048, 256, 4, "forward", False),
    (1024, 512, 8, "train", False), (1024, 512, 8, "forward", True),
    (4096, 128, 2, "forward", False), (2048, 128, 4, "train", True),
    (256, 768, 12, "train", False), (3000, 192, 3, "forward", False),
    (1024, 256, 8, "decode", False), (4096, 512, 8, "decode", False),
]  # fmt: skip
#: Lengths of a grid, as document 004 has at least; calls of each side at one.
GRID = 26
BUDGET = Budget(samples=20, min_time_s=0.0, max_time_s=3.0, warmup_s=0.05, least=5)


def main() -> None:
    """Calibrate, measure what is missing, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["taylor", "pairs", "grid", "recommend"])
    parser.add_argument("--site", help="folder with performer_pytorch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--predict", action="store_true", help="predict rows that are there again")
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    sys.path += [options.site] if options.site else []
    threads: int = options.threads
    torch.set_num_threads(threads)
    base: Path = options.output
    suffix = f"_{threads}_threads" if threads > 1 else ""
    device = base.with_name("devices") / "cpu.json"
    base = base.with_name(f"{base.name}{suffix}")
    refuse_rows_of_another_machine(base.parent.glob(f"{base.name}_*.csv"), device)
    known = calibrated(device, threads, "float32")
    terms = TimeTerms("cpu", threads, device)
    parts: dict[str, tuple[Any, Any]] = {
        "taylor": (Crossing, lambda done: missing("taylor", terms, done)),
        "pairs": (Crossing, lambda done: missing("pairs", terms, done)),
        "grid": (OnGrid, lambda done: grid(terms, done)),
        "recommend": (Recommended, lambda done: recommended(terms, done)),
    }
    rows_of: dict[str, list[Any]] = {}
    for part, (kind, rows) in parts.items():
        table = base.with_name(f"{base.name}_{part}.csv")
        rows_of[part] = earlier(table, kind)
        if options.predict and kind is Crossing and part in options.parts:
            rows_of[part] = [predicted_again(row, part, terms) for row in rows_of[part]]
            save(table, kind, rows_of[part])
        if part in options.parts:
            for row in rows(rows_of[part]):
                rows_of[part].append(row)
                save(table, kind, rows_of[part])
    threaded = f" --threads {threads}" if threads > 1 else ""
    option = output_flag(options.output, HERE)
    command = f"python reports/run.py times/crossovers{threaded}{option}"
    lines = page(command, known, **rows_of)
    base.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Case:
    """Two sides that may cross, and where."""

    name: str
    sides: Sequence[Any]
    workload: Workload
    scope: str


def taylor_cases() -> Iterator[Case]:
    """Document 004's own crossing."""
    for d, heads, batch, form in TAYLOR:
        inputs = [f"{name}: B, h, N, d" for name in "qkv"]
        sides: list[Any] = [module(name, inputs) for name in PLAIN]
        if form == "normalised":
            sides = registry.configured(["taylor-direct", "taylor-efficient"], {})
        name = f"d={d}, heads={heads}, batch={batch}, {form}"
        yield Case(name, sides, Workload(1, heads, d, batch), "core")


def pair_cases() -> Iterator[Case]:
    """Other pairs, as layers."""
    for names, phase in product(PAIRS, ("forward", "train")):
        try:
            sides = [module(name) if ":" in name else registry.get(name) for name in names]
        except AttnprofError as error:
            sys.stderr.write(f"{names}: {error}\n")
            continue
        yield Case(" against ".join(names), sides, Workload(1, 4, 32, phase=phase), "layer")


CASES = {"taylor": taylor_cases, "pairs": pair_cases}


def missing(part: str, terms: TimeTerms, done: Sequence[Crossing]) -> Iterator[Crossing]:
    """Rows of the cases that have none yet."""
    known = {(row.case, row.phase) for row in done}
    for case in CASES[part]():
        if (case.name, case.workload.phase) in known:
            continue
        try:
            yield crossing(case, terms)
        except AttnprofError as error:
            sys.stderr.write(f"{case.name}, {case.workload.phase}: {error}\n")


def predicted_again(row: Crossing, part: str, terms: TimeTerms) -> Crossing:
    """A row with what the calibration predicts now; what was measured stays."""
    key = (row.case, row.phase)
    case = next(case for case in CASES[part]() if (case.name, case.workload.phase) == key)
    predicted = _row(case, terms, "predicted")
    verdicts = "/".join([predicted.verdict, *row.verdicts.split("/")[1:]])
    return replace(row, **_prediction(predicted), verdicts=verdicts)


def module(name: str, inputs: Sequence[str] = ()) -> Any:
    """A module of somebody's own as a side."""
    typed = list(inputs)
    return replace(target_of(name, None, typed or None), typed_texts={"args": [], "inputs": typed})


def _row(case: Case, terms: TimeTerms, kind: str) -> Any:
    """The row of a case in time, of a kind."""
    return crossover_report(
        Meeting(*case.sides, case.workload, case.scope), [case.workload.head_dim], [kind],
        ["time"], terms=terms, environment={},
    ).records[0]  # fmt: skip


def _prediction(record: Any) -> dict[str, float]:
    """The columns of a prediction; those of further calibrations are empty."""
    at, low, high = map(number, (record.crossover_seq_len, record.ci_low, record.ci_high))
    return {"predicted": at, "predicted_2": nan, "predicted_3": nan, "low": low, "high": high}


def crossing(case: Case, terms: TimeTerms) -> Crossing:
    """A row: formula, prediction, two measurements."""
    predicted = _row(case, terms, "predicted")
    known = calibrated(terms.calibration, terms.threads, case.workload.dtype)
    wait_until_calibrated_speed(known)
    start = time.perf_counter()
    first = _row(case, terms, "measured")
    spent = time.perf_counter() - start
    wait_until_calibrated_speed(known)
    again = _row(case, terms, "measured")
    return Crossing(
        case=case.name, phase=case.workload.phase, formula=equal_flops(case),
        **_prediction(predicted), measured=number(first.crossover_seq_len),
        measured_low=number(first.ci_low), measured_high=number(first.ci_high),
        again=number(again.crossover_seq_len),
        verdicts="/".join(x.verdict for x in (predicted, first, again)), calls=first.timed_calls,
        lengths=len(first.lengths), seconds=spent,
    )  # fmt: skip


def equal_flops(case: Case) -> float:
    """Where both have the same FLOPs; nan where that is not known."""
    if names_taylor(case.sides):
        return case.workload.head_dim**2 + case.workload.head_dim + 0.5
    if any(":" in side.name for side in case.sides):
        return nan
    meeting = Meeting(*case.sides, case.workload, case.scope)
    width = [case.workload.head_dim]
    one = crossover_report(meeting, width, ["formula"], ["flops"], environment={}).records[0]
    return number(one.crossover_seq_len)


def number(value: float | None) -> float:
    """A row's value; nan for none."""
    return nan if value is None else float(value)


def names_taylor(sides: Sequence[Any]) -> bool:
    """Whether the sides are the plain forms, whose N0 is document 004's."""
    return all("taylor_plain" in side.name for side in sides)


def grid(terms: TimeTerms, done: Sequence[OnGrid]) -> Iterator[OnGrid]:
    """The first five pairs at every length of a grid as long as the guided search looked."""
    for names in PAIRS[:5]:
        case = Case(" against ".join(names), registry.configured(names, {}), Workload(1, 4, 32),
                    "layer")  # fmt: skip
        if case.name in {row.case for row in done}:
            continue
        low, high = 64, _row(case, terms, "measured").lengths[-1]
        lengths = [round(low * (high / low) ** (n / (GRID - 1)) / 8) * 8 for n in range(GRID)]
        start, ratios, calls = time.perf_counter(), dict[int, float](), 0
        for length in lengths:
            subjects = [build_subject(PointRequest(n, length, 4, 32)) for n in names]
            a, b = time_in_turns(subjects, BUDGET, count=terms.threads)
            calls += len(a) + len(b)
            ratios[length] = median(log(x / y) for x, y in zip(a, b, strict=True))
        yield OnGrid(case.name, _root(ratios), calls, len(ratios), time.perf_counter() - start)


def _root(ratios: dict[int, float]) -> float:
    """The last change of sign, between two lengths by their logarithms."""
    lengths = sorted(ratios)
    for low, high in reversed(list(pairwise(lengths))):
        a, b = ratios[low], ratios[high]
        if a * b < 0:
            return low * (high / low) ** (a / (a - b))
    return nan


def recommended(terms: TimeTerms, done: Sequence[Recommended]) -> Iterator[Recommended]:
    """The first three of each ranking, measured in turns."""
    for length, width, heads, phase, causal in REQUESTS:
        case = f"{length} tokens, d_model {width}, {heads} heads, {phase}{', causal' * causal}"
        if case in {row.request for row in done}:
            continue
        workload = Workload(length, heads, width // heads, causal=causal, phase=phase)
        rows = recommend(
            workload, {name: registry.get(name) for name in registry.names()}, device="cpu",
            threads=terms.threads, path=terms.calibration,
        ).records  # fmt: skip
        names = [row.mechanism for row in rows if row.rank][:3]
        points = [PointRequest.at(name, workload, threads=terms.threads) for name in names]
        times = time_in_turns(
            [build_subject(point) for point in points], BUDGET, count=terms.threads
        )
        yield Recommended(case, *names, *(median(seconds) for seconds in times))
