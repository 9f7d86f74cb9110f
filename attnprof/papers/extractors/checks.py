"""002: its counts in closed form (Tables 3 to 6) and as numbers (7), and what it says of them."""

from collections.abc import Callable, Mapping
from functools import partial
from math import exp, isclose, log
from typing import Any

import sympy

from attnprof.papers.checks import Check, Checks, formula, rounded, same_formula
from attnprof.papers.extractors import counts
from attnprof.papers.extractors.counts import COUNTS, DOCUMENT, SUBLAYERS, D, L, N, length, sequence

SIZE, HEADS = 128, 32
#: Table 7's columns: sublayer and heads (of which the Extractors have none).
COLUMNS = {
    "self_attention_1_head": ("self_attention", 1),
    "self_attention_32_heads": ("self_attention", 32),
    **{name: (name, 1) for name in SUBLAYERS[1:]},
}
#: Tables of closed forms: of a training sequence, and of one more token.
TRAINING = {"3": "table03_training_part1", "4": "table04_training_part2"}
INFERENCE = {"5": "table05_inference_part1", "6": "table06_inference_part2"}
_Row = Mapping[str, str]
_Forms = dict[str, dict[str, str]]
PATHS = {row["sublayer"]: row for row in DOCUMENT.rows("critical_paths")}
PRINTED_PATHS = [name for name, row in PATHS.items() if row["printed"] == "yes"]
SETTINGS = {row["key"]: row["value"] for row in DOCUMENT.rows("table01_hyperparameters")}
#: Section 6: tokens of the corpus.
TOKENS = 8_400_000
#: "Far" larger: an order of magnitude.
FAR = 10
#: What SHE has far more of, and than which self-attention.
LARGER = {
    f"{word}, {heads.replace('_', ' ')}": (quantity, heads)
    for word, quantity in (("operations", "total_ops"), ("parameters", "params"))
    for heads in ("1_head", "32_heads")
}


def counted(row: _Row) -> str:
    """Our closed form of a row of Tables 3 to 6."""
    count = counts.step if "expression_printed" in row else sequence
    return str(count(row["sublayer"])[row["quantity"]])


def terms_of(row: _Row) -> str:
    """What the terms printed above a row's closed form add up to."""
    if "expression_printed" in row:
        return str(sympy.expand(formula(row["expression_printed"])))
    inside, outside = formula(row["summand_t_1_to_l"]), formula(row["outside_sum"])
    return str(sympy.expand(counts.summed(inside) + outside))


def column(name: str) -> dict[str, int]:
    """Our numbers of a column of Table 7."""
    sublayer, heads = COLUMNS[name]
    return counts.numbers(sublayer, SIZE, SIZE, heads)


def _misprint(row: _Row, printed: Any, ours: Any) -> str:
    """How a closed form differs, and whether the terms printed above it are right."""
    missing = sympy.factor(formula(ours) - formula(printed))
    text = f"{ours} is right: what is printed has {missing} too few"
    terms = terms_of(row)
    if same_formula(terms, ours):
        text += f", though the terms printed above it add up to {terms}"
    if row["quantity"] == "add" and same_formula(str(missing), "(n - 1)*(t - 1)"):
        text += ". The softmax's t - 1 additions stand there for each head and were added up once"
    return text


def _how(row: _Row) -> str:
    if "expression_printed" in row:
        return "one token's count by the definition; keys, values, HE's mapped rows are cached"
    if row["quantity"] == "params":
        return "entries of the weights"
    return "one token's count by the definition, added up over t = 1 to l"


def _printed(tables: Mapping[str, str], put: Callable[[Any], Any]) -> _Forms:
    """The closed forms that tables print, by sublayer and quantity, put another way."""
    found: _Forms = {name: {} for name in SUBLAYERS}
    for row in (row for table in tables.values() for row in DOCUMENT.rows(table)):
        if row["quantity"] in COUNTS:
            form = formula(row["closed_form_printed"])
            found[row["sublayer"]][row["quantity"]] = str(put(form))
    return found


def _steps_told(published: Any, ours: Any) -> str:
    """Which sums are not the training's, in numbers of 128 tokens and width, 32 heads."""
    at = dict(zip(counts.SYMBOLS, (SIZE, SIZE, SIZE, HEADS), strict=True))
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


def _over(quantity: str) -> float:
    """ME's share of what 1-head self-attention has."""
    return column("me")[quantity] / column("self_attention_1_head")[quantity]


def _fewer(name: str, against: str) -> dict[str, bool]:
    ours, other = column(name), column(against)
    quantities = {"operations": "total_ops", "parameters": "params"}
    return {word: ours[quantity] < other[quantity] for word, quantity in quantities.items()}


def _as_many(*_: Any) -> str:
    he, other = column("he")["params"], column("self_attention_32_heads")["params"]
    return (
        f"HE has {he:,} parameters at d = l = 128, self-attention {other:,}: as many, as Section 7 "
        "says itself; ld + 3d^2 is below 4d^2 only where l < d"
    )


def _uniform() -> tuple[float, float]:
    """Training cost (Eq 3) and perplexity of guessing among all words of the vocabulary."""
    words, window = int(SETTINGS["vocabulary_size"]), int(SETTINGS["context_window"])
    logarithms = [log(1 / words)] * window
    return -sum(logarithms) / window, exp(-sum(logarithms) / window)


