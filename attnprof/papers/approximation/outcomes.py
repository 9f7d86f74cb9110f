"""Which claims of 003 the experiment can speak about, and what it says."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from attnprof.papers.approximation import distillation
from attnprof.papers.approximation.program import CLASSES, STUDENTS, TEST_TOKENS, TOKENS, WIDTH
from attnprof.papers.documents import claims
from attnprof.papers.measured import measured
from attnprof.record import DistillRecord
from attnprof.units import format_number, format_ratio, format_time, joined

TEACHER = distillation.TEACHER
#: Share of that of even chances below which a cross-entropy shows that the task is learned.
LEARNED = 0.5
OWN_SIZES = f"the document's sizes ({TOKENS:,} tokens, width {WIDTH})"


class ClaimOutcome(NamedTuple):
    """A claim by its id, whether the conditions suffice for it, which these are, the result."""

    claim: str
    suffices: bool
    conditions: str
    came_out: str


class Results:
    """The records of an experiment by setting, model and length."""

    def __init__(
        self, records: Sequence[DistillRecord], scale: distillation.ExperimentSizes
    ) -> None:
        self.scale = scale
        self.rows = {(r.setting, r.model, r.seq_len): r for r in records}

    @property
    def even(self) -> float:
        """The cross-entropy where all tokens are alike, nats."""
        return math.log(self.scale.vocabulary)

    def row(self, setting: str, model: str, *, long: bool = False) -> DistillRecord:
        """One record."""
        return self.rows[setting, model, self.scale.tokens * (1 + long)]

    def ranked(self, setting: str, field: str, *, long: bool = False) -> list[tuple[str, float]]:
        """Models that have the field, the least first; the teacher left out."""
        found = [
            (row.model, float(getattr(row, field)))
            for (its, model, tokens), row in self.rows.items()
            if its == setting and model != TEACHER and tokens == self.scale.tokens * (1 + long)
            and getattr(row, field) is not None
        ]  # fmt: skip
        return sorted(found, key=lambda pair: pair[1])


def outcomes(
    records: Sequence[DistillRecord], scale: distillation.ExperimentSizes
) -> list[dict[str, Any]]:  # fmt: skip
    """A row a claim: what it says, whether the conditions suffice for it and why, what came out."""
    results = Results(records, scale)
    found = _outcomes(results)
    return [{**one._asdict(), "says": claims()[one.claim].says} for one in found]


def _outcomes(results: Results) -> Iterator[ClaimOutcome]:
    scale, number = results.scale, _number
    teacher = results.row("printed", TEACHER)
    learned = results.row("fair", TEACHER).cross_entropy
    yield ClaimOutcome(
        "003-TEACHER", True, "the listing's training step, whatever the sizes",
        f"as printed its loss goes from {number(teacher.loss_first)} to "
        f"{number(teacher.loss_last)} while its cross-entropy is {number(teacher.cross_entropy)} "
        f"nats (all tokens alike: {number(results.even)}); trained on the task, on unseen "
        f"sentences, {number(learned)}",
    )  # fmt: skip
    yield ClaimOutcome(
        "003-KD", True, "the listing's loss, whatever the sizes",
        "the loss mixes cross-entropy and divergence; the MSE to the teacher, as printed: "
        + joined(_before_and_after(results, "printed")),
    )  # fmt: skip
    refused = results.row("fair", "linformer", long=True).skipped
    others = [name for name, _ in results.ranked("fair", "mse_ratio", long=True)]
    yield ClaimOutcome(
        "003-LIN-GEN", True, f"made for {scale.tokens} tokens, tested with twice as many "
        f"({TEST_TOKENS:,} and {TOKENS:,} in the document)",
        f"{refused or 'it runs'}; {joined(others)} run",
    )  # fmt: skip
    yield _ratios(results)
    yield _best(results)
    yield from _speeds(results)


def _before_and_after(results: Results, setting: str) -> Iterator[str]:
    for name in STUDENTS:
        row = results.row(setting, name)
        yield f"{name} {_number(row.mse_before)} to {_number(row.mse_teacher)}"


def _ratios(results: Results) -> ClaimOutcome:
    parts = []
    for setting in distillation.SETTING_NAMES:
        found = results.ranked(setting, "mse_ratio", long=True)
        told = [f"{name} {format_ratio(value)}" for name, value in found]
        parts.append(f"{setting}: {joined(told)}")
    return ClaimOutcome(
        "003-RATIO", True,
        "the sign of the claim needs no sizes: a ratio of errors is better where it is smaller; "
        "its values do",
        f"error at twice the length over that at the trained one, {'; '.join(parts)}",
    )  # fmt: skip


def _best(results: Results) -> ClaimOutcome:
    parts = []
    for setting in distillation.SETTING_NAMES:
        found = results.ranked(setting, "mse_teacher")
        parts.append(f"{setting}: {joined([f'{name} {_number(value)}' for name, value in found])}")
    right = results.ranked("fair", "cross_entropy")
    suffices = (results.row("fair", TEACHER).cross_entropy or math.inf) < LEARNED * results.even
    return ClaimOutcome(
        "003-BEST", suffices,
        "standard attention is a student, too, with the loss, steps and batches of the others; "
        f"the teacher has {'' if suffices else 'not '}learned the task, on which it depends which "
        "approximation is best",
        f"MSE to the teacher, {'; '.join(parts)}; cross-entropy on unseen sentences, fair: "
        + joined([f"{name} {_number(value)}" for name, value in right]),
    )  # fmt: skip


def _speeds(results: Results) -> Iterator[ClaimOutcome]:
    """Times here are of small models; those at the document's sizes are measured apart."""
    seconds = measured("003", "model_times")["seconds"]
    told = [f"{name} {format_time(seconds[name])}" for name in sorted(CLASSES, key=seconds.get)]
    timed = [f"{n} {format_time(s)}" for n, s in results.ranked("printed", "median_s")]
    here = joined(timed) if timed else "not timed"
    yield ClaimOutcome(
        "003-FASTEST", False,
        f"order of times needs {OWN_SIZES}; here there are {results.scale.tokens} tokens",
        f"measured there, on one thread of ours: {joined(told)}; here, as printed: {here}",
    )  # fmt: skip
    ratio = seconds["longformer"] / seconds["performer"]
    yield ClaimOutcome(
        "003-SPEEDUP", False, "the document names no device",
        f"at its sizes Longformer takes {format_ratio(ratio)} times Performer's time on ours",
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "unknown" if value is None else format_number(float(value), short=True)
