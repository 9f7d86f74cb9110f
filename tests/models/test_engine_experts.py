"""Bytes of a decoded token of released mixtures: active weights and the cache, each read once."""

import pytest
import torch

from attnprof.models.engine import engine_subject
from attnprof.models.names import config_of
from attnprof.models.phases import run_of
from attnprof.models.sources import hub_subject

pytest.importorskip("transformers")

TOKENS, SIZE = 4096, 2
#: Bytes of a cached token of each layer, written out by hand, and the window of half of them.
CACHES = {
    "mixtral-8x7b": (32, 2 * 8 * 128, 0),
    "mixtral-8x22b": (56, 2 * 8 * 128, 0),
    "qwen3-30b-a3b": (48, 2 * 4 * 128, 0),
    "gpt-oss-20b": (24, 2 * 8 * 64, 128),
    "gpt-oss-120b": (36, 2 * 8 * 64, 128),
    "deepseek-v3": (61, 512 + 64, 0),
    "glm-4.5-air": (46, 2 * 8 * 128, 0),
    "minimax-m2": (62, 2 * 8 * 128, 0),
}


def by_hand(name, subject):
    """Bytes of the weights that one token meets, and of the cache that its layers see."""
    with torch.device("meta"):
        model = subject.build()
    weights = dict(model.named_parameters())
    experts = sum(x.numel() for key, x in weights.items() if ".experts." in key)
    table = model.get_input_embeddings().weight.numel()
    everything = sum(x.numel() for x in weights.values())
    met = everything - table - experts * (subject.experts - subject.chosen) // subject.experts
    layers, row, window = CACHES[name]
    seen = (TOKENS + min(TOKENS, window or TOKENS)) // 2
    return SIZE * met, SIZE * layers * row * seen


@pytest.mark.parametrize("name", CACHES)
def test_a_decoded_token_moves_active_weights_and_the_cache(name):
    subject = engine_subject(hub_subject({**config_of(name), "dtype": "bfloat16"}, name))
    calls = run_of(subject, "decode", {"B": 1, "N": TOKENS}).trace.part("decode")
    moved = sum(call.bytes_moved for call in calls)
    assert moved == pytest.approx(sum(by_hand(name, subject)), rel=0.02)
