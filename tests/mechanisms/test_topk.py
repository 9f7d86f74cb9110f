"""Attention over picked tokens against a loop, ties, and what both forms count and hold."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.picked import PICKED, ROWS, picks
from tests.mechanisms.cases import built, inputs, workload
from tests.mechanisms.test_costs_by_aten import kinds
from tests.oracles.aten import count, count_core, count_training

FORMS = ("gathered", "dense-mask")


def picked(q, k, shares, top, causal):
    """The highest scores of each row of one sample, equal ones in the order of tokens."""
    found = []
    for t, row in enumerate(q):
        scores = []
        for s in range(t + 1 if causal else len(k)):
            heads = zip(shares[t].tolist(), row, strict=True)
            scores.append((-sum(w * max(0.0, float(one @ k[s])) for w, one in heads), s))
        found.append([s for _, s in sorted(scores)[:top]])
    return found


def loops(layer, x, causal):
    """The layer's output of one sample (n, d_model), one head and token after the other."""
    spec, sizes = layer.spec, layer.sizes
    h, g = sizes.num_heads, sizes.num_kv_heads
    n = len(x)
    index_q = layer.index_q(x).view(n, spec.index_heads, spec.index_dim)
    chosen = picked(index_q, layer.index_k(x), layer.index_shares(x), spec.top, causal)
    q, k, v = (getattr(layer, f"{letter}_proj")(x) for letter in "qkv")
    q, k, v = q.view(n, h, -1), k.view(n, g, -1), v.view(n, g, -1)
    out = torch.zeros(n, h, v.shape[-1], dtype=x.dtype)
    for t in range(n):
        for i in range(h):
            j = i * g // h
            scores = [
                math.exp(float(q[t, i] @ k[s, j]) / math.sqrt(q.shape[-1])) for s in chosen[t]
            ]
            for score, s in zip(scores, chosen[t], strict=True):
                out[t, i] += score / sum(scores) * v[s, j]
    return layer.o_proj(out.flatten(1))


SIZES = [
    ((2, 9, 4, 3), {"top": 4}), ((1, 70, 2, 4), {"top": 5, "num_kv_heads": 1}),
    ((2, 6, 4, 2), {"top": 1, "num_kv_heads": 2, "value_head_dim": 5}), ((1, 5, 1, 4), {"top": 9}),
]  # fmt: skip
INDEX = {"index_heads": 16, "index_dim": 4}


def split(more):
    sizes = {name: more[name] for name in more if name in ("num_kv_heads", "value_head_dim")}
    return sizes, {**INDEX, **{name: more[name] for name in more if name not in sizes}}


