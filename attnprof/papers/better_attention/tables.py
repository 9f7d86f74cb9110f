"""000's tables, made again: parameters and head widths by formula, ranks from the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attnprof.papers.agreement import rounded, same_formula
from attnprof.papers.better_attention.checks_flops import slopes
from attnprof.papers.better_attention.checks_heatmaps import excess
from attnprof.papers.better_attention.checks_parameters import abbreviated, expected
from attnprof.papers.better_attention.checks_percentages import OURS
from attnprof.papers.better_attention.checks_totals import totals
from attnprof.papers.better_attention.formulas import multiply_adds, results_counted, symbols
from attnprof.papers.better_attention.ranks import RANK, label, recomputed_ranks
from attnprof.papers.better_attention.values import number, rows
from attnprof.papers.documents import document
from attnprof.papers.regenerated import Cell, Table

TITLES = {
    "1": "Vision transformers",
    "2": "Text classification",
    "3": "Translation from English to Spanish",
    "4": "Inference on an Apple M2, 5,000 samples",
    "5": "MNIST by number of heads",
    "6": "CIFAR100 by number of heads",
    "7": "ImageNet, models of nearly equal size",
    "8": "IMDB by number of heads",
    "9": "Amazon Reviews by number of heads",
    "10": "Translation by number of heads",
}
#: What columns are called; those not named here keep their name.
NAMES = {
    "params": "parameters",
    "att_layers": "layers",
    "epoch_time_s": "epoch time (s)",
    "avg_time_s": "epoch time (s)",
    "acc_pct": "accuracy (%)",
    "top5_pct": "top 5 (%)",
    "test_acc_pct": "test accuracy (%)",
    "test_loss": "test loss",
    "test_top5_pct": "test top 5 (%)",
    "bleu": "BLEU",
    "test_bleu": "test BLEU",
    "mnist_s": "MNIST (s)",
    "cifar100_s": "CIFAR100 (s)",
    "imagenet_s": "ImageNet (s)",
    "imdb_s": "IMDB (s)",
    "amazon_s": "Amazon (s)",
}
#: What is quoted, by the quotation's id.
QUOTED = {
    "imagenet_acc_sup_vs_stn": "accuracy, Super over standard, ImageNet",
    "mnist_time_sup_vs_stn": "time, standard over Super, MNIST",
    "mnist_time_eff_vs_stn": "time saved by Efficient, MNIST",
    "amazon_acc_sup_vs_stn": "accuracy, Super over standard, Amazon",
    "nmt_time_stn_vs_eff": "time, standard over Efficient, NMT",
    "nmt_time_eff_vs_stn_h1": "time saved by Efficient, NMT, one head",
    "sec6_mnist": "accuracy, Super over standard, MNIST",
    "sec6_cifar100": "accuracy, Super over standard, CIFAR100",
    "sec6_imagenet": "accuracy, Super over standard, ImageNet",
    "sec6_imdb": "accuracy, Super over standard, IMDB",
    "sec6_amazon": "accuracy, Super over standard, Amazon",
    "b3_mnist_vs_any": "accuracy, Super less the best other, MNIST",
    "b3_mnist_vs_stn": "accuracy, Super less standard, MNIST",
    "b3_imagenet_first": "accuracy, Super over standard, ImageNet, Table 1",
    "b3_imagenet_second": "accuracy, Super over standard, ImageNet, Table 7",
}
RANKS = (
    "in parentheses: the rank, ours from the printed values (equal ones share); times and scores "
    "are results of training and are not computed here"
)
SIZES = "parameters: ours with a bias for every map, for Super at the length that the text states"
WHOLE = "parameters: ours of ViT-B/16 as changed in App B.3, with a linear classifier"


def results(table: str) -> Table:
    """A table of results: sizes recomputed, ranks too."""
    ranks = recomputed_ranks(table)
    made = [_row(table, row, ranks) for row in rows(table)]
    notes = (RANKS, *(() if table == "4" else (WHOLE if table == "7" else SIZES,)))
    return Table(TITLES[table], tuple(made[0]), made, notes)


def _row(table: str, row: dict[str, str], ranks: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    several = table in ("1", "2")  # each names its datasets
    for column, text in row.items():
        if column.endswith((RANK, "_printed")) or (column == "dataset" and not several):
            continue
        name = NAMES.get(column, column)
        if column == "d_k":
            shown[name] = Cell(int(text), int(row["d_m"]) // int(row["h"]))
        elif f"{column}{RANK}" in row:
            own = ranks.get(label(row), {}) if row[f"{column}{RANK}"] else {}
            shown[name] = _ranked(table, row, column, own.get(column))
        else:
            shown[name] = number(text) if text.isdigit() else text
    return shown


def _ranked(table: str, row: dict[str, str], column: str, rank: int | None) -> Any:
    """A value with its rank: text as the document prints it, and ours; the value where no rank."""
    size = column == "params"
    printed = row["params_printed"] if size else row[column]
    value = _size(table, row) if size else printed
    if rank is not None:
        return Cell(f"{printed} ({row[f'{column}{RANK}']})", f"{value} ({rank})")
    return Cell(printed, value) if size else printed


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
    length, width, _ = symbols()
    slope, made = slopes(), []
    for row in document("000").rows("eq24_constants"):
        name = row["attention"]
        count = results_counted(name)
        with_width = count.coeff(width, 1)
        made.append(
            {
                "attention": name,
                "C": Cell(row["C_attn"], str(with_width / length), same_formula),
                "slope in d_m": Cell(row["slope_wrt_d_m"], slope[name], same_formula),
                "head term": Cell(
                    row["head_term"], str((count - with_width * width).expand()), same_formula
                ),
                "multiplications and additions": str(multiply_adds(name)),
            }
        )
    note = (
        "ours: results of the definitions' operations, three times; the last column counts the "
        "multiplications and additions of their products, forward and backward"
    )
    return Table("Eq 24, FLOPs of a forward and backward pass", tuple(made[0]), made, (note,))


def percentages() -> Table:
    """Every percentage that the text quotes."""
    made = []
    for row in document("000").rows("quoted_percentages"):
        ours, digits = OURS[row["id"]]
        made.append(
            {
                "where": row["where"],
                "what": QUOTED[row["id"]],
                "expression": row["expression"],
                "percent": Cell(number(row["printed_pct"]), round(ours(), 4), rounded(digits)),
            }
        )
    notes = ("ours: from the tables' values; App B.3's lead on MNIST in points, as it is meant",)
    return Table("Percentages quoted in the text", tuple(made[0]), made, notes)


def ratios() -> Table:
    """What is quoted of Figure 3."""
    mean, most = excess("mean"), excess("max")
    made = [
        {
            "source": {"caption": "Fig 3, caption", "text_B2": "Sec B.2"}[row["source"]],
            "h": int(row["h"]),
            "mean excess (%)": _excess(row["mean_excess_pct"], mean[row["h"]]),
            "largest excess (%)": _excess(row["max_excess_pct"], most[row["h"]]),
        }
        for row in document("000").rows("fig3_flop_ratio_quoted")
    ]
    note = (
        "ours: Eq 24 of standard over Efficient Attention, l and d_m in 1, 2, 4, ..., 1024; the "
        "document quotes one largest excess for all head counts"
    )
    return Table("FLOPs of standard over Efficient Attention", tuple(made[0]), made, (note,))


def _excess(printed: str, ours: float) -> Cell:
    return Cell(number(printed), round(ours, 2), rounded(0))


TABLES: dict[str, Callable[[], Table]] = {
    **{table: partial(results, table) for table in TITLES},
    "eq24": constants,
    "fig3": ratios,
    "quoted": percentages,
}
