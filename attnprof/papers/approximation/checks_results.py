"""003: its training, its losses and what it reports, held against each other."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.nn import functional as F

from attnprof.papers.approximation.program import (
    CLASSES,
    DOCUMENT,
    FEATURES,
    LENGTH,
    SETTINGS,
    TOKENS,
    WIDTH,
    derived,
)
from attnprof.papers.checks import MEASURED, NOT_REPRODUCIBLE, READING, Checks, rounded
from attnprof.papers.measured import measured

FIGURE_Z = "figZ_quoted_numbers"
#: Tokens of the t5-small tokenizer.
VOCABULARY = 32_100
#: What the document's code writes for a model whose test on longer texts failed.
FAILED = 1000.0
CHECKS = Checks()
_about = partial(CHECKS.answers, tables=(FIGURE_Z,))


def quoted(quantity: str) -> dict[str, float]:
    """Figure Z's numbers of a quantity, by model."""
    rows = DOCUMENT.rows(FIGURE_Z)
    return {row["model"]: float(row["value"]) for row in rows if row["quantity"] == quantity}


@_about(
    "003-TEACHER",
    True,
    how="its final cross-entropy (11.5 nats) against the logarithm of the vocabulary of the "
    "tokenizer that it names, t5-small with 32,100 tokens",
    why="11.5 nats are more than ln 32,100 = 10.38, the cross-entropy of giving all tokens the "
    "same chance: its training step draws the model to its own first logits (MSE), the task's "
    "loss only decides when to stop",
)
def _better_than_guessing() -> bool:
    return quoted("final_true_ce")["standard_mha"] < math.log(VOCABULARY)


@CHECKS.answers(
    "003-KD",
    0.0,
    how="read in the listing: the loss, alpha CE + (1 - alpha) T^2 KL; its value on made-up "
    "logits where the student's are the teacher's, which is where MSE is zero",
    basis=READING,
    agree=rounded(6),
    why="the listing minimises alpha CE + (1 - alpha) T^2 KL at T = 3, alpha = 0.5: at the "
    "teacher's own logits alpha CE is left. MSE is only what it reports in the end",
)
def _loss_at_the_teacher() -> float:
    made = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 32, generator=made)
    labels = torch.randint(0, 32, (16,), generator=made)
    soft, hard = float(SETTINGS["DISTILLATION_TEMP"]), float(SETTINGS["ALPHA"])
    tempered = (logits / soft).log_softmax(-1)
    apart = F.kl_div(tempered, tempered, reduction="batchmean", log_target=True) * soft**2
    return round(float(hard * F.cross_entropy(logits, labels) + (1 - hard) * apart), 6)


def operations() -> dict[str, float]:
    """Operations of one call of each class, one sequence at the document's sizes."""
    sizes = {"B": 1, "N": TOKENS, "d": WIDTH, "L": LENGTH, "m": FEATURES}
    forms = {name: derived(name) for name in CLASSES}
    return {
        name: float(form.subs({symbol: sizes[symbol.name] for symbol in form.free_symbols}))
        for name, form in forms.items()
    }


@_about(
    "003-FASTEST",
    "performer",
    how="operations of the three classes at N 2048, d 512, L 128, m 256, derived from running them",
    why="the next paragraph gives Linformer the fastest average time, and its 8 N L d "
    "operations with L = 128 are half of Performer's 8 N m d with m = 256",
)
def cheapest_approximation() -> str:
    """The class with the fewest operations beside the standard one."""
    counts = {name: count for name, count in operations().items() if name != "standard"}
    return min(counts, key=lambda name: counts[name])


@_about(
    "003-RATIO",
    "longformer",
    part="which is the largest",
    how="the largest of the quoted ratios of test error to training error that are not the "
    "code's mark for a failed test",
    why="the ratio divides two errors, so smaller is better: 0.68 is the best of the students, "
    "Performer's 1.02 the worst",
)
def worst_ratio() -> str:
    """The model whose error grows most on the longer test, of those whose test ran."""
    ratios = {name: x for name, x in quoted("generalization_ratio").items() if x < FAILED}
    return max(ratios, key=lambda name: ratios[name])


@_about(
    "003-BEST",
    "standard_mha",
    how="read in the listing: the students' final metric is MSE to the teacher's logits; for "
    "all models quoted, the teacher's own being zero",
    basis=READING,
    why="Standard's 11.5 is a cross-entropy, the students' 0.052 an error against Standard's "
    "own logits: in that metric Standard is exact, and the two numbers cannot be ranked",
)
def _weakest() -> str:
    apart = {**quoted("accuracy_proxy"), "standard_mha": 0.0}  # the teacher is its own target
    return max(apart, key=lambda name: apart[name])


@_about(
    "003-SPEEDUP",
    {name: x for name, x in quoted("practical_speed").items() if name in CLASSES},
    how="processor time of a forward pass of the whole model (N 2048, d 512, one sequence), in "
    "parts, on the machine that the measurement names",
    agree=rounded(4),
    why=lambda said, found: (
        f"the device is not named. On ours Longformer takes "
        f"{found['longformer'] / found['performer']:.2f} times as long as Performer, there "
        f"{said['longformer'] / said['performer']:.2f}: the same order, as its scores are dense"
    ),
    otherwise=NOT_REPRODUCIBLE,
    basis=MEASURED,
)
def seconds() -> dict[str, float]:
    """Measured time of a forward pass through a whole model, one sequence."""
    times: dict[str, float] = measured("003", "model_times")["seconds"]
    return {name: times[name] for name in ("performer", "longformer")}
