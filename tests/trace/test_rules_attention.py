"""torch's own attention: fused kernels, ``nn.MultiheadAttention``, encoder layers, flex."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import flop_registry

from attnprof.trace.events import totals, uncounted
from attnprof.trace.rules import cost_of
from attnprof.trace.rules.attention import BOTTOM_RIGHT, TOP_LEFT, triangle
from attnprof.trace.run.recorder import Recorder
from attnprof.trace.run.worlds import fake_world
from tests.trace.counted import counted, counted_by_symbols, each, plus, products
from tests.trace.samples import SelfAttention

aten = torch.ops.aten
B, H, N, M, W = 2, 3, 5, 7, 4


@pytest.mark.parametrize("n", [1, 3, 5, 8])
@pytest.mark.parametrize("m", [1, 3, 5, 8])
def test_pairs_below_the_diagonal(n, m):
    seen = torch.ones(n, m)
    assert triangle(n, m) == seen.tril().sum()
    assert triangle(n, m, BOTTOM_RIGHT) == seen.tril(m - n).sum()


def fused(pairs, width, value_width):
    return plus(each("M O 2A E D", pairs), products(pairs * (width + value_width)))


def fused_backward(pairs, width, value_width, entries):
    return plus(
        each("3M 2A E", pairs),
        each("M A", entries),
        products(pairs * (3 * width + 2 * value_width)),
    )


@pytest.mark.parametrize("keys", [N, M, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_on_a_cpu(keys, causal):
    shapes = [(B, H, N, W), (B, H, keys, W), (B, H, keys, W)]
    pairs = B * H * (triangle(N, keys) if causal else N * keys)
    run = partial(F.scaled_dot_product_attention, is_causal=causal)
    assert counted(run, *shapes) == fused(pairs, W, W)
    assert counted(run, *shapes, backward=True) == fused_backward(pairs, W, W, B * H * N * W)
    assert counted_by_symbols(run, *shapes) == fused(pairs, W, W)


def test_a_mask_is_added():
    shapes = [(B, H, N, W)] * 3
    pairs = B * H * N * N
    got = counted(F.scaled_dot_product_attention, *shapes, (N, N))
    assert got == plus(fused(pairs, W, W), {"A": pairs})


def test_grouped_heads_count_every_head_of_queries():
    run = partial(F.scaled_dot_product_attention, enable_gqa=True)
    assert counted(run, (B, 4, N, W), (B, 2, N, W), (B, 2, N, W)) == fused(B * 4 * N * N, W, W)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_that_is_not_fused_is_dense(causal):
    """Values wider than keys: queries and keys are scaled by the fourth root, rows checked."""
    run = partial(F.scaled_dot_product_attention, is_causal=causal)
    got = counted(run, (B, H, N, W), (B, H, N, W), (B, H, N, 6))
    pairs = B * H * N * N
    softmax = each("2O 2A E D", pairs)
    mask = {"A": pairs} if causal else {}
    scaled = {"M": 2 * B * H * N * W}
    assert got == plus(products(pairs * (W + 6)), softmax, mask, scaled)


SDPA = "_scaled_dot_product_"


def _on_meta(name, *shapes, **named):
    """A kernel's cost from the shapes alone; torch has none of these on a CPU."""
    func = getattr(aten, name).default
    keys = named.pop("keys")
    tensors = {k: torch.empty(x, device="meta") for k, x in zip(keys, shapes, strict=True)}
    given = {**tensors, **named}
    args = []
    for argument in func._schema.arguments:
        if not argument.kwarg_only:
            default = argument.default_value if argument.has_default_value() else None
            args.append(given.get(argument.name, default))
    cost = cost_of(func, tensors["query"], tuple(args), {})
    return dict(cost.counts), func, args


QKV = [(B, H, N, W), (B, H, M, W), (B, H, M, 6)]


