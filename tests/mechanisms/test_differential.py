"""Differential attention against a loop over its definition, and what both forms count."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from tests.mechanisms.checks import close, loops
from tests.mechanisms.variants import forms

FORMS = forms("differential")


def definition(q, k, v, causal, depth, a1, b1, a2, b2):
    """The difference of two softmaxes, normed."""
    start = 0.8 - 0.6 * math.exp(-0.3 * depth)
    share = math.exp(float(a1 @ b1)) - math.exp(float(a2 @ b2)) + start
    cut = -(-q.shape[-1] // 2)
    one, two = (
        loops(q[..., part], k[..., part], v, lambda i, j: j <= i or not causal)
        for part in (slice(cut), slice(cut, None))
    )
    rows = one - share * two
    return rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 - start)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "kv_heads", "depth"), [(4, 4, 0), (5, 2, 3), (6, 1, 11)])
@pytest.mark.parametrize("impl", FORMS)
def test_attend_is_the_definition(impl, d, kv_heads, depth, causal):
    shapes = (2, 4, 6, d), (2, kv_heads, 6, d), (2, kv_heads, 6, d if impl == "fused" else 3)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    first, second = (torch.randn(2, w).double() / 2 for w in (-(-d // 2), d // 2))
    weights = dict(zip(("a1", "b1", "a2", "b2"), (*first, *second), strict=True))
    got = attnprof.attend(
        "differential", q, k, v, causal=causal, weights=weights, impl=impl, depth=depth
    )
    close(got, definition(q, k, v, causal, depth, **weights))


def test_the_fused_form_holds_no_scores_and_a_masked_pair_costs_nothing():
    spec, work = registry.get("differential", impl="fused"), Workload(4096, 4, 64, causal=True)
    pairs = 4096 * 4097 // 2
    assert spec.cost(work, "core").matmul_flops == 2 * 4 * pairs * 2 * (64 + 64)
    assert spec.cost(work, "core").peak() < 4 * 4096**2
    with pytest.raises(RequestError, match="no separate value width"):
        spec.cost(work.with_(value_head_dim=32))
    with pytest.raises(RequestError, match="head_dim=1 is too narrow"):
        attnprof.cost("differential", Workload(9, 2, 1))


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_it_is_the_attention_of_diffllama(kv_heads):
    """Whose head i has head i + half as its other part, where ours has both side by side."""
    modeling = pytest.importorskip("transformers.models.diffllama.modeling_diffllama")
    from transformers import DiffLlamaConfig

    config = DiffLlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=8,
        num_hidden_layers=4, rms_norm_eps=1e-6, attn_implementation="eager",
    )  # fmt: skip
    theirs = modeling.DiffLlamaAttention(config, 3)
    ours = attnprof.build("differential", 32, 2, num_kv_heads=kv_heads // 2, depth=3)
    x = torch.randn(2, 9, 32)
    mask = torch.full((9, 9), -math.inf).triu(1)[None, None]
    with torch.no_grad():
        for letter in "qkv":
            rows = getattr(theirs, f"{letter}_proj").weight.view(2, -1, 8, 32)  # (part, head, …)
            getattr(ours, f"{letter}_proj").weight.copy_(rows.transpose(0, 1).reshape(-1, 32))
        ours.o_proj.load_state_dict(theirs.o_proj.state_dict())
        for name, other in (("a1", "q1"), ("b1", "k1"), ("a2", "q2"), ("b2", "k2")):
            getattr(ours.core, name).copy_(getattr(theirs, f"lambda_{other}"))
        expected, _ = theirs(x, (torch.ones(1, 9, 8), torch.zeros(1, 9, 8)), mask)
        for impl in FORMS:
            ours.spec = ours.core.spec = ours.spec.with_params({"impl": impl})
            close(ours(x, causal=True), expected, 1e-5)
