"""Checks of document 000's tables: ranks, rows printed twice, effect of heads, percentages."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise, product
from typing import Any

from attnprof.papers.better_attention import checks_parameters as sizes
from attnprof.papers.better_attention.checks_formulas import LENGTH, eq24, multiply_adds, ratio
from attnprof.papers.better_attention.checks_parameters import BY_HEADS, DOCUMENT, rows
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.documents import number

RANK = "_rank"
#: Ends of the names of columns where less is better.
LESS_IS_BETTER = ("params", "_s", "loss")
#: Columns of the main tables that the tables by head count do not print, or with more digits.
NOT_REPEATED = {"dataset", "attention", "h", "params", "params_printed"}
Nested = dict[str, dict[str, Any]]


# -- ranks, and rows that stand in two tables ------------------------------------------
def label(row: dict[str, str]) -> str:
    """Return a row's name: ``MNIST super``."""
    return " ".join(text for text in (row["dataset"], row["attention"]) if text)


def printed_ranks(table: str) -> Nested:
    """Return every printed rank, by row and column."""
    printed = {}
    for row in rows(table):
        ranks = {name: int(row[name]) for name in row if name.endswith(RANK) and row[name]}
        if ranks:
            printed[label(row)] = {name.removesuffix(RANK): rank for name, rank in ranks.items()}
    return printed


def recomputed_ranks(table: str) -> Nested:
    """Return ranks from the values: 1 plus the number of better values, by row and column."""
    ranked = [row for row in rows(table) if any(row[n] for n in row if n.endswith(RANK))]
    ranks: Nested = {label(row): {} for row in ranked}
    for column in [n.removesuffix(RANK) for n in rows(table)[0] if n.endswith(RANK)]:
        less = column.endswith(LESS_IS_BETTER)
        values = [(row, _value(row, column)) for row in ranked if row[column]]
        for row, score in values:
            rivals = [value for other, value in values if other["dataset"] == row["dataset"]]
            better = sum(value < score if less else value > score for value in rivals)
            ranks[label(row)][column] = 1 + better
    return ranks


def _value(row: dict[str, str], column: str) -> float:
    """Return a value; abbreviated parameters of Table 1 come from the table with all digits."""
    full = BY_HEADS.get(row["dataset"]) if column == "params" else None
    return number((rows(full, row["attention"])[0] if full else row)[column])


def _main_rows() -> list[dict[str, str]]:
    return [row for table in ("1", "2", "3") for row in rows(table) if row["dataset"] in BY_HEADS]


def _main_values() -> Nested:
    return {
        label(row): {n: number(row[n]) for n in row if n not in NOT_REPEATED and row[n]}
        for row in _main_rows()
    }


def _printed_again() -> Nested:
    """Return the appendix's values of the main tables' rows."""
    values: Nested = {}
    for row in _main_rows():
        heads = str(sizes.EXPERIMENTS[row["dataset"]].num_heads)
        others = rows(BY_HEADS[row["dataset"]], row["attention"])
        (again,) = (other for other in others if other["h"] == heads)
        names = [name for name in row if name not in NOT_REPEATED and row[name]]
        values[label(row)] = {
            name: number(again[name.replace("epoch_time_s", "avg_time_s")]) for name in names
        }
    return values


def _differences(said: Nested, ours: Nested) -> dict[str, str]:
    """Return the sentence on cells in which the printed value differs from ours."""
    cells = (
        f"{row}, {column}: printed {said.get(row, {}).get(column)}, ours {value}"
        for row, values in ours.items()
        for column, value in values.items()
        if said.get(row, {}).get(column) != value
    )
    return {"differences": "; ".join(cells)}


# -- more heads ------------------------------------------------------------------------
def _by_heads(table: str, mechanism: str) -> list[dict[str, str]]:
    return sorted(rows(table, mechanism), key=lambda row: int(row["h"]))


def _improves_with_heads(table: str) -> dict[str, bool]:
    """Return by mechanism whether more heads always raise training accuracy and lower the loss."""
    return {
        name: all(
            number(more["acc_pct"]) > number(less["acc_pct"])
            and number(more["loss"]) < number(less["loss"])
            for less, more in pairwise(_by_heads(table, name))
        )
        for name in sizes.MECHANISMS
        if rows(table, name)
    }


