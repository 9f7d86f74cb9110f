"""Parameters, crossovers and caches of released layers, each by a command; facts are published.

Numbers of parameters are those of transformers' modules at the released sizes; crossovers are
worked out by hand beside each command.
"""

from pathlib import Path

import pytest
import torch

from attnprof import Workload, build, cost, registry
from attnprof.blocks.cache import tensors_within
from attnprof.closed_form.quantities import quantity_of, state_bytes
from tests.oracles.aten import count, count_core, count_training
from tests.oracles.memory import allocator_peak

V3 = "--heads 128 --d 128 --width 7168 --set kv_rank=512 --set q_rank=1536"
PARAMETERS = {
    "gated-deltanet --heads 32 --d 128 --width 2048 --set key_heads=16": 33_718_464,  # Qwen3-Next
    "kimi-delta --heads 32 --d 128 --width 2304": 39_514_272,  # Kimi Linear
    "lightning --heads 64 --d 128 --width 6144": 251_666_432,  # MiniMax-01
    "mamba2 --heads 80 --d 128 --value-dim 64 --width 2560": 40_214_000,  # Mamba-2 2.7B
    "gqa --heads 16 --d 256 --width 2048 --kv-heads 2 --set gate=elementwise --set qk_norm=true":
        27_263_488,  # Qwen3-Next's full layers
    f"mla {V3}": 187_107_328,  # DeepSeek-V3
    f"dsa {V3}": 201_066_752,  # DeepSeek-V3.2
}  # fmt: skip


@pytest.mark.parametrize("layer", PARAMETERS)
def test_parameters_of_released_layers_to_the_unit(attnprof, layer):
    ended = attnprof(f"cost -a {layer} --quantity parameters --format json")
    assert [row["value"] for row in ended.json["records"]] == [PARAMETERS[layer]]


CHUNKS = "standard --metric matmul --every 64 --set impl=inverse"
MASKED = "sdpa --causal --metric matmul --d 128 --every"
STEP = "--phase decode --metric bytes --dtype bfloat16"
KEPT, LATENTS = STEP.replace("bytes", "state"), "--scope layer --set kv_rank=512 --set conv=none"
NEXT = f"gated-deltanet gqa@gate=elementwise@qk_norm=true {STEP} --scope layer --heads 32"
NEXT += " --d 128 --width 2048 --set key_heads=16 --set num_kv_heads=4"
CROSSINGS = {
    # C + 2 dk dv / (dk + dv): 64 + 128, 256 + 128
    "retnet standard --metric matmul --d 128 --every 64": 192,
    "gla standard --metric matmul --d 128 --every 64 --set chunk=64": 192,
    "lightning standard --metric matmul --d 128 --every 256 --set chunk=256": 384,
    "mamba2 standard --metric matmul --d 128 --value-dim 64 --every 256": 1024 / 3,
    # (C (3 dk + 2 dv) + 3 dk dv) / (dk + dv)
    f"gated-deltanet {CHUNKS} --d 128": 352,
    f"kimi-delta {CHUNKS} --d 128 --set chunk=64": 352,
    f"gated-deltanet {CHUNKS} --d 256 --value-dim 512": 1984 / 3,
    # 2 N - 1, where half of the pairs are masked: from 384, 768 and 704 tokens on
    f"gla {MASKED} 64 --set chunk=64": 383,
    f"lightning {MASKED} 256 --set chunk=256": 767,
    f"gated-deltanet {MASKED} 64 --set impl=inverse": 703,
    f"kimi-delta {MASKED} 64 --set impl=inverse --set chunk=64": 703,
    # Kimi Linear, Eq 13 and 14: 3 d + 1.5 C + C² / 2 d
    "kimi-delta gqa --kind published --metric flops --causal --d 128": 496,
    # 2 S · 4 bytes of states over 2 g d · 2 bytes of keys and values
    f"gated-deltanet gqa {STEP} --heads 32 --d 128 --set num_kv_heads=8": 1024,
    f"gated-deltanet gqa {STEP} --heads 32 --d 128 --set num_kv_heads=4": 2048,
    f"kimi-delta gqa {STEP} --heads 96 --d 128 --set num_kv_heads=8": 3072,
    f"kimi-delta gqa {STEP} --heads 32 --d 128 --set num_kv_heads=8": 1024,
    f"gated-deltanet gqa {STEP} --heads 48 --d 128 --set num_kv_heads=8": 1536,
    f"lightning gqa {STEP} --heads 64 --d 128 --set num_kv_heads=8": 2048,
    # states and rows as large: Mamba-2's 80 × 128 × 64, RWKV-7's of width 4096, Based's 273 × 65
    f"mamba2 gqa {STEP} --heads 40 --d 128 --set num_kv_heads=8 --set conv=none": 1280,
    f"gated-deltanet gqa {STEP} --heads 64 --d 64 --set num_kv_heads=16": 512,
    f"performer gqa {STEP} --heads 16 --d 64 --set num_features=273 --set num_kv_heads=16":
        554.546875,
    # room for both: half of the length, since a state is read and written
    f"gated-deltanet gqa {KEPT} --heads 32 --d 128 --set num_kv_heads=4": 2048 / 2,
    f"gated-deltanet mla {KEPT} --heads 32 --d 128 {LATENTS}": pytest.approx(3640.89 / 2, abs=0.01),
    f"kimi-delta mla {KEPT} --heads 96 --d 128 {LATENTS}": pytest.approx(10_922.67 / 2, abs=0.01),
}  # fmt: skip