def _not_perplexity(*_: Any) -> str:
    cost, perplexity = _uniform()
    return (
        "Eq 3 is the mean negative log-likelihood; perplexity is its exponential: guessing among "
        f"{SETTINGS['vocabulary_size']} words costs {cost:.2f} and has perplexity "
        f"{perplexity:.0f}. The two order models alike, so the comparisons stand"
    )


_of_table_7 = partial(Check, tables=("7",))
CHECKS = Checks([
    *(
        Check(
            f"002-{'TR' if number in TRAINING else 'INF'}-{row['sublayer']}-{row['quantity']}",
            row["closed_form_printed"],
            partial(counted, row),
            how=_how(row),
            why=partial(_misprint, row),
        )
        for number, table in (TRAINING | INFERENCE).items()
        for row in DOCUMENT.rows(table)
    ),
    *(
        Check(
            f"002-T7-{name}",
            {row["quantity"]: int(row[name]) for row in DOCUMENT.rows("table07_counts_d128_l128")},
            partial(column, name),
            how="128 steps of the definition counted in whole numbers, d = l = 128",
            why="the counts of the definition are other numbers",
        )
        for name in COLUMNS
    ),
    Check(
        "002-TELESCOPE",
        _printed(TRAINING, sympy.expand),
        lambda: _printed(INFERENCE, counts.summed),
        how="the closed forms printed in Tables 5 and 6 added up over t = 1 to l, against those of "
        "Tables 3 and 4",
        why=_steps_told,
    ),
    _of_table_7(
        "002-T7-tenth",
        0.1,
        lambda: _over("total_ops"),
        how="ME's operations over those of 1-head self-attention, d = l = 128",
        agree=rounded(2),
        why="the ratio is {1:.4f}".format,
    ),
    _of_table_7(
        "002-T7-512",
        512,
        lambda: round(1 / _over("params"), 6),
        how="parameters of 1-head self-attention over ME's, d = l = 128",
        why="the ratio is 1/{1:g}".format,
    ),
    Check(
        "002-PPL",
        True,
        lambda: isclose(*_uniform()),
        how="both computed for the uniform guess over the vocabulary of Table 1",
        why=_not_perplexity,
    ),
    _of_table_7(
        "002-HE-params",
        {name: {"operations": True, "parameters": True} for name in ("he", "we")},
        lambda: {
            "he": _fewer("he", "self_attention_32_heads"),
            "we": _fewer("we", "self_attention_1_head"),
        },
        how="HE against 32-head, WE against 1-head self-attention, counts of d = l = 128",
        why=_as_many,
    ),
    _of_table_7(
        "002-SHE-ratio",
        dict.fromkeys(LARGER, True),
        lambda: {
            name: column("she")[quantity] > FAR * column(f"self_attention_{heads}")[quantity]
            for name, (quantity, heads) in LARGER.items()
        },
        how=f"more than {FAR} times as many at d = l = 128, against 1 and against 32 heads",
        why="SHE's counts are less than an order of magnitude above self-attention's",
    ),
])  # fmt: skip


@CHECKS.answers(
    "002-EPOCHS",
    float(SETTINGS["epochs"]),
    how="60,000 batches of 64 sequences over the corpus' 8.4 million tokens",
    agree=rounded(3),
    why="it is {1:.4f}".format,
    note="an epoch is one sequence starting at each token; each token is seen in up to 128 of "
    "them, so 58.5 times as many tokens were read as the corpus has",
)
def epochs() -> float:
    """Training sequences over tokens: an epoch starts one sequence at every token."""
    return int(SETTINGS["training_batches"]) * int(SETTINGS["batch_size"]) / TOKENS


@CHECKS.answers(
    "002-LESS",
    {"he": True, "we": True, "me": True},
    how="self-attention's operations minus each one's, as polynomials, for all l, d, n from 1",
    why="for some l, d, n self-attention takes no more operations",
    note="of memory it holds for HE only while l < d (002-HE-params)",
)
def _less_computation() -> dict[str, bool]:
    """With l = 1 + a, d = 1 + b, n = 1 + c no coefficient is negative, the constant positive."""
    total = {name: sum(sequence(name)[count] for count in COUNTS) for name in SUBLAYERS}
    found = {}
    for name in ("he", "we", "me"):
        gap = (total["self_attention"] - total[name]).subs({L: L + 1, D: D + 1, N: N + 1})
        coefficients = sympy.Poly(sympy.expand(gap), L, D, N)
        positive = all(value >= 0 for value in coefficients.coeffs())
        found[name] = bool(positive and coefficients.eval((0, 0, 0)) > 0)
    return found


@CHECKS.answers(
    "002-CRIT",
    {
        **{name: PATHS[name]["steps_in_order"] for name in PRINTED_PATHS},
        "she shorter than self-attention": True,
        "me shorter than she": True,
    },
    how="longest chain of dependent stages of one step of the definition; a sum is one step",
    why="the definition's longest chain has other steps",
    note="by the same rule WE has 5 steps (as SHE) and HE 7, which are not printed",
)
def _paths() -> dict[str, str | bool]:
    paths = {name: counts.critical_path(name) for name in PRINTED_PATHS}
    return {
        **paths,
        "she shorter than self-attention": length(paths["she"]) < length(paths["self_attention"]),
        "me shorter than she": length(paths["me"]) < length(paths["she"]),
    }
