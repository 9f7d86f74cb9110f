"""The numbers of 000's tables, by what stands in their rows, and the sizes of its experiments."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.papers.documents import document, number

MECHANISMS = ("standard", "optimised", "efficient", "super")
#: File and dataset of a table; its own dataset column where it has several.
TABLES = {
    "1": ("table01_main", ""),
    "2": ("table02_text_classification", ""),
    "3": ("table03_nmt", "NMT"),
    "4": ("table04_edge_inference", ""),
    "5": ("table05_mnist_heads", "MNIST"),
    "6": ("table06_cifar100_heads", "CIFAR100"),
    "7": ("table07_imagenet_equal_size", "ImageNet"),
    "8": ("table08_imdb_heads", "IMDB"),
    "9": ("table09_amazon_heads", "Amazon"),
    "10": ("table10_nmt_heads", "NMT"),
}
#: The table of one mechanism's results by head count, for a dataset of the main tables.
BY_HEADS = {"MNIST": "5", "CIFAR100": "6", "IMDB": "8", "Amazon": "9", "NMT": "10"}


def rows(table: str) -> list[dict[str, str]]:
    """A table's rows, by its number: ``rows("5")``; each says its dataset."""
    name, dataset = TABLES[table]
    found = document("000").rows(name)
    for row in found:
        row.setdefault("dataset", dataset)
    return found


def value(table: str, column: str, attention: str, **where: str) -> float:
    """One number: ``value("1", "acc_pct", "super", dataset="MNIST")``."""
    wanted = {"attention": attention, **where}
    (row,) = (row for row in rows(table) if all(row[name] == text for name, text in wanted.items()))
    return number(row[column])


def quoted(name: str) -> float:
    """A percentage that the text quotes, by its id in ``quoted_percentages.csv``."""
    found = {row["id"]: row["printed_pct"] for row in document("000").rows("quoted_percentages")}
    return number(found[name])


@dataclass(frozen=True)
class Experiment:
    """An experiment's sizes and the place that states them; no length where it varies."""

    d_model: int
    num_heads: int
    seq_len: int | None
    place: str


EXPERIMENTS = {
    "MNIST": Experiment(128, 4, 64, "Sec 4.1, App B.3"),
    "CIFAR100": Experiment(256, 8, 256, "Sec 4.1, App B.3"),
    "ImageNet": Experiment(768, 12, 256, "Sec 4.1, App B.3"),
    "IMDB": Experiment(32, 4, 32, "App B.4.1"),
    "Amazon": Experiment(64, 4, 64, "App B.4.1"),
    "NMT": Experiment(1024, 4, None, "App B.4.2"),
}
#: ImageNet's pictures and patches, pixels a side (App B.3), and ViT-B/16's fixed sizes.
IMAGE_SIDE, PATCH_SIDE, COLOURS = 112, 8, 3
IMAGENET_CLASSES, VIT_HIDDEN = 1000, 3072


def imagenet_patches() -> int:
    """Tokens of one picture, without a class token."""
    return (IMAGE_SIDE // PATCH_SIDE) ** 2