@pytest.mark.parametrize("pair", CROSSINGS)
def test_a_crossing_is_that_of_the_closed_form(attnprof, pair):
    (row,) = attnprof(f"crossover {pair} --format json").json["records"]
    assert row["crossover_seq_len"] == CROSSINGS[pair]


TEXTS = """
def in_chunks(size, *rows):
    return [x.unflatten(2, (-1, size)) for x in rows]


def scores(q, k, v):
    return q @ k.mT @ v


def halved(q, k, v, a=None, b=None, size=None):
    row, key = torch.tril_indices(q.shape[2], q.shape[2])
    weights = q[:, :, row].unsqueeze(3) @ k[:, :, key].unsqueeze(4)
    pairs = weights @ v[:, :, key].unsqueeze(3)
    return torch.zeros_like(v).index_add(2, row, pairs.squeeze(3))


def mamba2(q, k, v, size=256):
    q, k, v = in_chunks(size, q, k, v)
    return q @ k.mT @ v + q @ (k.mT @ v)


def delta(q, k, v, size=64):
    q, k, v = in_chunks(size, q, k, v)
    state, inverse = q.new_zeros(*q.shape[:3], q.shape[-1], v.shape[-1]), k @ k.mT
    new = inverse @ v - inverse @ k @ state
    return q @ k.mT @ new + q @ state, k.mT @ new


def based(q, k, v, size=64):
    q, k, v = in_chunks(size, q, k, v)
    features = [torch.cat([x.new_ones(*x.shape[:-1], 1), x,
                           (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)], -1) for x in (q, k)]
    return q @ k.mT @ v + features[0] @ (features[1].mT @ v)


def rwkv7(q, k, v, a, b, size=64):
    q, k, v, a, b = in_chunks(size, q, k, v, a, b)
    qk, qb, ak, ab = (x @ y.mT for x in (q, a) for y in (k, b))
    state = q.new_zeros(*q.shape[:3], q.shape[-1], v.shape[-1])  # a scan's, over chunks
    new = ab @ (ak @ v) + ab @ a @ state
    return qk @ v + qb @ new + q @ state, k.mT @ v + b.mT @ new
"""
SAME, WIDER = dict.fromkeys("qkvab", "d"), {"q": "d", "k": "d", "v": "4*d"}


