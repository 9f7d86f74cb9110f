"""000: ranks, rows printed twice, what more heads do, and percentages quoted of the tables."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.values import (
    BY_HEADS,
    EXPERIMENTS,
    LENGTH,
    MECHANISMS,
    TABLES,
    eq24,
    multiply_adds,
    ratio,
    rows,
    value,
)
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.documents import number

RANK = "_rank"
#: Ends of the names of columns where less is better.
LESS_IS_BETTER = ("params", "_s", "loss")
#: Columns of the main tables that the tables by head count do not print, or in full.
NOT_REPEATED = {"dataset", "attention", "h", "params", "params_printed"}
Nested = dict[str, dict[str, Any]]


def label(row: dict[str, str]) -> str:
    """A row's name: ``MNIST super``."""
    return " ".join(text for text in (row["dataset"], row["attention"]) if text)


def printed_ranks(table: str) -> Nested:
    """Every rank in parentheses, by row and column."""
    printed = {}
    for row in rows(table):
        ranks = {name: int(row[name]) for name in row if name.endswith(RANK) and row[name]}
        if ranks:
            printed[label(row)] = {name.removesuffix(RANK): rank for name, rank in ranks.items()}
    return printed


def recomputed_ranks(table: str) -> Nested:
    """The same from the values: one more than the number of better ones; equal values share."""
    ranked = [row for row in rows(table) if any(row[n] for n in row if n.endswith(RANK))]
    ranks: Nested = {label(row): {} for row in ranked}
    for column in [n.removesuffix(RANK) for n in rows(table)[0] if n.endswith(RANK)]:
        less = column.endswith(LESS_IS_BETTER)
        values = [(row, _value(row, column)) for row in ranked if row[column]]
        for row, score in values:
            rivals = [value for other, value in values if other["dataset"] == row["dataset"]]
            better = sum(value < score if less else value > score for value in rivals)
            ranks[label(row)][column] = 1 + better
    return ranks


def _value(row: dict[str, str], column: str) -> float:
    """A value; Table 1's abbreviated parameters are looked up where they are printed in full."""
    full = BY_HEADS.get(row["dataset"]) if column == "params" else None
    return number((rows(full, row["attention"])[0] if full else row)[column])


def differences(published: Nested, ours: Nested) -> dict[str, str]:
    """Where two nested dicts differ, in words."""
    differing = (
        f"{row}, {column}: printed {published.get(row, {}).get(column)}, ours {value}"
        for row, values in ours.items()
        for column, value in values.items()
        if published.get(row, {}).get(column) != value
    )
    return {"differences": "; ".join(differing)}


def _main_rows() -> list[dict[str, str]]:
    return [row for table in ("1", "2", "3") for row in rows(table) if row["dataset"] in BY_HEADS]


def printed_again() -> Nested:
    """The appendix's values of the main tables' rows."""
    values: Nested = {}
    for row in _main_rows():
        heads = str(EXPERIMENTS[row["dataset"]].num_heads)
        others = rows(BY_HEADS[row["dataset"]], row["attention"])
        (again,) = (other for other in others if other["h"] == heads)
        values[label(row)] = {
            name: number(again[name.replace("epoch_time_s", "avg_time_s")])
            for name in row
            if name not in NOT_REPEATED and row[name]
        }
    return values


def _by_heads(table: str, mechanism: str) -> list[dict[str, str]]:
    return sorted(rows(table, mechanism), key=lambda row: int(row["h"]))


def improves_with_heads(table: str) -> dict[str, bool]:
    """By mechanism: whether each step to more heads raises training accuracy and lowers loss."""
    return {
        name: all(
            number(more["acc_pct"]) > number(less["acc_pct"])
            and number(more["loss"]) < number(less["loss"])
            for less, more in pairwise(_by_heads(table, name))
        )
        for name in MECHANISMS
        if rows(table, name)
    }


