"""Layers of several mechanisms one after the other: what they have not.

What they cost is in ``tests/cli/test_released_layers.py``.
"""

import pytest
import torch

import attnprof
from attnprof import registry
from attnprof.errors import RequestError

NAME = "gated-deltanet@3+gqa@1"


def test_a_hybrid_has_no_core():
    with pytest.raises(RequestError, match="has no queries, keys and values of its own"):
        attnprof.attend(NAME, *torch.zeros(3, 1, 2, 4, 8))


def test_a_hybrid_needs_a_length_if_one_of_its_layers_does():
    assert registry.get("gqa@1+linformer@1").abilities.needs_seq_len
    assert not registry.get(NAME).abilities.needs_seq_len


@pytest.mark.parametrize("number", ["1000000000", "9" * 5000, "0", "x", "pattern=3:1"])
def test_a_number_of_layers_that_no_model_has_is_refused(number):
    with pytest.raises(RequestError, match="at most 4 digits"):
        registry.get(f"gqa@{number}")
