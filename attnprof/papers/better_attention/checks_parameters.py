"""Checks of document 000's parameter counts, from the sizes that it states for its experiments.

Tables 1, 3, 5, 6, 8, 9 and 10 print parameters of a layer, Table 7 those of whole models.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, partial
from math import isqrt
from typing import Any, NamedTuple

from attnprof import registry
from attnprof.costs import exact_div
from attnprof.models import build, parts, preset
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.documents import document, number
from attnprof.workload import Workload

DOCUMENT = document("000")
MECHANISMS = ("standard", "optimised", "efficient", "super")
#: Files of the tables by number.
TABLES = {
    str(int(path.stem[5:7])): path.stem
    for path in sorted((DOCUMENT.path / "tables").glob("table*.csv"))
}
#: The table of one mechanism's results by head count, for a dataset of the main tables.
BY_HEADS = {"MNIST": "5", "CIFAR100": "6", "IMDB": "8", "Amazon": "9", "NMT": "10"}
#: Datasets of tables about a single dataset, which have no column for it.
DATASETS = {"3": "NMT", "7": "ImageNet", **{table: data for data, table in BY_HEADS.items()}}


class Experiment(NamedTuple):
    """The sizes of an experiment; the length is None if it varies."""

    d_model: int
    num_heads: int
    seq_len: int | None


#: The sizes that Sec 4.1, App B.3 (vision) and App B.4 (text) state.
EXPERIMENTS = {
    "MNIST": Experiment(128, 4, 64),
    "CIFAR100": Experiment(256, 8, 256),
    "ImageNet": Experiment(768, 12, 256),
    "IMDB": Experiment(32, 4, 32),
    "Amazon": Experiment(64, 4, 64),
    "NMT": Experiment(1024, 4, None),
}
#: ImageNet's pictures and patches, pixels a side (App B.3), and tokens without a class token.
IMAGE_SIDE, PATCH_SIDE = 112, 8
IMAGENET_PATCHES = (IMAGE_SIDE // PATCH_SIDE) ** 2
CLASSES = 1000


def rows(table: str, attention: str = "") -> list[dict[str, str]]:
    """Return a table's rows by its number, ``rows("5")``, with their dataset; of one or all."""
    table_rows = DOCUMENT.rows(TABLES[table])
    for row in table_rows:
        row.setdefault("dataset", DATASETS.get(table, ""))
    return [row for row in table_rows if attention in ("", row["attention"])]


def value(table: str, column: str, attention: str, **where: str) -> float:
    """Return a printed number: ``value("1", "acc_pct", "super", dataset="MNIST")``."""
    matching = rows(table, attention)
    (row,) = (row for row in matching if all(row[name] == text for name, text in where.items()))
    return number(row[column])


@cache
def parameters(mechanism: str, d_model: int, seq_len: int = 1, heads: int = 1) -> int:
    """Return a layer's parameters, all maps with bias; only Super's depend on the length."""
    sizes = Workload(seq_len, heads, exact_div(d_model, heads))
    return int(registry.get(mechanism).parameters(sizes))


def implied_length(count: int, d_model: int) -> int | None:
    """Return the length at which Super's layer has that many parameters; None if none has."""
    length = isqrt(max(count - parameters("efficient", d_model), 0))
    return length if length and parameters("super", d_model, length) == count else None


def expected(row: dict[str, str]) -> int:
    """Return a layer's parameters at the row's number of heads and the length that the text states.

    For ImageNet the text states two; ours is that of ViT-B/16: patches and a class token.
    """
    imagenet = row["dataset"] == "ImageNet"
    length = IMAGENET_PATCHES + 1 if imagenet else EXPERIMENTS[row["dataset"]].seq_len
    return parameters(row["attention"], int(row["d_m"]), length or 1, int(row["h"] or 1))


def abbreviated(count: int) -> int:
    """Return a number cut off as in Table 1: to thousands, or to hundredths of a million."""
    unit = 10_000 if count >= 1_000_000 else 1_000
    return count // unit * unit


def totals() -> dict[str, float]:
    """Return millions of parameters of ViT-B/16 with the changes that App B.3 and Table 7 name."""
    return {name: (rest + (width + 1) * CLASSES) / 1e6 for name, width, rest in encoders()}


@cache
def encoders() -> list[tuple[str, int, int]]:
    """Return mechanism, width and parameters of each of Table 7's models without a classifier."""
    models = []
    for name in (row["attention"] for row in rows("7")):
        config = preset(f"000-imagenet-equal-{name}").config
        headless = build(config.with_(num_classes=None, head_hidden=None), device="meta")
        models.append((name, config.d_model, sum(parts(headless).values())))
    return models


