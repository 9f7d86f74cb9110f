"""Checks of document 001: sizes, shapes, growth, memory, speed, gains in perplexity and accuracy.

Its text leaves out some sizes of its models: vocabulary, feed-forward width, the second hidden
layer, biases, the class token. Our presets of them take these from the code that it points to.
"""

import re
from collections.abc import Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.orders import leading_terms
from attnprof.costs import exact_div
from attnprof.device.calibration import roofline
from attnprof.device.ceilings import GIGA, TERA, Ceilings
from attnprof.mechanism import Mechanism
from attnprof.models import build, parts
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.documents import document
from attnprof.units import joined
from attnprof.workload import Workload

DOCUMENT = document("001")
#: Ends of the names of presets, by a row's name.
PRESETS = {"dot": "dot", "d'=2": "neural-2", "d'=16": "neural-16", "none": "neural"}
MILLION = 1e6


def settings(task: str) -> dict[str, str]:
    """Return a task's settings as the document gives them."""
    return {r["key"]: r["value"] for r in DOCUMENT.rows("settings") if r["task"] == task}


def rows_by_projection(table: str, column: str) -> dict[str, float]:
    """Return a column of a table, by :func:`name_of`."""
    return {name_of(row): float(row[column]) for row in DOCUMENT.rows(table)}


def name_of(row: Mapping[str, str]) -> str:
    """Return a row's name in our tables: ``dot``, ``d'=2``, or ``none``."""
    if row.get("method") == "dot_product":
        return "dot"
    none = row["d_prime_printed"].startswith("None")
    return "none" if none else f"d'={row['d_prime']}"


def projection(name: str) -> int | None:
    """Return the d' of a row; None if nothing is projected."""
    return None if name in ("dot", "none") else int(name.removeprefix("d'="))


def workload(task: str, phase: str = "forward") -> Workload:
    """Return the workload of one sample of a task in one attention layer."""
    sizes = settings(task)
    heads = int(sizes["heads"])
    return Workload(
        int(sizes["seq_len"]), heads, exact_div(int(sizes["d_model"]), heads), phase=phase,
        causal=task == "nlp",
    )  # fmt: skip


def attention(name: str) -> Mechanism:
    """Return a row's mechanism: dot product without bias, or Neural Attention by Algorithm 1."""
    if name == "dot":
        return registry.get("standard", bias=False)
    return registry.get("neural", down_dim=projection(name), depth=2, impl="naive")


@cache
def model_size(model: str, name: str) -> int:
    """Return parameters of a model, ``lm`` or a dataset's, with a row's attention in layer one."""
    return sum(parts(build(f"001-{model}-{PRESETS[name]}", device="meta")).values())


def size_of_c(task: str, name: str, batch: int) -> float:
    """Return the GB of C (Eq 7) in float32, of all heads of a batch."""
    sizes = workload(task)
    printed = next(form for form in attention(name).published() if form.source == "001-EQ7")
    return float(batch * sizes.num_heads * printed.formula(sizes) * sizes.item_size / 1e9)


PERPLEXITIES = rows_by_projection("table01_wikitext103_perplexity", "lowest_perplexity")
TABLE = "table06_cost_wikitext103"
MEMORY = rows_by_projection(TABLE, "memory_gb_per_batch")
SPEED = rows_by_projection(TABLE, "speed_ms_per_sample")
GPU = Ceilings(
    "RTX 4090", {"float32": 82.6 * TERA}, 1008 * GIGA,
    "NVIDIA Ada GPU architecture whitepaper, GeForce RTX 4090",
)  # fmt: skip
#: GB of that card.
CARD = float(re.sub(r".* (\d+)GB", r"\1", settings("both")["gpu"]))
#: Tables of accuracies.
ACCURACIES = {"cifar10": "table03_cifar10", "cifar100": "table04_cifar100"}


def reduction(name: str) -> float:
    """Return perplexity saved against the dot product, in per cent of the dot product's."""
    return 100 * (PERPLEXITIES["dot"] - PERPLEXITIES[name]) / PERPLEXITIES["dot"]


def accuracies(dataset: str) -> dict[str, float]:
    """Return the accuracies of Table 3 or 4."""
    return rows_by_projection(ACCURACIES[dataset], "val_acc_pct")


def gain(dataset: str) -> float:
    """Return accuracy gained against the dot product, in percentage points."""
    by_model = accuracies(dataset)
    return round(by_model["d'=2"] - by_model["dot"], 6)


def least_memory(task: str, name: str) -> float:
    """Return the GB of a row's largest tensor: C (Eq 7); of all softmax matrices for "dot".

    All layers keep their softmax matrix for the backward pass. Both are in float32.
    """
    sizes, (batch, layers) = workload(task), (int(settings(task)[n]) for n in ("batch", "layers"))
    if name != "dot":
        return size_of_c(task, name, batch)
    return float(batch * layers * sizes.num_heads * sizes.seq_len**2 * sizes.item_size / 1e9)


