"""002's tables made again: settings, closed forms term by term, numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attnprof.papers.checks import rounded, same_formula
from attnprof.papers.extractors import checks
from attnprof.papers.extractors.checks import COLUMNS, INFERENCE, TRAINING, column, counted
from attnprof.papers.extractors.counts import DOCUMENT
from attnprof.papers.regenerated import Cell, Row, tables_of


def settings() -> list[dict[str, Any]]:
    """Table 1; of its values one follows from the others."""
    rows: list[dict[str, Any]] = [
        {name: row[name] for name in ("key", "symbol", "value")}
        for row in DOCUMENT.rows("table01_hyperparameters")
    ]
    for row in rows:
        if row["key"] == "epochs":
            row["value"] = Cell(float(row["value"]), checks.epochs(), rounded(3))
    return rows


def closed_forms(number: str) -> list[dict[str, Any]]:
    """A table of closed forms; the printed terms added up stand beside them."""
    return [
        {"quantity": row["quantity"], "sublayer": row["sublayer"],
         "terms": Cell(checks.terms_of(row), counted(row), same_formula),
         "closed form": Cell(row["closed_form_printed"], counted(row), same_formula)}
        for row in DOCUMENT.rows((TRAINING | INFERENCE)[number])
    ]  # fmt: skip


def number_of(name: str, row: Row) -> int:
    """Our number of a column of Table 7."""
    return column(name)[row["quantity"]]


ROWS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "1": settings,
    **{number: partial(closed_forms, number) for number in TRAINING | INFERENCE},
}
TABLES = tables_of("002", {"7": {name: partial(number_of, name) for name in COLUMNS}}, ROWS)
