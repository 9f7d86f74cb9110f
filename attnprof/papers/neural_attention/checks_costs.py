"""001: memory and speed (Tables 6 to 8), and the gains in perplexity and accuracy."""

import re
from collections.abc import Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any

from attnprof.device.ceilings import GIGA, TERA, Ceilings
from attnprof.device.roofline import roofline
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.neural_attention import models
from attnprof.papers.neural_attention.models import DOCUMENT

PERPLEXITIES = models.rows_by_projection("table01_wikitext103_perplexity", "lowest_perplexity")
TABLE = "table06_cost_wikitext103"
MEMORY = models.rows_by_projection(TABLE, "memory_gb_per_batch")
SPEED = models.rows_by_projection(TABLE, "speed_ms_per_sample")
GPU = Ceilings(
    "RTX 4090", {"float32": 82.6 * TERA}, 1008 * GIGA,
    "NVIDIA Ada GPU architecture whitepaper, GeForce RTX 4090",
)  # fmt: skip
#: GB of that card.
CARD = float(re.sub(r".* (\d+)GB", r"\1", models.settings("both")["gpu"]))
#: Tables of accuracies.
ACCURACIES = {"cifar10": "table03_cifar10", "cifar100": "table04_cifar100"}


def reduction(name: str) -> float:
    """Perplexity saved against the dot product, in per cent of the dot product's."""
    return 100 * (PERPLEXITIES["dot"] - PERPLEXITIES[name]) / PERPLEXITIES["dot"]


def accuracies(dataset: str) -> dict[str, float]:
    """Those of Table 3 or 4."""
    return models.rows_by_projection(ACCURACIES[dataset], "val_acc_pct")


def gain(dataset: str) -> float:
    """Accuracy gained against the dot product, in percentage points."""
    found = accuracies(dataset)
    return round(found["d'=2"] - found["dot"], 6)


def least_memory(task: str, name: str, batch: int | None = None) -> float:
    """GB that one tensor of a row takes: C (Eq 7), for the dot product all softmax matrices.

    These are kept by all layers for the backward pass; both in float32.
    """
    told, sizes = models.settings(task), models.workload(task)
    size = int(told["batch"]) if batch is None else batch
    if name != "dot":
        return models.size_of_c(task, name, size)
    entries = size * int(told["layers"]) * sizes.num_heads * sizes.seq_len**2
    return float(entries * sizes.item_size / 1e9)


def batch_and_sample(_: Any, ours: Mapping[str, Any]) -> dict[str, Any]:
    """GB of the tensors for one sample, of C for a batch, and of the softmax matrices."""
    return {
        "one": ", ".join(f"{least_memory('nlp', name, 1):.2f}" for name in ours),
        "c": ", ".join(f"{least_memory('nlp', name):.2f}" for name in ours if name != "dot"),
        "softmax": least_memory("nlp", "dot"),
    }


@cache
def peaks() -> dict[str, int]:
    """Peak bytes of a training step of one layer, one sample, as Algorithm 1 allocates."""
    sizes = models.workload("nlp", phase="train")
    return {name: int(models.attention(name).cost(sizes).peak()) for name in MEMORY}


def by_memory(sizes: Mapping[str, float]) -> list[str]:
    """Rows, the largest first."""
    return sorted(sizes, key=lambda name: -sizes[name])


def falls_sharply(sizes: Mapping[str, float]) -> bool:
    """Whether each step to a narrower projection saves a quarter of the memory or more."""
    steps = ("none", "d'=16", "d'=2")
    return all(sizes[after] <= 0.75 * sizes[before] for before, after in pairwise(steps))


def least_time(task: str, name: str) -> float:
    """Milliseconds that the attention layers of one sample take at least on the named card."""
    others = int(models.settings(task)["layers"]) - 1
    return 1e3 * (others * _of_a_layer(task, "dot") + _of_a_layer(task, name))


@cache
def _of_a_layer(task: str, name: str) -> float:
    rate = GPU.flops_per_s["float32"]
    return sum(
        roofline(int(stage.cost.flops), int(stage.cost.bytes_moved), GPU, rate)[0]
        for stage in models.attention(name).cost(models.workload(task))
    )


REDUCTIONS = {f"001-T2-d{row['d_prime']}": row for row in DOCUMENT.rows("table02_perplexity_gain")}
GAINS = {f"001-T5-{row['dataset']}": row for row in DOCUMENT.rows("table05_accuracy_gain")}
PRINTED: Printed = {
    **{claim: float(row["improvement_pct"]) for claim, row in REDUCTIONS.items()},
    **{claim: float(row["gain_points"]) for claim, row in GAINS.items()},
    "001-MEM": MEMORY,
    "001-MEM-mono": {"by falling memory": by_memory(MEMORY), "a quarter less at each step": True},
    "001-SPEED": SPEED,
}
OURS: Ours = {
    **{claim: partial(reduction, models.name_of(row)) for claim, row in REDUCTIONS.items()},
    **{claim: partial(gain, row["dataset"]) for claim, row in GAINS.items()},
    "001-ABS-4pts": lambda: {dataset: gain(dataset) for dataset in ACCURACIES},
    "001-CONC-rel": lambda: {
        name: round(100 * gain(name) / accuracies(name)["dot"], 4) for name in ACCURACIES
    },
    "001-ABS-2pct": lambda: max(reduction(name) for name in PERPLEXITIES if name != "dot"),
    "001-LOWRANK": lambda: PERPLEXITIES["d'=2"] < PERPLEXITIES["none"],
    "001-MEM": lambda: {name: [least_memory("nlp", name) / 2, CARD] for name in MEMORY},
    "001-MEM-mono": lambda: {
        "by falling memory": by_memory(peaks()),
        "a quarter less at each step": falls_sharply(MEMORY) and falls_sharply(peaks()),
    },
    "001-SPEED": lambda: {name: least_time("nlp", name) for name in SPEED},
}
FACTS: Facts = {"001-MEM": batch_and_sample}
