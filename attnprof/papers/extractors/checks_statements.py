"""002: what it says in words of its counts, its training cost and its critical paths."""

from __future__ import annotations

from math import exp, isclose, log

import sympy

from attnprof.papers.checks import Checks, rounded
from attnprof.papers.extractors.checks_counts import column
from attnprof.papers.extractors.counts import (
    COUNTS,
    DOCUMENT,
    SUBLAYERS,
    D,
    L,
    N,
    critical_path,
    length,
    sequence,
)

PATHS = {row["sublayer"]: row for row in DOCUMENT.rows("critical_paths")}
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
PRINTED_PATHS = [name for name, row in PATHS.items() if row["printed"] == "yes"]
CHECKS = Checks()


@CHECKS.answers(
    "002-EPOCHS",
    float(SETTINGS["epochs"]),
    how="60,000 batches of 64 sequences over the corpus' 8.4 million tokens",
    agree=rounded(3),
    why=lambda _, ours: f"it is {ours:.4f}",
    note="an epoch is one sequence starting at each token; each token is seen in up to 128 of "
    "them, so 58.5 times as many tokens were read as the corpus has",
)
def epochs() -> float:
    """Training sequences over tokens: an epoch starts one sequence at every token."""
    return int(SETTINGS["training_batches"]) * int(SETTINGS["batch_size"]) / TOKENS


def _uniform() -> tuple[float, float]:
    """Training cost (Eq 3) and perplexity of guessing among all words of the vocabulary."""
    words, window = int(SETTINGS["vocabulary_size"]), int(SETTINGS["context_window"])
    logarithms = [log(1 / words)] * window
    return -sum(logarithms) / window, exp(-sum(logarithms) / window)


def _not_perplexity(_published: object, _ours: object) -> str:
    cost, perplexity = _uniform()
    return (
        "Eq 3 is the mean negative log-likelihood; perplexity is its exponential: guessing among "
        f"{SETTINGS['vocabulary_size']} words costs {cost:.2f} and has perplexity "
        f"{perplexity:.0f}. The two order models alike, so the comparisons stand"
    )


@CHECKS.answers(
    "002-PPL",
    True,
    how="both computed for the uniform guess over the vocabulary of Table 1",
    why=_not_perplexity,
)
def _cost_is_perplexity() -> bool:
    return isclose(*_uniform())


def _fewer(name: str, against: str) -> dict[str, bool]:
    ours, other = column(name), column(against)
    return {
        "operations": ours["total_ops"] < other["total_ops"],
        "parameters": ours["params"] < other["params"],
    }


def _as_many(_published: object, _ours: object) -> str:
    he, other = column("he")["params"], column("self_attention_32_heads")["params"]
    return (
        f"HE has {he:,} parameters at d = l = 128, self-attention {other:,}: as many, as Section 7 "
        "says itself; ld + 3d^2 is below 4d^2 only where l < d"
    )


@CHECKS.answers(
    "002-HE-params",
    {name: {"operations": True, "parameters": True} for name in ("he", "we")},
    how="HE against 32-head, WE against 1-head self-attention, counts of d = l = 128",
    why=_as_many,
    tables=("7",),
)
def _he_and_we() -> dict[str, dict[str, bool]]:
    return {
        "he": _fewer("he", "self_attention_32_heads"),
        "we": _fewer("we", "self_attention_1_head"),
    }


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
    "002-SHE-ratio",
    dict.fromkeys(LARGER, True),
    how=f"more than {FAR} times as many at d = l = 128, against 1 and against 32 heads",
    why="SHE's counts are less than an order of magnitude above self-attention's",
    tables=("7",),
)
def _far_larger() -> dict[str, bool]:
    she = column("she")
    return {
        name: she[quantity] > FAR * column(f"self_attention_{heads}")[quantity]
        for name, (quantity, heads) in LARGER.items()
    }


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
    paths = {name: critical_path(name) for name in PRINTED_PATHS}
    return {
        **paths,
        "she shorter than self-attention": length(paths["she"]) < length(paths["self_attention"]),
        "me shorter than she": length(paths["me"]) < length(paths["she"]),
    }
