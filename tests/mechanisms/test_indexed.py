"""Attention over picked tokens, plain and latent: against loops, ties, counts, what it holds."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.layer_rows import angles
from attnprof.blocks.picked import PICKED, ROWS, picks
from attnprof.errors import RequestError
from attnprof.ops.functional import wide_positions
from tests.mechanisms.cases import built, inputs
from tests.mechanisms.checks import check_counts, check_gradients, check_steps, close, loops, split

FORMS = ("gathered", "dense-mask")
INDEX = {"index_heads": 16, "index_dim": 4}
SIZES = [
    ((2, 9, 4, 3), {"top": 4}), ((1, 70, 2, 4), {"top": 5, "num_kv_heads": 1}),
    ((2, 6, 4, 2), {"top": 1, "num_kv_heads": 2, "value_head_dim": 5}), ((1, 5, 1, 4), {"top": 9}),
]  # fmt: skip
LATENT = [
    {"kv_rank": 3, "rope_dim": 4, "top": 4}, {"kv_rank": 5, "rope_dim": 0, "top": 2},
    {"q_rank": 3, "kv_rank": 4, "rope_dim": 2, "top": 3, "nope_dim": 3, "value_dim": 5},
]  # fmt: skip


def picked(q, k, shares, top, causal):
    """The highest scores of each row of one sample, equal ones in the order of tokens."""
    places = []
    for t, row in enumerate(q):
        scores = []
        for s in range(t + 1 if causal else len(k)):
            heads = zip(shares[t].tolist(), row, strict=True)
            scores.append((-sum(w * max(0.0, float(one @ k[s])) for w, one in heads), s))
        places.append([s for _, s in sorted(scores)[:top]])
    return places


def definition(layer, x, causal):
    """The layer's output of one sample (n, d_model), one head and token after the other."""
    spec, sizes, n = layer.spec, layer.sizes, len(x)
    index_q = layer.index_q(x).view(n, spec.index_heads, spec.index_dim)
    chosen = picked(index_q, layer.index_k(x), layer.index_shares(x), spec.top, causal)
    heads = zip("qkv", (sizes.num_heads, *[sizes.num_kv_heads] * 2), strict=True)
    maps = [(getattr(layer, f"{letter}_proj"), count) for letter, count in heads]
    q, k, v = (each(x).view(1, n, count, -1).transpose(1, 2) for each, count in maps)
    out = loops(q, k, v, lambda t, s: s in chosen[t])
    return layer.o_proj(out[0].transpose(0, 1).flatten(1))


@pytest.mark.parametrize(("shape", "more"), SIZES, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_both_forms_are_the_definition_for_a_prompt_and_token_by_token(impl, shape, more):
    layer = built("topk", shape, torch.float64, **{**INDEX, **more}, impl=impl)
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        for causal in (False, True):
            expected = torch.stack([definition(layer, sample, causal) for sample in x])
            close(layer(x, causal=causal), expected)
    check_steps(layer, x)


COUNTED = [
    *(("topk", *case) for case in SIZES), *(("dsa", (2, 6, 3, 4), params) for params in LATENT),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "more"), COUNTED, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_both_forms_count_as_executed(impl, name, shape, more):
    sizes, params = split({**INDEX, **more, "impl": impl})
    check_counts(name, shape, params, lambda state: vars(state).values(), sizes)


@pytest.mark.parametrize(
    ("name", "shape", "more"),
    [("topk", (2, 6, 4, 2), {"num_kv_heads": 2}), ("dsa", (1, 5, 2, 2), {"rope_dim": 2})],
)
@pytest.mark.parametrize("impl", FORMS)
def test_gradients_pass_what_was_picked(impl, name, shape, more):
    layer = built(name, shape, torch.float64, top=3, impl=impl, **INDEX, **more)
    check_gradients(layer, inputs(shape, torch.float64))


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


def test_a_step_reads_the_keys_of_the_indexer_and_the_rows_that_are_picked():
    step = Workload(300, 8, 16, 2, num_kv_heads=2, phase="decode")
    read = {"topk": 2 * 2 * 16, "dsa": 24 + 4}
    for name, latent in (("topk", {}), ("dsa", {"kv_rank": 24, "rope_dim": 4})):
        spec = registry.get(name, top=20, index_dim=6, **latent)
        assert spec.state_traffic(step) == 4 * 2 * (20 * read[name] + 300 * 6)


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
        masks = []
        for spec in (layer.spec, other):
            layer.spec = spec
            row = x.clone().requires_grad_()
            y = layer(row, causal=causal)
            y.square().sum().backward()
            masks.append((y.detach(), row.grad))
        for ours, theirs in zip(*masks, strict=True):
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
        places = picks(q, k, shares, top=5, causal=True)
    for t in range(n):
        rows = places[:, t, : t + 1].sort().values, expected[:, t, : t + 1].sort().values
        assert torch.equal(*rows)


# -- of latents -----------------------------------------------------------------------------
def ranked(layer, x):
    """The places that each row picks: scores of layer-normed keys, by torch's own norm."""
    spec = layer.spec
    source = x if spec.q_rank is None else layer.q_down(x)
    if spec.q_rank is not None:
        source = source / (source.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.q_norm
    keys = torch.nn.functional.layer_norm(
        layer.index_k(x), (spec.index_dim,), layer.index_norm, layer.index_shift, 1e-6
    )
    q = layer.index_q(source).view(len(x), spec.index_heads, spec.index_dim)
    return picked(q, keys, layer.index_shares(x), spec.top, causal=True)


@pytest.mark.parametrize("params", LATENT, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_a_row_is_that_of_latent_attention_over_its_picks(impl, params):
    """A row alone with the rows that it picks, by expanded latent attention, in place of a loop."""
    shape = (2, 7, 3, 4)
    layer = built("dsa", shape, torch.float64, impl=impl, **INDEX, **params)
    latent = {name: params[name] for name in params if name != "top"}
    dense = attnprof.build("mla", 12, 3, impl="expanded", **latent).double()
    dense.load_state_dict(
        {name: x for name, x in layer.state_dict().items() if "index" not in name}
    )
    x = inputs(shape, torch.float64)
    check_steps(layer, x)
    with torch.no_grad():
        rows, ranks = layer(x, causal=True), [ranked(layer, sample) for sample in x]
        for sample, t in torch.cartesian_prod(torch.arange(2), torch.arange(7)).tolist():
            places = sorted(ranks[sample][t])
            if t in places:  # at its place of the sequence, so that turns are the same
                close(rows[sample, t], dense_over(dense, x[sample], places), 1e-10)


def dense_over(layer, x, places):
    """The last of these places' row of latent attention, when it sees no other place."""
    spec, t = layer.spec, places[-1]
    turns = angles(x, wide_positions(x, len(x)), spec.rope_dim) if spec.rope_dim else None
    rows = x.unsqueeze(0)
    key, shared, latent, rotary = spec._rows(layer, rows, spec._source(layer, rows), turns)
    keys, values = spec._heads(layer, torch.nn.functional.linear(latent, layer.up), rotary)
    q = key if shared is None else torch.cat([key, shared], -1)
    scores = (q[0, :, t : t + 1] @ keys[0][:, places].mT) / q.shape[-1] ** 0.5
    return layer.o_proj((scores.softmax(-1) @ values[0][:, places]).transpose(0, 1).flatten())


def test_several_tokens_a_step_are_refused():
    with pytest.raises(RequestError, match="dsa takes one at a time"):
        registry.get("dsa", step_tokens=2)
