"""What 004 reports of its trainings and measurements: accuracies, memory, quoted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median, mode

from attnprof.papers.agreement import within
from attnprof.papers.documents import document, number

DOCUMENT = document("004")
DATASETS = ("cifar_pixel", "imdb_byte", "listops", "imagenet_ti", "imagenet_s")
OURS, BASELINE = "taylorshift", "transformer"
#: Table 6: images at a time, and MiB.
BATCH, MIB = 16, 2**20
#: An allocator rounds, and the table to whole MiB.
CLOSE = within(absolute=2.5)
#: Bytes of an entry: powers run in float32 under autocast, products in float16.
SINGLE, HALF = 4, 2


def quoted(quantity: str) -> str:
    """A number of the running text, as it is printed there."""
    values = {row["quantity"]: row["value"] for row in DOCUMENT.rows("quoted_numbers")}
    return values[quantity]


def accuracies() -> dict[str, dict[str, float]]:
    """Table 3: percent by model and dataset; a dataset without a result is left out."""
    return {
        row["model"]: {name: float(row[name]) for name in DATASETS if row[name]}
        for row in DOCUMENT.rows("table03_accuracy")
    }


def average(model: str) -> float:
    """Mean accuracy over the datasets that a model has a result on."""
    return round(mean(accuracies()[model].values()), 6)


def ahead_of(model: str) -> list[str]:
    """Datasets on which TaylorShift's printed accuracy is higher."""
    own, other = accuracies()[OURS], accuracies()[model]
    return [name for name in other if own[name] > other[name]]


def column(name: str) -> dict[int, float]:
    """A column of Table 6 by head count."""
    return {int(row["h"]): number(row[name]) for row in DOCUMENT.rows("table06_heads")}


def setting(name: str) -> dict[str, str]:
    """A row of Table 7, by dataset."""
    (row,) = (row for row in DOCUMENT.rows("table07_hyperparameters") if row["param"] == name)
    return {dataset: row[dataset] for dataset in DATASETS}


def tokens() -> int:
    """CIFAR's pixels and one token that collects what is classified."""
    return int(quoted("cifar_seq_len")) + 1


def head_width(dataset: str) -> float:
    """Width of a head by Table 7."""
    return int(setting("d_embed")[dataset]) / int(setting("heads")[dataset])


def common_head_width() -> int:
    """The head width that most models of Table 7 have."""
    return int(mode(head_width(name) for name in DATASETS))


def model_width() -> int:
    """Width of Table 6's model, that of CIFAR."""
    return int(setting("d_embed")["cifar_pixel"])


def entries(form: str, heads: int, length: int) -> int:
    """The printed entries of all heads at Table 6's width."""
    from attnprof import registry
    from attnprof.workload import Workload

    workload = Workload(length, heads, model_width() // heads)
    source = f"004-MHSA-ENT-{form.upper()}"
    forms = registry.get(f"taylor-{form}").published()
    return int(next(f for f in forms if f.source == source).formula(workload))


def mebibytes(form: str, heads: int, item_size: int) -> float:
    """The same for a batch of Table 6."""
    return entries(form, heads, tokens()) * BATCH * item_size / MIB


def beside_entries() -> float:
    """MiB of the direct form that its entries do not account for, from two heads on."""
    printed = column("direct_mem_mib_at16")
    return median(printed[h] - mebibytes("direct", h, SINGLE) for h in printed if h > 1)


def efficient_memory(heads: int) -> float:
    """MiB that the efficient form's entries need in float16, and what is there beside them."""
    return mebibytes("efficient", heads, HALF) + beside_entries()


def steps(values: Sequence[float]) -> list[float]:
    """What each value is above the one before."""
    return [b - a for a, b in pairwise(values)]
