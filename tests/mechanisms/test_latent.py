"""Latent attention in its forms against a loop over its definition, and what each counts."""

import cmath
import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs, workload
from tests.mechanisms.checks import check_executed, close, loops
from tests.mechanisms.variants import MLA, forms
from tests.oracles.aten import count

FORMS = forms("mla")


def norm(row, weight):
    return row / torch.sqrt((row * row).mean() + 1e-6) * weight


def turn(row, place):
    """Entry i and entry i + half are one complex number, turned by place · 10000^(-i / half)."""
    half = len(row) // 2
    out = row.clone()
    for i in range(half):
        z = complex(row[i], row[half + i]) * cmath.exp(1j * place * 10_000 ** (-i / half))
        out[i], out[half + i] = z.real, z.imag
    return out


def definition(layer, x, causal):
    """The layer's output for one sample x (n, d_model), one head and pair after the other."""
    spec, h = layer.spec, layer.sizes.num_heads
    c, width, value = spec.widths(layer.sizes.head_dim)
    up = layer.up.view(h, width + value, c)
    queries, keys, values = [], [], []
    for place, row in enumerate(x, 1):
        if spec.q_rank is None:
            q = layer.q_proj.weight @ row
        else:
            q = layer.q_up.weight @ norm(layer.q_down.weight @ row, layer.q_norm)
        both = layer.kv_down.weight @ row
        latent, shared = norm(both[:c], layer.kv_norm), both[c:]
        heads = list(q.view(h, -1))
        if spec.rotary:
            shared = turn(shared, place)
            heads = [torch.cat([one[:width], turn(one[width:], place)]) for one in heads]
        queries.append(heads)
        keys.append([torch.cat([up[i, :width] @ latent, shared]) for i in range(h)])
        values.append([up[i, width:] @ latent for i in range(h)])
    rows = (torch.stack([torch.stack(row) for row in x]) for x in (queries, keys, values))
    heads = [x.transpose(0, 1).unsqueeze(0) for x in rows]
    out = loops(*heads, lambda i, j: j <= i or not causal)
    return layer.o_proj(out[0].transpose(0, 1).flatten(1))


