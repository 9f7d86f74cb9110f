"""003's figures: costs that it draws as blocks, as counted and measured growth."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from attnprof import registry
from attnprof.algebra.orders import fitted, order_value
from attnprof.papers.approximation.checks_orders import (
    DENSE,
    FAMILIES,
    HEAD_DIM,
    LENGTHS,
    SHORT,
    claimed_order,
    clocked_exponent,
    exponent,
    points,
)
from attnprof.papers.approximation.checks_program import (
    FAILED,
    HEADS,
    VOCABULARY,
    cheapest_approximation,
    operations,
    quoted,
    worst_ratio,
)
from attnprof.papers.approximation.program import TOKENS, WIDTH
from attnprof.papers.approximation.tables import no_faster
from attnprof.papers.measured import measured
from attnprof.papers.regenerated import Described, Figure, FigureData
from attnprof.workload import Workload


def _layer(tokens: int, heads: int) -> dict[str, int]:
    """FLOPs of a layer of standard attention by part, and its peak in bytes."""
    table = registry.get("standard", bias=False).cost(Workload(tokens, heads, WIDTH // heads))
    parts = {stage.name: int(stage.cost.flops) for stage in table}
    return {**parts, "peak_bytes": int(table.peak())}


def projections() -> FigureData:
    """B: the products that make Q, K and V, beside the attention that follows."""
    rows: list[dict[str, Any]] = []
    for tokens in LENGTHS:
        parts = _layer(tokens, 1)
        made = {name: parts[name] for name in ("queries", "keys", "values")}
        rows.append({"seq_len": tokens, **made, "attention": _attention(parts)})
    powers = {name: exponent(rows, name) for name in ("queries", "keys", "values")}
    exact = all(row[name] == 2 * row["seq_len"] * WIDTH**2 for row in rows for name in powers)
    meeting = next(row["seq_len"] for row in rows if row["attention"] > 3 * row["queries"])
    described = (
        Described("Q, K and V are X times W_Q, W_K and W_V", "three products",
                  f"three products of 2 N D² FLOPs each, N^{powers['queries']:.2f}", exact),
    )  # fmt: skip
    return FigureData(rows, described, {"d_model": WIDTH, "attention_above_from": meeting})


def _attention(parts: dict[str, int]) -> int:
    return sum(parts[name] for name in ("scores", "softmax", "weighted values"))


def heads() -> FigureData:
    """C: one layer divided among more and more heads."""
    counts = [2**power for power in range(6)]
    rows: list[dict[str, Any]] = []
    for count in counts:
        parts = _layer(TOKENS, count)
        rows.append({
            "num_heads": count, "head_dim": WIDTH // count,
            "projections": sum(parts[name] for name in ("queries", "keys", "values", "output")),
            "scores and values": parts["scores"] + parts["weighted values"],
            "softmax": parts["softmax"], "peak_bytes": parts["peak_bytes"],
        })  # fmt: skip
    lengths = LENGTHS[len(LENGTHS) // 2 :]
    powers = {
        count: fitted(lengths, [_attention(_layer(n, count)) for n in lengths])
        for count in (1, HEADS)
    }
    told = ", ".join(f"N^{power:.2f} with H = {count}" for count, power in powers.items())
    same = len({row["scores and values"] for row in rows}) == 1
    described = (
        Described("with or without heads the attention is O(N²)", "O(N²)", told,
                  all(no_faster(2, power) for power in powers.values())),
        Described("the H heads concatenated are as wide as the model", f"H = {HEADS}",
                  f"{HEADS} heads of {WIDTH // HEADS}; the products cost the same for every H, "
                  "the softmax H times as much", same),
    )  # fmt: skip
    return FigureData(rows, described, {"seq_len": TOKENS, "d_model": WIDTH, "printed": HEADS})


def family(key: str) -> FigureData:
    """D to G: growth of a family beside standard attention."""
    rows: list[dict[str, Any]] = []
    described, powers = [], {}
    for label in ("standard", *FAMILIES[key]):
        its = points(label)
        rows += its
        powers[label] = {
            "flops": round(exponent(its, "flops"), 3),
            "peak_bytes": round(exponent(its, "peak_bytes"), 3),
            "median_s": round(clocked_exponent(its), 3),
        }
        if label != "standard" or key == "D":
            described.append(_described(label, powers[label]))
    return FigureData(rows, described, {"exponents": powers, "head_dim": HEAD_DIM})


def _described(label: str, found: dict[str, float]) -> Described:
    """The claimed order and ours; the clock's is told and not judged."""
    order = claimed_order(label.partition(" ")[0])
    claim = fitted(LENGTHS[4:], [order_value(order, n) for n in LENGTHS[4:]])
    what = "the listing's way" if label == DENSE else "time"
    return Described(
        f"{label}: {what}",
        f"O({order}), an exponent of {claim:.2f}",
        f"FLOPs N^{found['flops']:.2f}, peak memory N^{found['peak_bytes']:.2f}, "
        f"processor time N^{found['median_s']:.2f} (measured, {SHORT[0]} to {SHORT[-1]:,} tokens)",
        no_faster(claim, found["flops"]),
    )


def results() -> FigureData:
    """Z: the quoted numbers, and the models' times and operations here."""
    seconds = measured("003", "model_times")["seconds"]
    counts, losses = operations(), quoted("final_true_ce")
    printed, ratios = quoted("practical_speed"), quoted("generalization_ratio")
    rows = []
    for name, here in seconds.items():
        key = "standard_mha" if name == "standard" else name
        ratio, told = ratios.get(key), printed.get(name)
        rows.append({
            "model": name, "final_true_ce": losses.get(key),
            "generalization_ratio": None if ratio == FAILED else ratio,
            "failed": ratio == FAILED, "seconds_printed": told, "seconds": here,
            "relative_printed": told and told / printed["performer"],
            "relative": here / seconds["performer"], "attention_flops": counts[name],
        })  # fmt: skip
    by_time = sorted(seconds, key=lambda name: seconds[name])
    said = (
        ("slowest model", "longformer", by_time[-1]),
        ("fastest model on average", "linformer", by_time[0]),
        ("fastest approximation", "performer", cheapest_approximation()),
        ("worst generalization ratio", "longformer, 0.68", worst_ratio()),
    )
    described = [
        Described(what, printed, ours, printed.split(",")[0] == ours)
        for what, printed, ours in said
    ]
    return FigureData(rows, described, {"uniform_guess": math.log(VOCABULARY)})


FAMILY = {
    "D": "standard attention", "E": "low-rank approximation", "F": "kernel approximation",
    "G": "sparse attention",
}  # fmt: skip
FIGURES: dict[str, Figure] = {
    "B": Figure("Products that make Q, K and V", projections),
    "C": Figure("Multi-head attention by number of heads", heads),
    **{
        key: Figure(f"Growth of {name}", partial(family, key), measured=True)
        for key, name in FAMILY.items()
    },
    "Z": Figure("Quoted results beside ours", results, measured=True),
}
