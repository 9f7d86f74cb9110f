"""Parameters and sizes beside the defaults: each form, gate and pattern that a mechanism has.

A mechanism is added to tests by its entries here: tests of counts, steps and gradients take
``VARIANTS``, those of several blocks ``BLOCKS``, of compilation and number formats ``TEXTS``.
"""

from attnprof import registry
from attnprof.blocks.gathered import ROWS as CONVOLUTION_ROWS
from attnprof.blocks.softmax import ROWS
from tests.mechanisms.cases import names


def forms(name):
    """Values of ``impl``, but for the one that chooses among the others."""
    return [form for form in registry.get(name).allowed["impl"] if form != "auto"]


EXTRACTORS = ("she", "he", "we", "me")
#: An extractor and how it sums.
IMPLS = [(name, impl) for name in EXTRACTORS for impl in registry.get(name).allowed["impl"]]
RECURRENT = ("gated-deltanet", "kimi-delta", "retnet", "lightning", "gla", "mamba2")
SYMMETRIC = {"impl": "symmetric", "chunk": 4}
INDEX = {"index_heads": 16, "index_dim": 4}
#: Shapes and parameters of attention over picked tokens, and over blocks of them.
TOPK = [
    ((2, 9, 4, 3), {"top": 4}), ((1, 70, 2, 4), {"top": 5, "num_kv_heads": 1}),
    ((2, 6, 4, 2), {"top": 1, "num_kv_heads": 2, "value_head_dim": 5}), ((1, 5, 1, 4), {"top": 9}),
    ((2, 11, 4, 3), {"top": 6, "index_block": 3}), ((1, 9, 2, 4), {"top": 5, "index_block": 2}),
    ((1, 70, 2, 2), {"top": 8, "index_block": 4, "num_kv_heads": 1}),
    ((2, 5, 1, 2), {"top": 3, "index_block": 4}),
]  # fmt: skip
DSA = [
    {"kv_rank": 3, "rope_dim": 4, "top": 4}, {"kv_rank": 5, "rope_dim": 0, "top": 2},
    {"q_rank": 3, "kv_rank": 4, "rope_dim": 2, "top": 3, "nope_dim": 3, "value_dim": 5},
]  # fmt: skip
MLA = [
    {"kv_rank": 3, "rope_dim": 4}, {"kv_rank": 5, "rope_dim": 0}, {"kv_rank": 2, "rope_dim": 3,
     "rotary": False, "nope_dim": 3, "value_dim": 5}, {"q_rank": 3, "rope_dim": 2},
]  # fmt: skip
#: Tokens, heads of keys, blocks that a row reads, tokens of a block: ragged, all, one, not full.
MOBA = [(11, 2, 2, 3), (9, 4, 3, 2), (12, 2, 1, 4), (5, 1, 3, 8), (1, 2, 2, 2)]


def windows(top, block, pool, stride, window):
    """Parameters of native sparse attention."""
    return {"top": top, "block": block, "pool": pool, "stride": stride, "window": window}


