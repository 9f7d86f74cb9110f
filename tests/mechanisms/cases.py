"""Small sizes every mechanism must handle, and how to build each mechanism for them.

New mechanisms are covered by being in the registry. One whose default parameters do not fit a
handful of tokens is listed in ``PARAMS``; one that cannot meet a rule is listed with the reason.
"""

import torch

import attnprof
from attnprof import Workload, registry

#: batch, tokens, heads, head width: one sample, one head, an odd width; an odd length; one token
SHAPES = ((1, 6, 1, 3), (3, 5, 4, 4), (2, 1, 3, 2))

#: parameters that fit the sizes above
PARAMS = {
    "linformer": {"proj_len": 3},
    "low-rank": {"rank": 3},
    "nystromformer": {"num_landmarks": 3},
    "performer": {"num_features": 5},
    "longformer": {"window": 2},
    "topk": {"top": 3, "index_heads": 16, "index_dim": 4},
    "mla": {"rope_dim": 2},
    "moba": {"top": 2, "block": 2},
    "nsa": {"top": 3, "block": 2, "pool": 2, "stride": 1, "window": 3},
    "dsa": {"rope_dim": 2, "top": 3, "index_heads": 16, "index_dim": 4},
    "sliding-window": {"window": 3},
    "reformer": {"num_hashes": 2, "bucket_size": 2, "num_buckets": 4},
    "sparse": {"stride": 3},
}
#: the peak on the CPU leaves something out, and says so in the cost table's notes
WORKSPACE = ("sdpa", "gqa")
#: another number format is another result, and why
HASHES = {"reformer": "rounding moves tokens to other buckets"}


def names(**abilities):
    """Mechanisms that have these abilities."""
    return [
        name
        for name in registry.names()
        if all(getattr(registry.get(name).abilities, a) == v for a, v in abilities.items())
    ]


def causals(name):
    """Without a mask, and with one where the mechanism can and is not causal by nature.

    ``test_a_mask_changes_nothing_of_a_recurrence`` has the mask of those that are.
    """
    spec = registry.get(name)
    return (False, True) if spec.abilities.causal and spec.family != "recurrent" else (False,)


def params(name):
    return PARAMS.get(name, {})


def built(name, shape, dtype=torch.float32, **more):
    """The layer for a shape; with weights that are not special."""
    _, n, h, d = shape
    layer = attnprof.build(name, h * d, h, n, **{**params(name), **more})
    if dtype != torch.float32:
        layer = layer.to(dtype)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return layer


def inputs(shape, dtype=torch.float32):
    b, n, h, d = shape
    return torch.randn(b, n, h * d, dtype=dtype)


def workload(shape, **more):
    b, n, h, d = shape
    return Workload(n, h, d, b, **more)
