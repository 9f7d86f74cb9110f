"""Checks of document 004's Tables 3 to 7 and of numbers in its text.

``PRINTED`` has the document's values by claim. ``OURS`` computes them from the tables' other
numbers, the printed formulas, or times measured here. ``FACTS`` are numbers for the verdict's text.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import sqrt
from statistics import mean, median, mode
from typing import Any

from attnprof.measure.statistics import student_quantile
from attnprof.papers.checks import Facts, Ours, Printed, within
from attnprof.papers.documents import measured, number
from attnprof.papers.taylorshift.checks_costs import DOCUMENT, WIDTHS, published, quoted
from attnprof.workload import Workload

DATASETS = ("cifar_pixel", "imdb_byte", "listops", "imagenet_ti", "imagenet_s")
MODEL, BASELINE = "taylorshift", "transformer"
ROWS = DOCUMENT.rows("table03_accuracy")
EMBEDDINGS = DOCUMENT.rows("table05_token_embedding")
LINEAR_MODELS = [row["model"] for row in ROWS if row["model"] not in (MODEL, BASELINE)]


def accuracies() -> dict[str, dict[str, float]]:
    """Return Table 3: percent by model and dataset; a dataset without a result is left out."""
    return {
        row["model"]: {name: float(row[name]) for name in DATASETS if row[name]}
        for row in DOCUMENT.rows("table03_accuracy")
    }


def average(model: str) -> float:
    """Return mean accuracy over the datasets that a model has a result on."""
    return round(mean(accuracies()[model].values()), 6)


def ahead_of(model: str) -> list[str]:
    """Return datasets on which TaylorShift's printed accuracy is higher."""
    theirs, other = accuracies()[MODEL], accuracies()[model]
    return [name for name in other if theirs[name] > other[name]]


def _fewest_wins(*_: Any) -> dict[str, str]:
    """Return the linear model that TaylorShift beats on the fewest datasets, and these datasets."""
    model = min(LINEAR_MODELS, key=lambda name: len(ahead_of(name)))
    theirs, other = accuracies()[MODEL], accuracies()[model]
    ties = (f"{name} ({points} both)" for name, points in other.items() if theirs[name] == points)
    return {"model": model, "ahead": ", ".join(ahead_of(model)), "level": ", ".join(ties)}


def _losses(*_: Any) -> dict[str, str]:
    """Return datasets on which TaylorShift is below the Transformer, and by how much."""
    losses = {name: x - accuracies()[MODEL][name] for name, x in accuracies()[BASELINE].items()}
    below = (f"{points:.1f} points on {name}" for name, points in losses.items() if points > 0)
    return {"losses": " and ".join(below)}


def column(name: str) -> dict[int, float]:
    """Return a column of Table 6 by head count."""
    return {int(row["h"]): number(row[name]) for row in DOCUMENT.rows("table06_heads")}


def setting(name: str) -> dict[str, str]:
    """Return a row of Table 7, by dataset."""
    (row,) = (row for row in DOCUMENT.rows("table07_hyperparameters") if row["param"] == name)
    return {dataset: row[dataset] for dataset in DATASETS}


def common_head_width() -> int:
    """Return the head width that most models of Table 7 have."""
    widths, heads = setting("d_embed"), setting("heads")
    return int(mode(int(widths[name]) / int(heads[name]) for name in DATASETS))


def deltas() -> dict[str, float]:
    """Return the accuracy of the convolutional embedding less the linear one's, by dataset."""
    return {
        row["dataset"]: round(float(row["conv_acc_pct"]) - float(row["linear_acc_pct"]), 6)
        for row in EMBEDDINGS
    }


def _gain(model: str) -> float:
    """Return the points that a model gains from the tiny to the small size on ImageNet."""
    accuracy = accuracies()[model]
    return round(accuracy["imagenet_s"] - accuracy["imagenet_ti"], 6)


def _normalised_reaches_plain() -> bool:
    """Return whether both forms are as accurate with all norms as the direct one without any."""
    rows = {row["variant"]: row for row in DOCUMENT.rows("table04_normalization_ablation")}
    both = rows["input_norm+output_norm"]
    plain = float(rows["plain"]["direct_acc_pct"])
    return all(float(both[name]) >= plain for name in ("direct_acc_pct", "efficient_acc_pct"))


#: Images of a batch in Table 6, and bytes of a MiB.
BATCH, MIB = 16, 2**20
#: Tokens of an image of CIFAR, a class token included, and the width of its model.
TOKENS, MODEL_WIDTH = int(quoted("cifar_seq_len")) + 1, int(setting("d_embed")["cifar_pixel"])
#: Bytes of an entry: powers run in float32 under autocast, products in float16.
BYTES = {"direct": 4, "efficient": 2}
MEMORY = {form: column(f"{form}_mem_mib_at16") for form in BYTES}
#: Memory of the efficient encoder as a share of the standard one's, by length.
SHARES = {quoted("sec52_half_memory_at_tokens"): 0.5, quoted("sec52_35pct_memory_at_tokens"): 0.35}


