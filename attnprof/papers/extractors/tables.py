"""002's tables made again: settings, closed forms term by term, numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attnprof.papers.checks import rounded, same_formula
from attnprof.papers.extractors import checks
from attnprof.papers.extractors.checks import COLUMNS, INFERENCE, TRAINING, column, counted
from attnprof.papers.extractors.counts import DOCUMENT
from attnprof.papers.regenerated import Cell, Table


def settings() -> Table:
    """Table 1; of its values one follows from the others."""
    rows: list[dict[str, Any]] = [
        {name: row[name] for name in ("key", "symbol", "value")}
        for row in DOCUMENT.rows("table01_hyperparameters")
    ]
    for row in rows:
        if row["key"] == "epochs":
            row["value"] = Cell(float(row["value"]), checks.epochs(), rounded(3))
    note = "epochs: batches times batch size over the corpus' 8.4 million tokens (Section 6)"
    return Table("Hyperparameters and settings", rows, (note,))


def closed_forms(number: str) -> Table:
    """A table of closed forms; the printed terms added up stand beside them."""
    rows = [
        {"quantity": row["quantity"], "sublayer": row["sublayer"],
         "terms": Cell(checks.terms_of(row), counted(row), same_formula),
         "closed form": Cell(row["closed_form_printed"], counted(row), same_formula)}
        for row in DOCUMENT.rows((TRAINING | INFERENCE)[number])
    ]  # fmt: skip
    what = "a training sequence of length l" if number in TRAINING else "one more token at length t"
    title = f"Counts of {what}, part {'I' if number in '35' else 'II'}"
    return Table(title, rows, ("terms: what is printed above the closed form, added up",))


TABLES: dict[str, Callable[[], Table]] = {
    "1": settings,
    "2": lambda: Table("Generated texts", [
        {name: row[name] for name in ("model", "prompt", "top_p", "first_words", "last_words")}
        for row in DOCUMENT.rows("table02_generated_texts")
    ], ("not computed: neither the trained weights nor the seed are given",)),
    **{number: partial(closed_forms, number) for number in TRAINING | INFERENCE},
    "7": lambda: Table("Numbers of operations and parameters, d = l = 128", [
        {"quantity": row["quantity"],
         **{name: Cell(int(row[name]), column(name)[row["quantity"]]) for name in COLUMNS}}
        for row in DOCUMENT.rows("table07_counts_d128_l128")
    ]),
}  # fmt: skip
