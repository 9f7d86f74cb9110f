"""001 replayed: what is wrong in it is found, with the right value; sums made another way."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import attnprof
from attnprof.papers.checks import between
from attnprof.papers.documents import document
from attnprof.papers.neural_attention.checks import (
    model_size,
    one_hidden_layer,
    size_of_c,
    smallest_with_one_width,
)
from attnprof.papers.regenerated import table_rows
from attnprof.render.tables.reproduce import table_notes

CHECKS = document("001").checks()
ERRATA = {
    "001-T2-d16": pytest.approx(1.4983, abs=1e-4),
    "001-ABS-4pts": {"cifar10": 3.0, "cifar100": 4.26},
    "001-CONC-rel": {"cifar10": 3.5842, "cifar100": 7.6577},
    "001-EQ10-shape": {"Eq 1": ["n", "d"], "Eq 10": ["n", "d"]},
    "001-MANIFOLD": {"graph": 2, "space": 5},
    "001-D64-VIS": 96,
    "001-PAR-h-single": pytest.approx(46.532167),
}


def test_errata_have_the_right_value_and_all_claims_are_computed():
    answers = {claim: check.answer() for claim, check in CHECKS.items()}
    assert {answer.basis for answer in answers.values()} == {"computed"}
    assert {claim: answers[claim].ours for claim in ERRATA} == ERRATA
    errata = {claim for claim, answer in answers.items() if answer.verdict == "erratum"}
    assert errata == {*ERRATA, "001-PAR-cifar", "001-MEM"}


def scorer(head_dim, down):
    """The published code's network, of torch's own layers."""
    width = down or head_dim
    layers = [nn.Linear(2 * width, width), nn.Linear(width, width // 2), nn.Linear(width // 2, 1)]
    return nn.ModuleList(layers + [nn.Linear(head_dim, width) for _ in range(2 if down else 0)])


def count(module):
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize(("name", "down"), [("d'=2", 2), ("d'=16", 16), ("none", None)])
def test_neural_attention_adds_what_torch_layers_hold(name, down):
    assert model_size("lm", name) - model_size("lm", "dot") == count(scorer(64, down))


def layer(width, **kw):
    return nn.TransformerEncoderLayer(width, 8, 1024, device="meta", **kw)


def test_the_language_model_is_the_sum_of_torch_layers():
    biases = 4 * 512  # of the four projections, which have none here
    ends = nn.ModuleList([nn.Embedding(28996, 512), nn.LayerNorm(512), nn.Linear(512, 28996)])
    assert model_size("lm", "dot") == 8 * (count(layer(512)) - biases) + count(ends) == 46_527_812


@pytest.mark.parametrize(("dataset", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_the_vision_model_is_the_sum_of_torch_layers(dataset, classes):
    ends = nn.ModuleList([nn.Conv2d(3, 768, 8, 8), nn.LayerNorm(768), nn.Linear(768, classes)])
    dot = 12 * (count(layer(768)) - 4 * 768) + count(ends) + 768  # and a class token
    assert model_size(dataset, "dot") == dot
    assert model_size(dataset, "d'=2") - dot == count(scorer(96, 2)) == 403


def test_no_width_gives_all_four_sizes():
    """By trying every base and the widths around those that could do."""
    least = 1e6 * smallest_with_one_width() - 1000
    printed = {"dot": 46_528, "d'=2": 46_528, "d'=16": 46_531, "none": 46_538}
    for width in range(60, 110):
        extra = {n: one_hidden_layer(n, width) if n != "dot" else 0 for n in printed}
        for base in range(46_527_400, 46_528_600, 10):
            sizes = {name: round((base + more) / 1000) for name, more in extra.items()}
            assert sizes != printed
            if all(sizes[name] == printed[name] for name in ("dot", "d'=2", "none")):
                assert base + extra["d'=16"] >= least


def test_c_takes_what_torch_allocates():
    made = torch.empty(2, 8, 785, 785, 4, device="meta")
    assert size_of_c("vision", "d'=2", 2) == pytest.approx(made.nbytes / 1e9)


def test_every_table_is_made_again_with_the_cells_that_differ():
    tables = {key: make() for key, make in document("001").part("TABLES").items()}
    assert list(tables) == [str(number) for number in range(1, 9)]
    differing = {
        key: sum(
            cell["differs"]
            for row in table["rows"]
            for cell in row.values()
            if isinstance(cell, dict)
        )
        for key, table in tables.items()
    }
    assert differing == {"1": 0, "2": 1, "3": 1, "4": 1, "5": 0, "6": 3, "7": 2, "8": 2}


def test_sizes_that_only_the_public_code_gives_are_no_match():
    for claim in ("001-PAR-base", "001-PAR-h-two"):
        answer = CHECKS[claim].answer()
        assert "vocabulary" in answer.why
        assert "that is what is printed" in answer.why
    other = replace(CHECKS["001-PAR-base"], published=46.53)
    assert "is not what is printed" in other.answer().why


@pytest.mark.parametrize("row", ["dot", "d'=2"])
def test_memory_is_bounded_from_both_sides(row):
    check = CHECKS["001-MEM"]
    low, high = check.ours()[row]
    assert between({row: low * 1.1}, {row: [low, high]})
    assert not between({row: 1000.0}, {row: [low, high]})
    assert not between({row: low / 2}, {row: [low, high]})


@pytest.mark.parametrize(("table", "cells"), [("6", 8), ("7", 4), ("8", 4)])
def test_a_bound_is_no_value_made_again(table, cells):
    values = document("001").part("TABLES")[table]()
    lines = list(table_notes(values))
    assert f"{cells} values beside a bound, not made again" in lines[0]
    assert not any("values made again" in line for line in lines)
    assert all("at least" in text for row in table_rows(values) for name, text in row.items()
               if name.endswith("(ours)"))  # fmt: skip


# -- figures --------------------------------------------------------------------------------
FIGURES = document("001").part("FIGURES")


def test_what_the_figures_describe_that_does_not_hold():
    wrong = [
        statement["what"]
        for its in FIGURES.values()
        for statement in its()["described"]
        if not statement["agrees"]
    ]
    assert wrong == ["the surfaces are manifolds in R^5"]


def test_the_drawn_scores_are_those_of_our_module():
    from attnprof.papers.neural_attention.figures import drawn_scorer, operands

    q, k = (torch.tensor(x, dtype=torch.float32)[None, None] for x in operands())
    scorer, v = drawn_scorer(4, 8), torch.randn_like(q)
    named = {**vars(scorer), "score_weight": scorer.score_weight[None],
             "score_bias": [scorer.score_bias]}  # fmt: skip
    weights = {name: torch.tensor(x, dtype=torch.float32) for name, x in named.items()}
    out = attnprof.attend("neural", q, k, v, weights=weights, depth=1, hidden_dim=8, impl="naive")
    scores = torch.tensor([row["score"] for row in FIGURES["8"]()["rows"]]).view(3, 3)
    torch.testing.assert_close(out[0, 0], (scores / 2**0.5).softmax(-1) @ v[0, 0])
