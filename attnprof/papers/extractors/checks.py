"""Checks of document 002's counts: closed forms (Tables 3 to 6), numbers (Table 7), and its text.

Counts and critical paths of its five sublayers follow from their definitions (Eq 10-17, 23-29).
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import exp, isclose, log
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.papers.checks import Facts, Ours, Printed, formula, same_formula
from attnprof.papers.documents import document
from attnprof.workload import Workload

DOCUMENT = document("002")
COUNTS = ("mult", "add", "div", "exp")
#: The document's names of sublayers by the mechanism that defines them.
MECHANISMS = {"self_attention": "standard", "she": "she", "he": "he", "we": "we", "me": "me"}
SUBLAYERS = tuple(MECHANISMS)
#: The document's l, t, d, n: context window, current length, width, heads.
SYMBOLS = L, T, D, N = tuple(symbol(name) for name in "ltdn")
#: A token at the end of Table 7's window, with the figures' own two heads.
WIDTH, WINDOW = 128, 128
TOKEN = Workload(WINDOW, 2, WIDTH // 2, phase="decode")
#: The stages that a stage of a definition waits for, if the sublayer has them.
WAITS_FOR = {
    "scores": ("queries", "keys"),
    "scaling": ("scores",),
    "exponentials": ("scaling",),
    "row sums": ("exponentials",),
    "normalisation": ("exponentials", "row sums"),
    "weighted values": ("normalisation", "values"),
    "extraction": ("input",),
    "adjusted": ("adjustment", "extraction"),
    "output": ("weighted values", "adjusted"),
}
SIZE = 128
#: Table 7's columns: sublayer and heads (of which the Extractors have none).
COLUMNS = {
    "self_attention_1_head": ("self_attention", 1),
    "self_attention_32_heads": ("self_attention", 32),
    **{name: (name, 1) for name in SUBLAYERS[1:]},
}
#: Tables of closed forms: of a training sequence, and of one more token.
TRAINING = {"3": "table03_training_part1", "4": "table04_training_part2"}
INFERENCE = {"5": "table05_inference_part1", "6": "table06_inference_part2"}
#: Quantities that the text compares, as Table 7 counts them.
COMPARED = {"operations": "total_ops", "parameters": "params"}
_Row = Mapping[str, str]
_Forms = dict[str, dict[str, str]]
PATHS = {
    row["sublayer"]: row["steps_in_order"]
    for row in DOCUMENT.rows("critical_paths") if row["printed"] == "yes"
}  # fmt: skip
SETTINGS = {row["key"]: row["value"] for row in DOCUMENT.rows("table01_hyperparameters")}
#: Section 6: tokens of the corpus.
TOKENS = 8_400_000
#: "Far" larger: an order of magnitude.
FAR = 10


def definition(sublayer: str, workload: Workload) -> Any:
    """Return the stages of a sublayer's definition; the document has no biases."""
    mechanism = registry.get(MECHANISMS[sublayer], bias=False)
    return mechanism.definition(workload, "layer")


def counts(cost: Any) -> dict[str, Any]:
    """Return a count in which a dot product, or sum, of k terms has k - 1 additions."""
    additions = cost.additions - cost.dot_outputs - cost.reduction_outputs
    amounts = (cost.multiplications, additions, cost.divisions, cost.exponentials)
    return dict(zip(COUNTS, amounts, strict=True))


@cache
def step(sublayer: str) -> dict[str, Any]:
    """Return the operations and memory of one more token at length t."""
    workload = Workload(T, N, D / N, phase="decode")
    counted = counts(definition(sublayer, workload).total)
    return {name: sympy.expand(count) for name, count in counted.items()}


@cache
def sequence(sublayer: str) -> dict[str, Any]:
    """Return the operations of a training sequence of length l, its l steps; and the parameters."""
    workload = Workload(L, N, D / N, causal=True)
    sums = {name: summed(form) for name, form in step(sublayer).items()}
    return {**sums, "params": definition(sublayer, workload).parameters}


def summed(form: Any) -> Any:
    """Return a polynomial in t, added up over t = 1 to l."""
    return sympy.expand(sympy.summation(sympy.expand(form), (T, 1, L)))


