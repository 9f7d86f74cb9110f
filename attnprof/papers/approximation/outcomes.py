"""Which claims of 003 the experiment can speak about, and what it says (``outcomes.toml``)."""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attnprof.papers.approximation import distillation
from attnprof.papers.approximation.program import (
    CLASSES,
    DOCUMENT,
    STUDENTS,
    TEST_TOKENS,
    TOKENS,
    WIDTH,
)
from attnprof.papers.documents import claims
from attnprof.papers.measured import measured
from attnprof.record import DistillRecord
from attnprof.units import format_number, format_ratio, format_time, joined

TEACHER = distillation.TEACHER
#: Share of that of even chances below which a cross-entropy shows that the task is learned.
LEARNED = 0.5


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

    def by_setting(self, field: str, form: Callable[[float], str], *, long: bool = False) -> str:
        """Models with a field's values, the least first, of each setting."""
        names = distillation.SETTING_NAMES
        return "; ".join(f"{n}: {_list(self.ranked(n, field, long=long), form)}" for n in names)


def outcomes(
    records: Sequence[DistillRecord], scale: distillation.ExperimentSizes
) -> list[dict[str, Any]]:  # fmt: skip
    """A row a claim: what it says, whether the conditions suffice for it and why, what came out."""
    results, found = Results(records, scale), []
    sizes = {"document_tokens": TOKENS, "document_tested": TEST_TOKENS, "document_width": WIDTH}
    texts = tomllib.loads((DOCUMENT.path / "outcomes.toml").read_text(encoding="utf-8"))
    for claim, its in texts.items():
        gaps = {**its, **sizes, "tokens": scale.tokens, **GAPS[claim](results)}
        row = {"claim": claim, "suffices": gaps["suffices"]}
        for name in ("conditions", "came_out"):
            row[name] = " ".join(its[name].split()).format(**gaps)
        found.append({**row, "says": claims()[claim].says})
    return found


def _number(value: float | None) -> str:
    return "unknown" if value is None else format_number(float(value), short=True)


def _list(pairs: Iterable[tuple[str, float]], form: Callable[[float], str] = _number) -> str:
    return joined([f"{name} {form(value)}" for name, value in pairs])


def _of_teacher(results: Results) -> dict[str, str]:
    teacher, fair = results.row("printed", TEACHER), results.row("fair", TEACHER)
    numbers = {
        "first": teacher.loss_first, "last": teacher.loss_last, "entropy": teacher.cross_entropy,
        "even": results.even, "learned": fair.cross_entropy,
    }  # fmt: skip
    return {name: _number(value) for name, value in numbers.items()}


def _of_loss(results: Results) -> dict[str, str]:
    rows = (results.row("printed", name) for name in STUDENTS)
    ends = [f"{r.model} {_number(r.mse_before)} to {_number(r.mse_teacher)}" for r in rows]
    return {"before_and_after": joined(ends)}


def _of_longer_texts(results: Results) -> dict[str, str]:
    refused = results.row("fair", "linformer", long=True).skipped
    others = [name for name, _ in results.ranked("fair", "mse_ratio", long=True)]
    return {"refused": refused or "it runs", "others": joined(others)}


def _of_the_best(results: Results) -> dict[str, Any]:
    suffices = (results.row("fair", TEACHER).cross_entropy or math.inf) < LEARNED * results.even
    return {
        "suffices": suffices, "learned": "" if suffices else "not ",
        "errors": results.by_setting("mse_teacher", _number),
        "entropies": _list(results.ranked("fair", "cross_entropy")),
    }  # fmt: skip


def _seconds() -> dict[str, float]:
    """Times of the models at the document's sizes; the experiment's own are of small ones."""
    seconds = measured("003", "model_times")["seconds"]
    return {name: seconds[name] for name in sorted(CLASSES, key=seconds.get)}


def _of_times(results: Results) -> dict[str, str]:
    timed = results.ranked("printed", "median_s")
    here = _list(timed, format_time) if timed else "not timed"
    return {"there": _list(_seconds().items(), format_time), "here": here}


#: Values for the gaps of the texts, by claim; ``suffices`` where it depends on the results.
GAPS: dict[str, Callable[[Results], Mapping[str, Any]]] = {
    "003-TEACHER": _of_teacher,
    "003-KD": _of_loss,
    "003-LIN-GEN": _of_longer_texts,
    "003-RATIO": lambda its: {"ratios": its.by_setting("mse_ratio", format_ratio, long=True)},
    "003-BEST": _of_the_best,
    "003-FASTEST": _of_times,
    "003-SPEEDUP": lambda _: {
        "ratio": format_ratio(_seconds()["longformer"] / _seconds()["performer"])
    },
}