def _with_heads(table: str, _: Any, ours: Mapping[str, bool]) -> dict[str, str]:
    """Return accuracy and loss by head count, of mechanisms that do not improve with heads."""
    lines = []
    for name in (name for name, improves in ours.items() if not improves):
        of_name = _by_heads(table, name)
        accuracy, loss = (", ".join(row[key] for row in of_name) for key in ("acc_pct", "loss"))
        lines.append(f"{name}: accuracy {accuracy}, loss {loss}")
    heads = sorted({int(row["h"]) for row in rows(table)})
    return {"heads": ", ".join(map(str, heads)), "lines": "; ".join(lines)}


# -- percentages -----------------------------------------------------------------------
#: Quoted percentages by id: the place, the percentage, and its expression if that is printed.
QUOTED = {row["id"]: row for row in DOCUMENT.rows("quoted_percentages")}
LABELS = DOCUMENT.texts("labels.toml")
#: By quotation: the mechanisms a and b, and where their values stand; ``claim`` is the end of its
#: claim's id, if it has one, ``digits`` its printed decimals if they are not two.
QUOTATIONS = LABELS["quotations"]


def _numbers(quote: str) -> dict[str, float]:
    """Return a quoted percentage (a - b) / c, and a, b and c: c is b, with ``of_a`` a."""
    entry = QUOTATIONS[quote]
    where = {name: entry[name] for name in ("dataset", "h") if name in entry}
    a, b = (sizes.value(entry["table"], entry["column"], entry[x], **where) for x in "ab")
    c = a if entry.get("of_a") else b
    return {"percent": 100 * (a - b) / c, "a": a, "b": b, "c": c}


def _percent(quote: str) -> float:
    return _numbers(quote)["percent"]


def _printed(quote: str) -> Any:
    """Return the printed percentage, with the numbers of its expression if that is printed."""
    percent = number(QUOTED[quote]["printed_pct"])
    numbers = [float(digits) for digits in re.findall(r"[0-9.]+", QUOTED[quote]["expression"])]
    return {"percent": percent, **dict(zip("abc", numbers, strict=True))} if numbers else percent


def _mnist_lead(over: str = "") -> float:
    """Return Super's training accuracy on MNIST over another's, or the best other's, in points."""
    points = {
        row["attention"]: float(row["acc_pct"]) for row in rows("1") if row["dataset"] == "MNIST"
    }
    super_points = points.pop("super")
    return super_points - (points[over] if over else max(points.values()))


def _digits_exchanged(_: Any, ours: Mapping[str, float]) -> dict[str, float]:
    """Return a percentage with the last two digits of b exchanged, and the percentage of a."""
    a, b = ours["a"], f"{ours['b']:.2f}"
    swapped = float(f"{b[:-2]}{b[:-3:-1]}")
    exchanged, of_a = (100 * (a - x) / y for x, y in ((swapped, swapped), (ours["b"], a)))
    return {"swapped": swapped, "exchanged": exchanged, "of_a": of_a}


#: By quotation: the percentage (or points) from the tables, and the decimals that are printed.
RECOMPUTED: dict[str, tuple[Callable[[], float], int]] = {
    **{name: (partial(_percent, name), x.get("digits", 2)) for name, x in QUOTATIONS.items()},
    "b3_mnist_vs_any": (_mnist_lead, 2),
    "b3_mnist_vs_stn": (partial(_mnist_lead, "standard"), 2),
}


def _recomputed(quotes: Mapping[str, str]) -> dict[str, float]:
    return {name: RECOMPUTED[quote][0]() for name, quote in quotes.items()}


# -- times -----------------------------------------------------------------------------
#: Tables with times of a training epoch or an inference: the main tables, and all.
MAIN, ALL = ("1", "2", "3", "4"), ("1", "2", "3", "4", "5", "6", "8", "9", "10")


