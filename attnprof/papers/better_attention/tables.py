"""000's tables, made again: parameters and head widths by formula, ranks from the values."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.checks_formulas import excess, slopes
from attnprof.papers.better_attention.checks_parameters import abbreviated, expected, totals
from attnprof.papers.better_attention.checks_tables import (
    LABELS,
    RANK,
    RECOMPUTED,
    label,
    recomputed_ranks,
)
from attnprof.papers.better_attention.values import LENGTH, WIDTH, multiply_adds, rows
from attnprof.papers.checks import rounded, same_formula
from attnprof.papers.documents import number
from attnprof.papers.regenerated import Cell, Row, tables_of

NAMES, QUOTED = LABELS["columns"], LABELS["quoted"]


def results(table: str) -> list[dict[str, Any]]:
    """A table of results: sizes recomputed, ranks too."""
    ranks = recomputed_ranks(table)
    return [_row(table, row, ranks.get(label(row), {})) for row in rows(table)]


def _row(table: str, row: dict[str, str], ranks: Mapping[str, int]) -> dict[str, Any]:
    """A row, values with ranks as text: as the document prints them, and ours."""
    shown: dict[str, Any] = {}
    for column, text in row.items():
        if column.endswith((RANK, "_printed")) or (column == "dataset" and table not in ("1", "2")):
            continue
        cell: Any = number(text) if text.isdigit() else text
        if column == "d_k":
            cell = Cell(int(text), int(row["d_m"]) // int(row["h"]))
        elif f"{column}{RANK}" in row:
            size, rank = column == "params", row[f"{column}{RANK}"]
            printed, ours = (row["params_printed"], _size(table, row)) if size else (text, text)
            cell = Cell(printed, ours) if size else printed
            if rank and column in ranks:
                cell = Cell(f"{printed} ({rank})", f"{ours} ({ranks[column]})")
        shown[NAMES.get(column, column)] = cell
    return shown


def _size(table: str, row: dict[str, str]) -> str:
    """Ours, written as that table writes it."""
    if table == "7":
        return f"{totals()[row['attention']]:.2f}M"
    count = expected(row)
    if table == "1":
        short = abbreviated(count)
        return f"{short / 1e6:.2f}M" if short >= 1_000_000 else f"{short // 1000}K"
    return f"{count / 1e6:.1f}M" if table == "3" else f"{count:,}"


def constants() -> list[dict[str, Any]]:
    """The constants of Eq 24, and what its left side is when it is counted."""
    rows = []
    for row in values.DOCUMENT.rows("eq24_constants"):
        name = row["attention"]
        count = values.results_counted(name)
        slope = count.coeff(WIDTH, 1)
        head_term = str((count - slope * WIDTH).expand())
        rows.append({
            "attention": name,
            "C": Cell(row["C_attn"], str(slope / LENGTH), same_formula),
            "slope in d_m": Cell(row["slope_wrt_d_m"], slopes()[name], same_formula),
            "head term": Cell(row["head_term"], head_term, same_formula),
            "multiplications and additions": str(multiply_adds(name)),
        })  # fmt: skip
    return rows


def percentages() -> list[dict[str, Any]]:
    """Every percentage that the text quotes."""
    return [
        {"where": row["where"], "what": QUOTED[row["id"]], "expression": row["expression"],
         "percent": Cell(number(row["printed_pct"]), round(ours(), 4), rounded(digits))}
        for row in values.DOCUMENT.rows("quoted_percentages")
        for ours, digits in [RECOMPUTED[row["id"]]]
    ]  # fmt: skip


def largest_or_mean(which: str, row: Row) -> float:
    """Our excess of Figure 3 for a row's head count."""
    return round(excess(which)[row["h"]], 2)


TABLES = tables_of(
    "000",
    {
        "fig3": {
            "mean excess (%)": partial(largest_or_mean, "mean"),
            "largest excess (%)": partial(largest_or_mean, "max"),
        }
    },
    {
        **{table: partial(results, table) for table in values.TABLES},
        "eq24": constants,
        "quoted": percentages,
    },
)
