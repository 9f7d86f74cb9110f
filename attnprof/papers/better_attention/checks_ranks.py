"""000: the ranks in parentheses, the rows printed twice, and what more heads do."""

from functools import partial
from itertools import pairwise
from typing import Any

from attnprof.papers.better_attention.values import BY_HEADS, EXPERIMENTS, MECHANISMS, TABLES, rows
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
    found = {}
    for row in rows(table):
        ranks = {name: int(row[name]) for name in row if name.endswith(RANK) and row[name]}
        if ranks:
            found[label(row)] = {name.removesuffix(RANK): rank for name, rank in ranks.items()}
    return found


def recomputed_ranks(table: str) -> Nested:
    """The same from the values: one more than the number of better ones; equal values share."""
    ranked = [row for row in rows(table) if any(row[n] for n in row if n.endswith(RANK))]
    found: Nested = {label(row): {} for row in ranked}
    for column in [n.removesuffix(RANK) for n in rows(table)[0] if n.endswith(RANK)]:
        less = column.endswith(LESS_IS_BETTER)
        values = [(row, _value(row, column)) for row in ranked if row[column]]
        for row, own in values:
            rivals = [value for other, value in values if other["dataset"] == row["dataset"]]
            better = sum(value < own if less else value > own for value in rivals)
            found[label(row)][column] = 1 + better
    return found


def _value(row: dict[str, str], column: str) -> float:
    """A value; Table 1's abbreviated parameters are looked up where they are printed in full."""
    full = BY_HEADS.get(row["dataset"]) if column == "params" else None
    return number((rows(full, row["attention"])[0] if full else row)[column])


def differences(published: Nested, ours: Nested) -> dict[str, str]:
    """Where two nested dicts differ, in words."""
    found = (
        f"{row}, {column}: printed {published.get(row, {}).get(column)}, ours {value}"
        for row, values in ours.items()
        for column, value in values.items()
        if published.get(row, {}).get(column) != value
    )
    return {"differences": "; ".join(found)}


def _main_rows() -> list[dict[str, str]]:
    return [row for table in ("1", "2", "3") for row in rows(table) if row["dataset"] in BY_HEADS]


def printed_again() -> Nested:
    """The appendix's values of the main tables' rows."""
    found: Nested = {}
    for row in _main_rows():
        heads = str(EXPERIMENTS[row["dataset"]].num_heads)
        others = rows(BY_HEADS[row["dataset"]], row["attention"])
        (again,) = (other for other in others if other["h"] == heads)
        found[label(row)] = {
            name: number(again[name.replace("epoch_time_s", "avg_time_s")])
            for name in row
            if name not in NOT_REPEATED and row[name]
        }
    return found


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
    told = []
    for name in (name for name in ours if ours[name] != published.get(name)):
        own = _by_heads(table, name)
        lines = [", ".join(row[column] for row in own) for column in ("acc_pct", "loss")]
        told.append(f"{name}: accuracy {lines[0]}, loss {lines[1]}")
    heads = ", ".join(sorted({row["h"] for row in rows(table)}))
    return {"heads": heads, "lines": "; ".join(told)}


RANKS = {f"000-RANK-table{int(table):02}": table for table in TABLES}
HEADS = {f"000-HEADS-table{int(table):02}": table for table in ("5", "6", "9", "10")}
PRINTED: Printed = {
    **{claim: printed_ranks(table) for claim, table in RANKS.items()},
    **{claim: {row["attention"]: True for row in rows(table)} for claim, table in HEADS.items()},
    "000-XTAB": {
        label(row): {n: number(row[n]) for n in row if n not in NOT_REPEATED and row[n]}
        for row in _main_rows()
    },
}
OURS: Ours = {
    **{claim: partial(recomputed_ranks, table) for claim, table in RANKS.items()},
    **{claim: partial(improves_with_heads, table) for claim, table in HEADS.items()},
    "000-XTAB": printed_again,
}
FACTS: Facts = {
    **dict.fromkeys((*RANKS, "000-XTAB"), differences),
    **{claim: partial(with_heads, table) for claim, table in HEADS.items()},
}
