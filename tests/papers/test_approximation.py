"""003 replayed: what its code does, counted and run; what it reports, held against itself."""

import math

import pytest
import torch

from attnprof.papers.approximation import checks
from attnprof.papers.approximation.checks import (
    claimed,
    error_power,
    kept,
    leading,
    listed,
    operations,
)
from attnprof.papers.documents import claims, document

CHECKS = document("003").checks()
MATCHES = {"STD", "LIN", "LIN-GEN", "PERF-ORDER", "SPARSE-L"}
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


def answers():
    return {claim.removeprefix("003-"): check.answer() for claim, check in CHECKS.items()}


#: What rests on how the listing is written, which nothing here can compute.
READ = {"QKV", "CROSS", "MASK", "LONG-GLOBAL", "KD", "BEST", "RUN"}


def test_every_claim_is_answered_and_some_by_reading():
    assert set(CHECKS) == {claim for claim in claims() if claim.startswith("003")}
    assert {claim for claim, a in answers().items() if a.basis == "reading"} == READ


def test_verdicts():
    found = answers()
    assert {claim for claim, a in found.items() if a.verdict == "match"} == MATCHES
    assert {claim for claim, a in found.items() if a.verdict == "erratum"} == set(ERRATA)
    assert {claim: found[claim].ours for claim in ERRATA} == ERRATA
    assert found["SPEEDUP"].verdict == "not-reproducible"


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
    rows = []
    for i, row in enumerate(q[0]):
        others = enumerate(zip(k[0], v[0], strict=True))
        some = [(kernel(row, key), value) for j, (key, value) in others if keep(i, j)]
        rows.append(sum(w * value for w, value in some) / sum(w for w, _ in some))
    return torch.stack(rows)[None]


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
def table(name):
    return document("003").part("tables", "TABLES")[name]()


def test_what_grows_faster_than_claimed():
    """The Longformer class (dense), and Reformer, which hashes to N / bucket_size buckets."""
    made = table("complexity_claims")
    assert all(set(row) == set(made.columns) for row in made.rows)
    faster = {
        (row["mechanism"], column)
        for row in made.rows
        for column, cell in row.items()
        if getattr(cell, "differs", False)
    }
    assert faster == {
        ("longformer", "its class in the listing"),
        ("reformer", "time: exponent of N"),
    }


def test_the_quoted_numbers_stand_beside_ours():
    made = table("figZ_quoted_numbers")
    assert len(made.rows) == len(document("003").rows("figZ_quoted_numbers"))
    assert all(set(row) == set(made.columns) for row in made.rows)
    ours = {row["model"]: row["on our machine (s)"] for row in made.rows[:2]}
    assert 0 < ours["performer"] < ours["longformer"]


# -- figures --------------------------------------------------------------------------------
FIGURES = document("003").part("figures", "FIGURES")


def test_what_the_figures_describe_that_does_not_hold():
    wrong = {
        (key, told.what)
        for key, figure in FIGURES.items()
        for told in figure.data().described
        if not told.agrees
    }
    assert wrong == {
        ("G", "longformer impl=dense-mask: the listing's way"),
        ("G", "reformer: time"),
        ("Z", "fastest approximation"),
        ("Z", "worst generalization ratio"),
    }


@pytest.mark.parametrize("key", "DEFG")
def test_what_was_counted_and_allocated_is_what_the_closed_forms_say(key):
    short = [row for row in FIGURES[key].data().rows if row["median_s"]]
    assert short
    for row in short:
        assert row["peak_bytes_measured"] == row["peak_bytes"]
        assert row["matmul_flops_counted"] in (row["matmul_flops"], None)


def test_the_heads_share_the_products():
    for row in FIGURES["C"].data().rows:
        assert row["projections"] == 8 * 2048 * 512**2
        assert row["scores and values"] == 4 * 2048**2 * 512
        assert row["softmax"] == row["num_heads"] * 5 * 2048**2


@pytest.mark.parametrize(("key", "panels"), [("B", 1), ("C", 2), ("D", 3), ("G", 3), ("Z", 3)])
def test_every_figure_is_drawn(key, panels):
    from attnprof.render.plots.documents.approximation import DRAWINGS

    drawn = DRAWINGS[key](FIGURES[key].data())
    assert len(drawn.axes) == panels
    assert set(DRAWINGS) == set(FIGURES)