@pytest.mark.parametrize(("name", "widths", "rest", "crossing"), [
    ("based", WIDER, "mine.py:scores --d 16", 64 + 2 * 273 * 64 / 80),
    ("based", WIDER, "mine.py:halved --d 16", 2 * (64 + 2 * 273 * 64 / 80) - 1),
    ("rwkv7", SAME, "standard --d 64", 416),
    ("rwkv7", SAME, "mine.py:halved --d 64 --arg size=16", 2 * 200 - 1),
    ("rwkv7", SAME, "mine.py:halved --d 64", 2 * 416 - 1),
    ("mamba2", {"q": "2*d", "k": "2*d", "v": "d"}, "mine.py:halved --d 64", 2 * 1024 / 3 - 1),
    ("delta", {"q": "d", "k": "d", "v": "2*d"}, "mine.py:halved --d 256", 2 * 1984 / 3 - 1),
])  # fmt: skip
def test_a_text_of_ones_own_crosses_in_products(attnprof, name, widths, rest, crossing):
    """Against all pairs, and those of a mask: N as 2 N - 1. Of a token and head:

    Based C + 2 f dv / (d + dv), f = 273; RWKV-7 (C (5 dk + 4 dv) + 4 dk dv) / (dk + dv).
    """
    Path("mine.py").write_text(f"import torch\n{TEXTS}")
    more = [("--input", f"{letter}: B, h, N, {width}") for letter, width in widths.items()]
    words = f"crossover mine.py:{name} {rest} --kind derived --scope core --metric matmul"
    (row,) = attnprof(f"{words} --format json", *more).json["records"]
    assert row["crossover_seq_len"] == crossing


def test_a_step_reads_weights_once_for_its_batch(attnprof):
    """Of Qwen3-Next: (2 S · 4 + W · 2 / B) / 2048, and W 6,454,976 less the norms of wider heads.

    Convolutions have a state, too: 3 of 4 tokens of 8,192 channels, read and written. Published
    lengths are without it.
    """
    weights, tails = 33_718_464 - (27_263_488 - 256), 2 * 2 * 3 * 8192
    for batch, published in ((1, 8352), (8, 2836), (64, 2146)):
        (row,) = attnprof(f"crossover {NEXT} --batch {batch} --format json").json["records"]
        expected = (2 * 524_288 * 4 + tails + 2 * weights / batch) / 2048
        assert row["crossover_seq_len"] == pytest.approx(expected, abs=1e-6)
        assert round(expected - tails / 2048) == published


def test_bytes_of_a_state_are_those_of_the_tensors_that_a_step_keeps():
    work = Workload(1, 2, 8, 3, phase="decode", dtype="bfloat16")
    names = "gated-deltanet mamba2 linear performer gqa mla@rope_dim=2 reformer@num_buckets=4"
    for name in names.split():
        layer = build(name, 16, 2).bfloat16()
        with torch.no_grad():
            _, state = layer.step(torch.zeros(3, 1, 16, dtype=torch.bfloat16), layer.init_state(3))
        held_bytes = sum(x.nbytes for x in tensors_within(state))
        spec = registry.get(name)
        assert (name, state_bytes(spec, work, spec.cost(work).state_entries)) == (name, held_bytes)


def test_latents_are_made_again_from_171_query_tokens_on(attnprof):
    sizes = f"{V3} --seq 1000000 --range 1:4096 --phase decode --scope layer --metric matmul"
    forms = "mla@impl=absorbed mla@impl=reexpanded"
    (row,) = attnprof(f"crossover {forms} --over step_tokens {sizes} --format json").json["records"]
    assert (row["first_value"], row["cheaper_above"]) == (171, "mla@impl=reexpanded")
    assert row["closed_form"] == "512*N/(3*N + 512)"  # c (dk + dv) N / ((2c - dk - dv) N + …)


@pytest.mark.parametrize("phase", ["forward", "train", "decode"])
def test_a_hybrid_costs_what_its_layers_do(phase):
    names = ("gated-deltanet@3+gqa@num_kv_heads=1", "gated-deltanet", "gqa@num_kv_heads=1")
    layers, work = [registry.get(name) for name in names], Workload(512, 4, 32, phase=phase)
    for quantity in ("flops", "bytes_moved", "parameters", "state_entries"):
        hybrid, linear, grouped = (quantity_of(x, work, "layer", quantity) for x in layers)
        assert (quantity, hybrid) == (quantity, 3 * linear + grouped)


