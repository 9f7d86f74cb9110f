"""002, Tables 3 to 7: counts in closed form, and their numbers for d = l = 128."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import sympy

from attnprof.papers.checks import Check, Checks, formula, rounded, same_formula
from attnprof.papers.extractors.counts import (
    COUNTS,
    DOCUMENT,
    SUBLAYERS,
    SYMBOLS,
    numbers,
    sequence,
    step,
    summed,
)

SIZE, HEADS = 128, 32
#: Table 7's columns: sublayer and heads (of which the Extractors have none).
COLUMNS = {
    "self_attention_1_head": ("self_attention", 1),
    "self_attention_32_heads": ("self_attention", 32),
    **{name: (name, 1) for name in SUBLAYERS[1:]},
}
Row = Mapping[str, str]


def in_training(row: Row) -> str:
    """Our closed form of a row of Tables 3 and 4."""
    return str(sequence(row["sublayer"])[row["quantity"]])


def in_inference(row: Row) -> str:
    """Our closed form of a row of Tables 5 and 6."""
    return str(step(row["sublayer"])[row["quantity"]])


#: Tables of closed forms: title, file, and ours.
TRAINING = {
    "3": ("Counts of a training sequence of length l, part I", "table03_training_part1"),
    "4": ("Counts of a training sequence of length l, part II", "table04_training_part2"),
}
INFERENCE = {
    "5": ("Counts of one more token at length t, part I", "table05_inference_part1"),
    "6": ("Counts of one more token at length t, part II", "table06_inference_part2"),
}
FORMS = {
    **{number: (*its, in_training) for number, its in TRAINING.items()},
    **{number: (*its, in_inference) for number, its in INFERENCE.items()},
}


def terms_of(row: Row) -> str:
    """What the terms printed above a row's closed form add up to."""
    if "expression_printed" in row:
        return str(sympy.expand(formula(row["expression_printed"])))
    inside, outside = formula(row["summand_t_1_to_l"]), formula(row["outside_sum"])
    return str(sympy.expand(summed(inside) + outside))


def column(name: str) -> dict[str, int]:
    """Our numbers of a column of Table 7."""
    sublayer, heads = COLUMNS[name]
    return numbers(sublayer, SIZE, SIZE, heads)


def _misprint(row: Row, printed: Any, ours: Any) -> str:
    """How a closed form differs, and whether the terms printed above it are right."""
    missing = sympy.factor(formula(ours) - formula(printed))
    text = f"{ours} is right: what is printed has {missing} too few"
    terms = terms_of(row)
    if same_formula(terms, ours):
        text += f", though the terms printed above it add up to {terms}"
    if row["quantity"] == "add" and same_formula(str(missing), "(n - 1)*(t - 1)"):
        text += ". The softmax's t - 1 additions stand there for each head and were added up once"
    return text


def _how(number: str, row: Row) -> str:
    if number in INFERENCE:
        return "one token's count by the definition; keys, values, HE's mapped rows are cached"
    if row["quantity"] == "params":
        return "entries of the weights"
    return "one token's count by the definition, added up over t = 1 to l"


def _table7(name: str) -> dict[str, int]:
    rows = DOCUMENT.rows("table07_counts_d128_l128")
    return {row["quantity"]: int(row[name]) for row in rows}


CHECKS = Checks([
    *(
        Check(
            f"002-{'TR' if number in TRAINING else 'INF'}-{row['sublayer']}-{row['quantity']}",
            row["closed_form_printed"],
            partial(ours, row),
            how=_how(number, row),
            why=partial(_misprint, row),
        )
        for number, (_, table, ours) in FORMS.items()
        for row in DOCUMENT.rows(table)
    ),
    *(
        Check(
            f"002-T7-{name}",
            _table7(name),
            partial(column, name),
            how="128 steps of the definition counted in whole numbers, d = l = 128",
            why="the counts of the definition are other numbers",
        )
        for name in COLUMNS
    ),
])  # fmt: skip


Forms = dict[str, dict[str, str]]


def _printed(tables: Mapping[str, tuple[str, str]], put: Callable[[Any], Any]) -> Forms:
    """The closed forms that tables print, by sublayer and quantity, put another way."""
    found: Forms = {name: {} for name in SUBLAYERS}
    for row in (row for _, table in tables.values() for row in DOCUMENT.rows(table)):
        if row["quantity"] in COUNTS:
            form = formula(row["closed_form_printed"])
            found[row["sublayer"]][row["quantity"]] = str(put(form))
    return found


def _steps_told(published: Any, ours: Any) -> str:
    """Which sums are not the training's, in numbers of 128 tokens and width, 32 heads."""
    at = dict(zip(SYMBOLS, (SIZE, SIZE, SIZE, HEADS), strict=True))
    told = []
    for name, quantity in ((n, q) for n in ours for q in ours[n]):
        said, found = (formula(forms[name][quantity]) for forms in (published, ours))
        if not same_formula(said, found):
            told.append(
                f"{name} {quantity}: the steps come to {found} instead of {said}, "
                f"{int(found.subs(at)):,} instead of {int(said.subs(at)):,} "
                f"at d = l = {SIZE}, n = {HEADS}"
            )
    return "; ".join(told) + (
        ". The terms printed above Table 5's closed form do add up to Table 3 "
        "(002-INF-self_attention-add)"
    )


@CHECKS.answers(
    "002-TELESCOPE",
    _printed(TRAINING, sympy.expand),
    how="the closed forms printed in Tables 5 and 6 added up over t = 1 to l, against those of "
    "Tables 3 and 4",
    why=_steps_told,
)
def _from_steps() -> Forms:
    return _printed(INFERENCE, summed)


def _share(quantity: str) -> float:
    return column("me")[quantity] / column("self_attention_1_head")[quantity]


@CHECKS.answers(
    "002-T7-tenth",
    0.1,
    how="ME's operations over those of 1-head self-attention, d = l = 128",
    agree=rounded(2),
    why=lambda _, ours: f"the ratio is {ours:.4f}",
    tables=("7",),
)
def _tenth() -> float:
    return _share("total_ops")


@CHECKS.answers(
    "002-T7-512",
    512,
    how="parameters of 1-head self-attention over ME's, d = l = 128",
    why=lambda _, ours: f"the ratio is 1/{ours:g}",
    tables=("7",),
)
def _parameters_over() -> float:
    return round(1 / _share("params"), 6)
