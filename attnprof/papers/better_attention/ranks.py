"""Ranks of 000's tables, recomputed from the values they stand behind."""

from __future__ import annotations

from attnprof.papers.better_attention.values import BY_HEADS, number, rows

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
    found: dict[str, dict[str, int]] = {}
    for row in ranked:
        rivals = [other for other in ranked if other["dataset"] == row["dataset"]]
        columns = [n.removesuffix(RANK) for n in row if n.endswith(RANK)]
        found[label(row)] = {
            column: 1 + sum(_better(other, row, column) for other in rivals)
            for column in columns
            if row[column]
        }
    return found


def _better(other: dict[str, str], row: dict[str, str], column: str) -> bool:
    theirs, own = (_value(one, column) for one in (other, row))
    return theirs < own if column.endswith(LESS_IS_BETTER) else theirs > own


def _value(row: dict[str, str], column: str) -> float:
    """A value; Table 1's abbreviated parameters are looked up where they are printed in full."""
    full = BY_HEADS.get(row["dataset"]) if column == "params" else None
    if full:
        same = (one for one in rows(full) if one["attention"] == row["attention"])
        return number(next(same)[column])
    return number(row[column])
