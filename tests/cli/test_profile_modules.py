"""Modules of somebody's own, profiled beside mechanisms."""

import pytest

CODE = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, num_heads, bias=True):
        super().__init__()
        self.h = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, c // self.h).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return y.transpose(1, 2).reshape(b, n, c), None


def core(q, k, v):
    return (q @ k.transpose(-1, -2)) @ v
"""
QUICK = "--samples 3 --min-time 0 --max-time 0.1 --threads 1 --format json"


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_a_module_is_measured_beside_a_mechanism(attnprof, mine, phase):
    done = attnprof(f"profile --attention {mine}:Attention,standard --seq 24 --d-model 32 "
                    f"--heads 4 --batch 2 --phase {phase} {QUICK}")  # fmt: skip
    assert done.code == 0
    own, standard = done.json["records"]
    assert own["flops_formula"] is None
    products = 2 * 2 * 24 * 32 * 96 + 2 * 2 * 2 * 24 * 24 * 32
    assert own["matmul_flops_derived"] == products * (3 if phase == "train" else 1)
    assert own["flops_torch"] == own["matmul_flops_derived"]
    assert own["peak_bytes_measured"] == pytest.approx(own["peak_bytes_predicted"], rel=1e-3)
    assert own["parameters"] == 32 * 96 + 96
    assert own["median_s"] > 0
    assert own["skipped"] is None
    assert standard["flops_formula"] is not None


def test_arguments_and_functions(attnprof, mine):
    done = attnprof(f"profile --attention {mine}:Attention --arg bias=False --seq 8 --d-model 8 "
                    f"--heads 2 {QUICK}")  # fmt: skip
    assert done.json["records"][0]["parameters"] == 8 * 24
    done = attnprof(f"profile --attention {mine}:core --seq 8 --d-model 8 --heads 2 {QUICK}")
    assert done.json["records"][0]["matmul_flops_derived"] == 2 * 2 * 8 * 8 * 8


def test_a_module_runs_in_a_process_of_its_own(attnprof, mine):
    done = attnprof(f"profile --attention {mine}:Attention --seq 8 --d-model 8 --heads 2 "
                    f"--isolate {QUICK}")  # fmt: skip
    assert done.json["records"][0]["median_s"] > 0


@pytest.mark.parametrize(("more", "said"), [
    ("--phase decode", "no decoding step"), ("--set bias=false", "--arg"),
])  # fmt: skip
def test_what_a_module_cannot_is_said(attnprof, mine, more, said):
    done = attnprof(f"profile --attention {mine}:Attention --seq 8 --d-model 8 --heads 2 "
                    f"{more} {QUICK}")  # fmt: skip
    assert done.code == 2
    assert said in done.err


def test_arguments_need_a_module(attnprof):
    done = attnprof(f"profile --attention standard --seq 8 --arg a=1 {QUICK}")
    assert done.code == 2
