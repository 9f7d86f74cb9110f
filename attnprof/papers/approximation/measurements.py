"""Measurements of document 003's models: times, growth with length, and the document's experiment.

Times are processor time on one thread, so that other programs on the machine do not add to them.
Records of the experiment have the quality and speed of every model, at both lengths, and its report
answers each claim (``outcomes.toml``). Entry points: :data:`MEASUREMENTS`, :func:`distill_report`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from attnprof.errors import AttnprofError
from attnprof.measure.batch import measure_points
from attnprof.measure.clocks import threads, time_in_turns
from attnprof.measure.growth import counted_growth
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import MedianEstimate, estimate_median
from attnprof.measure.subject import Subject
from attnprof.models import ModelConfig, build
from attnprof.papers.approximation import checks, distillation
from attnprof.papers.approximation.checks import CLASSES, TOKENS, VOCABULARY, WIDTH, attention
from attnprof.papers.approximation.distillation import TEACHER, ExperimentSizes, Trained, answers
from attnprof.papers.approximation.figures import FAMILIES, HEAD_DIM, SHORT, subject
from attnprof.papers.documents import claims
from attnprof.record import DistillRecord, ProfileRecord, Report
from attnprof.units import format_number, format_ratio, format_time, grouped, joined

#: Three timed runs of each part after one that is not timed.
RUNS = Budget(samples=3, min_time_s=0.0, max_time_s=600.0, warmup_s=0.0, least=3)


def time_calls(
    calls: Mapping[Any, Callable[[], object]], budget: Budget
) -> dict[Any, MedianEstimate]:
    """Return the median time of each call, by its name; timed in turns, without gradients."""
    subjects = [
        Subject(None, lambda: None, lambda: None, torch.no_grad()(call)) for call in calls.values()
    ]
    return dict(zip(calls, map(estimate_median, time_in_turns(subjects, budget)), strict=True))


def model_times() -> dict[str, Any]:
    """Return seconds of a forward pass through each model, one sequence, as the sum of its parts.

    A model is an encoder and a decoder layer: two self-attentions of the class, standard attention
    across, two feed-forward networks and the logits.
    """
    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    logits = nn.Linear(WIDTH, VOCABULARY)
    runs = {name: attention(name, TOKENS, WIDTH) for name in CLASSES}
    parts = {"network": partial(network, x), "logits": partial(logits, x)}
    calls = {**parts, **{name: partial(run, x, x, x) for name, run in runs.items()}}
    alone = {name: estimate.median_s for name, estimate in time_calls(calls, RUNS).items()}
    shared = 2 * alone.pop("network") + alone.pop("logits")
    whole = {name: 2 * core_s + alone["standard"] + shared for name, core_s in alone.items()}
    return {"seconds": whole, "attention": alone}


def growth() -> list[dict[str, Any]]:
    """Return time, peak and matmul FLOPs of one head, by mechanism (Figures D-G) and length."""
    budget = Budget(samples=9, min_time_s=0.1, max_time_s=1.5, warmup_s=0.05)
    labels = ("standard", *(label for _, family in FAMILIES.values() for label in family))
    requests = {
        (label, length): PointRequest(
            subject(label).mechanism.name, length, 1, HEAD_DIM, scope="core", threads=1,
            params=subject(label).mechanism.params, budget=budget, check=False, counts=False,
        )
        for label in labels
        for length in SHORT
    }  # fmt: skip
    counts: dict[tuple[str, int], Any] = {}
    for label in labels:
        run = counted_growth(subject(label), SHORT)
        counts |= {(label, n): count for n, count in zip(run.seq_lens, run.values, strict=True)}
    report = measure_points(list(requests.values()), isolate=False)
    rows = []
    for (label, length), record in zip(requests, report.records, strict=True):
        assert isinstance(record, ProfileRecord)
        time_s = estimate_median(record.cpu_times_s or [])
        rows.append({
            "mechanism": label, "seq_len": length, "median_s": time_s.median_s,
            "ci_low_s": time_s.low_s, "ci_high_s": time_s.high_s,
            "peak_bytes": record.peak_bytes_measured,
            "matmul_flops": counts.get((label, length)),
        })  # fmt: skip
    return rows


MEASUREMENTS: dict[str, Callable[[], Any]] = {"model_times": model_times, "growth": growth}


#: A cross-entropy below this share of a random guess's shows that the task is learned.
LEARNED = 0.5


class Results:
    """The records of an experiment by setting, model and length."""

    def __init__(self, records: Sequence[DistillRecord], scale: ExperimentSizes) -> None:
        self.scale = scale
        self.rows = {(r.setting, r.model, r.seq_len): r for r in records}
        #: The cross-entropy of a uniform guess, nats.
        self.even = math.log(scale.vocabulary)

    def row(self, setting: str, model: str, *, long: bool = False) -> DistillRecord:
        """Return one model's record."""
        return self.rows[setting, model, self.scale.tokens * (1 + long)]

    def ranked(self, setting: str, field: str, *, long: bool = False) -> dict[str, float]:
        """Return a field's values by model, the least first, without the teacher's."""
        place = setting, self.scale.tokens * (1 + long)
        rows = [r for r in self.rows.values() if (r.setting, r.seq_len) == place]
        values = {r.model: getattr(r, field) for r in rows if r.model != TEACHER}
        return _by_value({name: x for name, x in values.items() if x is not None})

    def by_setting(self, field: str, form: Callable[[float], str], *, long: bool = False) -> str:
        """Return text: for each setting, the models with a field's values, the least first."""
        ranks = {name: self.ranked(name, field, long=long) for name in distillation.EXPERIMENTS}
        return "; ".join(f"{name}: {_list(values, form)}" for name, values in ranks.items())