def _batch_and_sample(_: Any, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return GB of the tensors for one sample, of C for a batch, and of the softmax matrices."""
    whole, batch = {n: least_memory("nlp", n) for n in ours}, int(settings("nlp")["batch"])
    return {
        "one": ", ".join(f"{size / batch:.2f}" for size in whole.values()),
        "c": ", ".join(f"{size:.2f}" for name, size in whole.items() if name != "dot"),
        "softmax": whole["dot"],
    }


@cache
def peaks() -> dict[str, int]:
    """Return peak bytes of a training step of one layer, one sample, as Algorithm 1 allocates."""
    sizes = workload("nlp", phase="train")
    return {name: int(attention(name).cost(sizes).peak()) for name in MEMORY}


def _by_memory(sizes: Mapping[str, float]) -> list[str]:
    return sorted(sizes, key=lambda name: -sizes[name])


def _falls_sharply(sizes: Mapping[str, float]) -> bool:
    steps = ("none", "d'=16", "d'=2")
    return all(sizes[after] <= 0.75 * sizes[before] for before, after in pairwise(steps))


def least_time(task: str, name: str) -> float:
    """Return the least milliseconds of one sample's attention layers on the named card."""
    others = int(settings(task)["layers"]) - 1
    return 1e3 * (others * _layer_time(task, "dot") + _layer_time(task, name))


@cache
def _layer_time(task: str, name: str) -> float:
    rate = GPU.flops_per_s["float32"]
    return sum(
        roofline(int(stage.cost.flops), int(stage.cost.bytes_moved), GPU, rate)[0]
        for stage in attention(name).cost(workload(task))
    )


REDUCTIONS = {f"001-T2-d{row['d_prime']}": row for row in DOCUMENT.rows("table02_perplexity_gain")}
GAINS = {f"001-T5-{row['dataset']}": row for row in DOCUMENT.rows("table05_accuracy_gain")}


SIZES = rows_by_projection("table01_wikitext103_perplexity", "params_M")
VISION = {
    name: {data: rows_by_projection(t, "params_M")[name] for data, t in ACCURACIES.items()}
    for name in ("dot", "d'=2")
}
HALF_DIGIT = 500
WIDEST = 512
#: Different sizes of rows and columns, and their letters.
TOKENS, WIDTH = 7, 4
LETTERS = {TOKENS: "n", WIDTH: "d"}
#: The dot product and Neural Attention with each projection that is tested.
ROWS = ("dot", "d'=2", "d'=16", "none")


@cache
def _output_shape(name: str) -> list[str]:
    import torch

    from attnprof.blocks.core import attend_core

    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, TOKENS, WIDTH, generator=rng) for _ in range(3))
    with torch.no_grad():
        out = attend_core(registry.get(name), registry.module_of(name), q, k, v, False, 0, None)
    return [LETTERS[size] for size in out.shape[2:]]


def one_hidden_layer(name: str, width: int) -> int:
    """Return the parameters of Eq 4 to 9 with one hidden layer of this width."""
    head_dim = workload("nlp").head_dim
    projected = projection(name)
    reduced = projected or head_dim
    down = 2 * head_dim * reduced if projected else 0
    return down + width * (2 * reduced + 2) + 1


def smallest_with_one_width() -> float:
    """Return the least size at d' = 16, in millions, if one hidden width explains the other sizes.

    The sizes of the dot product, of d' = 2 and of no projection bound the width and the base; a
    printed size stands for all sizes that round to it.
    """
    others = {name: round(SIZES[name] * MILLION) for name in SIZES if name != "d'=16"}
    sizes = []
    for width in range(1, WIDEST + 1):
        extra = {name: 0 if name == "dot" else one_hidden_layer(name, width) for name in others}
        low = max(others[name] - HALF_DIGIT - extra[name] for name in others)
        high = min(others[name] + HALF_DIGIT - extra[name] for name in others)
        if low <= high:
            sizes.append(low + one_hidden_layer("d'=16", width))
    return min(sizes) / MILLION


def _vision_sizes() -> dict[str, float]:
    sizes = {
        (name, dataset): model_size(dataset, name) / MILLION
        for name in VISION for dataset in ACCURACIES
    }  # fmt: skip
    return {
        **{f"90 classes more, {n}": sizes[n, "cifar100"] - sizes[n, "cifar10"] for n in VISION},
        "dot": sizes["dot", "cifar10"],
        "d'=2": sizes["d'=2", "cifar100"],
        "d'=2 less dot": sizes["d'=2", "cifar10"] - sizes["dot", "cifar10"],
    }


