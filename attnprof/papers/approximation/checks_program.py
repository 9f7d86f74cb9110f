"""003: what its code does and what it reports, against its text and against each other."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.blocks.assemble import attend_core
from attnprof.papers.approximation import program
from attnprof.papers.approximation.program import CLASSES, TEST_TOKENS, TOKENS, WIDTH, derived
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.measured import measured

HEADS = int(program.SETTINGS["heads_in_figure_C"])
FIGURE_Z = "figZ_quoted_numbers"
#: Tokens of the t5-small tokenizer.
VOCABULARY = 32_100
#: What the document's code writes for a model whose test on longer texts failed.
FAILED = 1000.0


def quoted(quantity: str) -> dict[str, float]:
    """Figure Z's numbers of a quantity, by model."""
    rows = program.DOCUMENT.rows(FIGURE_Z)
    return {row["model"]: float(row["value"]) for row in rows if row["quantity"] == quantity}


def _normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads_and_parameters() -> dict[str, int]:
    """Heads of our standard attention that the class equals, and the class's parameters."""
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
    """Whether the products of the Linformer class, its matrix made for N tokens, can be taken."""
    runs, found = program.attention("linformer", TOKENS, 2), {}
    for tokens in (TOKENS, TEST_TOKENS):
        x, found[f"{tokens} tokens"] = _normal(1, tokens, 2), True
        try:
            runs(x, x, x)
        except RuntimeError:  # torch's: the shapes of a product do not fit
            found[f"{tokens} tokens"] = False
    return found


def has_global_tokens() -> bool:
    """Whether there is a token that sees all and is seen by all."""
    tokens = 16
    q, k = _normal(1, tokens, 4), _normal(1, tokens, 4, seed=2)
    seen = program.longformer(q, k, torch.eye(tokens)[None], window=2)[0] > 0
    return bool((seen.all(0) & seen.all(1)).any())


def masked() -> dict[str, bool]:
    """Whether the first row of each class stays where the last token is another."""
    tokens, width = 6, 4
    x = _normal(1, tokens, width)
    other = x.clone()
    other[:, -1] += 1
    runs = {name: program.attention(name, tokens, width, length=3, count=8) for name in CLASSES}
    return {
        name: bool(torch.allclose(run(x, x, x)[:, 0], run(other, other, other)[:, 0]))
        for name, run in runs.items()
    }


def unbound() -> list[str]:
    """The listing's names that are needed before anything binds them."""
    found = []
    for row in program.DOCUMENT.rows("listing_names"):
        needed = [int(row[key] or 0) for key in ("needed_block", "needed_line")]
        bound = [int(row[key] or 0) for key in ("bound_block", "bound_line")]
        if not row["bound_line"] or bound > needed:
            found.append(row["name"])
    return found


def loss_at_the_teacher() -> float:
    """The listing's loss where the student's logits are the teacher's."""
    made = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 32, generator=made)
    labels = torch.randint(0, 32, (16,), generator=made)
    soft, hard = (float(program.SETTINGS[key]) for key in ("DISTILLATION_TEMP", "ALPHA"))
    tempered = (logits / soft).log_softmax(-1)
    apart = F.kl_div(tempered, tempered, reduction="batchmean", log_target=True) * soft**2
    return round(float(hard * F.cross_entropy(logits, labels) + (1 - hard) * apart), 6)


def operations() -> dict[str, float]:
    """Operations of one call of each class, one sequence at the document's sizes."""
    sizes = {"B": 1, "N": TOKENS, "d": WIDTH, "L": program.LENGTH, "m": program.FEATURES}
    at = {symbol(name): size for name, size in sizes.items()}
    return {name: float(derived(name).subs(at)) for name in CLASSES}


def cheapest_approximation() -> str:
    """The class with the fewest operations beside the standard one."""
    counts = operations()
    return min(program.STUDENTS, key=lambda name: counts[name])


def worst_ratio() -> str:
    """The model whose error grows most on the longer test, of those whose test ran."""
    ratios = {name: x for name, x in quoted("generalization_ratio").items() if x < FAILED}
    return max(ratios, key=lambda name: ratios[name])


def weakest() -> str:
    """The model furthest from the teacher's logits."""
    apart = {**quoted("accuracy_proxy"), "standard_mha": 0.0}  # the teacher is its own target
    return max(apart, key=lambda name: apart[name])


def seconds() -> dict[str, float]:
    """Measured time of a forward pass through a whole model, one sequence."""
    times: dict[str, float] = measured("003", "model_times")["seconds"]
    return {name: times[name] for name in ("performer", "longformer")}


PRINTED: Printed = {
    "003-STD-MH": {"heads": HEADS, "parameters": 4 * WIDTH**2},
    "003-LIN-GEN": {f"{TOKENS} tokens": True, f"{TEST_TOKENS} tokens": False},
    "003-MASK": dict.fromkeys(CLASSES, True),
    "003-SPEEDUP": {n: x for n, x in quoted("practical_speed").items() if n in CLASSES},
}
OURS: Ours = {
    "003-QKV": lambda: False,  # whether K and V enter the model
    "003-PERF-FAVOR": program.error_power,
    "003-TEACHER": lambda: quoted("final_true_ce")["standard_mha"] < math.log(VOCABULARY),
    "003-STD-MH": heads_and_parameters,
    "003-LIN-GEN": lengths_it_runs_at,
    "003-LONG-GLOBAL": has_global_tokens,
    "003-MASK": masked,
    "003-RUN": unbound,
    "003-KD": loss_at_the_teacher,
    "003-FASTEST": cheapest_approximation,
    "003-RATIO": worst_ratio,
    "003-BEST": weakest,
    "003-SPEEDUP": seconds,
}
FACTS: Facts = {
    "003-SPEEDUP": lambda said, ours: {
        "here": ours["longformer"] / ours["performer"],
        "there": said["longformer"] / said["performer"],
    }
}
