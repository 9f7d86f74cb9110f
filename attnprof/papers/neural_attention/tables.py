"""001's tables, made again: sizes and gains computed, memory beside what C alone takes."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import ge
from typing import Any

from attnprof.papers.checks import rounded, within
from attnprof.papers.neural_attention.checks import (
    gain,
    least_memory,
    least_time,
    millions,
    reduction,
)
from attnprof.papers.neural_attention.models import DOCUMENT, MILLION, name_of, vision_model
from attnprof.papers.regenerated import Cell, Table

METHODS = {"dot_product": "Dot-Product Attention", "neural": "Neural Attention"}
PROJECTION, SIZE = "down-projection (d')", "model size (M)"
BEST = "lowest perplexity"
IMPROVED = "improvement (%)"
ACCURACY = "validation accuracy (%)"
MEMORY, SPEED = "memory (GB/batch)", "inference speed (ms/sample)"
SMALLEST = (
    "memory: a bound, what one tensor must take for the batch in 16 bits: C (Eq 7), for the dot "
    "product the softmax matrices kept for the backward pass"
)
FASTEST = "speed: a bound, what the attention layers take at least on an RTX 4090; not measured"
SIZES = (
    f"{SIZE}: ours with widths and a vocabulary that the document does not give, those of its "
    "public code"
)
TRAINED = "a result of training, not computed here"


def accuracies(table: str, dataset: str) -> Table:
    """Tables 3 and 4."""
    rows = []
    for row in DOCUMENT.rows(table):
        size = Cell(
            float(row["params_M"]), vision_model(name_of(row), dataset) / MILLION,
            within(absolute=0.001),
        )  # fmt: skip
        rows.append({**_row(row), SIZE: size, ACCURACY: float(row["val_acc_pct"])})
    return Table(f"Accuracy after 350 epochs, {dataset}", rows, (SIZES, f"{ACCURACY}: {TRAINED}"))


def costs(table: str, title: str, task: str) -> Table:
    """Tables 6 to 8."""
    bound = partial(Cell, agree=ge, bound="at least")
    rows = [
        {**_row(row),
         MEMORY: bound(float(row["memory_gb_per_batch"]), least_memory(task, name_of(row)) / 2),
         SPEED: bound(float(row["speed_ms_per_sample"]), least_time(task, name_of(row)))}
        for row in DOCUMENT.rows(table)
    ]  # fmt: skip
    return Table(f"Memory and speed, {title}", rows, (SMALLEST, FASTEST))


def _row(row: Mapping[str, str]) -> dict[str, Any]:
    return {"method": METHODS[row["method"]], PROJECTION: row["d_prime_printed"]}


TABLES: dict[str, Callable[[], Table]] = {
    "1": lambda: Table("Perplexity after a million iterations", [
        {**_row(row), SIZE: Cell(float(row["params_M"]), millions(name_of(row)), rounded(3)),
         BEST: float(row["lowest_perplexity"])}
        for row in DOCUMENT.rows("table01_wikitext103_perplexity")
    ], (SIZES, f"{BEST}: {TRAINED}")),
    "2": lambda: Table("Perplexity against the dot product", [
        {PROJECTION: row["d_prime_printed"],
         IMPROVED: Cell(float(row["improvement_pct"]), reduction(name_of(row)), rounded(2))}
        for row in DOCUMENT.rows("table02_perplexity_gain")
    ]),
    "3": partial(accuracies, "table03_cifar10", "cifar10"),
    "4": partial(accuracies, "table04_cifar100", "cifar100"),
    "5": lambda: Table("Accuracy against the dot product", [
        {"dataset": row["dataset"],
         "improvement (points)": Cell(float(row["gain_points"]), gain(row["dataset"]), rounded(2))}
        for row in DOCUMENT.rows("table05_accuracy_gain")
    ]),
    "6": partial(costs, "table06_cost_wikitext103", "WikiText-103", "nlp"),
    "7": partial(costs, "table07_cost_cifar10", "CIFAR-10", "vision"),
    "8": partial(costs, "table08_cost_cifar100", "CIFAR-100", "vision"),
}  # fmt: skip
