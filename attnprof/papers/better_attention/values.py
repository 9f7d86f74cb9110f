"""The numbers of 000's tables, by what stands in their rows."""

from __future__ import annotations

from attnprof.papers.documents import document

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
    return [{"dataset": dataset, **row} for row in document("000").rows(name)]


def value(table: str, column: str, attention: str, **where: str) -> float:
    """One number: ``value("1", "acc_pct", "super", dataset="MNIST")``."""
    wanted = {"attention": attention, **where}
    (row,) = (row for row in rows(table) if all(row[name] == text for name, text in wanted.items()))
    return number(row[column])


def number(text: str) -> float:
    """A printed number; whole numbers stay whole."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


def quoted(name: str) -> float:
    """A percentage that the text quotes, by its id in ``quoted_percentages.csv``."""
    found = {row["id"]: row["printed_pct"] for row in document("000").rows("quoted_percentages")}
    return number(found[name])
