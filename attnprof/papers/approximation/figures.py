"""003's tables and figures: claimed orders and quoted numbers beside counts and growth here."""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from attnprof import registry
from attnprof.algebra import orders
from attnprof.algebra.orders import fitted, order_value
from attnprof.measure import growth
from attnprof.papers.approximation import checks
from attnprof.papers.approximation.checks import DOCUMENT, FAILED, HEADS, TOKENS, WIDTH, quoted
from attnprof.papers.documents import measured
from attnprof.papers.regenerated import Computed, Statement, both_values, figures_of, tables_of
from attnprof.workload import Workload

HEAD_DIM = 64
LENGTHS = tuple(2**power for power in range(9, 17))
#: Lengths at which time and memory are measured, and products counted by torch.
SHORT = (512, 1024, 2048, 4096)
#: The families of its figures by name; the listing's own Longformer is dense.
DENSE = "longformer impl=dense-mask"
FAMILIES: dict[str, tuple[str, list[str]]] = {
    "D": ("standard attention", []),
    "E": ("low-rank approximation", ["linformer", "nystromformer", "low-rank"]),
    "F": ("kernel approximation", ["performer", "linear"]),
    "G": ("sparse attention", ["longformer", DENSE, "reformer", "sparse"]),
}
PROJECTIONS = ("queries", "keys", "values")
Fit = Callable[[Sequence[int], Sequence[float]], float]


def subject(label: str) -> growth.GrowthCase:
    """Return the core of a mechanism with one head, by a label as ``list`` writes it."""
    name, *settings = label.split()
    params = dict(setting.split("=") for setting in settings)
    return growth.GrowthCase(registry.get(name, **params), Workload(1, 1, HEAD_DIM), "core")


@cache
def _exponents(mechanism: str) -> tuple[float, float, float]:
    """Return exponents of N: claimed for the time, fitted to FLOPs and to peak memory."""
    flops, peak = growth.closed_form_growth(subject(mechanism))
    order = checks.claimed_order(mechanism)
    claim = fitted(growth.LENGTHS, [order_value(order, n) for n in growth.LENGTHS])
    return round(claim, 2), round(flops.found_exponent or 0, 2), round(peak.found_exponent or 0, 2)


def no_faster(claim: Any, power: Any) -> bool:
    """Return whether a power is no larger than claimed, within the tolerance of a fit."""
    return bool(power <= claim + growth.TOLERANCE)


def _complexities() -> list[dict[str, Any]]:
    """Return the orders claimed in the text."""
    rows: list[dict[str, Any]] = []
    for row in DOCUMENT.rows(checks.CLAIMS):
        mechanism, derived_power = checks.mechanism_id(row), None
        claim, time, memory = _exponents(mechanism)
        if mechanism in checks.CLASSES:
            power = checks.leading(checks.derived(mechanism))["N"]
            derived_power = both_values(claim, float(power), no_faster)
        rows.append({
            "mechanism": mechanism, "family": row["family"], "claimed": row["time_claimed"],
            "time: exponent of N": both_values(claim, time, no_faster),
            "memory: exponent of N": memory, "its class in the listing": derived_power,
        })  # fmt: skip
    return rows


def _quoted_numbers() -> list[dict[str, Any]]:
    """Return the numbers quoted of Figure Z and in the text."""
    rows: list[dict[str, Any]] = []
    runs = checks.lengths_it_runs_at()[f"{checks.TEST_TOKENS} tokens"]
    for row in DOCUMENT.rows(checks.FIGURE_Z):
        value, timed = float(row["value"]), row["quantity"] == "practical_speed"
        rows.append({
            "model": row["model"], "quantity": row["quantity"],
            "value": both_values(value, 1.0 if runs else FAILED) if value == FAILED else value,
            "on our machine (s)": checks.seconds()[row["model"]] if timed else None,
            "unit": row["unit"], "where": row["where"],
        })  # fmt: skip
    return rows


