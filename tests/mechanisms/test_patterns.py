"""Windows, global tokens, sinks and strides against a loop over the pairs that a row sees."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from tests.mechanisms.checks import close, drawn, loops

FORMS = ("blocks", "dense-mask")
PATTERNS = ("strided", "fixed")


def in_sight(name, params, n, causal):
    """Whether row i sees token j, by the definition of each mechanism."""

    def windowed(i, j):
        back = params["window"] - (name == "sliding-window")
        first = params.get("global_tokens", 0) + params.get("first_tokens", 0)
        return abs(i - j) <= back or i < first or j < first

    def strided(i, j):
        stride = params.get("stride") or math.ceil(math.sqrt(n))
        if params.get("pattern") == "fixed":
            return i // stride == j // stride or j % stride == stride - 1
        return abs(i - j) < stride or (i - j) % stride == 0

    sees = strided if name == "sparse" else windowed
    return lambda i, j: not (causal and j > i) and sees(i, j)


#: Shapes, with windows and numbers of global tokens: within a block of 64 and beyond one.
CASES = [
    *(
        ("longformer", shape, {"window": window, "global_tokens": first})
        for shape, window, first in (
            ((3, 2, 37, 4), 2, 0), ((3, 2, 37, 4), 70, 3), ((3, 2, 37, 4), 2, 60),
            ((1, 1, 130, 3), 2, 3), ((1, 1, 130, 3), 70, 0), ((1, 1, 130, 3), 2, 60),
            ((1, 2, 200, 5), 70, 60), ((2, 1, 1, 4), 2, 3), ((2, 1, 1, 4), 70, 0),
        )
    ),
    *(
        ("sparse", shape, {"stride": stride, "pattern": pattern})
        for shape, stride in (
            ((3, 2, 37, 4), None), ((3, 2, 37, 4), 5), ((1, 1, 130, 3), 1), ((1, 1, 130, 3), 64),
            ((2, 1, 1, 4), 5),
        )
        for pattern in PATTERNS
    ),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "shape", "params"), CASES, ids=str)
def test_attend_is_the_definition(name, shape, params, causal):
    q, k, v = drawn(shape)
    last = loops(*(x[-1:, -1:] for x in (q, k, v)), in_sight(name, params, shape[2], causal))
    for form in [{"impl": impl} for impl in FORMS] if name == "longformer" else [{}]:
        got = attnprof.attend(name, q, k, v, causal=causal, **params, **form)
        close(got[-1:, -1:], last, 1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(("n", "window", "first"), [(9, 1, 0), (9, 4, 2), (70, 3, 0), (70, 66, 5)])
def test_a_sliding_window_with_grouped_heads_and_sinks_is_the_definition(
    n, window, first, sink, causal
):
    (q,), (k, v) = drawn((1, 4, n, 3), 1), drawn((1, 2, n, 3), 2)
    logits = torch.randn(4, dtype=torch.float64) if sink else None
    params = {"window": window, "first_tokens": first}
    expected = loops(q, k, v, in_sight("sliding-window", params, n, causal), logits)
    for impl in FORMS:
        got = attnprof.attend(
            "sliding-window", q, k, v, causal=causal, impl=impl, sink=sink, **params,
            weights={"sink": logits} if sink else None,
        )  # fmt: skip
        close(got, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "n", "params"),
    [*(("longformer", n, {"window": window, "global_tokens": first})
       for n, window in ((1, 3), (9, 2), (64, 30), (193, 64), (250, 70)) for first in (0, 4)),
     *(("sparse", n, {"stride": stride, "pattern": pattern})
       for n, stride in ((1, 3), (9, 2), (64, 8), (61, 8), (50, 70), (40, 1))
       for pattern in PATTERNS)],
    ids=str,
)  # fmt: skip
def test_the_definitions_pairs_are_counted_one_by_one(name, n, params, causal):
    spec, sees = registry.get(name, **params), in_sight(name, params, n, causal)
    work = Workload(seq_len=n, num_heads=1, head_dim=4, causal=causal)
    pairs = sum(sees(i, j) for i in range(n) for j in range(n))
    assert spec.pairs(work) == pairs
    if causal and name == "sparse":
        steps = [spec.pairs(work.with_(seq_len=t, phase="decode")) for t in range(1, n + 1)]
        assert sum(steps) == pairs


@pytest.mark.parametrize("n", [3, 8, 9, 40])
def test_a_cache_holds_as_many_tokens_as_the_window_and_products_fill_the_band(n):
    spec = registry.get("sliding-window", window=8)
    work = Workload(n, 6, 4, 2, num_kv_heads=3, causal=True)
    seen, full = min(n, 8), min(n, 8) * (min(n, 8) - 1) // 2
    band = spec.definition(work, "core").matmul_flops
    assert band == 4 * 2 * 6 * 4 * (n * seen - full)
    step = spec.cost(work.with_(causal=False, phase="decode"), "core")
    assert step.state_entries == 2 * 2 * 3 * 4 * seen
    assert step.matmul_flops == 4 * 2 * 6 * 4 * seen
    dense = registry.get("sliding-window", window=8, impl="dense-mask").cost(work, "core")
    assert dense.matmul_flops == 4 * 2 * 6 * n * n * 4


def test_transformers_caches_one_token_fewer_between_steps_than_a_row_sees():
    cache = pytest.importorskip("transformers.cache_utils").DynamicSlidingWindowLayer(5)
    layer = attnprof.build("sliding-window", 8, 2, window=5)
    state = layer.init_state(1)
    for t in range(12):
        rows = torch.randn(1, 2, 1, 4)
        seen = cache.update(rows, rows)[0].shape[2]
        layer.step(rows.view(1, 8), state)
        assert seen == state.keys.filled.shape[1] == min(t + 1, 5)
        assert cache.keys.shape[2] == min(t + 1, 4)


def test_a_sink_costs_a_parameter_a_head_and_no_product():
    work = Workload(40, 6, 4, causal=True)
    plain, sink = (attnprof.cost("sliding-window", work, sink=s, window=8) for s in (False, True))
    assert sink.parameters - plain.parameters == 6
    assert sink.matmul_flops == plain.matmul_flops


def test_work_of_fixed_blocks_grows_like_the_length_times_its_root_too():
    spec = registry.get("sparse", pattern="fixed")
    flops = [spec.cost(Workload(1 << bits, 1, 16), "core").flops for bits in (14, 20)]
    assert math.log(flops[1] / flops[0]) / math.log(64) == pytest.approx(1.5, abs=0.03)


def test_it_is_the_attention_of_gpt_oss_with_its_sinks():
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    from transformers import GptOssConfig

    config = GptOssConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        sliding_window=5, num_hidden_layers=1, layer_types=["sliding_attention"],
        attn_implementation="eager",
    )  # fmt: skip
    theirs = modeling.GptOssAttention(config, 0)
    ours = attnprof.build("sliding-window", 32, 4, num_kv_heads=2, window=5, sink=True, bias=True)
    with torch.no_grad():
        theirs.sinks.normal_()
        ours.core.sink.copy_(theirs.sinks)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
        x = torch.randn(2, 17, 32)
        place = torch.arange(17)
        away = place[:, None] - place[None]
        mask = torch.zeros(17, 17).masked_fill((away < 0) | (away >= 5), -math.inf)
        turned = torch.ones(1, 17, 4), torch.zeros(1, 17, 4)  # no rotation
        expected, _ = theirs(x, turned, mask[None, None])
        close(ours(x, causal=True), expected, 1e-5)
