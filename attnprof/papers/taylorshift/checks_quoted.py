"""004: Tables 3 to 7, numbers of the text, and this project's measurements."""

from functools import partial
from itertools import pairwise
from statistics import mean, median, mode
from typing import Any

from attnprof.papers.checks import Facts, Ours, Printed, within
from attnprof.papers.documents import measured, number
from attnprof.papers.taylorshift.checks_costs import DOCUMENT, WIDTHS, published, quoted
from attnprof.papers.taylorshift.races import delay
from attnprof.workload import Workload

DATASETS = ("cifar_pixel", "imdb_byte", "listops", "imagenet_ti", "imagenet_s")
MODEL, BASELINE = "taylorshift", "transformer"
ROWS = DOCUMENT.rows("table03_accuracy")
EMBEDDINGS = DOCUMENT.rows("table05_token_embedding")
LINEAR_MODELS = [row["model"] for row in ROWS if row["model"] not in (MODEL, BASELINE)]


def accuracies() -> dict[str, dict[str, float]]:
    """Table 3: percent by model and dataset; a dataset without a result is left out."""
    return {
        row["model"]: {name: float(row[name]) for name in DATASETS if row[name]}
        for row in DOCUMENT.rows("table03_accuracy")
    }


def average(model: str) -> float:
    """Mean accuracy over the datasets that a model has a result on."""
    return round(mean(accuracies()[model].values()), 6)


def ahead_of(model: str) -> list[str]:
    """Datasets on which TaylorShift's printed accuracy is higher."""
    theirs, other = accuracies()[MODEL], accuracies()[model]
    return [name for name in other if theirs[name] > other[name]]


def column(name: str) -> dict[int, float]:
    """A column of Table 6 by head count."""
    return {int(row["h"]): number(row[name]) for row in DOCUMENT.rows("table06_heads")}


def setting(name: str) -> dict[str, str]:
    """A row of Table 7, by dataset."""
    (row,) = (row for row in DOCUMENT.rows("table07_hyperparameters") if row["param"] == name)
    return {dataset: row[dataset] for dataset in DATASETS}


def common_head_width() -> int:
    """The head width that most models of Table 7 have."""
    widths, heads = setting("d_embed"), setting("heads")
    return int(mode(int(widths[name]) / int(heads[name]) for name in DATASETS))


def losses() -> dict[str, float]:
    """Datasets on which TaylorShift is below the Transformer, and by how much."""
    theirs, other = accuracies()[MODEL], accuracies()[BASELINE]
    return {
        name: round(other[name] - theirs[name], 1) for name in other if theirs[name] < other[name]
    }


def deltas() -> dict[str, float]:
    """Convolutional less linear embedding by dataset."""
    return {
        row["dataset"]: round(float(row["conv_acc_pct"]) - float(row["linear_acc_pct"]), 6)
        for row in EMBEDDINGS
    }


def gain(model: str) -> float:
    """What a model's accuracy gains from ImageNet Ti to S."""
    accuracy = accuracies()[model]
    return round(accuracy["imagenet_s"] - accuracy["imagenet_ti"], 6)


def fewest_wins() -> dict[str, str | float]:
    """The linear model that TaylorShift is ahead of on the fewest datasets, and how."""
    names = {model: ahead_of(model) for model in LINEAR_MODELS}
    model = min(names, key=lambda name: len(names[name]))
    theirs, other = accuracies()[MODEL], accuracies()[model]
    ties = [name for name in other if theirs[name] == other[name]]
    ahead, level = ", ".join(names[model]), ", ".join(ties)
    return {"model": model, "ahead": ahead, "level": level, "both": theirs[ties[0]]}


def normalised_reaches_plain() -> bool:
    """Whether both normalised forms are no less accurate than the plain direct one."""
    rows = {row["variant"]: row for row in DOCUMENT.rows("table04_normalization_ablation")}
    both = rows["input_norm+output_norm"]
    plain = float(rows["plain"]["direct_acc_pct"])
    return all(float(both[name]) >= plain for name in ("direct_acc_pct", "efficient_acc_pct"))


#: Table 6: images at a time, and MiB.
BATCH, MIB = 16, 2**20
#: CIFAR's pixels and one token that collects what is classified; the width of its model.
TOKENS, MODEL_WIDTH = int(quoted("cifar_seq_len")) + 1, int(setting("d_embed")["cifar_pixel"])
#: An allocator rounds, and the table to whole MiB.
CLOSE = within(absolute=2.5)
#: Bytes of an entry: powers run in float32 under autocast, products in float16.
BYTES = {"direct": 4, "efficient": 2}
MEMORY = {form: column(f"{form}_mem_mib_at16") for form in BYTES}
#: Memory of the efficient encoder as a share of the standard one's, by length.
SHARES = {quoted("sec52_half_memory_at_tokens"): 0.5, quoted("sec52_35pct_memory_at_tokens"): 0.35}


def crossovers(place: str) -> dict[str, int]:
    """From how many tokens on TaylorShift needs less memory and less time."""
    return {name: int(quoted(f"{place}_{name}_crossover_tokens")) for name in ("memory", "speed")}