@pytest.mark.parametrize("params", MLA, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_every_form_is_the_definition(impl, params):
    shape = (2, 7, 3, 4)
    layer = built("mla", shape, torch.float64, impl=impl, **params)
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        for causal in (False, True):
            expected = torch.stack([definition(layer, sample, causal) for sample in x])
            close(layer(x, causal=causal), expected)


#: DeepSeek-V3: 128 heads of 56 columns of the model's width.
DEEPSEEK = {"kv_rank": 512, "q_rank": 1536, "rope_dim": 64, "nope_dim": 128, "value_dim": 128}


def test_absorbed_products_of_deepseek_v3_are_3_4_times_expanded_and_a_cache_71_times_less():
    work = Workload(4096, 128, 56, phase="decode")
    tables = {impl: attnprof.cost("mla", work, impl=impl, **DEEPSEEK) for impl in FORMS}
    maps = 2 * (187_107_328 - 1536 - 512)  # its parameters, without the entries of two norms
    core = {impl: table.matmul_flops - maps for impl, table in tables.items()}
    assert core["absorbed"] / core["expanded"] == 1088 / 320
    kept = {impl: table.state_entries for impl, table in tables.items()}
    assert kept["expanded"] / kept["absorbed"] == 40960 / 576
    assert kept["absorbed"] == kept["reexpanded"]


@pytest.mark.parametrize("c", [2, 3, 4, 5])
@pytest.mark.parametrize("phase", ["forward", "train", "decode"])
def test_auto_is_the_cheapest_form_and_says_so(phase, c):
    work = Workload(30, 4, 4, causal=phase != "decode", phase=phase)
    params = {"kv_rank": c, "rope_dim": 2}
    tables = {impl: attnprof.cost("mla", work, impl=impl, **params) for impl in FORMS}
    auto = attnprof.cost("mla", work, **params)
    if phase == "decode":
        del tables["expanded"]  # which caches the keys of all heads
    assert auto.matmul_flops == min(table.matmul_flops for table in tables.values())
    form = auto.notes[0].split()[2]
    assert f"impl=auto is {form} here" in auto.notes[0]
    assert tables[form].matmul_flops == auto.matmul_flops


def test_what_auto_cannot_know_is_refused():
    import sympy

    d = sympy.Symbol("d", positive=True)
    assert attnprof.cost("mla", Workload(9, 2, d)).notes  # latents four times as wide
    with pytest.raises(RequestError, match="impl=expanded or impl=absorbed"):
        attnprof.cost("mla", Workload(9, 2, d), kv_rank=4)


@pytest.mark.parametrize("impl", FORMS)
def test_a_step_of_several_tokens_is_as_many_steps_and_counts_as_executed(impl):
    shape, params = (2, 7, 3, 4), {"kv_rank": 3, "rope_dim": 4, "impl": impl}
    one, few = (built("mla", shape, torch.float64, **params, step_tokens=s) for s in (1, 3))
    few.load_state_dict(one.state_dict())
    x, state = inputs(shape, torch.float64), one.init_state(2)
    with torch.no_grad():
        rows = [one.step(token, state)[0] for token in x.unbind(1)]
        state = few.init_state(2)
        for first in (0, 3):
            step = x[:, first : first + 3].contiguous()
            counts = count(lambda step=step, state=state: few.step(step, state))
            work = workload(shape, phase="decode", dtype="float64").with_(seq_len=first + 3)
            table = attnprof.cost("mla", work, **params, step_tokens=3)
            check_executed(table, counts, first)
        state = few.init_state(2)
        both = [few.step(x[:, first : first + 3], state)[0] for first in (0, 3)]
        close(torch.cat(both, 1), torch.stack(rows[:6], 1))


def test_a_step_takes_no_more_tokens_than_there_are():
    work = Workload(3, 4, 4, phase="decode")
    assert attnprof.cost("mla", work, step_tokens=3).flops
    with pytest.raises(RequestError, match=r"at most the 3 tokens .* for example step_tokens=3"):
        attnprof.cost("mla", work, step_tokens=4)
    report = attnprof.crossover(
        "mla@impl=absorbed@step_tokens=8", "mla@impl=reexpanded@step_tokens=200", head_dim=64,
        phase="decode", scope="layer", metrics=["matmul"],
    )  # fmt: skip
    assert "at every length from 200 on" in report.summary["answer"]


def test_auto_makes_latents_again_for_many_tokens_of_a_step():
    work = Workload(9000, 4, 128, phase="decode")
    for tokens, form in ((1, "absorbed"), (170, "absorbed"), (171, "reexpanded")):
        spec = registry.get("mla", kv_rank=512, step_tokens=tokens)
        assert f"impl=auto is {form} here" in spec.choice(work)


@pytest.mark.parametrize("q_rank", [None, 6])
def test_it_is_the_attention_of_deepseek_v3(q_rank):
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=q_rank,
        kv_lora_rank=10, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=7,
        num_hidden_layers=1, rope_interleave=False, attn_implementation="eager",
    )  # fmt: skip
    theirs = modeling.DeepseekV3Attention(config, 0)
    params = {"kv_rank": 10, "q_rank": q_rank, "rope_dim": 4, "nope_dim": 6, "value_dim": 7}
    x = torch.randn(2, 9, 32)
    rates = 10_000 ** (-torch.arange(2) / 2)
    turns = torch.outer(torch.arange(9), rates).repeat(1, 2)[None]
    mask = torch.full((9, 9), -math.inf).triu(1)[None, None]
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(0, 0.3)
        expected, _ = theirs(x, (turns.cos(), turns.sin()), mask)
        for impl in FORMS:
            ours = attnprof.build("mla", 32, 4, impl=impl, **params)
            named = {"kv_down.weight": "kv_a_proj_with_mqa.weight", "up": "kv_b_proj.weight",
                     "kv_norm": "kv_a_layernorm.weight", "o_proj.weight": "o_proj.weight",
                     "q_proj.weight": "q_proj.weight", "q_down.weight": "q_a_proj.weight",
                     "q_norm": "q_a_layernorm.weight",
                     "q_up.weight": "q_b_proj.weight"}  # fmt: skip
            weights = dict(theirs.named_parameters())
            ours.load_state_dict({a: weights[b] for a, b in named.items() if b in weights})
            close(ours(x, causal=True), expected, 1e-5)