@pytest.mark.parametrize(("shape", "more"), SIZES, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_both_forms_are_the_definition_for_a_prompt_and_token_by_token(impl, shape, more):
    layer = built("topk", shape, torch.float64, **{**INDEX, **more}, impl=impl)
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        for causal in (False, True):
            expected = torch.stack([loops(layer, sample, causal) for sample in x])
            torch.testing.assert_close(layer(x, causal=causal), expected, rtol=0, atol=1e-12)
        state = layer.init_state(len(x))
        for t, token in enumerate(x.unbind(1)):
            row, state = layer.step(token, state)
            torch.testing.assert_close(row, expected[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shape", "more"), SIZES, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_both_forms_count_as_executed(impl, shape, more):
    sizes, params = split({**more, "impl": impl})
    layer, x = built("topk", shape, **params, **sizes), inputs(shape)
    for causal in (False, True):
        seen = {"forward": count_core(layer, (x,), "forward", causal=causal)}
        for phase, counts in {**seen, **count_training(layer, (x,), causal=causal)}.items():
            asked = workload(shape, causal=causal, phase=phase, **sizes)
            cost = attnprof.cost("topk", asked, **params).total
            assert not counts.unknown
            assert (causal, phase, kinds(cost)) == (causal, phase, counts.by_kind())
            assert (causal, phase, cost.bytes_moved) == (causal, phase, counts.bytes_moved)
    state = layer.init_state(len(x))
    for t, token in enumerate(x.transpose(0, 1).contiguous()):
        with torch.no_grad():
            counts = count(lambda token=token: layer.step(token, state))
        asked = workload(shape, phase="decode", **sizes).with_(seq_len=t + 1)
        table = attnprof.cost("topk", asked, **params)
        assert (t, kinds(table.total)) == (t, counts.by_kind())
        held = sum(cache.seen.numel() for cache in vars(state).values())
        assert (t, table.state_entries) == (t, held)


@pytest.mark.parametrize("impl", FORMS)
def test_gradients_pass_what_was_picked(impl):
    shape = (2, 6, 4, 2)
    layer = built("topk", shape, torch.float64, top=3, num_kv_heads=2, impl=impl, **INDEX)
    x = inputs(shape, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, causal=True), (x,))


def test_equal_scores_go_to_the_earlier_token_at_any_length():
    """With few heads relu leaves many scores at zero, where torch's topk takes any of them."""
    n, top = 40, 6
    q, k, shares = torch.randn(1, n, 1, 4), torch.randn(1, n, 4), torch.ones(1, n, 1)
    k[0, ::2] = k[0, :1]  # and some keys are the same
    causal = picks(q, k, shares, top=top, causal=True)[0].tolist()
    expected = picked(q[0], k[0], shares[0], top, causal=True)
    for t in range(n):
        assert causal[t][: t + 1] == expected[t]
        step = picks(q[:, t : t + 1], k[:, : t + 1], shares[:, t : t + 1], top=top, causal=False)
        assert step[0, 0].tolist() == expected[t]


@pytest.mark.parametrize(("b", "n", "g", "top"), [(1, 300, 8, 20), (2, 130, 2, 64)])
def test_products_are_the_known_formulas(b, n, g, top):
    h, d, heads, width = 8, 16, 4, 6
    asked = Workload(n, h, d, b, num_kv_heads=g, causal=True)
    params = {"top": top, "index_heads": heads, "index_dim": width}
    maps = 2 * h * d * (2 * h * d + 2 * g * d + heads * width + width + heads)
    ranked, products = 2 * heads * (width + 1), {"gathered": 4 * h * top * d, "dense-mask": 0}
    for impl in FORMS:
        cost = attnprof.cost("topk", asked, impl=impl, **params)
        own = products[impl] or 4 * h * n * d
        assert cost.matmul_flops == b * n * (maps + ranked * n + own)
        step = attnprof.cost("topk", asked.with_(causal=False, phase="decode"), impl=impl, **params)
        assert step.matmul_flops == b * (maps + ranked * n + own)
        assert step.state_entries == b * n * (2 * g * d + width)


def test_gathering_saves_products_and_memory_grows_with_the_length():
    gathered, dense = (
        registry.get("topk", top=64, index_heads=4, index_dim=16, impl=impl) for impl in FORMS
    )

    def peak(spec, n, phase):
        return spec.cost(Workload(n, 4, 16, causal=True, phase=phase)).peak()

    for phase in ("forward", "train"):
        assert peak(gathered, 1 << 20, phase) / peak(gathered, 1 << 16, phase) < 17
        assert peak(dense, 1 << 14, phase) / peak(dense, 1 << 12, phase) > 15


def test_more_than_one_block_of_rows_is_the_dense_mask():
    top = PICKED // ROWS * 2  # 32 rows a block
    layer = built("topk", (1, 600, 2, 4), torch.float64, top=top, **INDEX)
    x = inputs((1, 600, 2, 4), torch.float64)
    other = layer.spec.with_params({"impl": "dense-mask"})
    for causal in (False, True):
        found = []
        for spec in (layer.spec, other):
            layer.spec = spec
            row = x.clone().requires_grad_()
            y = layer(row, causal=causal)
            y.square().sum().backward()
            found.append((y.detach(), row.grad))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_it_picks_what_the_indexer_of_deepseek_v3_2_picks():
    modeling = pytest.importorskip("transformers.models.deepseek_v32.modeling_deepseek_v32")
    from transformers import DeepseekV32Config

    config = DeepseekV32Config(
        hidden_size=24, q_lora_rank=12, index_n_heads=16, index_head_dim=8, index_topk=5,
        qk_rope_head_dim=4, num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    theirs = modeling.DeepseekV32Indexer(config, 0)
    x, residual, n = torch.randn(2, 17, 24), torch.randn(2, 17, 12), 17
    mask = torch.full((n, n), -math.inf).triu(1).expand(2, n, n)
    still = torch.ones(1, n, 4), torch.zeros(1, n, 4)  # no rotation
    with torch.no_grad():
        expected = theirs(x, residual, still, mask, None)
        q = theirs.wq_b(residual).view(2, n, 16, 8)
        k, shares = theirs.k_norm(theirs.wk(x)), theirs.weights_proj(x)
        found = picks(q, k, shares, top=5, causal=True)
    for t in range(n):
        rows = found[:, t, : t + 1].sort().values, expected[:, t, : t + 1].sort().values
        assert torch.equal(*rows)