def _by_value(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(values[name]) for name in sorted(values, key=values.__getitem__)}


def outcomes(records: Sequence[DistillRecord], scale: ExperimentSizes) -> list[dict[str, Any]]:
    """Return a row per claim: its sentence, whether our conditions suffice and why, the result."""
    results, outcome_rows = Results(records, scale), []
    sizes = {
        "document_tokens": checks.TOKENS, "document_tested": checks.TEST_TOKENS,
        "document_width": checks.WIDTH, "tokens": scale.tokens,
    }  # fmt: skip
    texts = checks.DOCUMENT.texts("outcomes.toml")
    for claim, entry in texts.items():
        gaps = {**entry, **sizes, **GAPS[claim](results)}
        row = {"claim": claim, "suffices": gaps["suffices"]}
        for name in ("conditions", "came_out"):
            row[name] = " ".join(entry[name].split()).format(**gaps)
        outcome_rows.append({**row, "says": claims()[claim].says})
    return outcome_rows


def _number(value: float | None) -> str:
    return "unknown" if value is None else format_number(float(value), short=True)


def _list(values: Mapping[str, float], form: Callable[[float], str] = _number) -> str:
    return joined([f"{name} {form(value)}" for name, value in values.items()])


def _teacher(results: Results) -> dict[str, str]:
    teacher, fair = results.row("printed", TEACHER), results.row("fair", TEACHER)
    numbers = {
        "first": teacher.loss_first, "last": teacher.loss_last, "entropy": teacher.cross_entropy,
        "even": results.even, "learned": fair.cross_entropy,
    }  # fmt: skip
    return {name: _number(value) for name, value in numbers.items()}


def _losses(results: Results) -> dict[str, str]:
    rows = (results.row("printed", name) for name in checks.STUDENTS)
    ends = [f"{r.model} {_number(r.mse_before)} to {_number(r.mse_teacher)}" for r in rows]
    return {"before_and_after": joined(ends)}


def _longer_texts(results: Results) -> dict[str, str]:
    refused = results.row("fair", "linformer", long=True).skipped
    others = results.ranked("fair", "mse_ratio", long=True)
    return {"refused": refused or "it runs", "others": joined([*others])}


def _best_student(results: Results) -> dict[str, Any]:
    suffices = (results.row("fair", TEACHER).cross_entropy or math.inf) < LEARNED * results.even
    return {
        "suffices": suffices, "learned": "" if suffices else "not ",
        "errors": results.by_setting("mse_teacher", _number),
        "entropies": _list(results.ranked("fair", "cross_entropy")),
    }  # fmt: skip


def _times(results: Results) -> dict[str, str]:
    times = results.ranked("printed", "median_s")
    ours = _list(times, format_time) if times else "not timed"
    return {"there": _list(_by_value(checks.seconds()), format_time), "here": ours}


def _speed(_: Results) -> dict[str, str]:
    times = checks.seconds()
    return {"ratio": format_ratio(times["longformer"], times["performer"])}


#: Values for the gaps of the texts, by claim; ``suffices`` where it depends on the results.
GAPS: dict[str, Callable[[Results], Mapping[str, Any]]] = {
    "003-TEACHER": _teacher, "003-KD": _losses, "003-LIN-GEN": _longer_texts,
    "003-BEST": _best_student, "003-FASTEST": _times, "003-SPEEDUP": _speed,
    "003-RATIO": lambda results: {
        "ratios": results.by_setting("mse_ratio", format_ratio, long=True)
    },
}  # fmt: skip


#: Timed calls of each model, as many as in the document, and seconds for all models of a length.
TIMED = Budget(samples=10, min_time_s=0.0, max_time_s=60.0, warmup_s=0.0)
#: Fields reported as the median over repetitions, with the least and the largest.
_MEDIANS = (
    "steps", "loss_first", "loss_last", "cross_entropy", "accuracy", "kl_teacher", "mse_teacher",
    "mse_before", "mse_ratio",
)  # fmt: skip


