"""004's tables made again: what follows from definitions, counts, or other tables stands beside."""

from collections.abc import Callable
from typing import Any

from attnprof.papers.checks import rounded, within
from attnprof.papers.regenerated import Cell, Table
from attnprof.papers.taylorshift import checks_quoted, checks_sizes
from attnprof.papers.taylorshift.checks_quoted import (
    CLOSE,
    DATASETS,
    MEMORY,
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


def intermediate_sizes() -> Table:
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
    notes = (
        f"numbers at N = {LENGTH}; ours: rows on the unit sphere, V with a column of ones",
        "last column: the same with entries of V of unit variance, which QKᵀV and Y need",
    )
    return Table("Mean size of intermediate expressions in efficient TaylorShift", rows, notes)


def normalisation() -> Table:
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
    note = "last line beside Table 6 (four heads) and Table 3; the others are trainings"
    return Table("Accuracy on CIFAR Pixel with and without normalisation", rows, (note,))


def hyperparameters() -> Table:
    """Table 7; the width is heads times 64."""
    rows: list[dict[str, Any]] = []
    for row in DOCUMENT.rows("table07_hyperparameters"):
        made: dict[str, Any] = {name: row[name] for name in ("param", *DATASETS)}
        if row["param"] == "d_embed":
            width = checks_quoted.common_head_width()
            made |= {d: Cell(int(row[d]), width * int(h)) for d, h in HEADS.items()}
        rows.append(made)
    note = "d_embed: 64 a head, as in all models but ImageNet S"
    return Table("Model sizes and training hyperparameters", rows, (note,))


def memory_cell(form: str, heads: int) -> Cell:
    """Table 6's memory of a form, beside what its entries account for."""
    return Cell(MEMORY[form][heads], round(memory(form, heads), 1), CLOSE)


TABLES: dict[str, Callable[[], Table]] = {
    "1": intermediate_sizes,
    "2": lambda: Table("Lengths from which the efficient form is cheaper", [
        {"d": row["d"],
         **{name: Cell(int(row[name]), n) for name, n in first_lengths(int(row["d"])).items()}}
        for row in DOCUMENT.rows("table02_transition_points")
    ]),
    "3": lambda: Table("Accuracy in percent", [
        {"model": row["model"], **{name: row[name] for name in DATASETS},
         "average": Cell(float(row["average"]), checks_quoted.average(row["model"]), rounded(1))}
        for row in DOCUMENT.rows("table03_accuracy")
    ], ("accuracies are trainings, shown as printed; Linformer's average is over four",)),
    "4": normalisation,
    "5": lambda: Table("Accuracy with linear and convolutional token embedding", [
        {"dataset": row["dataset"],
         "linear": Cell(float(row["linear_acc_pct"]), accuracies()[MODEL][row["dataset"]]),
         "convolutional": float(row["conv_acc_pct"]),
         "delta": Cell(float(row["delta"]), checks_quoted.deltas()[row["dataset"]], rounded(1))}
        for row in DOCUMENT.rows("table05_token_embedding")
    ], ("linear: beside Table 3",)),
    "6": lambda: Table("Accuracy, throughput and memory by head count, CIFAR Pixel", [
        {"h": (h := int(row["h"])),
         "accuracy": row["acc_pct"],
         "direct ims/s": row["direct_tp_ims_s"],
         "direct MiB": memory_cell("direct", h),
         "efficient ims/s": row["efficient_tp_ims_s"],
         "efficient MiB": memory_cell("efficient", h)}
        for row in DOCUMENT.rows("table06_heads")
    ], (
        f"direct MiB: entries at N = 1025, batch 16, 4 bytes; {beside_entries():.0f} MiB more",
        "at one head another moment of the network needs more than these",
        "efficient MiB: the same with 2 bytes; see claim 004-T6-effmem",
        "accuracy and throughput are trainings and clocks of another machine",
    )),
    "7": hyperparameters,
}  # fmt: skip