#: Tokens, heads of keys: ragged, more blocks than are picked, a window longer than the text, one.
NSA = [
    (23, 2, windows(3, 4, 4, 2, 3)), (40, 1, windows(4, 4, 2, 2, 5)),
    (9, 4, windows(3, 2, 2, 1, 1)), (5, 1, windows(3, 8, 8, 4, 20)),
    (1, 2, windows(3, 2, 2, 2, 2)),
]  # fmt: skip
NEURAL = [
    {}, {"down_dim": 2}, {"depth": 1}, {"depth": 1, "hidden_dim": 7, "down_dim": 3},
    {"hidden_dim": 5},
]  # fmt: skip
SLIDING = [
    {"sink": True, "window": 3}, {"sink": True, "window": 2, "first_tokens": 2},
    {"sink": True, "window": 3, "impl": "dense-mask"}, {"window": 1},
    {"window": 2, "sink": True, "num_kv_heads": 2}, {"window": 2, "value_head_dim": 3},
]  # fmt: skip
DIFFERENTIAL = [
    {"impl": "separate"}, {"impl": "separate", "num_kv_heads": 2}, {"impl": "fused"},
    {"impl": "fused", "num_kv_heads": 2}, {"num_kv_heads": 2, "value_head_dim": 5},
    {"impl": "separate", "num_kv_heads": 2, "value_head_dim": 5},
]  # fmt: skip
#: Name, shape, and parameters and sizes in one: of few tokens.
VARIANTS = [
    *((name, (3, 5, 4, 4), {"num_kv_heads": 2}) for name in names(grouped_kv=True)),
    *((name, (3, 5, 4, 4), {"num_kv_heads": 1}) for name in ("standard", "sdpa")),
    *(("super", shape, {"per_head": True}) for shape in ((1, 6, 1, 3), (3, 5, 4, 4))),
    *(("differential", (2, 5, 4, 6), more) for more in DIFFERENTIAL),
    *(("gqa", (3, 5, 4, 2), {"gate": gate, "impl": impl, "num_kv_heads": 2})
      for gate in ("none", "elementwise", "headwise") for impl in forms("gqa")),
    *(("topk", shape, {**INDEX, **more, "impl": impl})
      for shape, more in TOPK for impl in forms("topk")),
    *(("dsa", (2, 6, 3, 4), {**INDEX, **more, "impl": impl})
      for more in (*DSA, {**DSA[0], "index_block": 2}) for impl in forms("dsa")),
    *(("mla", (2, 5, 3, 4), {**more, "impl": impl}) for more in MLA for impl in forms("mla")),
    *(("moba", (2, n, 4, 3), {"num_kv_heads": g, "top": top, "block": block, "impl": impl})
      for n, g, top, block in MOBA for impl in forms("moba")),
    *(("nsa", (2, n, 4, 3), {"num_kv_heads": g, **more, "impl": impl})
      for n, g, more in NSA for impl in forms("nsa")),
    *(("neural", (3, 9, 2, 4), more) for more in (*NEURAL, {"impl": "naive"})),
    *(("sliding-window", (2, 7, 4, 2), more) for more in SLIDING),
    ("longformer", (2, 9, 2, 2), {"window": 2, "global_tokens": 3}),
    *(("sparse", (2, 9, 2, 4), {"stride": 4, "pattern": x}) for x in ("strided", "fixed")),
    *(("taylor-efficient", shape, SYMMETRIC)
      for shape in ((3, 9, 2, 4), (2, 8, 1, 3), (2, 7, 1, 1), (2, 1, 2, 6))),
    ("performer", (3, 5, 2, 4), {"num_features": 6, "features": "elu"}),
    ("nystromformer", (2, 7, 2, 3), {"num_landmarks": 3, "iterations": 2, "conv_kernel": 3}),
    *(("reformer", (2, 50, 2, 4), {"bucket_size": 3, **more})
      for more in ({}, {"num_buckets": 1}, {"self_attention": True})),
    *((name, (2, 5, 1, 2), {"impl": impl}) for name, impl in IMPLS if impl != "auto"),
]  # fmt: skip
#: The same of several blocks of rows, tokens or landmarks.
BLOCKS = [
    *(("linformer", shape, {"shared": shared}) for shape, shared in (
        ((2, 2 * ROWS + 3, 2, 4), False), ((2, 2 * ROWS + 3, 2, 4), True),
        ((1, ROWS, 1, 3), False), ((5, ROWS + 1, 2, 3), False),
    )),
    *(("nystromformer", shape, {"num_landmarks": m, "conv_kernel": kernel, "iterations": 2})
      for shape, m, kernel in (
        ((2, 2 * ROWS + 3, 2, 4), 3, None), ((1, ROWS, 1, 3), ROWS + 44, None),
        ((5, ROWS + 3, 2, 4), 3, 5), ((2, 2 * CONVOLUTION_ROWS + 5, 3, 4), 5, 9),
        ((2, 7, 2, 4), 3, 33),
        ((1, 3 * CONVOLUTION_ROWS, 2, 4), 64, 2 * CONVOLUTION_ROWS + 3),
    )),
    *(("mla", (3, 65, 4, 8), {"impl": impl, "rope_dim": 4}) for impl in forms("mla")),
    *(("taylor-efficient", shape, {}) for shape in ((3, 129, 2, 4), (2, 128, 1, 3))),
    *(("taylor-efficient", shape, SYMMETRIC) for shape in ((1, 70, 3, 5), (1, 33, 2, 2))),
    *((name, shape, {"impl": impl}) for name, impl in IMPLS
      for shape in ((3, 131, 1, 4), (1, 7, 1, 1))),
    *(("neural", shape, {**more, "impl": impl}) for more in NEURAL
      for shape, impl in (((2, 9, 2, 2), "factored"), ((2, 37, 1, 3), "naive"))),
    ("linear", (2, 519, 2, 12), {}), ("performer", (2, 519, 2, 12), {"num_features": 6}),
    ("performer", (2, 519, 2, 12), {"num_features": 6, "features": "elu"}),
]  # fmt: skip
#: Other texts of the same mechanism, by parameters.
TEXTS = [
    ("he", {"impl": "fft"}), ("performer", {"features": "elu"}), ("neural", {"impl": "naive"}),
    ("taylor-efficient", SYMMETRIC),
]  # fmt: skip
