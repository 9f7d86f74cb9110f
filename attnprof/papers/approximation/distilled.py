"""What came out of 003's experiment: quality and speed of every model, at both lengths."""

from collections import defaultdict
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
from attnprof.measure.clocks import threads
from attnprof.measure.request import Budget
from attnprof.models import ModelConfig, build
from attnprof.papers.approximation import distillation
from attnprof.papers.approximation.corpus import PAD
from attnprof.papers.approximation.distillation import (
    SETTING_NAMES,
    TEACHER,
    Examples,
    ExperimentSizes,
    Tell,
    Trained,
    answers,
)
from attnprof.papers.approximation.outcomes import outcomes
from attnprof.papers.measured import time_calls
from attnprof.record import DistillRecord, Report

#: Calls that are timed of each model, as the document has it, and seconds for all of a length.
TIMED = Budget(samples=10, min_time_s=0.0, max_time_s=60.0, warmup_s=0.0)
#: Fields whose median over repetitions is told, and of which the least and the largest are, too.
_MEDIANS = (
    "steps", "loss_first", "loss_last", "cross_entropy", "accuracy", "kl_teacher", "mse_teacher",
    "mse_before", "mse_ratio",
)  # fmt: skip


def distill_report(
    scale: ExperimentSizes, seed: int, seeds: int, environment: Mapping[str, Any], tell: Tell,
    said: Callable[[str], None], *, timed: bool = True,
) -> Report:  # fmt: skip
    """Both settings, each repeated with so many seeds; ``said`` hears of every model's end.

    Runs on one thread, so that numbers repeat; torch's generator stays as it is.
    """
    rows: list[DistillRecord] = []
    with torch.random.fork_rng(devices=[]), threads(1):
        for its in range(seed, seed + seeds):
            for setting in SETTING_NAMES:
                trained, *examples = distillation.experiment(setting, scale, its, tell)
                for row in _evaluated(trained, examples, scale, timed=timed and its == seed):
                    rows.append(row)
                    if row.seq_len == scale.tokens:
                        said(_told(row, its))
    return merged(rows, scale, environment)


def merged(
    rows: Sequence[DistillRecord], scale: ExperimentSizes, environment: Mapping[str, Any]
) -> Report:  # fmt: skip
    """Single repetitions as one report; times are those of the first."""
    groups: dict[tuple[str, str, int], list[DistillRecord]] = defaultdict(list)
    for row in rows:
        groups[row.setting, row.model, row.seq_len].append(row)
    records = [_median(found) for found in groups.values()]
    summary = {"scale": asdict(scale), "claims": outcomes(records, scale)}
    return Report("tradeoff --distill", records, summary, environment)


def _told(row: DistillRecord, seed: int) -> str:
    return (
        f"{row.setting}, seed {seed}: {row.model} after {row.steps} steps: cross-entropy "
        f"{row.cross_entropy:.3f}, MSE to the teacher {row.mse_teacher:.4g}"
    )


def _evaluated(
    trained: Sequence[Trained], examples: Sequence[Examples], scale: ExperimentSizes, *, timed: bool
) -> list[DistillRecord]:  # fmt: skip
    """A record a model and length; the models of a length are timed in turns."""
    found: list[DistillRecord] = []
    shorter: dict[str, float] = {}
    for given, tokens in zip(examples, (scale.tokens, 2 * scale.tokens), strict=True):
        goal = None
        calls = {}
        for one in trained:
            try:
                model = one.model if tokens == scale.tokens else stretched(one, tokens)
                logits = answers(model, given)
            except AttnprofError as error:  # it is made for one length
                found.append(_row(one, tokens, skipped=str(error)))
                continue
            goal = logits if one.name == TEACHER else goal
            assert goal is not None
            with FlopCounterMode(display=False) as counter:
                answers(model, given)
            numbers = _quality(logits, goal, given) | {"matmul_flops": counter.get_total_flops()}
            if tokens == scale.tokens:
                shorter[one.name] = numbers["mse_teacher"]
                numbers["mse_before"] = _before(one, given, goal)
            elif shorter[one.name]:
                numbers["mse_ratio"] = numbers["mse_teacher"] / shorter[one.name]
            calls[len(found)] = partial(model, *given.called_with)
            found.append(_row(one, tokens, **numbers))
        if timed:
            found = _with_times(found, calls)
    return found


def stretched(one: Trained, tokens: int) -> Any:
    """The trained model for longer inputs; parts made for one length stay as they were trained."""
    config: ModelConfig = one.config.with_(seq_len=tokens)
    longer = build(config).eval()
    buffers = dict(longer.named_buffers(remove_duplicate=False))
    for name, value in one.model.state_dict(keep_vars=True).items():
        path, _, leaf = name.rpartition(".")
        owner = longer.get_submodule(path)
        if isinstance(value, nn.Parameter) or buffers[name].shape == value.shape:
            setattr(owner, leaf, value)
    return longer


def _quality(logits: Tensor, goal: Tensor, given: Examples) -> dict[str, Any]:
    """Against the right tokens, padding left out, and against the teacher's answers."""
    kept = given.labels != PAD
    right = (logits.argmax(-1) == given.labels)[kept]
    return {
        "cross_entropy": float(distillation.cross_entropy(logits, given)),
        "accuracy": float(right.double().mean()),
        "kl_teacher": float(distillation.divergence(logits[kept], goal[kept])),
        "mse_teacher": float(F.mse_loss(logits, goal)),
    }


def _before(one: Trained, given: Examples, goal: Tensor) -> float:
    """The same error of the model as it started."""
    torch.default_generator.manual_seed(one.seed)
    return float(F.mse_loss(answers(build(one.config), given), goal))


def _row(one: Trained, tokens: int, **more: Any) -> DistillRecord:
    count = sum(p.numel() for p in one.model.parameters() if p.requires_grad)
    return DistillRecord(
        setting=one.setting, model=one.name, seq_len=tokens, seeds=1, parameters=count,
        steps=one.steps, loss_first=one.losses[0], loss_last=one.losses[1], **more,
    )  # fmt: skip


def _with_times(
    rows: Sequence[DistillRecord], calls: Mapping[int, Callable[[], Any]]
) -> list[DistillRecord]:
    found = list(rows)
    for place, its in time_calls(calls, TIMED).items():
        found[place] = replace(
            found[place], median_s=its.median_s, ci_low_s=its.low_s, ci_high_s=its.high_s
        )
    return found


def _median(rows: Sequence[DistillRecord]) -> DistillRecord:
    """One record of repetitions: medians, and the range of the cross-entropy."""
    first = rows[0]
    found: dict[str, Any] = {"seeds": len(rows)}
    for name in _MEDIANS:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        found[name] = median(values) if values else None
    found["steps"] = round(found["steps"])
    entropies = [row.cross_entropy for row in rows if row.cross_entropy is not None]
    if entropies:
        found |= {"cross_entropy_low": min(entropies), "cross_entropy_high": max(entropies)}
    return replace(first, **found)