def _time_ratios(mechanism: str, tables: tuple[str, ...]) -> dict[str, float]:
    """Return standard attention's time over the mechanism's, by the table of the two times."""
    datasets = {f"{name.lower()}_s": name for name in sizes.EXPERIMENTS}
    return {
        f"Table {table}, {row['dataset'] or datasets[column]}, h = {row['h']}": (
            number(row[column]) / number(other[column])
        )
        for table in tables
        for row, other in product(rows(table, "standard"), rows(table, mechanism))
        if all(row[key] == other[key] for key in ("dataset", "h"))
        for column in row
        if column.endswith("_s")
    }


def _savings(mechanism: str) -> dict[str, float]:
    """Return the least and largest saving of training and inference time in percent, Tables 1-4."""
    saved = [100 * (1 - 1 / times) for times in _time_ratios(mechanism, MAIN).values()]
    return {"from": min(saved), "to": max(saved)}


def _extreme_ratios(mechanism: str, tables: tuple[str, ...], *_: Any) -> dict[str, Any]:
    """Return the places of the least and largest ratio, and both counts' ratio for l = 0."""
    ratios = _time_ratios(mechanism, tables)
    places = sorted(ratios, key=ratios.__getitem__)
    counts = {"eq24": eq24, "counted": multiply_adds}
    limits = {name: float(ratio(fn, mechanism).subs(LENGTH, 0)) for name, fn in counts.items()}
    return {"least": places[0], "most": places[-1], "ratio": ratios[places[-1]], **limits}


#: Tables by the claims on their ranks and head counts; then quotations and mechanisms by claim.
RANKS = {f"000-RANK-table{int(table):02}": table for table in sizes.TABLES}
HEADS = {f"000-HEADS-table{int(table):02}": table for table in ("5", "6", "9", "10")}
CLAIMED = {f"000-PCT-{x['claim']}": quote for quote, x in QUOTATIONS.items() if "claim" in x}
SEVERAL = {
    "000-PCT-B3-2.68": {"any other": "b3_mnist_vs_any", "standard": "b3_mnist_vs_stn"},
    "000-PCT-B3-27": {"Table 1": "b3_imagenet_first", "Table 7": "b3_imagenet_second"},
}
SAVED = {"000-TIME-OPT": "optimised", "000-TIME-EFF": "efficient", "000-TIME-SUP": "super"}

PRINTED: Printed = {
    **{claim: printed_ranks(table) for claim, table in RANKS.items()},
    **{claim: {row["attention"]: True for row in rows(table)} for claim, table in HEADS.items()},
    "000-XTAB": _main_values(),
    **{claim: _printed(quote) for claim, quote in CLAIMED.items()},
    **{
        claim: {name: _printed(quote) for name, quote in quotes.items()}
        for claim, quotes in SEVERAL.items()
    },
}
OURS: Ours = {
    **{claim: partial(recomputed_ranks, table) for claim, table in RANKS.items()},
    **{claim: partial(_improves_with_heads, table) for claim, table in HEADS.items()},
    "000-XTAB": _printed_again,
    **{
        claim: partial(_numbers, quote) if QUOTED[quote]["expression"] else RECOMPUTED[quote][0]
        for claim, quote in CLAIMED.items()
    },
    **{claim: partial(_recomputed, quotes) for claim, quotes in SEVERAL.items()},
    **{claim: partial(_savings, mechanism) for claim, mechanism in SAVED.items()},
    "000-SUP-45": lambda: 100 * (max(_time_ratios("super", ALL).values()) - 1),
    "000-EFF-2x": lambda: max(_time_ratios("efficient", ALL).values()),
}
FACTS: Facts = {
    **dict.fromkeys((*RANKS, "000-XTAB"), _differences),
    **{claim: partial(_with_heads, table) for claim, table in HEADS.items()},
    "000-PCT-5.86": _digits_exchanged,
    **{claim: partial(_extreme_ratios, mechanism, MAIN) for claim, mechanism in SAVED.items()},
    "000-SUP-45": partial(_extreme_ratios, "super", ALL),
    "000-EFF-2x": partial(_extreme_ratios, "efficient", ALL),
}