def _crossovers(place: str) -> dict[str, int]:
    """Return the tokens from which TaylorShift needs less memory and less time."""
    return {name: int(quoted(f"{place}_{name}_crossover_tokens")) for name in ("memory", "speed")}


def _mebibytes(form: str, heads: int) -> float:
    """Return MiB of a form by the printed formula for its entries, at Table 6's width and batch."""
    sizes = Workload(TOKENS, heads, MODEL_WIDTH // heads)
    entries = int(published(f"004-MHSA-ENT-{form.upper()}").formula(sizes))
    return entries * BATCH * BYTES[form] / MIB


def beside_entries() -> float:
    """Return the MiB of Table 6 besides the direct form's entries: the median from 2 heads on."""
    sizes = column("direct_mem_mib_at16")
    return median(sizes[h] - _mebibytes("direct", h) for h in sizes if h > 1)


def memory(form: str, heads: int) -> float:
    """Return MiB of a form's entries, plus :func:`beside_entries`."""
    return _mebibytes(form, heads) + beside_entries()


def _direct_entries(said: Any, _: Any) -> dict[str, float]:
    """Return MiB of the direct form's entries for one head more and for one, and the rest."""
    one, two = (_mebibytes("direct", heads) for heads in (1, 2))
    return {"a_head": two - one, "one": one, "printed": said["1"], "beside": beside_entries()}


def _box_products(said: Any, ours: Any) -> dict[str, Any]:
    """Return head counts at which entries, or box products, explain the efficient form's memory.

    A box product of keys and values has width² entries a token.
    """
    near, on_line = within(absolute=2.5), within(relative=0.02)
    alone, boxes = MEMORY["direct"][1], BATCH * BYTES["efficient"] * TOKENS * MODEL_WIDTH**2 / MIB
    others = [h for h in ours if on_line(said[h], alone + boxes / int(h))]
    by_entries = [h for h in ours if near(said[h], ours[h])]
    return {
        "beside": beside_entries(), "by_entries": ", ".join(by_entries),
        "others": ", ".join(others), "alone": alone, "boxes": boxes,
        "most_heads": said["64"],
    }  # fmt: skip


def delay(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return c of N̂ = N0 + c·d and its interval, from ``d``, ``N0``, ``at`` (N̂) of each width.

    Relative distances are fitted by least squares, since the error of a measured length is a share
    of it. The interval is Student's at 95 %, from the scatter of the widths around the line.
    """
    weights = [row["d"] ** 2 / row["at"] ** 2 for row in rows]
    each = [(row["at"] - row["N0"]) / row["d"] for row in rows]
    factor = sum(w * c for w, c in zip(weights, each, strict=True)) / sum(weights)
    freedom = len(rows) - 1
    if not freedom:
        return {"factor": factor, "low": None, "high": None}
    rest = sum(w * (c - factor) ** 2 for w, c in zip(weights, each, strict=True))
    reach = student_quantile(freedom) * sqrt(rest / freedom / sum(weights))
    return {"factor": factor, "low": factor - reach, "high": factor + reach}


def measured_crossings(name: str = "N0hat") -> list[dict[str, float]]:
    """Return the widths whose crossing in time was measured and not extrapolated."""
    rows = measured("004", "crossovers")
    columns = zip(rows["d"], rows["N0"], rows[name], strict=True)
    return [{"d": d, "N0": n0, "at": at} for d, n0, at in columns if at is not None]


def _more_heads() -> dict[str, bool]:
    """Return whether every larger head count of Table 6 is faster, and takes less memory."""
    speeds = column("efficient_tp_ims_s").values()
    return {
        "faster": all(a < b for a, b in pairwise(speeds)),
        "less memory": all(a > b for a, b in pairwise(MEMORY["efficient"].values())),
    }


def _tokens_by_memory() -> int:
    """Return the length N whose N × N scores explain Table 6's growth of memory per head."""
    direct = MEMORY["direct"]
    heads = [h for h in direct if h > 1]  # the scores decide the direct form's memory there
    slope = (direct[heads[-1]] - direct[heads[0]]) / (heads[-1] - heads[0])
    return round(float((slope * MIB / (2 * BATCH * BYTES["direct"])) ** 0.5))


def _delays(*_: Any) -> dict[str, str]:
    """Return how much later than N0 each width's crossing in time was, and the law for all."""
    rows, law = measured_crossings(), delay(measured_crossings())
    results, width = measured("004", "crossovers"), {row["d"] for row in rows}
    beyond = ", ".join(f"d={d}" for d in results["d"] if d not in width)
    by_default = measured_crossings("N0hat_default") if "N0hat_default" in results else []
    others = ""
    if len(by_default) > 1:
        other = delay(by_default)
        span = f"({other['low']:.1f} to {other['high']:.1f})"
        others = f"; with the allocator's defaults {other['factor']:.1f} {span}"
    return {
        "each": ", ".join(f"d={r['d']} {(r['at'] - r['N0']) / r['d']:+.1f}" for r in rows),
        "left": f"; {beyond} crosses beyond what was timed and is left out" if beyond else "",
        "span": f" ({law['low']:.1f} to {law['high']:.1f}, 95 %)" if law["low"] is not None else "",
        "by_default": others,
    }


def _memory_shares() -> dict[str, float]:
    """Return the measured share of memory at each length that the text quotes."""
    results = measured("004", "encoder")
    ratios = dict(zip(results["seq_len"], results["memory_ratio"], strict=True))
    return {length: round(ratios[int(length)], 4) for length in SHARES}


PRINTED: Printed = {
    **{f"004-T3-avg-{row['model']}": float(row["average"]) for row in ROWS},
    "004-T3-05": float(quoted("avg_gain_over_transformer_pct")),
    "004-T3-gain": {
        MODEL: float(quoted("ti_to_s_gain_ours_pct")),
        BASELINE: float(quoted("ti_to_s_gain_transformer_pct")),
    },
    "004-T5": {row["dataset"]: float(row["delta"]) for row in EMBEDDINGS},
    "004-T5-cifar": {row["dataset"]: float(row["linear_acc_pct"]) for row in EMBEDDINGS},
    "004-T7-348": int(setting("d_embed")["imagenet_s"]),
    "004-800": _crossovers("abstract"),
    "004-d62": [int(d) for d in quoted("fig1_incomplete_d").split(";")],
    "004-T6-dirmem": {str(h): mib for h, mib in MEMORY["direct"].items()},
    "004-T6-effmem": {str(h): mib for h, mib in MEMORY["efficient"].items()},
    "004-06": {
        f"d={row['d']}": int(row["N1"]) for row in DOCUMENT.rows("table02_transition_points")
    },
    "004-T6-1025": int(quoted("table6_seq_len")),
    "004-18d": float(quoted("N0hat_minus_N0_over_d")),
    "004-1500": SHARES,
}
OURS: Ours = {
    **{f"004-T3-avg-{row['model']}": partial(average, row["model"]) for row in ROWS},
    "004-T3-four": lambda: {"datasets": min(len(ahead_of(model)) for model in LINEAR_MODELS)},
    "004-T3-three": lambda: {"datasets": len(ahead_of(BASELINE))},
    "004-T3-05": lambda: round(average(MODEL) - average(BASELINE), 6),
    "004-T3-gain": lambda: {model: _gain(model) for model in (MODEL, BASELINE)},
    "004-ABS-nodeg": lambda: all(
        accuracies()[MODEL][name] >= other for name, other in accuracies()[BASELINE].items()
    ),
    "004-T5": deltas,
    "004-T5-cifar": lambda: accuracies()[MODEL],
    "004-T7-348": lambda: common_head_width() * int(setting("heads")["imagenet_s"]),
    "004-T4": _normalised_reaches_plain,
    "004-800": lambda: _crossovers("sec52"),
    "004-d62": lambda: sorted(WIDTHS)[-2:],
    "004-T6-dirmem": lambda: {str(h): memory("direct", h) for h in MEMORY["direct"]},
    "004-T6-effmem": lambda: {str(h): memory("efficient", h) for h in MEMORY["efficient"]},
    "004-T6-speed": _more_heads,
    "004-T6-1025": _tokens_by_memory,
    "004-06": lambda: {
        f"d={row['d']}": row["at"] for row in measured_crossings("N1hat") if row["d"] in WIDTHS
    },
    "004-18d": lambda: round(float(delay(measured_crossings())["factor"]), 2),
    "004-1500": _memory_shares,
}
FACTS: Facts = {
    "004-T3-four": _fewest_wins,
    "004-ABS-nodeg": _losses,
    "004-T6-dirmem": _direct_entries,
    "004-T6-effmem": _box_products,
    "004-06": lambda said, ours: {"worst": max(abs(ours[d] / said[d] - 1) for d in ours)},
    "004-18d": _delays,
    "004-1500": lambda _, ours: {
        "shares": ", ".join(f"{share:.0%} at {length} tokens" for length, share in ours.items())
    },
}
