"""Attention over picked tokens, plain and latent: against loops, ties, counts, what it holds."""

import math

import pytest
import sympy
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.picked import block_sums, picks
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs, workload
from tests.mechanisms.checks import (
    check_forms,
    check_gradients,
    check_peak,
    check_steps,
    close,
    loops,
)
from tests.mechanisms.variants import DSA, INDEX, TOPK, forms

FORMS = forms("topk")


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


def in_blocks(q, k, shares, top, block):
    """The tokens of each row's own block, and of those before it of the highest scores."""
    places = []
    for t in range(len(q)):
        current = t // block
        means = [k[i * block : (i + 1) * block].mean(0) for i in range(current)]
        ranked = picked(q[t : t + 1], means, shares[t : t + 1], top // block - 1, causal=False)
        blocks = {current, *(ranked[0] if top >= 2 * block else ())}
        places.append([s for s in range(t + 1) if s // block in blocks])
    return places


def definition(layer, x, causal, source=None):
    """The layer's output of one sample (n, d_model), one head and token after the other.

    ``source`` is the layer and its input whose indexer picks, if not its own.
    """
    spec, sizes, n = layer.spec, layer.sizes, len(x)
    indexer, rows = source or (layer, x)
    index_q = indexer.index_q(rows).view(n, spec.index_heads, spec.index_dim)
    asked = index_q, indexer.index_k(rows), indexer.index_shares(rows)
    if spec.index_block > 1:
        chosen = in_blocks(*asked, spec.top, spec.index_block)
    else:
        chosen = picked(*asked, spec.top, causal)
    heads = zip("qkv", (sizes.num_heads, *[sizes.num_kv_heads] * 2), strict=True)
    maps = [(getattr(layer, f"{letter}_proj"), count) for letter, count in heads]
    q, k, v = (each(x).view(1, n, count, -1).transpose(1, 2) for each, count in maps)
    out = loops(q, k, v, lambda t, s: s in chosen[t])
    return layer.o_proj(out[0].transpose(0, 1).flatten(1))


@pytest.mark.parametrize(("shape", "more"), TOPK, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_both_forms_are_the_definition(impl, shape, more):
    layer = built("topk", shape, torch.float64, **{**INDEX, **more}, impl=impl)
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        for causal in (False, True):
            expected = torch.stack([definition(layer, sample, causal) for sample in x])
            close(layer(x, causal=causal), expected)


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


def test_it_picks_the_blocks_that_the_indexer_of_qwen4_picks():
    """A token that ends its block ranks it there with the others; before that it is seen anyway."""
    modeling = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    config = modeling.Qwen4ExpTextConfig(
        hidden_size=24, indexer_n_heads=16, indexer_kv_heads=1, indexer_head_dim=8,
        indexer_budget=8, indexer_compress_ratio=4, num_hidden_layers=1, head_dim=8,
    )  # fmt: skip
    theirs, n = modeling.Qwen4ExpTextQSAIndexer(config, 0), 31
    theirs.q_layernorm = theirs.k_layernorm = torch.nn.Identity()
    x, still = torch.randn(2, n, 24), (torch.ones(2, n, 8), torch.zeros(2, n, 8))  # no rotation
    with torch.no_grad():
        mask = theirs(x, still, torch.ones(n, n, dtype=bool).tril().expand(2, 1, n, n), None)
        q, keys = theirs.index_qk_proj(x).split([128, 8], -1)
        places = picks(
            q.view(2, n, 16, 8), block_sums(keys, 4), torch.ones(2, n, 16), top=3, causal=True,
            block=4,
        )  # fmt: skip
    for t in (t for t in range(n) if t % 4 < 3):
        blocks = places[:, t, : t // 4 + 1].sort().values
        for sample in range(2):
            seen = mask[sample, 0, t].nonzero().flatten() // 4
            assert seen.unique().tolist() == blocks[sample].tolist()


@pytest.mark.parametrize(("name", "params"), [
    ("topk", {"top": 4, **INDEX}), ("topk", {"top": 4, "index_block": 2, **INDEX}),
    ("dsa", {"top": 4, "rope_dim": 2, **INDEX}), ("moba", {"top": 2, "block": 2}),
    ("nsa", {"top": 4, "block": 1, "pool": 1, "stride": 1, "window": 3}),
])  # fmt: skip
def test_auto_masks_short_texts_and_copies_the_picks_of_long_ones_and_of_steps(name, params):
    for n, form in ((32, "dense-mask"), (33, "gathered")):
        shape = (1, n, 2, 4)
        layer, x = built(name, shape, torch.float64, **params), inputs(shape, torch.float64)
        specs = [registry.get(name, impl=impl, **params) for impl in ("auto", form)]
        check_forms(layer, x, specs, causal=True)
        for phase in ("forward", "train"):
            auto, same = (one.cost(workload(shape, phase=phase, causal=True)) for one in specs)
            assert auto.flops == same.flops
            assert any(note.startswith(f"impl=auto is {form} here: a row") for note in auto.notes)
        check_steps(built(name, shape, torch.float64, **params, impl="auto"), x)
        step = workload(shape, phase="decode")
        auto, same = (registry.get(name, impl=impl, **params) for impl in ("auto", "gathered"))
        assert auto.cost(step).total == same.cost(step).total
    with pytest.raises(RequestError, match="depends on the number of tokens: give impl=gathered"):
        specs[0].cost(Workload(sympy.Symbol("N", positive=True), 2, 4, causal=True))


# -- shared by layers -----------------------------------------------------------------------
SHARED = "topk@index=lent+topk@index=shared@2"


@pytest.mark.parametrize("more", [{}, {"index_block": 2}, {"impl": "dense-mask"}], ids=str)
def test_layers_that_share_an_indexer_attend_to_what_the_first_one_picks(more):
    layer = built(SHARED, (2, 9, 4, 3), torch.float64, top=4, **INDEX, **more)
    x = inputs((2, 9, 4, 3), torch.float64)
    first, *others = layer.layers
    assert not [name for name, _ in layer.named_parameters() if "index" in name and name[7] != "0"]
    check_steps(layer, x)
    check_gradients(layer, x[:1])
    with torch.no_grad():
        for sample, ours in zip(x, layer(x, causal=True), strict=True):
            rows = definition(first, sample, causal=True)
            for one in others:
                rows = definition(one, rows, causal=True, source=(first, sample))
            close(ours, rows)


@pytest.mark.parametrize("name", ["topk", "dsa"])
def test_a_layer_without_an_indexer_costs_and_keeps_no_indexer(name):
    params = {"top": 16, **INDEX} | ({"rope_dim": 4} if name == "dsa" else {})
    own, lent, shared = (registry.get(name, index=x, **params) for x in ("own", "lent", "shared"))
    step = Workload(100, 4, 8, 2, phase="decode")
    asked = step.with_(phase="forward", causal=True)
    assert lent.cost(asked).total == own.cost(asked).total
    pairs, maps = 100 * 100, 16 * 4 + 4 + 16
    for w, rows, seen in ((asked, 200, pairs), (step, 2, 100)):
        less = own.cost(w).matmul_flops - shared.cost(w).matmul_flops
        assert less == 2 * rows * 32 * maps + 2 * 2 * seen * 16 * (4 + 1)
    norm = 8 if name == "dsa" else 0
    assert own.parameters(step) - shared.parameters(step) == 32 * maps + norm
    assert own.state_entries(step) - shared.state_entries(step) == 2 * 100 * 4
    assert own.state_traffic(step) - shared.state_traffic(step) == 4 * 2 * 100 * 4
    less = own.definition(asked).matmul_flops - shared.definition(asked).matmul_flops
    assert less == 2 * 200 * 32 * maps + 2 * 2 * 5050 * 16 * (4 + 1)


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_places_live_until_the_last_layer_that_takes_them(phase):
    shape, params = (2, 65, 4, 8), {"top": 16, **INDEX}
    layer, x = built(SHARED, shape, **params), inputs(shape)
    spec = registry.get(SHARED, **params)
    table = spec.cost(workload(shape, causal=True, phase=phase))
    check_peak(table, layer, x, phase, causal=True)


def test_a_layer_without_an_indexer_runs_after_one_that_lends():
    layer = attnprof.build("topk", 8, 2, index="shared")
    with pytest.raises(RequestError, match=r"for example dsa@index=lent\+dsa@index=shared@3"):
        layer(torch.randn(1, 4, 8))


def test_means_of_keys_are_ranked_and_kept_in_place_of_keys():
    """DSA of a million tokens, 64 ranked together: a 64th of scores and of the indexer's cache."""
    single, blocks = (registry.get("dsa", index_block=block) for block in (1, 64))
    step = Workload(1 << 20, 128, 128, phase="decode")
    maps = single.parameters(step), blocks.parameters(step)
    assert maps[0] == maps[1]
    less = single.cost(step).matmul_flops - blocks.cost(step).matmul_flops
    assert less == 2 * 64 * 129 * ((1 << 20) - (1 << 14))
    assert single.state_entries(step) - blocks.state_entries(step) == 128 * ((1 << 20) - (1 << 14))
    read = single.state_traffic(step) - blocks.state_traffic(step)
    assert read == 4 * 128 * ((1 << 20) - (1 << 14))


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


@pytest.mark.parametrize("params", DSA, ids=str)
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
    with torch.no_grad():
        rows, ranks = layer(x, causal=True), [ranked(layer, sample) for sample in x]
        for sample, t in torch.cartesian_prod(torch.arange(2), torch.arange(7)).tolist():
            places = sorted(ranks[sample][t])
            if t in places:  # at its place of the sequence, so that turns are the same
                close(rows[sample, t], dense_over(dense, x[sample], places), 1e-10)


def dense_over(layer, x, places):
    """The last of these places' row of latent attention, when it sees no other place."""
    spec, t = layer.spec, places[-1]
    key, shared, latent, rotary = spec._rows(layer, x.unsqueeze(0))
    keys, values = spec._heads(layer, torch.nn.functional.linear(latent, layer.up), rotary)
    q = key if shared is None else torch.cat([key, shared], -1)
    scores = (q[0, :, t : t + 1] @ keys[0][:, places].mT) / q.shape[-1] ** 0.5
    return layer.o_proj((scores.softmax(-1) @ values[0][:, places]).transpose(0, 1).flatten())
