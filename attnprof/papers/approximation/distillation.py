"""003's experiment: a teacher, students with approximate attention, twice the length.

The setting ``fair`` follows its text: a teacher that learns the task, and students with one loss,
the same steps and batches, one of them with standard attention. ``printed`` follows its listing:
random rows instead of the source, one batch, a teacher whose targets are its own first answers, no
heads, projections or mask. Both translate a made-up language
(:func:`sentence_pairs`). Entry point: :data:`EXPERIMENTS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from attnprof.models import ModelConfig, build, load
from attnprof.papers.approximation import checks
from attnprof.papers.approximation.checks import CLASSES, SETTINGS

#: Token ids for padding, begin, end, and of the first word.
PAD, BEGIN, END, FIRST = 0, 1, 2, 3
#: The loss of a model, from its logits and the examples.
Loss = Callable[[Tensor, "Examples"], Tensor]
TEMPERATURE, ALPHA = float(SETTINGS["DISTILLATION_TEMP"]), float(SETTINGS["ALPHA"])
RATE, BATCH = float(SETTINGS["LEARNING_RATE"]), int(SETTINGS["BATCH_SIZE"])
PATIENCE = int(SETTINGS["early_stop_patience_teacher"])
#: Students wait longer; the listing does not say how long, as it defines no EarlyStopper.
STUDENTS_PATIENCE = 10 * PATIENCE
TEACHER = "teacher"
#: A function that is called with steps done, all steps, and the name of the trained model.
Tell = Callable[[int, int, str], None]


def sentence_pairs(
    vocabulary: int, seed: int, count: int, tokens: int, rng: Generator
) -> tuple[Tensor, Tensor]:
    """Return sentences over ``vocabulary`` tokens and translations, (count, tokens) numbers each.

    Both languages have the same numbers as words. The first word of a sentence selects one of two
    dictionaries, drawn from ``seed`` (a rule over the whole sentence). Words come in pairs: a word
    of the first half of the vocabulary before one of the second half changes places with it (a rule
    of neighbours). Sentences fill half to all of their places.
    """
    words = vocabulary - FIRST
    length = torch.randint(tokens // 2, tokens - 1, (count, 1), generator=rng)
    source = torch.randint(words, (count, tokens + tokens % 2), generator=rng)
    dialect = source[:, :1] % 2 == 0
    left, right = source.view(count, -1, 2).unbind(-1)
    swapped = (left < words // 2) & (right >= words // 2)
    placed = torch.stack(
        (torch.where(swapped, right, left), torch.where(swapped, left, right)), -1
    ).view(count, -1)
    generator = torch.Generator().manual_seed(seed)
    one, other = (torch.randperm(words, generator=generator) for _ in range(2))
    target = torch.where(dialect, one[placed], other[placed])
    place = torch.arange(tokens)
    inside = place < length
    ended = torch.where(place == length, END, PAD)
    source, target = (torch.where(inside, x[:, :tokens] + FIRST, ended) for x in (source, target))
    begun = torch.cat((torch.full((count, 1), BEGIN), target[:, :-1]), 1)
    return source, begun


@dataclass(frozen=True)
class ExperimentSizes:
    """The sizes and steps of the experiment, and the number of tested sentences.

    Linformer's length, Performer's features and Longformer's window are the same shares of the
    tokens and the width as in the document.
    """

    tokens: int = 64
    width: int = 64
    heads: int = 4
    vocabulary: int = 27
    batch: int = 16
    steps: int = 800
    rate: float = 4e-3
    printed_steps: int = 3000
    tested: int = 64

    @property
    def total_steps(self) -> int:
        """Steps of all models in both settings, where none stops early."""
        return self.steps * (1 + len(CLASSES)) + self.printed_steps * len(CLASSES)

    def config(self, name: str, setting: str) -> ModelConfig:
        """Return the document's model with one of its classes, at this scale."""
        settings = {
            "linformer": {"proj_len": max(1, self.tokens * checks.LENGTH // checks.TOKENS)},
            "performer": {"num_features": max(1, self.width * checks.FEATURES // checks.WIDTH)},
            "longformer": {"window": max(1, self.tokens * checks.WINDOW // checks.TOKENS)},
        }.get(name, {})
        base = load(f"003-printed-{name}" if setting == "printed" else f"003-{name}")
        first, more = base.attention[0], dict[str, Any]()
        if setting == "fair":  # nothing random in training but its batches
            more = {"num_heads": self.heads, "dropout": 0.0}
        return base.with_(
            d_model=self.width, seq_len=self.tokens, vocab_size=self.vocabulary, **more,
            attention={"name": first.name, **dict(first.params), **settings},
        )  # fmt: skip


FULL = ExperimentSizes()
QUICK = ExperimentSizes(
    tokens=16, width=16, heads=2, vocabulary=15, batch=4, steps=6, printed_steps=4, tested=4
)


@dataclass
class Trained:
    """A trained model, the seed of its first weights, its steps, its first and last loss."""

    name: str
    setting: str
    config: ModelConfig
    model: Any
    seed: int
    steps: int = 0
    losses: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Examples:
    """Inputs of models, (source, target without its last token), and the target tokens."""

    source: Tensor
    target: Tensor

    @property
    def called_with(self) -> tuple[Tensor, Tensor]:
        """The encoder's input, and the target without its last token."""
        return self.source, self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """The tokens to predict, (sentences · tokens)."""
        return self.target[:, 1:].flatten()


#: Teacher and students, and examples of the trained length and of twice that.
Outcome = tuple[list[Trained], Examples, Examples]


def _fair(scale: ExperimentSizes, seed: int, tell: Tell) -> Outcome:
    pairs = partial(sentence_pairs, scale.vocabulary, seed)

    def train(one: Trained, loss: Loss) -> Trained:
        rng = torch.Generator().manual_seed(seed + 1)
        batches = iter(lambda: Examples(*pairs(scale.batch, scale.tokens, rng)), None)
        return _train(one, batches, loss, scale.steps, scale.rate, tell)

    def distilled(logits: Tensor, batch: Examples) -> Tensor:
        """Return the document's loss against the teacher's answers, both parts without padding."""
        return mixed_loss(logits, answers(teacher.model, batch), batch, batch.labels != PAD)

    teacher = train(_started(TEACHER, "standard", "fair", scale, seed), cross_entropy)
    students = [train(_started(n, n, "fair", scale, seed + 2), distilled) for n in CLASSES]
    rng = torch.Generator().manual_seed(seed + 3)
    short, long = (
        Examples(*pairs(scale.tested, tokens, rng)) for tokens in (scale.tokens, 2 * scale.tokens)
    )
    return [teacher, *students], short, long


def _printed(scale: ExperimentSizes, seed: int, tell: Tell) -> Outcome:
    rng = torch.Generator().manual_seed(seed + 1)

    def examples(tokens: int) -> Examples:
        _, target = sentence_pairs(scale.vocabulary, seed, BATCH, tokens, rng)
        return Examples(torch.randn(BATCH, tokens, scale.width, generator=rng), target)

    short, long = examples(scale.tokens), examples(2 * scale.tokens)

    def train(one: Trained, loss: Loss, patience: int) -> Trained:
        return _train(one, repeat(short), loss, scale.printed_steps, RATE, tell, patience)

    def distilled(logits: Tensor, batch: Examples) -> Tensor:
        return mixed_loss(logits, goal, batch)

    standard, *others = CLASSES  # each model starts from weights of its own, as listed
    teacher = _started(TEACHER, standard, "printed", scale, seed + 2)
    first = answers(teacher.model, short)  # the teacher is held to its own first answers
    train(teacher, lambda logits, _: F.mse_loss(logits, first), PATIENCE)
    goal = answers(teacher.model, short)
    students = []
    for place, name in enumerate(others, start=1):
        student = _started(name, name, "printed", scale, seed + 2 + place)
        students.append(train(student, distilled, STUDENTS_PATIENCE))
    return [teacher, *students], short, long


#: By setting, a function that returns trained models and the examples that they are tested on.
EXPERIMENTS = {"fair": _fair, "printed": _printed}


def _started(name: str, kind: str, setting: str, scale: ExperimentSizes, seed: int) -> Trained:
    """Return a model before its first step; models of one seed start with equal shared parts."""
    config = scale.config(kind, setting)
    torch.default_generator.manual_seed(seed)
    return Trained(name, setting, config, build(config), seed)


def answers(model: Any, examples: Examples) -> Tensor:
    """Return logits (sentences · tokens, vocabulary), without dropout and gradients."""
    model.eval()
    with torch.no_grad():
        return _logits(model, examples)


def _logits(model: Any, examples: Examples) -> Tensor:
    logits: Tensor = model(*examples.called_with)
    return logits.flatten(0, 1)


def cross_entropy(logits: Tensor, examples: Examples) -> Tensor:
    """Return the cross-entropy of the target tokens, without padding, in nats."""
    return F.cross_entropy(logits, examples.labels, ignore_index=PAD)


def divergence(logits: Tensor, goal: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(goal ‖ logits) at a temperature, the mean over rows; nats."""
    student, teacher = ((x / temperature).log_softmax(-1) for x in (logits, goal))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def mixed_loss(logits: Tensor, goal: Tensor, examples: Examples, kept: Any = ...) -> Tensor:
    """Return the document's loss against the teacher's answers: by default also on padding."""
    soft = divergence(logits[kept], goal[kept], TEMPERATURE) * TEMPERATURE**2
    return ALPHA * cross_entropy(logits, examples) + (1 - ALPHA) * soft


def _train(
    one: Trained, batches: Iterator[Examples], loss_of: Loss, steps: int, rate: float, tell: Tell,
    patience: int | None = None,
) -> Trained:  # fmt: skip
    """Return the model trained by Adam.

    With ``patience``, training ends after so many steps without a lower cross-entropy.
    """
    one.model.train()
    optimizer = torch.optim.Adam(one.model.parameters(), lr=rate)
    best, waited, first = float("inf"), 0, None
    for step in range(steps):
        examples = next(batches)
        logits = _logits(one.model, examples)
        loss = loss_of(logits, examples)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        last = float(loss.detach())
        first = last if first is None else first
        one.steps, one.losses = step + 1, (first, last)
        tell(step + 1, steps, f"{one.setting}: {one.name}")
        if patience is not None:
            now = float(cross_entropy(logits.detach(), examples))
            best, waited = (now, 0) if now < best else (best, waited + 1)
            if waited >= patience:
                break
    one.model.eval()
    return one
