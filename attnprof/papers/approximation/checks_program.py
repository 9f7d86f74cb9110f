"""003: what its code does and what it reports, against its text and against each other."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.blocks.assemble import attend_core
from attnprof.papers import checks
from attnprof.papers.approximation import program
from attnprof.papers.approximation.program import CLASSES, TEST_TOKENS, TOKENS, WIDTH, derived
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


CHECKS = checks.Checks([
    checks.Check(
        "003-QKV",
        True,
        lambda: False,  # whether K and V enter the model
        why="Q, K and V are drawn from a normal distribution; of the text only the number of "
        "tokens enters. K and V are then unused: the encoder takes Q for all three",
        how="read in the listing of Step 1 (extract_data) and Step 3 (the model's forward)",
        basis=checks.READING,
    ),
    checks.Check(
        "003-PERF-FAVOR",
        -0.5,
        program.error_power,
        how="error of the class's features against softmax weights for 16 to 4096 features: "
        "the power of their number with which it falls, -1/2 for random features of exp",
        agree=checks.within(absolute=0.1),
        why="elu(x Omega) + 1 is no random feature of the softmax kernel: its error does not fall "
        "with more features. With Omega divided by sqrt m, each feature tends to 1 and attention "
        "to a plain mean. FAVOR+ takes exp(x Omega - |x|^2 / 2)",
    ),
    checks.Check(
        "003-TEACHER",
        True,
        lambda: quoted("final_true_ce")["standard_mha"] < math.log(VOCABULARY),
        how="its final cross-entropy (11.5 nats) against the logarithm of the vocabulary of the "
        "tokenizer that it names, t5-small with 32,100 tokens",
        why="11.5 nats are more than ln 32,100 = 10.38, the cross-entropy of giving all tokens the "
        "same chance: its training step draws the model to its own first logits (MSE), the task's "
        "loss only decides when to stop",
        tables=(FIGURE_Z,),
    ),
])  # fmt: skip
_about = partial(CHECKS.answers, tables=(FIGURE_Z,))


def _normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@CHECKS.answers(
    "003-STD-MH",
    {"heads": HEADS, "parameters": 4 * WIDTH**2},
    how="its standard class run beside ours with 1, 2, 4 and 8 heads: which one it equals; "
    "its parameters",
    why="the class takes one softmax over the whole width: one head, and neither W_Q, W_K, "
    "W_V nor W_O of the text (4 D^2 weights)",
)
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


@CHECKS.answers(
    "003-LIN-GEN",
    {f"{TOKENS} tokens": True, f"{TEST_TOKENS} tokens": False},
    how="the class's products with a compressing matrix of 2048 rows, taken for 2048 and for "
    "4096 tokens: 2048 columns do not fit 4096 rows",
    note="the listing raises an error of its own before; a model made for 4096 tokens would run",
)
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


@CHECKS.answers(
    "003-LONG-GLOBAL",
    True,
    how="read in the listing: the class's only mask is |i - j| <= w; its weights computed: is "
    "there a token that sees all and is seen by all",
    basis=checks.READING,
    why="the class has the window alone; its text's global tokens are missing",
)
def _has_global_tokens() -> bool:
    tokens = 16
    q, k = _normal(1, tokens, 4), _normal(1, tokens, 4, seed=2)
    seen = program.longformer(q, k, torch.eye(tokens)[None], window=2)[0] > 0
    return bool((seen.all(0) & seen.all(1)).any())


@CHECKS.answers(
    "003-MASK",
    dict.fromkeys(CLASSES, True),
    how="read in the listing: the decoder layer calls its attention with queries, keys and "
    "values and nothing else, and no class masks by order; each class then run twice with "
    "another last token: does the first row of the output stay",
    basis=checks.READING,
    why="no class takes a causal mask and the decoder layer gives none: each token sees the "
    "ones it is to predict",
)
def _masked() -> dict[str, bool]:
    tokens, width = 6, 4
    x = _normal(1, tokens, width)
    other = x.clone()
    other[:, -1] += 1
    runs = {name: program.attention(name, tokens, width, length=3, count=8) for name in CLASSES}
    return {
        name: bool(torch.allclose(run(x, x, x)[:, 0], run(other, other, other)[:, 0]))
        for name, run in runs.items()
    }


@CHECKS.answers(
    "003-RUN",
    [],
    part="their order",
    how="read in the listing: the blocks and lines at which its own names are needed and bound "
    "(listing_names.csv); which are needed before anything binds them",
    basis=checks.READING,
    why="a NameError each: N and a placeholder for the path in the first block, models that "
    "inherit from Seq2SeqTransformer although the class is TransformerSeq2Seq, an EarlyStopper "
    "that is never defined",
)
def _unbound() -> list[str]:
    found = []
    for row in program.DOCUMENT.rows("listing_names"):
        needed = [int(row[key] or 0) for key in ("needed_block", "needed_line")]
        bound = [int(row[key] or 0) for key in ("bound_block", "bound_line")]
        if not row["bound_line"] or bound > needed:
            found.append(row["name"])
    return found


@CHECKS.answers(
    "003-KD",
    0.0,
    how="read in the listing: the loss, alpha CE + (1 - alpha) T^2 KL; its value on made-up "
    "logits where the student's are the teacher's, which is where MSE is zero",
    basis=checks.READING,
    agree=checks.rounded(6),
    why="the listing minimises alpha CE + (1 - alpha) T^2 KL at T = 3, alpha = 0.5: at the "
    "teacher's own logits alpha CE is left. MSE is only what it reports in the end",
)
def _loss_at_the_teacher() -> float:
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


@_about(
    "003-FASTEST",
    "performer",
    how="operations of the three classes at N 2048, d 512, L 128, m 256, derived from running them",
    why="the next paragraph gives Linformer the fastest average time, and its 8 N L d "
    "operations with L = 128 are half of Performer's 8 N m d with m = 256",
)
def cheapest_approximation() -> str:
    """The class with the fewest operations beside the standard one."""
    counts = operations()
    return min(program.STUDENTS, key=lambda name: counts[name])


@_about(
    "003-RATIO",
    "longformer",
    part="which is the largest",
    how="the largest of the quoted ratios of test error to training error that are not the "
    "code's mark for a failed test",
    why="the ratio divides two errors, so smaller is better: 0.68 is the best of the students, "
    "Performer's 1.02 the worst",
)
def worst_ratio() -> str:
    """The model whose error grows most on the longer test, of those whose test ran."""
    ratios = {name: x for name, x in quoted("generalization_ratio").items() if x < FAILED}
    return max(ratios, key=lambda name: ratios[name])


@_about(
    "003-BEST",
    "standard_mha",
    how="read in the listing: the students' final metric is MSE to the teacher's logits; for "
    "all models quoted, the teacher's own being zero",
    basis=checks.READING,
    why="Standard's 11.5 is a cross-entropy, the students' 0.052 an error against Standard's "
    "own logits: in that metric Standard is exact, and the two numbers cannot be ranked",
)
def _weakest() -> str:
    apart = {**quoted("accuracy_proxy"), "standard_mha": 0.0}  # the teacher is its own target
    return max(apart, key=lambda name: apart[name])


@_about(
    "003-SPEEDUP",
    {name: x for name, x in quoted("practical_speed").items() if name in CLASSES},
    how="processor time of a forward pass of the whole model (N 2048, d 512, one sequence), in "
    "parts, on the machine that the measurement names",
    agree=checks.rounded(4),
    why=lambda said, found: (
        f"the device is not named. On ours Longformer takes "
        f"{found['longformer'] / found['performer']:.2f} times as long as Performer, there "
        f"{said['longformer'] / said['performer']:.2f}: the same order, as its scores are dense"
    ),
    otherwise=checks.NOT_REPRODUCIBLE,
    basis=checks.MEASURED,
)
def seconds() -> dict[str, float]:
    """Measured time of a forward pass through a whole model, one sequence."""
    times: dict[str, float] = measured("003", "model_times")["seconds"]
    return {name: times[name] for name in ("performer", "longformer")}
