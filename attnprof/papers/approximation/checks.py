"""Checks of document 003: its orders of growth, and its code and reported numbers against its text.

Its four attention classes are rewritten as in its code, which differs from its text at places: one
head as wide as the model, no projections, (batch, tokens, width) in and out. Counts are derived
from these functions.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import elu

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.algebra.orders import fitted, leading_terms
from attnprof.blocks.core import attend_core
from attnprof.papers.checks import Facts, Ours, Printed, formula
from attnprof.papers.documents import document, measured

if TYPE_CHECKING:
    from attnprof.trace.report.derivation import Derivation


DOCUMENT = document("003")
#: The number of tokens, the widths and the constants, by their names in the document.
SETTINGS = {row["key"]: row["value"] for row in DOCUMENT.rows("settings")}
TOKENS, TEST_TOKENS, WIDTH = (int(SETTINGS[key]) for key in ("N", "N_TEST", "D_MODEL"))
LENGTH, FEATURES = int(SETTINGS["L_LINFORMER"]), int(SETTINGS["m_PERFORMER"])
WINDOW = int(SETTINGS["w_LONGFORMER"])
MASKED, EPSILON = float(SETTINGS["neg_inf_longformer"]), float(SETTINGS["performer_epsilon"])
CLAIMS = "complexity_claims"
#: The claimed orders in this project's spelling; other letters than N are constants.
ORDERS = {"N*L": "N", "N*m": "N", "N*log(N)": "N log N", "N*sqrt(N)": "N^1.5"}
#: Mechanisms by their names in the document's table.
IDS = {
    "standard_self_attention": "standard", "low_rank_factorization": "low-rank",
    "kernelized_attention": "linear", "sparse_transformer": "sparse",
}  # fmt: skip
#: Mechanisms whose claimed order is compared with the order of their class, by claim.
CLAIMED = {
    "003-STD": "standard", "003-LIN": "linformer", "003-PERF-ORDER": "performer",
    "003-LONG-COST": "longformer",
}  # fmt: skip
HEADS = int(SETTINGS["heads_in_figure_C"])
FIGURE_Z = "figZ_quoted_numbers"
#: Tokens of the t5-small tokenizer.
VOCABULARY = 32_100
#: The number that the document's code writes for a model whose test on longer texts failed.
FAILED = 1000.0


def standard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt d) v."""
    weights: Tensor = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return weights @ v