def with_heads(table: str, published: Any, ours: dict[str, bool]) -> dict[str, str]:
    """Accuracy and loss by head count of the mechanisms that do not improve, in words."""
    sentences = []
    for name in (name for name in ours if ours[name] != published.get(name)):
        by_heads = _by_heads(table, name)
        lines = [", ".join(row[column] for row in by_heads) for column in ("acc_pct", "loss")]
        sentences.append(f"{name}: accuracy {lines[0]}, loss {lines[1]}")
    heads = ", ".join(sorted({row["h"] for row in rows(table)}))
    return {"heads": heads, "lines": "; ".join(sentences)}


RANKS = {f"000-RANK-table{int(table):02}": table for table in TABLES}
HEADS = {f"000-HEADS-table{int(table):02}": table for table in ("5", "6", "9", "10")}


#: What the text quotes, by id: where, the percentage, and the expression where it is printed.
QUOTED = {row["id"]: row for row in values.DOCUMENT.rows("quoted_percentages")}
#: Tables with times a training epoch or an inference takes; the first of them are the main ones.
MAIN, ALL = ("1", "2", "3", "4"), ("1", "2", "3", "4", "5", "6", "8", "9", "10")
LABELS = tomllib.loads((values.DOCUMENT.path / "labels.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Quotation:
    """A percentage (a - b) / c of two mechanisms' values in a table; c is b, or a where ``of_a``.

    ``claim`` names it where it is a claim of its own; ``digits`` are its printed decimals.
    """

    a: str
    b: str
    table: str
    column: str
    dataset: str
    claim: str = ""
    h: str = ""
    of_a: bool = False
    digits: int = 2

    def numbers(self) -> dict[str, float]:
        """The percentage, and a, b and c."""
        where = {"dataset": self.dataset, **({"h": self.h} if self.h else {})}
        a, b = (value(self.table, self.column, name, **where) for name in (self.a, self.b))
        c = a if self.of_a else b
        return {"percent": 100 * (a - b) / c, "a": a, "b": b, "c": c}

    def percent(self) -> float:
        """In percent."""
        return self.numbers()["percent"]


def printed(quote: str) -> Any:
    """The percentage that is quoted, with the numbers of its expression where one is printed."""
    said = number(QUOTED[quote]["printed_pct"])
    numbers = [float(digits) for digits in re.findall(r"[0-9.]+", QUOTED[quote]["expression"])]
    return {"percent": said, **dict(zip("abc", numbers, strict=True))} if numbers else said


def mnist_lead(over: str = "") -> float:
    """Super's training accuracy on MNIST over another's, or the best other's, in points."""
    points = {
        row["attention"]: float(row["acc_pct"]) for row in rows("1") if row["dataset"] == "MNIST"
    }
    super_points = points.pop("super")
    return super_points - (points[over] if over else max(points.values()))


def digits_exchanged(*_: Any) -> dict[str, float]:
    """The percentage of MNIST's times with the last two digits of Super's exchanged."""
    times = [value("1", "epoch_time_s", name, dataset="MNIST") for name in ("standard", "super")]
    digits = f"{times[1]:.2f}"
    swapped = float(f"{digits[:-2]}{digits[:-3:-1]}")
    return {
        "percent": 100 * (times[0] - swapped) / swapped, "swapped": swapped, "time": times[1],
        "of_slower": 100 * (times[0] - times[1]) / times[0],
    }  # fmt: skip


QUOTATIONS = {quote: Quotation(**its) for quote, its in LABELS["quotations"].items()}
#: By quotation: the percentage (or points) from the tables, and the decimals that are printed.
RECOMPUTED: dict[str, tuple[Callable[[], float], int]] = {
    **{name: (its.percent, its.digits) for name, its in QUOTATIONS.items()},
    "b3_mnist_vs_any": (mnist_lead, 2),
    "b3_mnist_vs_stn": (partial(mnist_lead, "standard"), 2),
}


def recomputed(**quotes: str) -> dict[str, float]:
    """Quoted percentages from the tables, by the names they are given here."""
    return {name: RECOMPUTED[quote][0]() for name, quote in quotes.items()}


def time_ratios(mechanism: str, tables: tuple[str, ...]) -> dict[str, float]:
    """Standard attention's time over the mechanism's, by the place of the two times."""
    datasets = {f"{name.lower()}_s": name for name in values.EXPERIMENTS}
    return {
        f"Table {table}, {row['dataset'] or datasets[column]}, h = {row['h']}": (
            number(row[column]) / number(other[column])
        )
        for table in tables
        for row, other in product(rows(table, "standard"), rows(table, mechanism))
        if all(row[key] == other[key] for key in ("dataset", "h"))
        for column in row
        if column.endswith("_s")
    }


def savings(mechanism: str) -> dict[str, float]:
    """Smallest and largest saving of training and inference time in percent, Tables 1 to 4."""
    saved = [100 * (1 - 1 / times) for times in time_ratios(mechanism, MAIN).values()]
    return {"from": min(saved), "to": max(saved)}


def ends(mechanism: str, *_: Any) -> dict[str, str]:
    """Where a mechanism saves the least time and where the most."""
    ratios = time_ratios(mechanism, MAIN)
    places = sorted(ratios, key=ratios.__getitem__)
    return {"least": places[0], "most": places[-1]}


def bound(count: Any, mechanism: str) -> float:
    """The largest ratio of standard's count to the mechanism's: its limit for short contexts."""
    return float(ratio(count, mechanism).subs(LENGTH, 0))


def reach(mechanism: str, *_: Any) -> dict[str, Any]:
    """The largest ratio of times in any table, and what the counts allow."""
    ratios = time_ratios(mechanism, ALL)
    place = max(ratios, key=ratios.__getitem__)
    return {
        "ratio": ratios[place], "place": place, "eq24": bound(eq24, mechanism),
        "counted": bound(multiply_adds, mechanism),
    }  # fmt: skip


CLAIMED = {f"000-PCT-{its.claim}": quote for quote, its in QUOTATIONS.items() if its.claim}
LEAD = {"any other": "b3_mnist_vs_any", "standard": "b3_mnist_vs_stn"}
EXCHANGED = {"Table 1": "b3_imagenet_first", "Table 7": "b3_imagenet_second"}
SAVED = {"000-TIME-OPT": "optimised", "000-TIME-EFF": "efficient", "000-TIME-SUP": "super"}

PRINTED: Printed = {
    **{claim: printed_ranks(table) for claim, table in RANKS.items()},
    **{claim: {row["attention"]: True for row in rows(table)} for claim, table in HEADS.items()},
    "000-XTAB": {
        label(row): {n: number(row[n]) for n in row if n not in NOT_REPEATED and row[n]}
        for row in _main_rows()
    },
    **{claim: printed(quote) for claim, quote in CLAIMED.items()},
    "000-PCT-B3-2.68": {name: printed(quote) for name, quote in LEAD.items()},
    "000-PCT-B3-27": {name: printed(quote) for name, quote in EXCHANGED.items()},
}
OURS: Ours = {
    **{claim: partial(recomputed_ranks, table) for claim, table in RANKS.items()},
    **{claim: partial(improves_with_heads, table) for claim, table in HEADS.items()},
    "000-XTAB": printed_again,
    **{
        claim: QUOTATIONS[quote].numbers if QUOTED[quote]["expression"] else RECOMPUTED[quote][0]
        for claim, quote in CLAIMED.items()
    },
    "000-PCT-B3-2.68": lambda: recomputed(**LEAD),
    "000-PCT-B3-27": lambda: recomputed(**EXCHANGED),
    **{claim: partial(savings, mechanism) for claim, mechanism in SAVED.items()},
    "000-SUP-45": lambda: 100 * (max(time_ratios("super", ALL).values()) - 1),
    "000-EFF-2x": lambda: max(time_ratios("efficient", ALL).values()),
}
FACTS: Facts = {
    **dict.fromkeys((*RANKS, "000-XTAB"), differences),
    **{claim: partial(with_heads, table) for claim, table in HEADS.items()},
    "000-PCT-5.86": digits_exchanged,
    **{claim: partial(ends, mechanism) for claim, mechanism in SAVED.items()},
    "000-SUP-45": partial(reach, "super"),
    "000-EFF-2x": partial(reach, "efficient"),
}