def graph_dimensions() -> dict[str, int]:
    """Return dimension of the graph over q = k = (x, y), and of the space it lies in.

    The rank of (x, y) -> (q1, q2, k1, k2, z)'s Jacobian, the same for any smooth z.
    """
    x, y = sympy.symbols("x y")
    z = sympy.Function("z")(x, y)
    graph = sympy.Matrix([x, y, x, y, z])
    return {"graph": graph.jacobian([x, y]).rank(), "space": graph.rows}


def growth() -> dict[str, int]:
    """Return the power of n in the leading term of each row's operations."""
    n, h, d = sympy.symbols("n h d", positive=True)
    factors = {}
    for name in ROWS:
        cost = attention(name).cost(Workload(n, h, d), "core")
        terms = leading_terms(cost.flops, ["n"]) or []
        factors[name] = max(int(term.along({"n": 1})[0]) for term in terms)
    return factors


PRINTED: Printed = {
    **{claim: float(row["improvement_pct"]) for claim, row in REDUCTIONS.items()},
    **{claim: float(row["gain_points"]) for claim, row in GAINS.items()},
    "001-MEM": MEMORY,
    "001-MEM-mono": {"by falling memory": _by_memory(MEMORY), "a quarter less at each step": True},
    "001-SPEED": SPEED,
    "001-PAR-base": SIZES["dot"],
    "001-D64-NLP": int(settings("nlp")["d_head"]),
    "001-D64-VIS": int(settings("vision")["d_head_printed"]),
    "001-PAR-h-two": {name: size for name, size in SIZES.items() if name != "dot"},
    "001-PAR-h-single": SIZES["d'=16"],
    "001-SEQ785": int(settings("vision")["seq_len"]),
    "001-PAR-cifar": {
        **{
            f"90 classes more, {name}": round(size["cifar100"] - size["cifar10"], 3)
            for name, size in VISION.items()
        },
        **{name: size["cifar10"] for name, size in VISION.items()},
        "d'=2 less dot": round(VISION["d'=2"]["cifar10"] - VISION["dot"]["cifar10"], 3),
    },
    "001-ON2": dict.fromkeys(ROWS, 2),
}
OURS: Ours = {
    **{claim: partial(reduction, name_of(row)) for claim, row in REDUCTIONS.items()},
    **{claim: partial(gain, row["dataset"]) for claim, row in GAINS.items()},
    "001-ABS-4pts": lambda: {dataset: gain(dataset) for dataset in ACCURACIES},
    "001-CONC-rel": lambda: {
        name: round(100 * gain(name) / accuracies(name)["dot"], 4) for name in ACCURACIES
    },
    "001-ABS-2pct": lambda: max(reduction(name) for name in PERPLEXITIES if name != "dot"),
    "001-LOWRANK": lambda: PERPLEXITIES["d'=2"] < PERPLEXITIES["none"],
    "001-MEM": lambda: {name: [least_memory("nlp", name) / 2, CARD] for name in MEMORY},
    "001-MEM-mono": lambda: {
        "by falling memory": _by_memory(peaks()),
        "a quarter less at each step": _falls_sharply(MEMORY) and _falls_sharply(peaks()),
    },
    "001-SPEED": lambda: {name: least_time("nlp", name) for name in SPEED},
    "001-PAR-base": lambda: model_size("lm", "dot") / MILLION,
    "001-D64-NLP": lambda: int(workload("nlp").head_dim),
    "001-D64-VIS": lambda: int(workload("vision").head_dim),
    "001-PAR-h-two": lambda: {n: model_size("lm", n) / MILLION for n in SIZES if n != "dot"},
    "001-EQ10-shape": lambda: {"Eq 1": _output_shape("standard"), "Eq 10": _output_shape("neural")},
    "001-SEQ785": lambda: (
        1 + int(exact_div(*(int(settings("vision")[name]) for name in ("image", "patch")))) ** 2
    ),
    "001-PAR-h-single": smallest_with_one_width,
    "001-PAR-cifar": _vision_sizes,
    "001-MANIFOLD": graph_dimensions,
    "001-ON2": growth,
}
FACTS: Facts = {
    "001-MEM": _batch_and_sample,
    "001-PAR-base": lambda _, ours: {"counts": f"{round(ours * MILLION):,}"},
    "001-PAR-h-two": lambda _, ours: {
        "counts": joined(f"{round(size * MILLION):,}" for size in ours.values())
    },
    "001-SPEED": lambda said, ours: {
        f"{whose}_more": joined(f"{times[n] - times['dot']:.1f}" for n in times if n != "dot")
        for whose, times in (("printed", said), ("ours", ours))
    },
}