def linformer(compress: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return standard attention over keys and values compressed to L rows by one matrix."""
    used = compress[: k.shape[1]].mT
    return standard(q, used @ k, used @ v)


def features(directions: Tensor, x: Tensor) -> Tensor:
    """Return elu(x Omega) + 1."""
    return elu(x @ directions) + 1


def performer(directions: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return phi(q) (phi(k)^T v), divided by phi(q) summed over all phi(k)."""
    rows, columns = features(directions, q), features(directions, k)
    total = rows @ columns.sum(1, keepdim=True).mT
    return rows @ (columns.mT @ v) / (total + EPSILON)


def longformer(q: Tensor, k: Tensor, v: Tensor, *, window: int = WINDOW) -> Tensor:
    """Return all scores; those further than a window away are set to -1e9 before the softmax."""
    place = torch.arange(q.shape[1], device=q.device)
    far = (place[:, None] - place).abs() > window
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights: Tensor = scores.masked_fill(far, MASKED).softmax(-1)
    return weights @ v


def attention(
    name: str, tokens: int, width: int, length: int = LENGTH, count: int = FEATURES
) -> Callable[..., Tensor]:
    """Return an attention class for up to ``tokens`` tokens, with drawn weights."""
    rng = torch.Generator().manual_seed(0)
    if name == "linformer":
        return partial(linformer, torch.randn(tokens, length, generator=rng))
    if name == "performer":
        return partial(performer, torch.randn(width, count, generator=rng) / count**0.5)
    return CLASSES[name]


def derived(name: str, quantity: str = "flops") -> Any:
    """Return the cost of one call, from a run on symbolic sizes B, N, d, and L or m."""
    return _derivation(name).phases["forward"].formulas[quantity].expression


@cache
def _derivation(name: str) -> "Derivation":
    from attnprof.trace.solve.derive import derive_anything

    extra_inputs = {"linformer": {"compress": "N, L"}, "performer": {"directions": "d, m"}}
    inputs = {**extra_inputs.get(name, {}), **dict.fromkeys(("q", "k", "v"), "B, N, d")}
    return derive_anything(CLASSES[name], inputs=inputs, phases=("forward",))


CLASSES: dict[str, Callable[..., Tensor]] = {
    "standard": standard, "linformer": linformer, "performer": performer,
    "longformer": longformer,
}  # fmt: skip
STUDENTS = [name for name in CLASSES if name != "standard"]

Features = Callable[[Tensor, Tensor], Tensor]
SAMPLE_TOKENS, SAMPLE_WIDTH, DRAWS = 16, 4, 64
COUNTS = tuple(16 * 4**power for power in range(5))
SPREAD = 0.3


def listed(directions: Tensor, x: Tensor) -> Tensor:
    """Return the features of the document's class: elu(x Omega) + 1, Omega over the root of m."""
    return features(directions / directions.shape[-1] ** 0.5, x)


def error_power(feature_map: Features = listed) -> float:
    """Return the power p of features**p with which the weights' relative RMS error falls."""
    rng = torch.Generator().manual_seed(4)
    q, k = (SPREAD * torch.randn(SAMPLE_TOKENS, SAMPLE_WIDTH, generator=rng) for _ in range(2))
    exact = (q @ k.T).softmax(-1)
    powers = []
    for count in COUNTS:
        total = 0.0
        for _ in range(DRAWS):
            directions = torch.randn(SAMPLE_WIDTH, count, generator=rng)
            scores = feature_map(directions, q) @ feature_map(directions, k).T
            weights = scores / scores.sum(-1, keepdim=True)
            total += float((weights - exact).square().sum() / exact.square().sum())
        powers.append((total / DRAWS) ** 0.5)
    return fitted(COUNTS, powers)


def mechanism_id(row: dict[str, str]) -> str:
    """Return this project's name for a row's mechanism."""
    return IDS.get(row["mechanism"], row["mechanism"])


def claimed_text(mechanism: str) -> str:
    """Return the text in the first O(…) of the time that is claimed for a mechanism: ``N*L``."""
    rows = {mechanism_id(row): row["time_claimed"] for row in DOCUMENT.rows(CLAIMS)}
    order = re.match(r"O\((.*?)\)(?: |;|$)", rows[mechanism])
    assert order, rows[mechanism]
    return order[1]


def claimed_order(mechanism: str) -> str:
    """Return the claimed time of a mechanism as an order in N."""
    text = claimed_text(mechanism)
    return ORDERS.get(text, text)


def claimed(mechanism: str) -> dict[str, int]:
    """Return the claimed powers, by size: O(N*L) is N 1, L 1."""
    powers = {}
    for factor in claimed_text(mechanism).split("*"):
        name, _, power = factor.partition("^")
        powers[name] = int(power or 1)
    return powers


def leading(expression: Any, sizes: Sequence[str] = ("N",)) -> dict[str, int]:
    """Return the sizes' powers in the leading term; ValueError if several terms lead."""
    terms = leading_terms(formula(expression), sizes)
    if terms is None or len(terms) != 1:
        raise ValueError(f"no single term of {expression} leads in {', '.join(sizes)}")
    (term,) = terms
    return {size: int(term.growth.get(size, (0, 0))[0]) for size in sizes}


def _executed(name: str) -> dict[str, int]:
    return leading(derived(name), ("N", "L") if name == "linformer" else ("N",))


@cache
def kept(tokens: int, window: int) -> int:
    """Return the number of entries that the window's mask keeps, counted in the weights."""
    x = torch.zeros(1, tokens, 1)
    weights = longformer(x, x, torch.eye(tokens)[None], window=window)
    return int((weights > 0).sum())


def _power_of_kept() -> dict[str, int]:
    counts = [kept(tokens, 4) for tokens in range(16, 17 + 8 * 6, 8)]
    power = 0
    while len(set(counts)) > 1:
        counts = [after - before for before, after in pairwise(counts)]
        power += 1
    return {"N": power}


def quoted(quantity: str) -> dict[str, float]:
    """Return Figure Z's numbers of a quantity, by model."""
    rows = DOCUMENT.rows(FIGURE_Z)
    return {row["model"]: float(row["value"]) for row in rows if row["quantity"] == quantity}


def _normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _heads_and_parameters() -> dict[str, int]:
    tokens, width = 6, 16
    inputs = [_normal(1, tokens, width, seed=seed) for seed in range(3)]
    single = CLASSES["standard"](*inputs)
    spec, module = registry.get("standard"), registry.module_of("standard")
    equal: list[int] = []
    for heads in (1, 2, 4, 8):
        q, k, v = (x.view(1, tokens, heads, -1).transpose(1, 2) for x in inputs)
        out = attend_core(spec, module, q, k, v, False, 0, None)
        if torch.allclose(out.transpose(1, 2).reshape(single.shape), single, atol=1e-5):
            equal.append(heads)
    (heads,) = equal
    return {"heads": heads, "parameters": int(derived("standard", "parameters"))}


def lengths_it_runs_at() -> dict[str, bool]:
    """Return whether the Linformer class runs at both lengths; its matrix is for N tokens."""
    runs, lengths = attention("linformer", TOKENS, 2), {}
    for tokens in (TOKENS, TEST_TOKENS):
        x, lengths[f"{tokens} tokens"] = _normal(1, tokens, 2), True
        try:
            runs(x, x, x)
        except RuntimeError:  # torch's: the shapes of a product do not fit
            lengths[f"{tokens} tokens"] = False
    return lengths


def _has_global_tokens() -> bool:
    tokens = 16
    q, k = _normal(1, tokens, 4), _normal(1, tokens, 4, seed=2)
    attends = longformer(q, k, torch.eye(tokens)[None], window=2)[0] > 0
    return bool((attends.all(0) & attends.all(1)).any())


def _masked() -> dict[str, bool]:
    tokens, width = 6, 4
    x = _normal(1, tokens, width)
    other = x.clone()
    other[:, -1] += 1
    runs = {name: attention(name, tokens, width, length=3, count=8) for name in CLASSES}
    return {
        name: bool(torch.allclose(run(x, x, x)[:, 0], run(other, other, other)[:, 0]))
        for name, run in runs.items()
    }


def _unbound() -> list[str]:
    names = []
    for row in DOCUMENT.rows("listing_names"):
        needed = [int(row[key] or 0) for key in ("needed_block", "needed_line")]
        bound = [int(row[key] or 0) for key in ("bound_block", "bound_line")]
        if not row["bound_line"] or bound > needed:
            names.append(row["name"])
    return names


def _loss_at_the_teacher() -> float:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 32, generator=rng)
    labels = torch.randint(0, 32, (16,), generator=rng)
    soft, hard = (float(SETTINGS[key]) for key in ("DISTILLATION_TEMP", "ALPHA"))
    tempered = (logits / soft).log_softmax(-1)
    divergence = F.kl_div(tempered, tempered, reduction="batchmean", log_target=True) * soft**2
    return round(float(hard * F.cross_entropy(logits, labels) + (1 - hard) * divergence), 6)