@pytest.mark.parametrize("kernel", ["flash_attention", "efficient_attention", "cudnn_attention"])
def test_cuda_kernels_forward(kernel):
    name = f"{SDPA}{kernel}"
    how = {"keys": ("query", "key", "value"), "compute_log_sumexp": True, "dropout_p": 0.0}
    dense, func, args = _on_meta(name, *QKV, **how, is_causal=False)
    assert dense["matmul_flops"] == flop_registry[func._overloadpacket](*args, out_val=None)
    causal, _, _ = _on_meta(name, *QKV, **how, is_causal=True)
    corner = BOTTOM_RIGHT if kernel == "flash_attention" else TOP_LEFT
    pairs = B * H * triangle(N, M, corner)
    assert causal["matmul_flops"] == 2 * pairs * (W + 6)
    assert causal["exponentials"] == pairs


@pytest.mark.parametrize("kernel", ["flash_attention", "efficient_attention", "cudnn_attention"])
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_kernels_backward(kernel, causal):
    grad = "grad_out_" if kernel == "efficient_attention" else "grad_out"
    got, func, args = _on_meta(
        f"{SDPA}{kernel}_backward", (B, H, N, 6), *[(B, H, N, W), (B, H, N, W), (B, H, N, 6)],
        keys=(grad, "query", "key", "value"), dropout_p=0.0, is_causal=causal,
    )  # fmt: skip
    if not causal:
        assert got["matmul_flops"] == flop_registry[func._overloadpacket](*args, out_val=None)
    pairs = B * H * (triangle(N, N) if causal else N * N)
    letters = fused_backward(pairs, W, 6, B * H * N * 6)
    assert got["matmul_flops"] == letters["P"]
    assert got["multiplications"] == letters["M"]
    assert got["additions"] == letters["A"]


@pytest.mark.parametrize("kernel", ["_flash_attention_forward", "_efficient_attention_forward"])
def test_kernels_below_take_tokens_before_heads(kernel):
    shapes = [(B, N, H, W), (B, M, H, W), (B, M, H, W)]
    got, _, _ = _on_meta(
        kernel, *shapes, keys=("query", "key", "value"), dropout_p=0.0, is_causal=False,
        custom_mask_type=0,
    )  # fmt: skip
    assert got["matmul_flops"] == 4 * B * H * N * M * W


def _layer_counts(layer, shape, *, fast, **options):
    """Counts of a module in ``eval``, with or without torch's fast path."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        with fake_world(), torch.no_grad():
            subject = layer().eval()
            x = torch.zeros(shape)
            recorder = Recorder()
            recorder.follow([x, *subject.parameters()])
            with recorder:
                subject(x, **options)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert not uncounted(recorder.trace, "forward")
    return totals(recorder.trace, "forward"), {call.op for call in recorder.trace.calls}


SELF_ATTENTION = partial(SelfAttention, 12, 4)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_multi_head_attention_has_six_products(fast, need_weights):
    counts, ops = _layer_counts(SELF_ATTENTION, (B, N, 12), fast=fast, need_weights=need_weights)
    assert ("_transform_bias_rescale_qkv" in ops) == fast
    assert counts["matmul_flops"] == 2 * (4 * B * N * 12 * 12 + 2 * B * N * N * 12)


def test_the_fast_path_of_multi_head_attention_entry_by_entry():
    counts, _ = _layer_counts(SELF_ATTENTION, (B, N, 12), fast=True, need_weights=True)
    weights, x = B * 4 * N * N, B * N * 12
    macs = counts["matmul_flops"] // 2
    # biases of three projections and of the last; softmax; weights averaged over heads
    assert counts["additions"] == macs + 4 * x + 2 * weights + weights
    assert counts["multiplications"] == macs + x
    assert counts["divisions"] == weights + B * N * N
    assert counts["exponentials"] == weights


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("fast", [False, True])
def test_an_encoder_layer_has_eight_products(fast, activation, norm_first):
    def layer():
        return nn.TransformerEncoderLayer(
            12, 4, 20, batch_first=True, activation=activation, norm_first=norm_first
        )

    counts, ops = _layer_counts(layer, (B, N, 12), fast=fast)
    assert ("_transform_bias_rescale_qkv" in ops) == fast
    attention = 4 * B * N * 12 * 12 + 2 * B * N * N * 12
    assert counts["matmul_flops"] == 2 * (attention + 2 * B * N * 12 * 20)
    norms = 2 * B * N
    assert counts["other"] - norms - B * N * 20 == B * 4 * N * N


def test_the_fast_path_holds_what_torchs_does():
    """The encoder layer's result on real numbers is that of the slow path."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True, activation="gelu").eval()
    x = torch.randn(B, N, 12)
    with torch.no_grad():
        expected = layer(x)
        with Recorder() as recorder:
            got = layer(x)
    assert any(call.op == "_addmm_activation" for call in recorder.trace.calls)
    assert torch.allclose(got, expected, atol=1e-5)


