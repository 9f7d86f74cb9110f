"""A layer of 1,048,576 tokens against its closed form, operation by operation, on meta tensors."""

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from tests.mechanisms.cases import causals, params
from tests.mechanisms.variants import RECURRENT
from tests.oracles.aten import KINDS
from tests.oracles.meta import RememberedLayouts

MILLION = 1_048_576
HEAD_DIM = 2

#: larger steps than those that fit a handful of tokens, so that fewer of them make a million
STEPS = {
    "longformer": {"window": 2048},
    "nsa": {"window": 2048},
    "reformer": {"num_hashes": 2},
    "sparse": {},
    "taylor-efficient": {"chunk": 8192},
    "taylorshift": {"chunk": 8192},
    **{name: {"chunk": 8192} for name in RECURRENT},
}
#: a fused kernel is another one on every device, and torch counts a causal one as dense
FUSED = ("sdpa", "gqa")
#: thousands of operations in chunks of a fixed size: a part of the tokens, and no causal mask
MANY_STEPS = {"linear": 4, "neural": 4, "performer": 4, "she": 128}
#: a part of the tokens, with a mask too
FEWER = {"sliding-window": 8, "topk": 32, "moba": 64, "nsa": 256, "dsa": 32}


#: other ways of doing the same
MORE = {"taylor-efficient": [{"impl": "symmetric", "chunk": 8192}]}


def cases():
    """Every mechanism, causal too where it can be and takes few enough steps."""
    for name in registry.names():
        for chosen in (STEPS.get(name, params(name)), *MORE.get(name, ())):
            for causal in causals(name):
                if not (causal and name in (*FUSED, *MANY_STEPS)):
                    yield name, chosen, causal


@pytest.mark.parametrize(("name", "chosen", "causal"), list(cases()))
def test_flops_and_bytes_of_a_million_tokens_are_those_dispatched(name, chosen, causal):
    tokens = MILLION // {**MANY_STEPS, **FEWER}.get(name, 1)
    work = Workload(tokens, 1, HEAD_DIM, causal=causal)
    expected = attnprof.cost(name, work, **chosen)
    counted = RememberedLayouts()
    with torch.device("meta"):
        layer = attnprof.build(name, HEAD_DIM, 1, tokens, **chosen)
        x = torch.randn(1, tokens, HEAD_DIM)
    with torch.no_grad(), counted:
        layer(x, causal=causal)
    assert counted.products == expected.matmul_flops
    if name not in FUSED:
        assert not counted.unknown
        assert counted.by_kind() == {kind: getattr(expected.total, kind) for kind in KINDS}
        assert counted.bytes_moved == expected.total.bytes_moved