def test_a_hybrid_runs_what_it_counts():
    name, work = "gated-deltanet@2+gqa@num_kv_heads=1", Workload(9, 4, 3, 2, causal=True)
    layer, x = build(name, 12, 4), torch.randn(2, 9, 12)
    executed_counts = {"forward": count_core(layer, (x,), "forward", causal=True)}
    for phase, counts in {**executed_counts, **count_training(layer, (x,), causal=True)}.items():
        table = cost(name, work.with_(phase=phase))
        assert (phase, table.flops) == (phase, counts.flops)
        assert (phase, table.total.bytes_moved) == (phase, counts.bytes_moved)
    assert cost(name, work).parameters == sum(p.numel() for p in layer.parameters())
    rows, state = layer(x, causal=True), layer.init_state(2)
    with torch.no_grad():
        for t, row in enumerate(rows.unbind(1)):
            y, state = layer.step(x[:, t : t + 1], state)
            torch.testing.assert_close(y[:, 0], row)
        counts = count(lambda: layer.step(x[:, :1].contiguous(), layer.init_state(2)))
    assert cost(name, work.with_(seq_len=1, causal=False, phase="decode")).flops == counts.flops


@pytest.mark.parametrize("name", ["gated-deltanet@2+gqa@impl=written", "standard@3"])
def test_the_peak_of_a_hybrid_is_the_allocators(name):
    layer, x = build(name, 32, 2), torch.randn(2, 70, 32)
    with torch.no_grad():
        layer(x, causal=True)
        peak = allocator_peak(lambda: layer(x, causal=True))
    ours = cost(name, Workload(70, 2, 16, 2, causal=True)).peak()
    assert ours == pytest.approx(peak, abs=16, rel=0)


def test_rows_between_a_hybrids_layers_die_unless_training_saves_them():
    work = Workload(64, 2, 16)
    one, two = registry.get("sdpa"), registry.get("sdpa@2")
    rows = 64 * 32 * 4
    assert two.cost(work).peak() == one.cost(work).peak() + rows
    saved, twice = (x.cost(work.with_(phase="train")) for x in (one, two))
    held = [sum(s.allocates - s.frees for s in t if s.part == "forward") for t in (saved, twice)]
    assert held[1] == 2 * held[0]
    # at the end: gradients of weights, and the result
    ends = [sum(s.allocates - s.frees for s in table) for table in (saved, twice)]
    weights = one.parameters(work) * 4
    assert [end - weights * n for n, end in enumerate(ends, 1)] == [rows, rows]


def test_names_with_parameters_build_layers():
    layer = build("mla@impl=absorbed@rope_dim=2", 16, 2)
    assert (layer.spec.impl, layer.spec.rope_dim, layer.spec.name) == (
        "absorbed", 2, "mla@impl=absorbed@rope_dim=2",
    )  # fmt: skip
    assert layer(torch.zeros(1, 3, 16)).shape == (1, 3, 16)
    hybrid = registry.get("mamba2@2+gqa@1", chunk=8).with_params({"gqa.bias": True})
    assert [(one.name, one.bias) for one in hybrid.layers] == [
        ("mamba2", False), ("mamba2", False), ("gqa", True),
    ]  # fmt: skip
    assert hybrid.params["mamba2.chunk"] == 8
    assert registry.get(hybrid.name, **hybrid.params) == hybrid
    wide = build("gqa", 12, 2, head_dim=8)
    assert wide(torch.zeros(1, 3, 12)).shape == (1, 3, 12)
    assert wide.q_proj.weight.shape == (16, 12)


MIB = 2**20
LITE = "--heads 16 --d 128 --width 2048 --set kv_rank=512 --seq 1"
#: Caches of released models as engines' logs and papers give them: entries by a command, bytes of
#: an entry, and the published number in bytes, of so many digits as are printed.
CACHES = {
    # Qwen3.6-27B in llama.cpp, which keeps states and convolutions of 4 sequences in float32
    "gqa@16 --heads 24 --d 256 --kv-heads 4 --seq 262144": (2, 16384 * MIB),
    "gated-deltanet@48 --heads 48 --d 128 --width 5120 --set key_heads=16 --batch 4 --seq 9":
        (4, 598.5 * MIB),
    # gpt-oss-20b, 32 sequences of 8,192 tokens: windows of 128 capped, or kept whole
    "sliding-window@window=128@12+gqa@12 --heads 64 --d 64 --kv-heads 8 --batch 32 --seq 8192":
        (2, 6_543_114_240),
    "gqa@24 --heads 64 --d 64 --kv-heads 8 --batch 32 --seq 8192": (2, 12 * 2**30),
    "gqa@36 --heads 64 --d 64 --kv-heads 8 --seq 1": (2, 73_728),  # gpt-oss-120b, a token
    # gemma-3-1b at 32,768 tokens: windows of 512 capped, or kept whole
    "gqa@4+sliding-window@window=512@22 --heads 4 --d 256 --kv-heads 1 --seq 32768": (2, 139 * MIB),
    "gqa@26 --heads 4 --d 256 --kv-heads 1 --seq 32768": (2, 832 * MIB),
    f"mla@impl=expanded@27 {LITE}": (2, 276_480),  # DeepSeek-V2-Lite, a token
    f"mla@27 {LITE}": (2, 31_104),
    "gqa@15 --heads 32 --d 256 --kv-heads 2 --seq 1": (2, 30 * 1024),  # Qwen3.5-397B, a token
    # a delta layer of Qwen3-Next; a public note that multiplies both numbers of heads has 32 MiB
    "gated-deltanet@conv=none --heads 32 --d 128 --seq 9": (4, 2 * MIB),
}  # fmt: skip