def test_flex_attention_is_dense_where_it_is_not_compiled():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    got = counted(
        lambda q, k, v: flex.flex_attention(q, k, v, score_mod=lambda s, *_: s * 2),
        *[(B, H, N, 16)] * 3,
    )
    assert got["P"] == 4 * B * H * N * N * 16
    assert got["M"] == got["P"] // 2 + 2 * B * H * N * N


MASKS = {
    "causal": lambda _b, _h, q, k: q >= k,
    "window": lambda _b, _h, q, k: (q >= k) & (q - k < 40),
    "both sides": lambda _b, _h, q, k: (q - k).abs() <= 17,
    "ahead": lambda _b, _h, q, k: k - q <= 5,
    "all": lambda _b, _h, q, k: q + k >= 0,
    "prefix": lambda _b, _h, q, k: (q >= k) | (k < 20),
}  # fmt: skip
#: Whose blocks are no band: what they leave is known from their numbers alone.
BY_NUMBERS = ("prefix",)


def left(mask, n, size):
    """Entries of the blocks of 16 that a mask leaves, and those blocks: one by one."""
    q, k = torch.arange(n)[:, None], torch.arange(n)[None]
    kept = MASKS[mask](0, 0, q, k).expand(n, n)
    blocks = [(kept[i : i + size, j : j + size]) for i in range(0, n, size)
              for j in range(0, n, size)]  # fmt: skip
    return sum(block.numel() for block in blocks if block.any()), sum(map(torch.any, blocks))


@pytest.mark.parametrize("mask", MASKS)
def test_flex_attention_counts_the_blocks_that_its_mask_leaves(mask):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    n, size, (entries, blocks) = 130, 16, left(mask, 130, 16)

    def make():
        return flex.create_block_mask(MASKS[mask], None, None, n, n, device="cpu", BLOCK_SIZE=size)

    made = make()
    assert made.kv_num_blocks.sum() + made.full_kv_num_blocks.sum() == blocks
    attend = partial(flex.flex_attention, block_mask=made)
    shapes = [(B, H, n, W), (B, H, n, W), (B, H, n, 2 * W)]
    if mask in BY_NUMBERS:
        entries = blocks * size * size
    got = counted(attend, *shapes)
    assert got == plus(products(B * H * entries * 3 * W), each("M O 2A E D", B * H * entries))
    if mask not in BY_NUMBERS:
        made_inside = counted(lambda *qkv: flex.flex_attention(*qkv, block_mask=make()), *shapes)
        assert made_inside["P"] == got["P"]
        assert counted_by_symbols(attend, *shapes) == got


def test_a_change_of_scores_counts_for_each_of_them():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    mask = flex.create_block_mask(MASKS["causal"], None, None, 64, 64, device="cpu", BLOCK_SIZE=16)

    def change(score, _b, _h, q, k):
        return score.tanh() * 2 + (q - k)

    plain, changed = (
        counted(partial(flex.flex_attention, **how, block_mask=mask), *[(B, H, 64, W)] * 3)
        for how in ({}, {"score_mod": change})
    )
    assert changed == plus(plain, each("O M A", B * H * left("causal", 64, 16)[0]))
