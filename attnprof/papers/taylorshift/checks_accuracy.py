"""004, Tables 3, 4, 5 and 7 and what the text says of them."""

from functools import partial
from statistics import mean, mode

from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.documents import number
from attnprof.papers.taylorshift.formulas import DOCUMENT, quoted

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
    own, other = accuracies()[MODEL], accuracies()[model]
    return [name for name in other if own[name] > other[name]]


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
    own, other = accuracies()[MODEL], accuracies()[BASELINE]
    return {name: round(other[name] - own[name], 1) for name in other if own[name] < other[name]}


def deltas() -> dict[str, float]:
    """Convolutional less linear embedding by dataset."""
    return {
        row["dataset"]: round(float(row["conv_acc_pct"]) - float(row["linear_acc_pct"]), 6)
        for row in EMBEDDINGS
    }


def gain(model: str) -> float:
    """What a model's accuracy gains from ImageNet Ti to S."""
    own = accuracies()[model]
    return round(own["imagenet_s"] - own["imagenet_ti"], 6)


def fewest_wins() -> dict[str, str | float]:
    """The linear model that TaylorShift is ahead of on the fewest datasets, and how."""
    names = {model: ahead_of(model) for model in LINEAR_MODELS}
    model = min(names, key=lambda name: len(names[name]))
    own, other = accuracies()[MODEL], accuracies()[model]
    ties = [name for name in other if own[name] == other[name]]
    ahead, level = ", ".join(names[model]), ", ".join(ties)
    return {"model": model, "ahead": ahead, "level": level, "both": own[ties[0]]}


def normalised_reaches_plain() -> bool:
    """Whether both normalised forms are no less accurate than the plain direct one."""
    rows = {row["variant"]: row for row in DOCUMENT.rows("table04_normalization_ablation")}
    both = rows["input_norm+output_norm"]
    plain = float(rows["plain"]["direct_acc_pct"])
    return all(float(both[name]) >= plain for name in ("direct_acc_pct", "efficient_acc_pct"))


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
}
FACTS: Facts = {
    "004-T3-four": lambda *_: fewest_wins(),
    "004-ABS-nodeg": lambda *_: {
        "losses": " and ".join(f"{points} points on {name}" for name, points in losses().items())
    },
}
