"""Modules of somebody's own, compared by what they execute."""

import pytest

MODULES = """
import torch
from torch import nn


class Scores(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)

    def heads(self, x):
        b, n, c = x.shape
        return self.qkv(x).view(b, n, 3, self.h, c // self.h).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = self.heads(x)
        return (q @ k.transpose(-1, -2)) @ v


class States(Scores):
    def forward(self, x):
        q, k, v = self.heads(x)
        return q @ (k.transpose(-1, -2) @ v)


def attend(q, k, v):
    return (q @ k.transpose(-1, -2)) @ v
"""


@pytest.fixture
def modules(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODULES)
    return path


def test_two_orders_of_one_product_meet_at_the_head_width(attnprof, modules):
    done = attnprof("crossover", "--d", "8,16", f"{modules}:Scores", f"{modules}:States",
               "--metric", "flops", "--format", "json")  # fmt: skip
    assert done.code == 0
    records = done.json["records"]
    # 4·N²·d against 4·N·d²: the projections are the same
    assert [(r["kind"], r["crossover_seq_len"], r["closed_form"]) for r in records] == [
        ("derived", 8.0, "d"), ("derived", 16.0, "d"),
    ]  # fmt: skip
    assert all(r["scope"] == "layer" and r["cheaper_above"].endswith("States") for r in records)


def test_a_module_meets_a_registered_mechanism(attnprof, modules):
    pair = f"standard {modules}:States"
    done = attnprof(f"crossover --d 16 {pair} --set bias=false --format json")
    assert done.code == 0
    assert {r["kind"] for r in done.json["records"]} == {"derived"}


def test_closed_forms_of_a_module_are_not_pretended(attnprof, modules):
    done = attnprof("crossover", f"{modules}:Scores", f"{modules}:States", "--kind", "formula")
    assert done.code == 2
    assert "--kind derived" in done.err


def test_an_argument_needs_a_module(attnprof):
    done = attnprof("crossover", "--arg", "d_model=h*d")
    assert done.code == 2
    assert "my.py:MyAttention" in done.err


def test_a_name_that_is_not_there_is_said(attnprof, modules):
    done = attnprof("crossover", f"{modules}:Score", f"{modules}:States")
    assert done.code == 2
    assert "Scores" in done.err