def mebibytes(form: str, heads: int) -> float:
    """The printed entries of all heads at Table 6's width and batch."""
    sizes = Workload(TOKENS, heads, MODEL_WIDTH // heads)
    entries = int(published(f"004-MHSA-ENT-{form.upper()}").formula(sizes))
    return entries * BATCH * BYTES[form] / MIB


def beside_entries() -> float:
    """MiB of the direct form that its entries do not account for, from two heads on."""
    sizes = column("direct_mem_mib_at16")
    return median(sizes[h] - mebibytes("direct", h) for h in sizes if h > 1)


def memory(form: str, heads: int) -> float:
    """MiB of a form's entries, and of what is there beside them."""
    return mebibytes(form, heads) + beside_entries()


def box_products(said: Any, counted: Any) -> dict[str, Any]:
    """Which of the efficient form's memory its entries account for, and which its box products."""
    by_entries = [h for h in counted if CLOSE(said[h], counted[h])]
    alone, boxes = MEMORY["direct"][1], BATCH * BYTES["efficient"] * TOKENS * MODEL_WIDTH**2
    on_line = within(relative=0.02)
    others = [h for h in counted if on_line(said[h], alone + boxes / MIB / int(h))]
    return {
        "beside": beside_entries(), "by_entries": ", ".join(by_entries),
        "others": ", ".join(others), "alone": alone, "boxes": boxes / MIB,
    }  # fmt: skip


def by_width(name: str) -> dict[str, float]:
    """A column of the measured crossovers at Table 2's widths, by ``d=8`` and so on."""
    rows = measured("004", "crossovers")
    known = zip(rows["d"], rows[name], strict=True)
    return {f"d={d}": value for d, value in known if d in WIDTHS}


def reached(name: str = "N0hat") -> list[dict[str, float]]:
    """The widths whose crossing in time was measured; none is continued to."""
    rows = measured("004", "crossovers")
    columns = zip(rows["d"], rows["N0"], rows[name], strict=True)
    return [{"d": d, "N0": n0, "at": at} for d, n0, at in columns if at is not None]


def more_heads() -> dict[str, bool]:
    """Whether throughput grows and memory falls with each step to more heads."""
    speeds = column("efficient_tp_ims_s").values()
    return {
        "faster": all(a < b for a, b in pairwise(speeds)),
        "less memory": all(a > b for a, b in pairwise(MEMORY["efficient"].values())),
    }


def tokens_by_memory() -> int:
    """The length whose N × N tensors are what Table 6's memory grows by, a head."""
    direct = MEMORY["direct"]
    heads = [h for h in direct if h > 1]  # the scores decide the direct form's memory there
    slope = (direct[heads[-1]] - direct[heads[0]]) / (heads[-1] - heads[0])
    return round(float((slope * MIB / (2 * BATCH * BYTES["direct"])) ** 0.5))


def delays() -> dict[str, str]:
    """How much later than N0 each width's crossing in time was, and the law for all of them."""
    rows, law = reached(), delay(reached())
    results, width = measured("004", "crossovers"), {row["d"] for row in rows}
    beyond = ", ".join(f"d={d}" for d in results["d"] if d not in width)
    return {
        "each": ", ".join(f"d={r['d']} {(r['at'] - r['N0']) / r['d']:+.1f}" for r in rows),
        "left": f"; {beyond} crosses beyond what was timed and is left out" if beyond else "",
        "span": f" ({law['low']:.1f} to {law['high']:.1f}, 95 %)" if law["low"] is not None else "",
        "by_default": by_default(),
    }


def by_default() -> str:
    """The same with the allocator's defaults, where that was measured."""
    rows = reached("N0hat_default") if "N0hat_default" in measured("004", "crossovers") else []
    if len(rows) < 2:
        return ""
    law = delay(rows)
    return (
        f"; with the allocator's defaults {law['factor']:.1f} ({law['low']:.1f} to "
        f"{law['high']:.1f})"
    )


def memory_shares() -> dict[str, float]:
    """Measured memory of the efficient encoder over the standard one's, by length."""
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
    "004-800": crossovers("abstract"),
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
    "004-T3-gain": lambda: {model: gain(model) for model in (MODEL, BASELINE)},
    "004-ABS-nodeg": lambda: not losses(),
    "004-T5": deltas,
    "004-T5-cifar": lambda: accuracies()[MODEL],
    "004-T7-348": lambda: common_head_width() * int(setting("heads")["imagenet_s"]),
    "004-T4": normalised_reaches_plain,
    "004-800": lambda: crossovers("sec52"),
    "004-d62": lambda: sorted(WIDTHS)[-2:],
    "004-T6-dirmem": lambda: {str(h): memory("direct", h) for h in MEMORY["direct"]},
    "004-T6-effmem": lambda: {str(h): memory("efficient", h) for h in MEMORY["efficient"]},
    "004-T6-speed": more_heads,
    "004-T6-1025": tokens_by_memory,
    "004-06": lambda: by_width("N1hat"),
    "004-18d": lambda: round(float(delay(reached())["factor"]), 2),
    "004-1500": memory_shares,
}
FACTS: Facts = {
    "004-T3-four": lambda *_: fewest_wins(),
    "004-ABS-nodeg": lambda *_: {
        "losses": " and ".join(f"{points} points on {name}" for name, points in losses().items())
    },
    "004-T6-dirmem": lambda *_: {
        "beside": beside_entries(),
        "entries": mebibytes("direct", 1),
        "one": MEMORY["direct"][1],
    },
    "004-T6-effmem": box_products,
    "004-06": lambda said, ours: {"worst": max(abs(ours[d] / said[d] - 1) for d in ours)},
    "004-18d": lambda *_: delays(),
    "004-1500": lambda _, ours: {
        "shares": ", ".join(f"{share:.0%} at {length} tokens" for length, share in ours.items())
    },
}