def operations() -> dict[str, float]:
    """Return operations of one call of each class, one sequence at the document's sizes."""
    sizes = {"B": 1, "N": TOKENS, "d": WIDTH, "L": LENGTH, "m": FEATURES}
    at = {symbol(name): size for name, size in sizes.items()}
    return {name: float(derived(name).subs(at)) for name in CLASSES}


def cheapest_approximation() -> str:
    """Return the class with the fewest operations, without the standard one."""
    counts = operations()
    return min(STUDENTS, key=lambda name: counts[name])


def worst_ratio() -> str:
    """Return the model whose error grows most on the longer test, of those whose test ran."""
    ratios = {name: x for name, x in quoted("generalization_ratio").items() if x < FAILED}
    return max(ratios, key=ratios.__getitem__)


def _weakest() -> str:
    errors = {**quoted("accuracy_proxy"), "standard_mha": 0.0}  # the teacher is its own target
    return max(errors, key=errors.__getitem__)


def seconds() -> dict[str, float]:
    """Return measured time of a forward pass through each whole model, one sequence."""
    times: dict[str, float] = measured("003", "model_times")["seconds"]
    return times


PRINTED: Printed = {
    **{claim: claimed(name) for claim, name in CLAIMED.items()},
    "003-CROSS": {name: claimed(name)["N"] for name in STUDENTS},
    "003-STD-MH": {"heads": HEADS, "parameters": 4 * WIDTH**2},
    "003-LIN-GEN": {f"{TOKENS} tokens": True, f"{TEST_TOKENS} tokens": False},
    "003-MASK": dict.fromkeys(CLASSES, True),
    "003-SPEEDUP": {n: x for n, x in quoted("practical_speed").items() if n in CLASSES},
}
OURS: Ours = {
    **{claim: partial(_executed, name) for claim, name in CLAIMED.items()},
    "003-CROSS": lambda: {  # the decoder has its own class twice and the standard one once
        name: leading(2 * derived(name) + derived("standard"))["N"] for name in STUDENTS
    },
    "003-SPARSE-L": _power_of_kept,
    "003-QKV": lambda: False,  # whether K and V enter the model
    "003-PERF-FAVOR": error_power,
    "003-TEACHER": lambda: quoted("final_true_ce")["standard_mha"] < math.log(VOCABULARY),
    "003-STD-MH": _heads_and_parameters,
    "003-LIN-GEN": lengths_it_runs_at,
    "003-LONG-GLOBAL": _has_global_tokens,
    "003-MASK": _masked,
    "003-RUN": _unbound,
    "003-KD": _loss_at_the_teacher,
    "003-FASTEST": cheapest_approximation,
    "003-RATIO": worst_ratio,
    "003-BEST": _weakest,
    "003-SPEEDUP": lambda: {name: seconds()[name] for name in ("performer", "longformer")},
}
FACTS: Facts = {
    "003-SPEEDUP": lambda said, ours: {
        where: times["longformer"] / times["performer"]
        for where, times in (("here", ours), ("there", said))
    }
}