def _by_heads(count: Callable[[dict[str, str]], int], table: str, name: str) -> dict[str, int]:
    return {f"h={row['h']}": count(row) for row in rows(table, name)}


def _stated(dataset: str, mechanism: str, said: Any, ours: Any) -> dict[str, str]:
    """Return the sentence on a layer's parameters, and the length that gives the printed number."""
    width, _, length = EXPERIMENTS[dataset]
    heads = max(ours, key=lambda name: said.get(name) != ours[name])  # the first that differs
    printed, count = said.get(heads, 0), ours[heads]
    needed = implied_length(printed, width) if mechanism == "super" else None
    if needed is None or length is None:
        return {"told": f"a layer of width {width} has {count:,}"}
    token = ": its patches and a class token" if needed == length + 1 else ""
    stated = f"the stated context length {length} gives {count:,}"
    return {"told": f"{stated}; {printed:,} needs l = {needed}{token}"}


def _hidden_layers(said: Mapping[str, float], _: Any) -> dict[str, str]:
    """Return the widths of a classifier's hidden layer with which all totals of Table 7 fit."""
    models = [(w, rest, round(100 * said[name])) for name, w, rest in encoders()]
    fitting = [
        str(n)
        for n in range(500, 4001)
        if all((rest + (w + 1) * n + (n + 1) * CLASSES) // 10_000 == to for w, rest, to in models)
    ]
    return {"units": ", ".join(fitting) or "no number of"}


def _on_imagenet(*lengths: int) -> dict[str, Any]:
    """Return Super's parameters at the stated length and at ours, and Table 1's, in millions."""
    counts = [parameters("super", EXPERIMENTS["ImageNet"].d_model, length) for length in lengths]
    return {"counts": counts, "printed": value("1", "params", "super", dataset="ImageNet") / 1e6}


def _table_1(count: Callable[[dict[str, str]], int]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for row in rows("1"):
        table.setdefault(row["dataset"], {})[row["attention"]] = count(row)
    return table


def _shares() -> dict[str, str]:
    counts = {name: parameters(name, EXPERIMENTS["NMT"].d_model) for name in MECHANISMS[:3]}
    full = counts.pop("standard")
    return {name: str(Fraction(count, full)) for name, count in counts.items()}


def _mixing() -> float:
    """Return millions of parameters of Table 7's maps that mix tokens."""
    layers = int(value("7", "att_layers", "super"))
    extra = parameters("super", 804, IMAGENET_PATCHES + 1) - parameters("efficient", 804)
    return layers * extra / 1e6


#: Claims of a layer's parameters by head count: dataset, table and mechanism.
LAYERS = {
    f"000-PAR-T{table}_{dataset}-{mechanism}": (dataset, table, mechanism)
    for dataset, table in BY_HEADS.items()
    for mechanism in MECHANISMS
    if rows(table, mechanism)
}
PRINTED: Printed = {
    **{claim: _by_heads(lambda row: int(row["params"]), *key[1:]) for claim, key in LAYERS.items()},
    "000-PAR-T1-abbrev": _table_1(lambda row: int(row["params"])),
    "000-PAR-T3-abbrev": {row["attention"]: number(row["params"]) for row in rows("3")},
    "000-CTX-ImageNet": EXPERIMENTS["ImageNet"].seq_len,
    "000-TABLE7": {row["attention"]: number(row["params"]) / 1e6 for row in rows("7")},
    "000-TABLE7-WA": round(
        (value("7", "params", "super") - value("7", "params", "efficient")) / 1e6, 2
    ),
}
OURS: Ours = {
    **{claim: partial(_by_heads, expected, *key[1:]) for claim, key in LAYERS.items()},
    "000-PAR-T1-abbrev": lambda: _table_1(lambda row: abbreviated(expected(row))),
    "000-PAR-T3-abbrev": lambda: {row["attention"]: round(expected(row), -5) for row in rows("3")},
    "000-CTX-ImageNet": lambda: IMAGENET_PATCHES,
    "000-CAP-T3T10": _shares,
    "000-TABLE7": totals,
    "000-TABLE7-WA": _mixing,
}
FACTS: Facts = {
    **{claim: partial(_stated, key[0], key[2]) for claim, key in LAYERS.items()},
    "000-CTX-ImageNet": _on_imagenet,
    "000-TABLE7": _hidden_layers,
}
