"""000: how much time the mechanisms save, from the times its own tables print."""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy

from attnprof.papers.better_attention.formulas import eq24, multiply_adds, symbols
from attnprof.papers.better_attention.values import EXPERIMENTS, rows
from attnprof.papers.checks import NOT_REPRODUCIBLE, Check, rounded
from attnprof.papers.documents import number

#: Tables with times a training epoch or an inference takes; the first of them are the main ones.
MAIN, ALL = ("1", "2", "3", "4"), ("1", "2", "3", "4", "5", "6", "8", "9", "10")


def time_ratios(mechanism: str, tables: tuple[str, ...]) -> dict[str, float]:
    """Standard attention's time over the mechanism's, by the place of the two times."""
    found = {}
    for table in tables:
        for row in rows(table):
            if row["attention"] != "standard":
                continue
            for other in rows(table):
                keys = ("dataset", "h")
                if other["attention"] == mechanism and all(row[k] == other[k] for k in keys):
                    found.update(_ratios(table, row, other))
    return found


def _ratios(table: str, row: dict[str, str], other: dict[str, str]) -> dict[str, float]:
    columns = [name for name in row if name.endswith("_s")]
    datasets = {name.lower(): name for name in EXPERIMENTS}
    return {
        f"Table {table}, {row['dataset'] or datasets[column.removesuffix('_s')]}, h = {row['h']}": (
            number(row[column]) / number(other[column])
        )
        for column in columns
    }


def savings(mechanism: str) -> dict[str, float]:
    """Smallest and largest saving of training and inference time in percent, Tables 1 to 4."""
    saved = [100 * (1 - 1 / ratio) for ratio in time_ratios(mechanism, MAIN).values()]
    return {"from": min(saved), "to": max(saved)}


def _range_why(mechanism: str, _: Any, ours: dict[str, float]) -> str:
    ratios = time_ratios(mechanism, MAIN)
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return (
        f"the document's own times save {ours['from']:.1f} % ({least}) to {ours['to']:.1f} % "
        f"({most})"
    )


def _range(claim: str, mechanism: str, low: float, high: float) -> Check:
    return Check(
        claim,
        {"from": low, "to": high},
        partial(savings, mechanism),
        part="the smallest and the largest saving",
        how=f"times of {mechanism} and standard attention, epochs of Tables 1 to 3 at their head "
        "count and inference of Table 4 at every head count",
        agree=rounded(1),
        why=partial(_range_why, mechanism),
        tables=MAIN,
    )


def _largest(mechanism: str) -> float:
    return max(time_ratios(mechanism, ALL).values())


def _percent_faster(mechanism: str) -> float:
    return 100 * (_largest(mechanism) - 1)


def bound(count: Any, mechanism: str) -> float:
    """The largest ratio of standard's count to the mechanism's: its limit for short contexts."""
    ratio = sympy.cancel(count("standard") / count(mechanism))
    return float(ratio.subs(symbols()[0], 0))


def _reach_why(mechanism: str, missing: str) -> str:
    ratios = time_ratios(mechanism, ALL)
    place = max(ratios, key=ratios.__getitem__)
    return (
        f"{missing}. The most that its tables show is {ratios[place]:.2f} times as fast ({place}); "
        f"Eq 24 allows {bound(eq24, mechanism):.2f}, counted multiplications and additions allow "
        f"{bound(multiply_adds, mechanism):.0f} for contexts much shorter than d_m"
    )


CHECKS = [
    _range("000-TIME-OPT", "optimised", 2.5, 7.5),
    _range("000-TIME-EFF", "efficient", 5.0, 15.0),
    _range("000-TIME-SUP", "super", 2.5, 10.0),
    Check(
        "000-SUP-45",
        45,
        partial(_percent_faster, "super"),
        part="the largest ratio",
        how="largest ratio of standard's to Super's time in any table, less one",
        agree=rounded(0),
        why=lambda *_: _reach_why(
            "super", "the sizes, the machine and the measurement are missing"
        ),
        otherwise=NOT_REPRODUCIBLE,
        tables=ALL,
    ),
    Check(
        "000-EFF-2x",
        2.0,
        partial(_largest, "efficient"),
        part="the largest ratio",
        how="largest ratio of standard's to Efficient's time in any table",
        agree=rounded(1),
        why=lambda *_: _reach_why(
            "efficient", "the sentence does not say what is reached two times (speed, size, cost)"
        ),
        otherwise=NOT_REPRODUCIBLE,
        tables=ALL,
    ),
]