def distill_report(
    scale: ExperimentSizes, seed: int, seeds: int, environment: Mapping[str, Any],
    tell: distillation.Tell, said: Callable[[str], None], *, timed: bool = True,
) -> Report:  # fmt: skip
    """Return the report on both settings, each repeated with so many seeds.

    ``said`` is called with a sentence after each model. Everything runs on one thread, so that
    numbers repeat; the state of torch's generator is kept.
    """
    rows: list[DistillRecord] = []
    with torch.random.fork_rng(devices=[]), threads(1):
        for run_seed in range(seed, seed + seeds):
            for setting, run in distillation.EXPERIMENTS.items():
                trained, *examples = run(scale, run_seed, tell)
                for row in _evaluated(trained, examples, scale, timed=timed and run_seed == seed):
                    rows.append(row)
                    if row.seq_len == scale.tokens:
                        said(
                            f"{setting}, seed {run_seed}: {row.model} after {row.steps} steps: "
                            f"cross-entropy {row.cross_entropy:.3f}, MSE to the teacher "
                            f"{row.mse_teacher:.4g}"
                        )
    return merged(rows, scale, environment)


def merged(
    rows: Sequence[DistillRecord], scale: ExperimentSizes, environment: Mapping[str, Any]
) -> Report:  # fmt: skip
    """Return the report on rows of single repetitions, with the times of the first repetition."""
    groups = grouped(rows, lambda row: (row.setting, row.model, row.seq_len))
    records = [_median(group) for group in groups.values()]
    summary = {"scale": asdict(scale), "claims": outcomes(records, scale)}
    return Report("tradeoff --distill", records, summary, environment)


def _evaluated(
    trained: Sequence[Trained], examples: Sequence[distillation.Examples], scale: ExperimentSizes,
    *, timed: bool,
) -> list[DistillRecord]:  # fmt: skip
    """Return a record a model and length; models of one length are timed in turns."""
    evaluated: list[DistillRecord] = []
    shorter: dict[str, float] = {}
    for batch, tokens in zip(examples, (scale.tokens, 2 * scale.tokens), strict=True):
        goal = None
        calls = {}
        for one in trained:
            try:
                model = one.model if tokens == scale.tokens else stretched(one, tokens)
                logits = answers(model, batch)
            except AttnprofError as error:  # it is made for one length
                evaluated.append(_row(one, tokens, skipped=str(error)))
                continue
            goal = logits if one.name == TEACHER else goal
            assert goal is not None
            with FlopCounterMode(display=False) as counter:
                answers(model, batch)
            numbers = _quality(logits, goal, batch) | {"matmul_flops": counter.get_total_flops()}
            if tokens == scale.tokens:
                shorter[one.name] = numbers["mse_teacher"]
                numbers["mse_before"] = _before(one, batch, goal)
            elif shorter[one.name]:
                numbers["mse_ratio"] = numbers["mse_teacher"] / shorter[one.name]
            calls[len(evaluated)] = partial(model, *batch.called_with)
            evaluated.append(_row(one, tokens, **numbers))
        for place, time in time_calls(calls, TIMED).items() if timed else ():
            times = {"median_s": time.median_s, "ci_low_s": time.low_s, "ci_high_s": time.high_s}
            evaluated[place] = replace(evaluated[place], **times)
    return evaluated


def stretched(one: Trained, tokens: int) -> Any:
    """Return the trained model for longer inputs, with its trained weights."""
    config: ModelConfig = one.config.with_(seq_len=tokens)
    longer = build(config).eval()
    buffers = dict(longer.named_buffers(remove_duplicate=False))
    for name, value in one.model.state_dict(keep_vars=True).items():
        path, _, leaf = name.rpartition(".")
        owner = longer.get_submodule(path)
        if isinstance(value, nn.Parameter) or buffers[name].shape == value.shape:
            setattr(owner, leaf, value)
    return longer


def _quality(logits: Tensor, goal: Tensor, batch: distillation.Examples) -> dict[str, Any]:
    """Return the errors against the right tokens, without padding, and against the teacher."""
    kept = batch.labels != distillation.PAD
    right = (logits.argmax(-1) == batch.labels)[kept]
    return {
        "cross_entropy": float(distillation.cross_entropy(logits, batch)),
        "accuracy": float(right.double().mean()),
        "kl_teacher": float(distillation.divergence(logits[kept], goal[kept])),
        "mse_teacher": float(F.mse_loss(logits, goal)),
    }


def _before(one: Trained, batch: distillation.Examples, goal: Tensor) -> float:
    """Return the error of the model before its first step."""
    torch.default_generator.manual_seed(one.seed)
    return float(F.mse_loss(answers(build(one.config), batch), goal))


def _row(one: Trained, tokens: int, **more: Any) -> DistillRecord:
    count = sum(p.numel() for p in one.model.parameters() if p.requires_grad)
    return DistillRecord(
        setting=one.setting, model=one.name, seq_len=tokens, seeds=1, parameters=count,
        steps=one.steps, loss_first=one.losses[0], loss_last=one.losses[1], **more,
    )  # fmt: skip


def _median(rows: Sequence[DistillRecord]) -> DistillRecord:
    """Return one record of repetitions: medians, and the range of the cross-entropy."""
    first = rows[0]
    fields: dict[str, Any] = {"seeds": len(rows)}
    for name in _MEDIANS:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        fields[name] = median(values) if values else None
    fields["steps"] = round(fields["steps"])
    entropies = [row.cross_entropy for row in rows if row.cross_entropy is not None]
    if entropies:
        fields |= {"cross_entropy_low": min(entropies), "cross_entropy_high": max(entropies)}
    return replace(first, **fields)