def _layer(tokens: int, heads: int) -> dict[str, int]:
    """Return FLOPs of a standard layer by stage, of its core (``attention``), and peak bytes."""
    table = registry.get("standard", bias=False).cost(Workload(tokens, heads, WIDTH // heads))
    parts = {stage.name: int(stage.cost.flops) for stage in table}
    attention = sum(parts[name] for name in ("scores", "softmax", "weighted values"))
    return {**parts, "attention": attention, "peak_bytes": int(table.peak())}


def projections() -> Computed:
    """Return Figure B: FLOPs of the products that make Q, K and V, and of the attention after."""
    rows: list[dict[str, Any]] = []
    for tokens in LENGTHS:
        parts = _layer(tokens, 1)
        rows.append(
            {"seq_len": tokens, **{name: parts[name] for name in (*PROJECTIONS, "attention")}}
        )
    power = exponent(rows, "queries")
    exact = all(row[name] == 2 * row["seq_len"] * WIDTH**2 for row in rows for name in PROJECTIONS)
    meeting = next(row["seq_len"] for row in rows if row["attention"] > 3 * row["queries"])
    said = [("products", exact, {"power": power})]
    return rows, said, {"d_model": WIDTH, "attention_above_from": meeting}


def heads() -> Computed:
    """Return Figure C: one layer divided among more and more heads."""
    rows: list[dict[str, Any]] = []
    for count in (2**power for power in range(6)):
        parts = _layer(TOKENS, count)
        rows.append({
            "num_heads": count, "head_dim": WIDTH // count,
            "projections": sum(parts[name] for name in (*PROJECTIONS, "output")),
            "scores and values": parts["scores"] + parts["weighted values"],
            "softmax": parts["softmax"], "peak_bytes": parts["peak_bytes"],
        })  # fmt: skip
    longer = LENGTHS[len(LENGTHS) // 2 :]
    powers = {
        count: fitted(longer, [_layer(n, count)["attention"] for n in longer])
        for count in (1, HEADS)
    }
    words = ", ".join(f"N^{power:.2f} with H = {count}" for count, power in powers.items())
    same = len({row["scores and values"] for row in rows}) == 1
    said: list[Statement] = [
        ("heads", all(no_faster(2, power) for power in powers.values()), {"powers": words}),
        ("width", same, {"heads": HEADS, "width": WIDTH // HEADS}),
    ]
    return rows, said, {"seq_len": TOKENS, "d_model": WIDTH, "printed": HEADS}


def points(label: str) -> list[dict[str, Any]]:
    """Return a row a length: closed forms, at short lengths also counts and measurements."""
    of_label = [point for point in measured("003", "growth") if point["mechanism"] == label]
    clocked = {point["seq_len"]: point for point in of_label}
    rows = []
    for n in LENGTHS:
        table, point = subject(label).table(n), clocked.get(n, {})
        rows.append({
            "mechanism": label, "seq_len": n, "flops": int(table.flops),
            "matmul_flops": int(table.matmul_flops),
            "matmul_flops_counted": point.get("matmul_flops"),
            "peak_bytes": int(table.peak()), "peak_bytes_measured": point.get("peak_bytes"),
            **{name: point.get(name) for name in ("median_s", "ci_low_s", "ci_high_s")},
        })  # fmt: skip
    return rows


def exponent(rows: Sequence[dict[str, Any]], quantity: str, fit: Fit = fitted) -> float:
    """Return the exponent of N of a quantity, by default over the longer half of its lengths."""
    rows = [row for row in rows if row[quantity]]
    return fit([row["seq_len"] for row in rows], [row[quantity] for row in rows])


def family(key: str) -> Computed:
    """Return Figures D to G: growth of a family and of standard attention."""
    rows: list[dict[str, Any]] = []
    said, powers = list[Statement](), {}
    for label in ("standard", *FAMILIES[key][1]):
        series = points(label)
        rows += series
        powers[label] = {
            "flops": round(exponent(series, "flops"), 3),
            "peak_bytes": round(exponent(series, "peak_bytes"), 3),
            "median_s": round(exponent(series, "median_s", orders.exponent), 3),  # of all lengths
        }
        if label != "standard" or key == "D":
            said.append(_order(label, powers[label]))
    return rows, said, {"exponents": powers, "head_dim": HEAD_DIM}


def _order(label: str, powers: dict[str, float]) -> Statement:
    """Return the statement on the claimed order and ours; measured times decide nothing."""
    order = checks.claimed_order(label.partition(" ")[0])
    claim = fitted(LENGTHS[4:], [order_value(order, n) for n in LENGTHS[4:]])
    what = "the listing's way" if label == DENSE else "time"
    gaps = {"label": label, "what": what, "order": order, "claim": claim, **powers}
    gaps |= {"shortest": SHORT[0], "longest": SHORT[-1]}
    return "order", no_faster(claim, powers["flops"]), gaps


def results() -> Computed:
    """Return Figure Z: the quoted numbers, and the models' times and operations here."""
    seconds, counts, losses = checks.seconds(), checks.operations(), quoted("final_true_ce")
    speeds, ratios = quoted("practical_speed"), quoted("generalization_ratio")
    rows = []
    for name, seconds_here in seconds.items():
        key = "standard_mha" if name == "standard" else name
        ratio, speed = ratios.get(key), speeds.get(name)
        rows.append({
            "model": name, "final_true_ce": losses.get(key),
            "generalization_ratio": None if ratio == FAILED else ratio,
            "failed": ratio == FAILED, "seconds_printed": speed, "seconds": seconds_here,
            "relative_printed": speed and speed / speeds["performer"],
            "relative": seconds_here / seconds["performer"], "attention_flops": counts[name],
        })  # fmt: skip
    *_, slowest = by_time = sorted(seconds, key=lambda name: seconds[name])
    answers = (
        ("slowest model", "longformer", slowest),
        ("fastest model on average", "linformer", by_time[0]),
        ("fastest approximation", "performer", checks.cheapest_approximation()),
        ("worst generalization ratio", "longformer, 0.68", checks.worst_ratio()),
    )
    said = [
        ("result", printed.split(",")[0] == ours, {"what": what, "printed": printed, "ours": ours})
        for what, printed, ours in answers
    ]
    return rows, said, {"uniform_guess": math.log(checks.VOCABULARY)}


TABLES = tables_of("003", {}, {checks.CLAIMS: _complexities, checks.FIGURE_Z: _quoted_numbers})
FIGURES = figures_of("003", {
    "B": ("Products that make Q, K and V", projections),
    "C": ("Multi-head attention by number of heads", heads),
    **{key: (f"Growth of {name}", partial(family, key)) for key, (name, _) in FAMILIES.items()},
    "Z": ("Quoted results beside ours", results),
}, measured="DEFGZ")  # fmt: skip
