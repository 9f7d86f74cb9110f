"""Layers of several mechanisms one after the other: sums of theirs, and what they have not."""

import pytest
import torch

import attnprof
from attnprof import registry
from attnprof.errors import RequestError
from attnprof.workload import Workload

NAME = "gated-deltanet@3+gqa@1"


@pytest.mark.parametrize("phase", ["forward", "train", "decode"])
def test_a_hybrid_counts_what_its_layers_count(phase):
    w = Workload(40, 2, 8, phase=phase, causal=phase != "decode")
    linear, grouped = (registry.get(name).cost(w).total for name in ("gated-deltanet", "gqa"))
    assert registry.get(NAME).cost(w).total.flops == 3 * linear.flops + grouped.flops


def test_a_hybrid_has_no_core():
    with pytest.raises(RequestError, match="has no queries, keys and values of its own"):
        attnprof.attend(NAME, *torch.zeros(3, 1, 2, 4, 8))


def test_a_hybrid_needs_a_length_if_one_of_its_layers_does():
    assert registry.get("gqa@1+linformer@1").abilities.needs_seq_len
    assert not registry.get(NAME).abilities.needs_seq_len


@pytest.mark.parametrize("number", ["1000000000", "9" * 5000, "0", "x"])
def test_a_number_of_layers_that_no_model_has_is_refused(number):
    with pytest.raises(RequestError, match="at most 4 digits"):
        registry.get(f"gqa@{number}")
