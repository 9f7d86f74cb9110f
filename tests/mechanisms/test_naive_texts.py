"""Our mechanisms against the naive functions of fla-core: each file by itself, without Triton.

Skipped where it is not installed: pip install --no-deps fla-core einops. Its functions compute in
float32.
"""

import importlib.util
import math
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

import attnprof
from attnprof.blocks.compressed import summed_blocks, window_attention, window_means
from attnprof.blocks.picked import over_picks, picks
from attnprof.blocks.recurrence import recurrence, unit_rows
from attnprof.ops.layer import flat
from tests.mechanisms.checks import close


def naive(folder):
    """The naive functions of one mechanism; what else they import stands still."""
    pytest.importorskip("einops")
    try:
        file = distribution("fla-core").locate_file(f"fla/ops/{folder}/naive.py")
    except PackageNotFoundError:
        pytest.skip("fla-core is not installed")
    spec = importlib.util.spec_from_file_location(f"naive_{folder}", file)
    module = importlib.util.module_from_spec(spec)
    still = {"fla": (), "fla.ops": (), "flash_attn": ("flash_attn_func", "flash_attn_varlen_func"),
             "fla.ops.utils": ("prepare_chunk_offsets",),
             "fla.ops.utils.pooling": ("mean_pooling",)}  # fmt: skip
    modules = {name: ModuleType(name) for name in still}
    for name, functions in still.items():
        vars(modules[name]).update(dict.fromkeys(functions))
    with patch.dict("sys.modules", modules):
        spec.loader.exec_module(module)
    return module


def rows(n=128, h=3, dk=8, dv=12):
    """Queries, keys of length one, values, log decays, β: (2, n, h, ·), as fla has them."""
    q, k = (unit_rows(torch.randn(2, n, h, dk)) for _ in "qk")
    return q, k, torch.randn(2, n, h, dv), -torch.rand(2, n, h), torch.rand(2, n, h)


def ours(q, k, v, g, beta, **how):
    """The same by our recurrence: (2, n, h, dv)."""
    heads = [None if x is None else flat(x.transpose(1, 2)) for x in (q, k, v, g, beta)]
    heads[0] = heads[0] / math.sqrt(q.shape[-1])
    return recurrence(*heads, rows=64, **how).view(2, 3, -1, v.shape[-1]).transpose(1, 2)


def test_the_delta_rule_without_gates():
    theirs = naive("delta_rule")
    q, k, v, _, beta = rows()
    heads = [x.transpose(1, 2) for x in (q, k, v, beta)]
    expected = ours(q, k, v, None, beta.unsqueeze(-1)).transpose(1, 2)
    close(theirs.delta_rule_recurrence(*heads)[0], expected, 1e-5)


def test_gated_linear_attention_and_retention():
    q, k, v, g, _ = rows()
    gates = -torch.rand(2, 128, 3, 8)
    expected = ours(q, k, v, gates, None, by_channel=True)
    close(naive("gla").naive_recurrent_gla(q, k, v, gates)[0], expected, 1e-5)
    expected = ours(q, k, v, g.unsqueeze(-1), None)
    close(naive("simple_gla").naive_recurrent_simple_gla(q, k, v, g)[0], expected, 1e-5)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    seen = attnprof.attend("retnet", *heads, causal=True)
    close(naive("retention").naive_retention(*heads), seen, 1e-5)


def test_top_k_attention_and_its_indexer():
    theirs, n, top = naive("dsa"), 40, 6
    q, k, v = torch.randn(2, n, 4, 8), torch.randn(2, n, 2, 8), torch.randn(2, n, 2, 8)
    index = torch.randn(2, n, 16, 8), torch.randn(2, n, 8), torch.randn(2, n, 16)
    expected, places = theirs.naive_dsa(q, k, v, *index, topk=top, return_indices=True)
    picked = picks(*index, top=top, causal=True)
    for t in range(n):
        seen = places[:, t][:, : min(top, t + 1)].sort().values
        assert torch.equal(picked[:, t, : t + 1].sort().values.long(), seen)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    for impl in ("gathered", "dense-mask"):
        got = over_picks(*heads, picked, gathered=impl == "gathered", top=top, causal=True)
        close(got.transpose(1, 2), expected.expand(2, n, 4, 8), 1e-5)


def test_two_branches_of_native_sparse_attention():
    """Windows that are blocks, as fla has them; its third branch is flash attention."""
    theirs, n, block, top = naive("nsa"), 70, 8, 4
    q, k, v = torch.randn(2, n, 32, 8), torch.randn(2, n, 2, 8), torch.randn(2, n, 2, 8)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    sums = [summed_blocks(flat(x), block=block) for x in heads[1:]]
    means = [window_means(x, n, block, block) for x in sums]
    out, picked = window_attention(
        heads[0].reshape(4, 16, n, 8), *means, tokens=n, top=top, block=block, start=0, pool=block,
        stride=block,
    )  # fmt: skip
    pooled = [x.view(2, 2, -1, 8).transpose(1, 2) for x in means]
    scale = 8**-0.5
    expected, _ = theirs.naive_nsa_compression(q, *pooled, block, scale)
    close(out.view(2, 32, n, 8).transpose(1, 2), expected, 1e-5)
    last = [torch.cat([x, x[:, :1]], 1) for x in pooled]  # theirs forces no block without a mean
    places = theirs.naive_nsa_topk(q, last[0], top, block, scale)
    for t in range(n):
        seen = places[:, t].flatten(0, 1).sort().values
        for one, other in zip(picked[:, t], seen, strict=True):
            assert {*one.tolist()[: t // block + 1]} == {*other[other >= 0].tolist()}
    spec = attnprof.registry.get("moba", top=top, block=block)
    among = spec.over_blocks(
        heads[0].reshape(4, 16, n, 8), flat(heads[1]), flat(heads[2]), picked, causal=True
    )
    expected = theirs.naive_nsa_selection(q, k, v, places, block, scale)
    close(among.view(2, 32, n, 8).transpose(1, 2), expected, 1e-5)