@cache
def numbers(sublayer: str, window: int, width: int, heads: int) -> dict[str, int]:
    """Return a sequence's counts, their total and the parameters, step by step in whole numbers."""
    whole = Workload(window, heads, width // heads)
    steps = [whole.with_(seq_len=t, phase="decode") for t in range(1, window + 1)]
    counted = [counts(definition(sublayer, step).total) for step in steps]
    sums = {name: sum(int(count[name]) for count in counted) for name in COUNTS}
    parameters = int(definition(sublayer, whole).parameters)
    return {**sums, "params": parameters, "total_ops": sum(sums.values())}


def steps(sublayer: str) -> list[dict[str, Any]]:
    """Return the operations of one more token, step by step; a sum of any length is one step.

    ``path`` is the longest path of steps that ends with a step, ``chain`` its operations.
    """
    stages: dict[str, dict[str, Any]] = {}
    for stage in definition(sublayer, TOKEN):
        cost = stage.cost
        counts = {
            "mult": cost.multiplications,
            "div": cost.divisions,
            "exp": cost.exponentials,
            "cum": cost.dot_outputs + cost.reduction_outputs,
        }
        waits = [name for name in WAITS_FOR.get(stage.name, ()) if name in stages]
        last = max(waits[::-1], key=lambda name: len(stages[name]["chain"]), default=None)
        path, chain = (stages[last]["path"], stages[last]["chain"]) if last else ([], [])
        kinds = [name for name, count in counts.items() if count]
        stages[stage.name] = {
            "step": stage.name, "waits": waits, "cost": cost, "operations": ";".join(kinds),
            "path": [*path, stage.name], "chain": [*chain, *kinds],
        }  # fmt: skip
    return list(stages.values())


def last_step(sublayer: str) -> dict[str, Any]:
    """Return the step that ends last: its chain is the critical path."""
    return max(steps(sublayer), key=lambda step: len(step["chain"]))


def critical_path(sublayer: str) -> str:
    """Return the operations on a sublayer's critical path: ``mult;cum;div``."""
    return ";".join(last_step(sublayer)["chain"])


def length(path: str) -> int:
    """Return the number of operations on a critical path."""
    return len(path.split(";"))


def counted(row: _Row) -> str:
    """Return our closed form of a row of Tables 3 to 6."""
    count = step if "expression_printed" in row else sequence
    return str(count(row["sublayer"])[row["quantity"]])


def terms_of(row: _Row) -> str:
    """Return the sum of the terms that are printed above a row's closed form."""
    if "expression_printed" in row:
        return str(sympy.expand(formula(row["expression_printed"])))
    inside, outside = formula(row["summand_t_1_to_l"]), formula(row["outside_sum"])
    return str(sympy.expand(summed(inside) + outside))


def column(name: str) -> dict[str, int]:
    """Return our numbers of a column of Table 7."""
    sublayer, heads = COLUMNS[name]
    return numbers(sublayer, SIZE, SIZE, heads)


def _printed_forms(tables: Mapping[str, str], put: Callable[[Any], Any]) -> _Forms:
    """Return the printed closed forms by sublayer and quantity, each transformed by ``put``."""
    forms: _Forms = {name: {} for name in SUBLAYERS}
    for row in (row for table in tables.values() for row in DOCUMENT.rows(table)):
        if row["quantity"] in COUNTS:
            form = formula(row["closed_form_printed"])
            forms[row["sublayer"]][row["quantity"]] = str(put(form))
    return forms


def _misprint(row: _Row, said: Any, ours: Any) -> dict[str, str]:
    """Return terms missing in a printed closed form, and a note if the terms above are right."""
    missing, terms = sympy.factor(formula(ours) - formula(said)), terms_of(row)
    right = f", though the terms printed above it add up to {terms}"
    return {"missing": missing, "terms": right if same_formula(terms, ours) else ""}


def _other_sums(said: _Forms, ours: _Forms) -> dict[str, str]:
    """Return the sums of steps that differ from the training count, with numbers at most heads."""
    heads = max(heads for _, heads in COLUMNS.values())
    at, sums = dict(zip(SYMBOLS, (SIZE, SIZE, SIZE, heads), strict=True)), []
    for name, quantity in ((name, quantity) for name, forms in ours.items() for quantity in forms):
        printed, derived = (formula(forms[name][quantity]) for forms in (said, ours))
        if not same_formula(printed, derived):
            values = " instead of ".join(f"{int(x.subs(at)):,}" for x in (derived, printed))
            sums.append(
                f"{name} {quantity}: the steps come to {derived} instead of {printed}, {values} "
                f"at d = l = {SIZE}, n = {heads}"
            )
    return {"sums": "; ".join(sums)}


def _ratio_of_me(quantity: str) -> float:
    return column("me")[quantity] / column("self_attention_1_head")[quantity]


def _fewer(name: str, against: str) -> dict[str, bool]:
    ours, other = column(name), column(against)
    return {word: ours[quantity] < other[quantity] for word, quantity in COMPARED.items()}


def _far_more() -> dict[str, bool]:
    """Return whether SHE has far more of each quantity than self-attention, by its heads."""
    return {
        f"{word}, {heads.replace('_', ' ')}": column("she")[quantity]
        > FAR * column(f"self_attention_{heads}")[quantity]
        for word, quantity in COMPARED.items()
        for heads in ("1_head", "32_heads")
    }


def uniform() -> tuple[float, float]:
    """Return training cost (Eq 3) and perplexity of guessing among all words of the vocabulary."""
    words, window = int(SETTINGS["vocabulary_size"]), int(SETTINGS["context_window"])
    logarithms = [log(1 / words)] * window
    return -sum(logarithms) / window, exp(-sum(logarithms) / window)


def epochs() -> float:
    """Return training sequences over tokens: an epoch starts one sequence at every token."""
    return int(SETTINGS["training_batches"]) * int(SETTINGS["batch_size"]) / TOKENS


def operations(name: str) -> Any:
    """Return a training sequence's operations of all kinds, as a polynomial."""
    return sum(sequence(name)[count] for count in COUNTS)


def always_more(larger: Any, smaller: Any) -> bool:
    """Return whether one polynomial is above another at all l, d, n from 1.

    With l = 1 + a, d = 1 + b, n = 1 + c no coefficient is negative, and the constant is positive.
    """
    gap = (larger - smaller).subs({L: L + 1, D: D + 1, N: N + 1})
    coefficients = sympy.Poly(sympy.expand(gap), L, D, N)
    positive = all(value >= 0 for value in coefficients.coeffs())
    return bool(positive and coefficients.eval((0, 0, 0)) > 0)


def more_than_me() -> dict[str, bool]:
    """Return whether a sublayer always takes more operations and parameters than ME."""
    least, weights = operations("me"), sequence("me")["params"]
    return {
        name: always_more(operations(name), least)
        and always_more(sequence(name)["params"], weights)
        for name in ("she", "he", "we")
    }


def _paths_compared() -> dict[str, str | bool]:
    paths = {name: critical_path(name) for name in PATHS}
    return {
        **paths,
        "she shorter than self-attention": length(paths["she"]) < length(paths["self_attention"]),
        "me shorter than she": length(paths["me"]) < length(paths["she"]),
    }


#: Claims of the closed forms, and of Table 7's columns.
CLOSED = {
    f"002-{'TR' if number in TRAINING else 'INF'}-{row['sublayer']}-{row['quantity']}": row
    for number, table in (TRAINING | INFERENCE).items()
    for row in DOCUMENT.rows(table)
}
TABLE_7 = DOCUMENT.rows("table07_counts_d128_l128")
PRINTED: Printed = {
    **{claim: row["closed_form_printed"] for claim, row in CLOSED.items()},
    **{f"002-T7-{name}": {row["quantity"]: int(row[name]) for row in TABLE_7} for name in COLUMNS},
    "002-TELESCOPE": _printed_forms(TRAINING, sympy.expand),
    "002-EPOCHS": float(SETTINGS["epochs"]),
    "002-CRIT": {
        **PATHS,
        "she shorter than self-attention": True,
        "me shorter than she": True,
    },
}
OURS: Ours = {
    **{claim: partial(counted, row) for claim, row in CLOSED.items()},
    **{f"002-T7-{name}": partial(column, name) for name in COLUMNS},
    "002-TELESCOPE": lambda: _printed_forms(INFERENCE, summed),
    "002-T7-tenth": lambda: _ratio_of_me("total_ops"),
    "002-T7-512": lambda: round(1 / _ratio_of_me("params"), 6),
    "002-PPL": lambda: isclose(*uniform()),
    "002-HE-params": lambda: {
        "he": _fewer("he", "self_attention_32_heads"), "we": _fewer("we", "self_attention_1_head"),
    },
    "002-SHE-ratio": _far_more,
    "002-EPOCHS": epochs,
    "002-LESS": lambda: {
        name: always_more(operations("self_attention"), operations(name))
        for name in ("he", "we", "me")
    },
    "002-ME-least": more_than_me,
    "002-CRIT": _paths_compared,
}  # fmt: skip
FACTS: Facts = {
    **{claim: partial(_misprint, row) for claim, row in CLOSED.items()},
    "002-TELESCOPE": _other_sums,
    "002-HE-params": lambda *_: {
        name: column(name)["params"] for name in ("he", "self_attention_32_heads")
    },
    "002-PPL": lambda *_: {"words": SETTINGS["vocabulary_size"], "guess": uniform()},
}
