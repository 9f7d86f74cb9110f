"""Times of two mechanisms over an axis, at one fixed size: predicted and measured crossings.

Predicted ones are searched by :mod:`attnprof.crossovers.predicted_search`, measured ones by
:mod:`attnprof.crossovers.time_search`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from math import ceil
from statistics import median
from typing import Any

from attnprof.crossovers.axis import CrossoverAxis
from attnprof.crossovers.peaks import request_of
from attnprof.crossovers.predicted_search import PredictedSearch
from attnprof.crossovers.report import Finding
from attnprof.crossovers.sides import (
    MEASURED,
    PREDICTED,
    TIME,
    Contest,
    Meeting,
    TimeTerms,
    searched_curves,
)
from attnprof.crossovers.solve import roots_of_formulas
from attnprof.crossovers.time_search import SHORTEST, Compare, TimeSearch
from attnprof.device.machine_reading import MachineReading, read_machine
from attnprof.device.operations import operations_of
from attnprof.device.prediction import Predictor, calibration_of
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.allocator import memory_kept
from attnprof.measure.batch import point_environment, resolve_device
from attnprof.measure.clocks import cuda_clock, on_device, threads, time_in_turns
from attnprof.measure.environment import conditions_now
from attnprof.measure.journal import Journal, read
from attnprof.measure.point import fit
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import TimeCrossing
from attnprof.measure.subject import build_subject, is_out_of_memory, refusing
from attnprof.processes.progress import tell
from attnprof.record import CrossoverRecord
from attnprof.units import amount


@dataclass
class TimeFinder:
    """Finds crossings of times, predicted and measured."""

    meeting: Meeting
    terms: TimeTerms
    kinds: Sequence[str]
    _pairs: dict[int, "TimedPair"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.contests = [Contest(TIME, kind) for kind in self.kinds]
        device = resolve_device(self.terms.device)
        self.options: dict[str, Any] = {
            "scope": self.meeting.scope, "device": device, "threads": self.terms.threads
        }  # fmt: skip
        sizes = {"num_kv_heads": 1} if self.meeting.axis.name == "kv_heads" else {}  # refused
        workload = self.meeting.workload.with_(**sizes)
        request = request_of(self.meeting.a, workload, **self.options)
        self.environment = point_environment(request)

    def find(self, contest: Contest, fixed_size: int) -> Finding:
        """Return the predicted or the measured crossings at a fixed size."""
        if fixed_size not in self._pairs:
            self._pairs[fixed_size] = TimedPair(
                self.meeting, fixed_size, self.options, self.environment, self.terms
            )
        pair = self._pairs[fixed_size]
        with threads(self.terms.threads):
            return pair.predicted() if contest.kind == PREDICTED else pair.measured()

    def curves(self, records: Sequence[CrossoverRecord]) -> Iterator[dict[str, Any]]:
        """Yield both times at the values that were looked at."""
        fields = {"metric": TIME, "unit": "s"}
        for fixed_size, pair in self._pairs.items():
            for kind, times in pair.times.items():
                yield from searched_curves(self.meeting, fixed_size, times, **fields, kind=kind)

    @property
    def made_of(self) -> dict[str, str]:
        """Return the calibration that predictions are made of, for the summary."""
        if PREDICTED not in self.kinds:
            return {}
        return {"made_of": next((p.made_of for p in self._pairs.values() if p.made_of), "")}


@dataclass
class TimedPair:
    """Both sides at one fixed size, and their times over the meeting's axis so far."""

    meeting: Meeting
    fixed_size: int
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    terms: TimeTerms
    times: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)
    made_of: str = ""

    @property
    def axis(self) -> CrossoverAxis:
        """Return the axis that varies."""
        return self.meeting.axis

    def text(self, value: int) -> str:
        """Return a value of the axis with its unit."""
        return amount(self.axis.name, value)

    def requests(self, value: int) -> list[PointRequest]:
        """Return both sides at a value; :class:`CannotRunError` if memory is too small."""
        sides, sizes = self.meeting.at(value, self.fixed_size)
        requests = [request_of(side, sizes, **self.options) for side in sides]
        for request in requests:
            with refusing(request):
                if self.terms.on is None and (reason := fit(request)[0]):
                    raise CannotRunError(f"{request.mechanism} at {self.text(value)} {reason}")
        return requests

    def runnable(self, place: int) -> int | None:
        """Return the next value that both sides take, first one that kernels fill up."""
        if self.axis.name == "seq":
            steps = [8 if place >= 64 else 4 if place >= 16 else 1, 64, 128, 256, 512, 1024]
            lengths = (-(-place // step) * step for step in steps)
            values: Iterator[int] = takewhile(lambda length: length <= 2 * place + 64, lengths)
        else:
            values = self.axis.after(place, self.meeting.workload, self.fixed_size)
        return next(filter(self._is_taken, values), None)

    def _is_taken(self, value: int) -> bool:
        """Return whether both sides take a value; True if it is too large to be measured."""
        try:
            for request in self.requests(value):
                with refusing(request):
                    request.spec.cost(request.workload, request.scope)
        except CannotRunError:
            return True
        except RequestError:
            return False
        return True

    def _ends(self) -> dict[str, Any]:
        """Return the first and last value for a search; {} over lengths, where it has its own."""
        if self.axis.name == "seq":
            return {}
        values = self.axis.values(self.meeting.workload, self.fixed_size)
        return {"shortest": values[0], "longest": values[-1]}

    @property
    def _names(self) -> str:
        return f"{self.meeting.a.name} and {self.meeting.b.name}"

    # -- predicted ---------------------------------------------------------------------
    @cached_property
    def prediction(self) -> PredictedSearch:
        """Return the search of predicted crossings; CannotRunError without a calibration."""
        terms = self.terms
        calibration = calibration_of(self.environment, terms.calibration, terms.on, terms.threads)
        is_here = not self.terms.on
        reading = read_machine(calibration, conditions_now()) if is_here else MachineReading()
        predictor = Predictor(calibration, self.terms.kept, reading)
        self.made_of = predictor.made_of
        times = predictor.times(self.meeting.workload.dtype)

        def seconds(request: PointRequest) -> float:  # as predict has them
            with refusing(request):
                work = operations_of(request)
                return predictor.interval(work, request.dtype, request.phase)[0]

        def both(length: int) -> tuple[float, float]:
            tell(f"predicting {self._names} at {self.text(length)}")
            first, second = self.requests(length)
            return seconds(first), seconds(second)

        search = PredictedSearch(
            both, runnable=self.runnable, spread=times.ratio_spread, text=self.text, **self._ends()
        )
        if self.axis.name != "seq":
            search.usual = self.runnable
        search.run()
        return search

    def predicted(self) -> Finding:
        """Return the predicted crossings."""
        search = self.prediction
        self.times[PREDICTED] = search.costs
        return self._finding(search.time_crossings, search.outer, search.costs, 0, search.end)

    # -- measured ----------------------------------------------------------------------
    def measured(self) -> Finding:
        """Return the measured crossings: calls of both sides in turns."""
        guesses = self._guesses()
        with ExitStack() as stack:
            kept = self.terms.kept and self.options["device"] == "cpu"
            stack.enter_context(memory_kept() if kept else nullcontext())
            compare = stack.enter_context(self._journaled())
            search = TimeSearch(
                compare, self.runnable, guesses, self.terms.most_s, text=self.text,
                title=self._names, **self._ends(),
            )  # fmt: skip
            search.run()
        times = {n: (median(one.a_s), median(one.b_s)) for n, one in search.times.items()}
        self.times[MEASURED] = times
        signs = [sign for n in sorted(search.times) if (sign := search.times[n].sign)] or [0]
        end, outer = search.end, (signs[0], signs[-1])
        if far := [guess for guess in guesses if guess > max(times)]:
            end += f"; the crossing is expected at {self.text(round(far[0]))}"
        finding = self._finding(search.crossings, outer, times, search.timed_calls, end)
        noise = search.noise
        if noise and self.options["device"] == "cpu" and self.options["threads"] != 1:
            noise += ", or with --threads 1, which counts processor time"
        return replace(finding, fields={**finding.fields, "noisy": noise})

    def _guesses(self) -> list[float]:
        """Return the expected crossings: of predicted times, else of FLOPs."""
        try:
            return [one.at for one in self.prediction.time_crossings]
        except (CannotRunError, RequestError):
            return roots_of_formulas(self.meeting, "flops", self.fixed_size)

    def _compare(self, value: int, budget: Budget) -> tuple[list[float], list[float]]:
        """Return seconds of calls of both sides in turns."""
        import torch

        requests = self.requests(value)
        device = self.options["device"]
        try:
            with on_device(device):
                clock = cuda_clock(torch, device) if device.startswith("cuda") else None
                subjects = []
                for request in requests:
                    with refusing(request):
                        subjects.append(build_subject(request))
                first, second = time_in_turns(subjects, budget, clock, self.options["threads"])
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise CannotRunError(f"out of memory at {self.text(value)}") from error
        return first, second

    @contextmanager
    def _journaled(self) -> Iterator[Compare]:
        """Yield the comparison; with a journal, it reads and writes each length's times there."""
        if self.terms.journal is None:
            yield self._compare
            return
        pair = self._key()
        with Journal(self.terms.journal) as journal:
            entries = {entry["key"]: entry for entry in read(self.terms.journal)}
            times_asked = Counter[str]()

            def compare(length: int, budget: Budget) -> tuple[list[float], list[float]]:
                key = f"{pair} {length} {budget.samples}"
                times_asked[key] += 1
                if times_asked[key] > 1:  # other programs disturbed the calls
                    key += f" again {times_asked[key] - 1}"
                if key in entries:
                    return entries[key]["a_s"], entries[key]["b_s"]
                first, second = self._compare(length, budget)
                journal.append(key, {"seq_len": length, "a_s": first, "b_s": second})
                return first, second

            yield compare

    def _key(self) -> str:
        """Return the text by which a journal tells this pair's times from those of other pairs."""
        over, first = self.axis.name, SHORTEST
        if over != "seq":
            first = self.runnable(self._ends()["shortest"]) or SHORTEST
        requests = [request.to_dict() for request in self.requests(first)]
        sides = [{k: v for k, v in x.items() if k not in ("seq_len", "budget")} for x in requests]
        identity = [sides, self.environment.get("device_name")]
        identity += [] if over == "seq" else [over, self.fixed_size]
        # as it was before either was told apart: older files are resumed
        identity += ["kept"] if self.terms.kept else []
        policy = self.environment.get("omp_wait_policy")
        identity += [f"wait policy {policy}"] if policy else []
        return json.dumps(identity, sort_keys=True, default=str)

    def _finding(
        self, crossings: Sequence[TimeCrossing], outer: tuple[int, int], times: Mapping[int, Any],
        timed_calls: int, end: str,
    ) -> Finding:  # fmt: skip
        """Return the finding of a search, with the fields of its row."""
        last = crossings[-1] if crossings else None
        low, high = min(times), max(times)
        return Finding([one.at for one in crossings], outer, ceil(last.at) if last else low, {
            "ci_low": last and last.low, "ci_high": last and last.high, "bound": end or None,
            "searched": [[low, high]], "searched_step": 1, "timed_calls": timed_calls,
            "lengths": sorted(times),
        })  # fmt: skip
