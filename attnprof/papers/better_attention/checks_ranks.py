"""000: the ranks in parentheses, the rows printed twice, and what more heads do."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

from attnprof.papers.better_attention.values import BY_HEADS, EXPERIMENTS, MECHANISMS, TABLES, rows
from attnprof.papers.checks import Check, Checks
from attnprof.papers.documents import number

RANK = "_rank"
#: Ends of the names of columns where less is better.
LESS_IS_BETTER = ("params", "_s", "loss")


def label(row: dict[str, str]) -> str:
    """A row's name: ``MNIST super``."""
    return " ".join(text for text in (row["dataset"], row["attention"]) if text)


def printed_ranks(table: str) -> dict[str, dict[str, int]]:
    """Every rank in parentheses, by row and column."""
    found = {}
    for row in rows(table):
        ranks = {name: int(row[name]) for name in row if name.endswith(RANK) and row[name]}
        if ranks:
            found[label(row)] = {name.removesuffix(RANK): rank for name, rank in ranks.items()}
    return found


def recomputed_ranks(table: str) -> dict[str, dict[str, int]]:
    """The same from the values: one more than the number of better ones; equal values share."""
    ranked = [row for row in rows(table) if any(row[n] for n in row if n.endswith(RANK))]
    found: dict[str, dict[str, int]] = {label(row): {} for row in ranked}
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


Nested = dict[str, dict[str, Any]]


def differences(published: Nested, ours: Nested) -> str:
    """Where two nested dicts differ, in words."""
    return "; ".join(
        f"{row}, {column}: printed {published.get(row, {}).get(column)}, ours {value}"
        for row, values in ours.items()
        for column, value in values.items()
        if published.get(row, {}).get(column) != value
    )


CHECKS = Checks(
    Check(
        f"000-RANK-table{int(table):02}",
        printed_ranks(table),
        partial(recomputed_ranks, table),
        part="their order",
        how="one more than the number of better values; equal values share a rank",
        why=differences,
    )
    for table in TABLES
)


#: Columns of the main tables that the tables by head count print under another name, or in full.
RENAMED = {"epoch_time_s": "avg_time_s"}
NOT_REPEATED = {"dataset", "attention", "h", "params", "params_printed"}


def _main_rows() -> list[dict[str, str]]:
    found = [row for table in ("1", "2", "3") for row in rows(table)]
    return [row for row in found if row["dataset"] in BY_HEADS]


def printed_first() -> Nested:
    """Values and ranks of the main rows that the appendix has too."""
    return {
        label(row): {
            column: number(text)
            for column, text in row.items()
            if column not in NOT_REPEATED and text
        }
        for row in _main_rows()
    }


@CHECKS.answers(
    "000-XTAB",
    printed_first(),
    how="every value and rank of Tables 1 to 3 but the parameters, beside the appendix's row "
    "of the same mechanism and head count; ImageNet has none",
    why=differences,
    tables=("2",),
)
def _printed_again() -> Nested:
    found: Nested = {}
    for row in _main_rows():
        heads = str(EXPERIMENTS[row["dataset"]].num_heads)
        others = rows(BY_HEADS[row["dataset"]], row["attention"])
        (again,) = (other for other in others if other["h"] == heads)
        columns = [name for name in row if name not in NOT_REPEATED and row[name]]
        found[label(row)] = {name: number(again[_renamed(name)]) for name in columns}
    return found


def _renamed(column: str) -> str:
    for old, new in RENAMED.items():
        column = column.replace(old, new)
    return column


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


def _accuracies(table: str, published: dict[str, bool], ours: dict[str, bool]) -> str:
    told = []
    for name in (name for name in ours if ours[name] != published.get(name)):
        own = _by_heads(table, name)
        lines = [", ".join(row[column] for row in own) for column in ("acc_pct", "loss")]
        told.append(f"{name}: accuracy {lines[0]}, loss {lines[1]}")
    return f"with {', '.join(sorted({r['h'] for r in rows(table)}))} heads " + "; ".join(told)


def _heads(table: str, note: str = "") -> Check:
    return Check(
        f"000-HEADS-table{int(table):02}",
        {row["attention"]: True for row in rows(table)},
        partial(improves_with_heads, table),
        part="their order",
        how="performance is accuracy and loss (Sec 6): each step to more heads must raise training "
        "accuracy and lower training loss",
        why=partial(_accuracies, table),
        note=note,
    )


CHECKS += [
    _heads("5"),
    _heads(
        "6",
        note="on the training set; test loss worsens for standard attention, and Super's test "
        "accuracy falls from two heads to four",
    ),
    _heads("9"),
    _heads("10"),
]
