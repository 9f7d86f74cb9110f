"""003 replayed: what its code does and reports; and its experiment, in a tiny run."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from attnprof.papers.approximation import checks, distillation
from attnprof.papers.approximation.checks import (
    claimed,
    error_power,
    kept,
    leading,
    listed,
    operations,
)
from attnprof.papers.approximation.distillation import (
    BEGIN,
    END,
    FIRST,
    FULL,
    PAD,
    QUICK,
    Examples,
    answers,
    sentence_pairs,
)
from attnprof.papers.approximation.measurements import distill_report, stretched
from attnprof.papers.documents import document
from tests.mechanisms.checks import mixed

CHECKS = document("003").checks()
ERRATA = {
    "STD-MH": {"heads": 1, "parameters": 0},
    "LONG-COST": {"N": 2},
    "LONG-GLOBAL": False,
    "CROSS": {"linformer": 2, "performer": 2, "longformer": 2},
    "MASK": dict.fromkeys(checks.CLASSES, False),
    "TEACHER": False,
    "FASTEST": "linformer",
    "RATIO": "performer",
    "BEST": "performer",
    "RUN": ["filepath", "N", "Seq2SeqTransformer", "EarlyStopper"],
    "QKV": False,
    "PERF-FAVOR": pytest.approx(0, abs=0.1),
    "KD": pytest.approx(1.981107),
}


#: What rests on how the listing is written, which nothing here can compute.
READ = {"QKV", "CROSS", "MASK", "LONG-GLOBAL", "KD", "BEST", "RUN"}


def test_errata_have_the_right_value_and_some_rest_on_reading():
    said = {claim.removeprefix("003-"): check.answer() for claim, check in CHECKS.items()}
    assert {claim for claim, one in said.items() if one.verdict == "erratum"} == set(ERRATA)
    assert {claim: said[claim].ours for claim in ERRATA} == ERRATA
    assert {claim for claim, one in said.items() if one.basis == "reading"} == READ


def test_the_linformer_class_runs_as_long_as_its_matrix_has_rows():
    run = checks.attention("linformer", 6, 4, length=3)
    assert run(*inputs(5)).shape == (1, 5, 4)
    with pytest.raises(RuntimeError):
        run(*inputs(7))


# -- the classes, by loops over their definitions ------------------------------------------
def inputs(tokens=7, width=4):
    made = torch.Generator().manual_seed(5)
    return [torch.randn(1, tokens, width, generator=made) for _ in range(3)]


def weighted(q, k, v, kernel, keep=lambda *_: True):
    """Rows of sum_j kernel(q_i, k_j) v_j / sum_j kernel(q_i, k_j)."""
    weights = [
        {j: kernel(row, key) for j, key in enumerate(k[0]) if keep(i, j)}
        for i, row in enumerate(q[0])
    ]
    return mixed(v[0], weights)[None]


def exponential(x, y):
    return torch.exp(x @ y / math.sqrt(len(x)))


def test_standard_is_softmax_attention():
    q, k, v = inputs()
    torch.testing.assert_close(checks.standard(q, k, v), weighted(q, k, v, exponential))


def test_linformer_attends_to_sums_of_rows():
    q, k, v = inputs()
    sums = torch.randn(9, 3)
    keys = torch.stack([sum(sums[t, j] * k[0, t] for t in range(7)) for j in range(3)])[None]
    values = torch.stack([sum(sums[t, j] * v[0, t] for t in range(7)) for j in range(3)])[None]
    out = checks.linformer(sums, q, k, v)
    torch.testing.assert_close(out, weighted(q, keys, values, exponential))
    with pytest.raises(RuntimeError, match="size"):
        checks.linformer(sums[:6], q, k, v)


def test_performer_weighs_by_products_of_features():
    q, k, v = inputs()
    directions = torch.randn(4, 5)

    def kernel(x, y):
        def phi(z):
            mapped = z @ directions
            return torch.where(mapped > 0, mapped + 1, mapped.exp())

        return phi(x) @ phi(y)

    out = checks.performer(directions, q, k, v)
    torch.testing.assert_close(out, weighted(q, k, v, kernel), atol=1e-5, rtol=1e-5)


def test_longformer_sees_its_window():
    q, k, v = inputs()
    out = checks.longformer(q, k, v, window=2)
    torch.testing.assert_close(out, weighted(q, k, v, exponential, lambda i, j: abs(i - j) <= 2))


@pytest.mark.parametrize(("tokens", "window"), [(16, 3), (9, 4), (5, 1)])
def test_the_mask_keeps_a_band(tokens, window):
    band = sum(abs(i - j) <= window for i in range(tokens) for j in range(tokens))
    assert kept(tokens, window) == band == tokens * (2 * window + 1) - window * (window + 1)


# -- orders and kernels ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "powers"),
    [("standard", {"N": 2}), ("linformer", {"N": 1, "L": 1}), ("longformer", {"N": 1})],
)
def test_orders_are_read_from_the_table(name, powers):
    assert claimed(name) == powers


def test_the_leading_power_is_that_of_the_largest_term():
    assert leading("5*N**2*d*L + 7*N*L + N**2", ("N", "L")) == {"N": 2, "L": 1}
    with pytest.raises(ValueError, match="no single term"):
        leading("N**2 + N*L**3", ("N", "L"))


def test_products_at_the_documents_sizes():
    """4 N^2 d, 8 N L d, 8 N m d are the products; the rest is a small share."""
    n, d, length, features = 2048, 512, 128, 256
    products = {
        "standard": 4 * n * n * d,
        "linformer": 8 * n * length * d,
        "performer": 8 * n * features * d,
        "longformer": 4 * n * n * d,
    }
    for name, count in operations().items():
        assert products[name] < count < 1.02 * products[name]


def favor(directions, x):
    """exp(x Omega - |x|^2 / 2): random features of exp(q k), positive (Performer's FAVOR+)."""
    return (x @ directions - x.square().sum(-1, keepdim=True) / 2).exp()


def test_random_features_of_exp_would_pass():
    assert error_power(favor) == pytest.approx(-0.5, abs=0.1)
    assert error_power(listed) == pytest.approx(0, abs=0.1)
    assert CHECKS["003-PERF-FAVOR"].agree(-0.5, error_power(favor))


# -- tables ---------------------------------------------------------------------------------
def test_what_grows_faster_than_claimed():
    """The Longformer class (dense), and Reformer, which hashes to N / bucket_size buckets."""
    faster = {
        (row["mechanism"], column)
        for row in document("003").part("TABLES")["complexity_claims"]()["rows"]
        for column, cell in row.items()
        if isinstance(cell, dict) and cell["differs"]
    }
    assert faster == {
        ("longformer", "its class in the listing"),
        ("reformer", "time: exponent of N"),
    }


def test_the_quoted_numbers_stand_beside_ours():
    made = document("003").part("TABLES")["figZ_quoted_numbers"]()
    assert len(made["rows"]) == len(document("003").rows("figZ_quoted_numbers"))
    ours = {row["model"]: row["on our machine (s)"] for row in made["rows"][:2]}
    assert 0 < ours["performer"] < ours["longformer"]


# -- figures --------------------------------------------------------------------------------
FIGURES = document("003").part("FIGURES")


def test_what_the_figures_describe_that_does_not_hold():
    wrong = {
        (key, statement["what"])
        for key, figure in FIGURES.items()
        for statement in figure()["described"]
        if not statement["agrees"]
    }
    assert wrong == {
        ("G", "longformer impl=dense-mask: the listing's way"),
        ("G", "reformer: time"),
        ("Z", "fastest approximation"),
        ("Z", "worst generalization ratio"),
    }


@pytest.mark.parametrize("key", "DEFG")
def test_what_was_counted_and_allocated_is_what_the_closed_forms_say(key):
    short = [row for row in FIGURES[key]()["rows"] if row["median_s"]]
    assert short
    for row in short:
        assert row["peak_bytes_measured"] == row["peak_bytes"]
        assert row["matmul_flops_counted"] in (row["matmul_flops"], None)


def test_the_heads_share_the_products():
    for row in FIGURES["C"]()["rows"]:
        assert row["projections"] == 8 * 2048 * 512**2
        assert row["scores and values"] == 4 * 2048**2 * 512
        assert row["softmax"] == row["num_heads"] * 5 * 2048**2


# -- the experiment -------------------------------------------------------------------------
TINY = replace(QUICK, tokens=8, width=8, steps=2, printed_steps=2, tested=2)


def translated(source, one, other):
    """A sentence by the rules, a word at a time."""
    words = [word - FIRST for word in source]
    half = len(one) // 2
    placed = list(words)
    for left in range(0, len(words) - 1, 2):
        if words[left] < half <= words[left + 1]:
            placed[left : left + 2] = words[left + 1], words[left]
    book = one if words[0] % 2 == 0 else other
    return [book[word] + FIRST for word in placed]


def test_translations_follow_the_rules_word_by_word():
    vocabulary, tokens = 13, 12
    made = torch.Generator().manual_seed(3)
    sources, targets = sentence_pairs(vocabulary, 5, 40, tokens, made)
    generator = torch.Generator().manual_seed(5)
    books = [torch.randperm(vocabulary - FIRST, generator=generator).tolist() for _ in range(2)]
    assert len({source.index(END) for source in sources.tolist()}) > 2
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        length = source.index(END)
        assert source[length + 1 :] == [PAD] * (tokens - length - 1)
        # a pair that the end of the sentence cuts may have its other word beyond it
        whole = length - length % 2
        expected = translated(source[:length], *books)
        assert target[: 1 + whole] == [BEGIN, *expected[:whole]]


def test_the_loss_is_the_document_s_by_loops():
    made = torch.Generator().manual_seed(0)
    logits, goal = torch.randn(2, 6, 5, generator=made).double()
    target = torch.tensor([[1, 3, 4, 2, PAD, 4, 1]])
    examples = Examples(torch.zeros(1, 7), target)
    soft = hard = 0.0
    for row, wanted in enumerate(target[0, 1:].tolist()):
        p = [math.exp(x / 3) for x in goal[row].tolist()]
        q = [math.exp(x / 3) for x in logits[row].tolist()]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        soft += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 6
        if wanted != PAD:
            z = [math.exp(x) for x in logits[row].tolist()]
            hard -= math.log(z[wanted] / sum(z)) / 5
    loss = distillation.mixed_loss(logits, goal, examples)
    assert float(loss) == pytest.approx(0.5 * hard + 0.5 * 9 * soft)


def tell(*_):
    pass


@pytest.fixture(scope="module")
def distilled():
    said = []
    report = distill_report(TINY, 0, 1, {}, tell, said.append, timed=False)
    return report, said


def test_every_model_has_a_record_a_length_and_linformer_its_reason(distilled):
    report, said = distilled
    rows = {(r.setting, r.model, r.seq_len): r for r in report.records}
    assert len(rows) == len(report.records) == 2 * (5 + 4)
    for (_, model, tokens), row in rows.items():
        if (model, tokens) == ("linformer", 16):
            assert row.skipped.startswith("linformer was built for at most 8 tokens and got 16")
            continue
        assert row.skipped is None
        assert row.cross_entropy > 0
        assert row.matmul_flops > 0
        assert (row.mse_teacher == 0) == (model == "teacher")
        assert row.steps == 2
    assert len(said) == 9
    one = {claim["claim"]: claim for claim in report.summary["claims"]}
    assert one["003-BEST"]["suffices"] is False  # two steps teach nothing
    assert one["003-LIN-GEN"]["suffices"] is True


def test_the_same_seed_gives_the_same_numbers_and_leaves_torch_s_generator(distilled):
    before = torch.get_rng_state()
    again = distill_report(TINY, 0, 1, {}, tell, tell, timed=False)
    assert again.records == distilled[0].records
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("setting", distillation.EXPERIMENTS)
def test_a_stretched_model_computes_the_same(setting):
    with torch.random.fork_rng(devices=[]):
        trained, short, _ = distillation.EXPERIMENTS[setting](TINY, 1, tell)
    for one in trained:
        assert torch.equal(answers(one.model, short), answers(stretched(one, 16), short))


def test_the_teacher_as_printed_is_held_to_its_own_first_answers():
    with torch.random.fork_rng(devices=[]):
        once = replace(TINY, printed_steps=1)
        (teacher, *_), short, _ = distillation.EXPERIMENTS["printed"](once, 0, tell)
        torch.default_generator.manual_seed(teacher.seed)
        fresh = distillation.build(teacher.config)
        goal = answers(fresh, short)
        fresh.train()  # its loss is what dropout changes, nothing else
        loss = F.mse_loss(fresh(*short.called_with).flatten(0, 1), goal)
    assert teacher.losses[0] > 0
    assert float(loss.detach()) == pytest.approx(teacher.losses[0], rel=1.0)


def test_sizes_are_the_document_s_shares():
    for setting in distillation.EXPERIMENTS:
        params = {
            name: dict(FULL.config(name, setting).attention[0].params)
            for name in ("linformer", "performer", "longformer")
        }
        assert params["linformer"]["proj_len"] * 16 == FULL.tokens
        assert params["longformer"]["window"] * 16 == FULL.tokens
        assert params["performer"]["num_features"] * 2 == FULL.width
