"""The document's models: their sizes, their parameters, the tensor C of Eq 7.

Sizes that its text leaves out are those of the code it points to: vocabulary, feed-forward
width, the second hidden layer, biases, the class token.
"""

from collections.abc import Mapping
from functools import cache

from attnprof import registry
from attnprof.costs import exact_div
from attnprof.mechanism import Mechanism
from attnprof.models import preset
from attnprof.papers.documents import document
from attnprof.workload import Workload

DOCUMENT = document("001")
#: Tokens of the vocabulary (bert-base-cased) and the feed-forward layer's width.
_CONFIG = preset("001-lm-dot").config
VOCABULARY, FEED_FORWARD = _CONFIG.vocab_size, _CONFIG.hidden
CHANNELS = 3
CLASSES = {"cifar10": 10, "cifar100": 100}
MILLION = 1e6


def settings(task: str) -> dict[str, str]:
    """A task's settings as the document gives them."""
    rows = DOCUMENT.rows("settings")
    return {row["key"]: row["value"] for row in rows if row["task"] == task}


def rows_by_projection(table: str, column: str) -> dict[str, float]:
    """A column of a table, by :func:`name_of`."""
    return {name_of(row): float(row[column]) for row in DOCUMENT.rows(table)}


def name_of(row: Mapping[str, str]) -> str:
    """What a row is called here: ``dot``, ``d'=2``, or ``none``."""
    if row.get("method") == "dot_product":
        return "dot"
    none = row["d_prime_printed"].startswith("None")
    return "none" if none else f"d'={row['d_prime']}"


def projection(name: str) -> int | None:
    """The d' of a row; None where nothing is projected."""
    return None if name in ("dot", "none") else int(name.removeprefix("d'="))


def workload(task: str, phase: str = "forward") -> Workload:
    """One sample of a task through one attention layer."""
    told = settings(task)
    heads = int(told["heads"])
    return Workload(
        int(told["seq_len"]), heads, exact_div(int(told["d_model"]), heads), phase=phase,
        causal=task == "nlp",
    )  # fmt: skip


def attention(name: str) -> Mechanism:
    """A row's mechanism: no bias for the dot product, Neural Attention as Algorithm 1 writes it."""
    if name == "dot":
        return registry.get("standard", bias=False)
    return registry.get("neural", down_dim=projection(name), depth=2, impl="naive")


def linear(inputs: int, outputs: int) -> int:
    """Weights and biases of a linear map."""
    return inputs * outputs + outputs


def added(task: str, name: str) -> int:
    """Parameters that Neural Attention adds to its layer: projections and scorer."""
    return 0 if name == "dot" else int(attention(name).parameters(workload(task), "core"))


def _layers(task: str, name: str) -> int:
    """All layers: attention, two normalisations, a feed-forward network; ``name`` in the first."""
    sizes = workload(task)
    width = int(sizes.d_model)
    network = linear(width, FEED_FORWARD) + linear(FEED_FORWARD, width)
    one = int(attention("dot").parameters(sizes)) + network + 2 * 2 * width
    return int(settings(task)["layers"]) * one + added(task, name)


@cache
def language_model(name: str) -> int:
    """Parameters of the language model with this attention in the first layer."""
    width = int(workload("nlp").d_model)
    return VOCABULARY * width + _layers("nlp", name) + 2 * width + linear(width, VOCABULARY)


@cache
def vision_model(name: str, dataset: str) -> int:
    """Parameters of the vision transformer: patches, a class token, and a head for the classes."""
    width, patch = int(workload("vision").d_model), int(settings("vision")["patch"])
    ends = linear(CHANNELS * patch**2, width) + width + 2 * width + linear(width, CLASSES[dataset])
    return _layers("vision", name) + ends


def size_of_c(task: str, name: str, batch: int) -> float:
    """GB that C (Eq 7) takes in float32, of all heads of a batch."""
    sizes = workload(task)
    printed = next(form for form in attention(name).published() if form.source == "001-EQ7")
    return float(batch * sizes.num_heads * printed.formula(sizes) * sizes.item_size / 1e9)
