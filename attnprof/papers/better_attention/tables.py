"""000's tables, made again: parameters and head widths by formula, ranks from the values."""

from collections.abc import Callable, Mapping
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
from attnprof.papers.regenerated import Cell, Table

TITLES, NAMES, QUOTED = (LABELS[part] for part in ("titles", "columns", "quoted"))
RANKS = (
    "in parentheses: the rank, ours from the printed values (equal ones share); times and scores "
    "are results of training and are not computed here"
)
SIZES = "parameters: ours with a bias for every map, for Super at the length that the text states"
WHOLE = "parameters: ours of ViT-B/16 as changed in App B.3, with a linear classifier"


def results(table: str) -> Table:
    """A table of results: sizes recomputed, ranks too."""
    ranks = recomputed_ranks(table)
    made = [_row(table, row, ranks.get(label(row), {})) for row in rows(table)]
    notes = (RANKS, *(() if table == "4" else (WHOLE if table == "7" else SIZES,)))
    return Table(TITLES[table], made, notes)


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


def constants() -> Table:
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
    note = (
        "ours: results of the definitions' operations, three times; the last column counts the "
        "multiplications and additions of their products, forward and backward"
    )
    return Table("Eq 24, FLOPs of a forward and backward pass", rows, (note,))


def percentages() -> Table:
    """Every percentage that the text quotes."""
    rows = [
        {"where": row["where"], "what": QUOTED[row["id"]], "expression": row["expression"],
         "percent": Cell(number(row["printed_pct"]), round(ours(), 4), rounded(digits))}
        for row in values.DOCUMENT.rows("quoted_percentages")
        for ours, digits in [RECOMPUTED[row["id"]]]
    ]  # fmt: skip
    note = "ours: from the tables' values; App B.3's lead on MNIST in points, as it is meant"
    return Table("Percentages quoted in the text", rows, (note,))


def ratios() -> Table:
    """What is quoted of Figure 3."""
    places = {"caption": "Fig 3, caption", "text_B2": "Sec B.2"}
    columns = {"mean": "mean excess (%)", "max": "largest excess (%)"}
    rows = [
        {"source": places[row["source"]], "h": int(row["h"]), **{
            name: Cell(
                number(row[f"{which}_excess_pct"]), round(excess(which)[row["h"]], 2), rounded(0)
            )
            for which, name in columns.items()
        }}
        for row in values.DOCUMENT.rows("fig3_flop_ratio_quoted")
    ]  # fmt: skip
    note = (
        "ours: Eq 24 of standard over Efficient Attention, l and d_m in 1, 2, 4, ..., 1024, which "
        "the document does not give; it quotes one largest excess for all head counts"
    )
    return Table("FLOPs of standard over Efficient Attention", rows, (note,))


TABLES: dict[str, Callable[[], Table]] = {
    **{table: partial(results, table) for table in TITLES},
    "eq24": constants,
    "fig3": ratios,
    "quoted": percentages,
}
