"""Modules of somebody's own, compared by what they execute."""

import pytest

from attnprof.crossovers import derived
from tests.cli.conftest import derived_once

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


@pytest.fixture(autouse=True, scope="module")
def once():
    with derived_once(derived):
        yield


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    path = tmp_path_factory.mktemp("modules") / "mine.py"
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


@pytest.mark.parametrize(("a", "b", "more", "said"), [
    ("Scores", "States", "--kind formula", "--kind derived"),
    ("Scores", "Score", "", "Scores"),
    ("Scores", None, "--metric flops --value-dim 8", "type both sides as code of yours"),
    ("Scores", "States", "--kind measured --metric flops", "measured"),
    ("Scores", "States", "--kind measured --phase decode", "decoding"),
])  # fmt: skip
def test_what_cannot_be_compared_of_modules_is_refused_at_once(attnprof, modules, a, b, more, said):
    other = f"{modules}:{b}" if b else "standard"
    done = attnprof(f"crossover {modules}:{a} {other} {more}")
    assert done.code == 2
    assert said in done.err


FOREIGN = """
import torch


def scores(x):
    return x @ x.mT @ x


def states(x):
    return x @ (x.mT @ x)


def blocks(x):
    b, n, d = x.shape
    if n % 64:
        raise ValueError(f"{n} tokens are no blocks of 64")
    y = x.reshape(b, n // 64, 64, d)
    return y @ y.mT @ y


def viewed(x):
    y = x.view(x.shape[0], -1, 64, x.shape[-1])
    return y @ y.mT @ y


def positions(x):
    table = torch.zeros(512, x.shape[-1])
    return scores(x + table[: x.shape[1]])


def shifted(x):
    y = x[:, 1:] / (1 / (x.shape[1] - 1))
    return y @ y.mT @ y


def even(x):
    assert x.shape[1] % 2 == 0
    y = x.view(x.shape[0], x.shape[1] // 2, -1)
    return y @ y.mT @ y


def pooled(x):
    y = torch.nn.functional.avg_pool1d(x.mT, 8).mT
    return x @ y.mT @ y


def short(x):
    assert x.shape[1] < 30
    return scores(x)


def single(x):
    y = x @ (x.transpose(-1, -2) @ x)
    return y + x if x.shape[1] > 1 else x


def apart(x):
    assert x.shape[1] >= 1000
    return scores(x)
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    path = tmp_path_factory.mktemp("modules") / "foreign.py"
    path.write_text(FOREIGN)

    def pair(a, b):
        return f"{path}:{a} {path}:{b}"

    return pair


@pytest.mark.parametrize(("a", "b", "least", "most", "step", "verdict", "first"), [
    ("scores", "blocks", 64, 65536, 64, "always", 64),
    ("states", "viewed", 64, 65536, 64, "never", None),
    ("states", "positions", 2, 512, 1, "crosses", 16),
    ("states", "shifted", 2, None, 1, "crosses", 18),
    ("states", "even", 2, 65536, 2, "crosses", 32),
    ("scores", "pooled", 16, None, 1, "always", 16),
    ("blocks", "even", 64, 65536, 64, "crosses", 128),
])  # fmt: skip
def test_code_is_searched_where_it_runs_and_the_range_is_said(
    attnprof, foreign, a, b, least, most, step, verdict, first
):
    done = attnprof(f"crossover --d 16 {foreign(a, b)} --input", ("x: B, N, d",),
                    "--metric flops --format json")  # fmt: skip
    assert done.code == 0, done.err
    (row,) = done.json["records"]
    low, high = row["searched"][0]
    assert (row["verdict"], row["first_seq_len"], row["searched_step"]) == (verdict, first, step)
    assert low >= least
    assert high is None or most is None or high <= most


def test_a_range_is_told_in_the_table(attnprof, foreign):
    done = attnprof(f"crossover --d 16 {foreign('states', 'viewed')} --input", ("x: B, N, d",),
                    "--metric flops")  # fmt: skip
    assert "never from 64 tokens on" in done.out
    assert "in steps of 64" in done.out


def test_an_answer_for_every_length_says_where_formulas_begin(attnprof, foreign):
    # a single token adds more than its product saves: the formulas begin at two
    pair = foreign("states", "single")
    done = attnprof(f"crossover --d 16 {pair} --input", ("x: B, N, d",), "--metric flops")
    assert "at every length from 2 on" in done.out
    assert "is cheaper at every length from 2 on." in done.out
    assert "always from 2 tokens on" in done.out or "never from 2 tokens on" in done.out


def test_domains_that_do_not_meet_are_a_refusal(attnprof, foreign):
    done = attnprof(f"crossover --d 16 {foreign('short', 'apart')} --input", ("x: B, N, d",))
    assert done.code in (2, 3)
    assert "bug" not in done.err
    assert "no length at which both" in done.err or "does not run" in done.err


def test_modules_are_measured_without_deriving_them(attnprof, modules, monkeypatch, tmp_path):
    def refuse(*_):
        raise AssertionError("derived")

    monkeypatch.setattr("attnprof.crossovers.derived.derived", refuse)
    monkeypatch.setattr("attnprof.crossovers.peaks.LONGEST", 256)
    figure = tmp_path / "curves.png"
    done = attnprof(f"crossover --d 16 {modules}:Scores {modules}:States --kind measured",
                    f"--plot {figure} --format json")  # fmt: skip
    assert done.code == 0, done.err
    (row,) = done.json["records"]
    # 4·N² bytes of scores against 4·d² of a state, and copies of both
    assert (row["kind"], row["metric"], row["verdict"]) == ("measured", "memory", "crosses")
    assert 8 <= row["first_seq_len"] <= 64
    assert row["searched"] == [[2, 256]]
    assert figure.exists()


def test_measured_rows_of_mechanisms_are_shown(attnprof):
    done = attnprof("crossover --d 8 --kind measured")
    assert done.code == 0
    assert "measured" in done.out


def test_sizes_that_do_not_reach_a_module_are_said(attnprof, tmp_path):
    path = tmp_path / "ready.py"
    path.write_text("from torch import nn\na = nn.Linear(8, 8)\nb = nn.Linear(8, 24)\n")
    done = attnprof(f"crossover --d 16 {path}:a {path}:b --input", ("input: B, N, 8",),
                    "--metric flops --format json")  # fmt: skip
    assert done.code == 0, done.err
    assert done.err.count("its sizes are its own") == 2
