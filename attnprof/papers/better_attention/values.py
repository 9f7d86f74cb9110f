"""The numbers of 000's tables, the sizes of its experiments, and its counts in l, d_m and h."""

from collections.abc import Callable
from functools import cache
from math import isqrt
from typing import Any, NamedTuple

import sympy

from attnprof import registry
from attnprof.costs import CostTable, exact_div
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
#: Datasets of the tables that have one and do not name it.
DATASETS = {"3": "NMT", "7": "ImageNet", **{table: data for data, table in BY_HEADS.items()}}


def rows(table: str, attention: str = "") -> list[dict[str, str]]:
    """A table's rows, by its number: ``rows("5")``; each says its dataset; of one mechanism."""
    table_rows = DOCUMENT.rows(TABLES[table])
    for row in table_rows:
        row.setdefault("dataset", DATASETS.get(table, ""))
    return [row for row in table_rows if attention in ("", row["attention"])]


def value(table: str, column: str, attention: str, **where: str) -> float:
    """One number: ``value("1", "acc_pct", "super", dataset="MNIST")``."""
    matching = rows(table, attention)
    (row,) = (row for row in matching if all(row[name] == text for name, text in where.items()))
    return number(row[column])


class Experiment(NamedTuple):
    """An experiment's sizes; no length where it varies."""

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
#: Context length, model width, heads.
SYMBOLS = LENGTH, WIDTH, HEADS = sympy.symbols("l d_m h", positive=True)


def _workload(phase: str) -> Workload:
    return Workload(LENGTH, HEADS, WIDTH / HEADS, phase=phase)


@cache
def eq24(mechanism: str) -> Any:
    """Eq 24 as printed."""
    printed = registry.get(mechanism).published()
    (entry,) = (one for one in printed if one.source == "000-EQ24")
    return entry.formula(_workload("train"))


@cache
def definition(mechanism: str) -> CostTable:
    """The steps of a definition's forward pass, without biases."""
    return registry.get(mechanism, bias=False).definition(_workload("forward"))


@cache
def multiply_adds(mechanism: str) -> Any:
    """Multiplications and additions of all matrix products, forward and backward."""
    table = registry.get(mechanism, bias=False).cost(_workload("train"))
    return sympy.expand(table.matmul_flops)


@cache
def results_counted(mechanism: str) -> Any:
    """Eq 24's own convention: one operation for each result, the backward pass twice the forward.

    A product counts its results instead of its multiplications and additions; scaling,
    exponentials, row sums and normalisation count one an entry.
    """
    total = definition(mechanism).total
    return sympy.expand(3 * (total.dot_outputs + total.flops - total.matmul_flops))


@cache
def weights(mechanism: str) -> Any:
    """Parameters without biases, as the remarks count them."""
    return sympy.expand(registry.get(mechanism, bias=False).parameters(_workload("forward")))


def ratio(count: Callable[[str], Any], mechanism: str = "efficient") -> Any:
    """A count of standard over that of another mechanism."""
    return sympy.cancel(count("standard") / count(mechanism))


def products(mechanism: str) -> Any:
    """Matrix products of one forward pass by the definition: one a head each, and that with W^O."""
    stages = [stage for stage in definition(mechanism) if stage.cost.matmul_flops != 0]
    return (len(stages) - 1) * HEADS + 1


@cache
def parameters(mechanism: str, d_model: int, seq_len: int = 1, heads: int = 1) -> int:
    """Parameters of a layer whose maps all have a bias; the length matters to Super alone."""
    sizes = Workload(seq_len, heads, exact_div(d_model, heads))
    return int(registry.get(mechanism).parameters(sizes))


def implied_seq_len(count: float, d_model: int) -> int | None:
    """The length at which Super's layer has that many parameters; None where no length has."""
    rest = int(count) - parameters("efficient", d_model)
    length = isqrt(max(rest, 0))
    return length if length and parameters("super", d_model, length) == count else None


@cache
def counter(count: Callable[[str], Any], mechanism: str) -> Callable[[int, int, int], int]:
    """One of the counts above as a function of whole l, d_m and h."""
    function: Callable[[int, int, int], int] = sympy.lambdify(SYMBOLS, count(mechanism), "math")
    return function