@pytest.mark.parametrize("layers", CACHES)
def test_published_caches_to_the_byte(attnprof, layers):
    size, published = CACHES[layers]
    ended = attnprof(f"cost -a {layers} --phase decode --quantity state_entries --format json")
    (row,) = (row for row in ended.json["records"] if row["stage"] == "total")
    assert row["value"] * size == published


def totals_of(attnprof, command):
    """FLOPs of products and bytes of a step, by mechanism."""
    rows = attnprof(f"compare {command} --phase decode --format json").json["records"]
    return {row["mechanism"]: (row["matmul_flops"], row["step_bytes"]) for row in rows}


def test_ratios_of_a_step_are_those_of_the_papers(attnprof):
    """Kimi Linear's 3.8 at a million tokens; V3.2's 16.9 from the indexer on; MLA's intensity."""
    kimi = "--seq 1048576 --heads 32 --d 128 --width 2304 --set kv_rank=512 --dtype bfloat16"
    of = totals_of(attnprof, f"-a kimi-delta@20+mla@7,mla@27 --batch 4096 {kimi}")
    assert of["mla@27"][1] / of["kimi-delta@20+mla@7"][1] == pytest.approx(3.82, abs=0.005)
    sizes = f"{V3} --dtype bfloat16 --batch 64"
    of = totals_of(attnprof, f"-a mla,dsa --seq {2**34} {sizes}")
    assert of["mla"][0] / of["dsa"][0] == pytest.approx(128 * 1088 / (64 * 129), rel=1e-4)
    of = totals_of(attnprof, f"-a mla,mla@impl=reexpanded --seq {2**22} {sizes}")
    assert of["mla"][0] / of["mla"][1] == pytest.approx(241.8, abs=0.3)
    of = totals_of(attnprof, f"-a mla,mla@impl=reexpanded --seq 8192 {V3}")
    assert of["mla@impl=reexpanded"][0] / of["mla"][0] == pytest.approx(104, abs=0.5)
    assert of["mla@impl=reexpanded"][0] == pytest.approx(275.9e9, rel=2e-3)


def test_layers_that_share_an_indexer_cost_one(attnprof):
    """Four layers of DeepSeek-V3.2's size; in GLM-5's they take turns so."""
    sizes = f"{V3} --seq 131072 --quantity matmul_flops,parameters,state_entries --format json"
    names = "dsa@4", "dsa@index=lent+dsa@index=shared@3"
    for phase in ("prefill", "decode"):
        totals = []
        for name in names:
            rows = attnprof(f"cost -a {name} --phase {phase} {sizes}").json["records"]
            totals.append({x["quantity"]: x["value"] for x in rows if x["stage"] == "total"})
        fewer = {name: totals[0][name] - totals[1][name] for name in totals[0]}
        tokens, maps = 1 if phase == "decode" else 131072, 1536 * 8192 + 7168 * (128 + 64)
        assert fewer["matmul_flops"] == 3 * 2 * tokens * (maps + 131072 * 64 * 129)
        assert fewer["parameters"] == 3 * (maps + 2 * 128)
        assert fewer.get("state_entries", 3 * 128 * 131072) == 3 * 128 * 131072
