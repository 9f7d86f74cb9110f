"""004's tables made again: what follows from definitions, counts, or other tables stands beside."""

from functools import partial
from typing import Any

from attnprof.papers.checks import within
from attnprof.papers.regenerated import Cell, Row, tables_of
from attnprof.papers.taylorshift import checks_quoted, checks_sizes
from attnprof.papers.taylorshift.checks_quoted import (
    DATASETS,
    MODEL,
    accuracies,
    beside_entries,
    memory,
)
from attnprof.papers.taylorshift.checks_sizes import ERROR, LENGTH, NORMAL
from attnprof.papers.taylorshift.formulas import DOCUMENT, first_lengths

#: Heads of each dataset's model.
HEADS = checks_quoted.setting("heads")


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def intermediate_sizes() -> list[dict[str, Any]]:
    """Table 1: the laws, and what they and the exact moments give for long sequences."""
    rows: list[dict[str, Any]] = []
    for expression, printed in checks_sizes.printed_laws().items():
        said, ours = checks_sizes.printed_sizes(expression), checks_sizes.sizes(expression)
        normal = checks_sizes.sizes(expression, NORMAL)
        agree = within(relative=ERROR)
        rows.append({
            "expression": expression,
            "size": printed,
            "root mean square": str(checks_sizes.law(expression)),
            **{d: Cell(_short(said[d]), _short(ours[d]), agree) for d in said},
            "unit variance, d=64": _short(normal["d=64"]),
        })  # fmt: skip
    return rows


def normalisation() -> list[dict[str, Any]]:
    """Table 4; its last line stands in Tables 6 (direct, four heads) and 3 (efficient) too."""
    elsewhere = {
        "direct_acc_pct": checks_quoted.column("acc_pct")[int(HEADS["cifar_pixel"])],
        "efficient_acc_pct": accuracies()[MODEL]["cifar_pixel"],
    }
    rows: list[dict[str, Any]] = []
    for row in DOCUMENT.rows("table04_normalization_ablation"):
        whole = row["variant"] == "input_norm+output_norm"
        cells = {
            name: Cell(float(row[name]) if row[name] else None, other if whole else None)
            for name, other in elsewhere.items()
        }
        rows.append({"variant": row["variant"], **cells})
    return rows


def hyperparameters() -> list[dict[str, Any]]:
    """Table 7; the width is heads times 64."""
    rows: list[dict[str, Any]] = []
    for row in DOCUMENT.rows("table07_hyperparameters"):
        made: dict[str, Any] = {name: row[name] for name in ("param", *DATASETS)}
        if row["param"] == "d_embed":
            width = checks_quoted.common_head_width()
            made |= {d: Cell(int(row[d]), width * int(h)) for d, h in HEADS.items()}
        rows.append(made)
    return rows


def first_length(name: str, row: Row) -> int:
    """Our N0 or N1 of a width of Table 2."""
    return first_lengths(int(row["d"]))[name]


def mebibytes(form: str, row: Row) -> float:
    """Table 6's memory of a form, as its entries account for it."""
    return round(memory(form, int(row["h"])), 1)


TABLES = tables_of(
    "004",
    {
        "2": {name: partial(first_length, name) for name in ("N0", "N1")},
        "3": {"average": lambda row: checks_quoted.average(row["model"])},
        "5": {
            "linear": lambda row: accuracies()[MODEL][row["dataset"]],
            "delta": lambda row: checks_quoted.deltas()[row["dataset"]],
        },
        "6": {f"{form} MiB": partial(mebibytes, form) for form in ("direct", "efficient")},
    },
    {"1": intermediate_sizes, "4": normalisation, "7": hyperparameters},
    {"1": lambda: {"length": LENGTH}, "6": lambda: {"beside": beside_entries()}},
)
