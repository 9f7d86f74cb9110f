"""Sparse attention and recurrences as public code writes them: branches and loops on N."""

import sympy
import torch

from attnprof import derive
from attnprof.algebra.expressions import symbol

B, N, D = map(symbol, "BNd")
TOP = 16
INPUTS = dict.fromkeys("qkv", "B, N, d")


def topk_attention(q, k, v):
    """All keys up to TOP tokens, beyond that the TOP of highest score, gathered."""
    scores = q @ k.mT
    if q.shape[1] <= TOP:
        return scores.softmax(-1) @ v
    best, places = scores.topk(TOP, -1)
    (b, n, d), shape = q.shape, (*places.shape, q.shape[-1])
    picked = v.unsqueeze(1).expand(b, n, n, d).gather(2, places.unsqueeze(-1).expand(shape))
    return (best.softmax(-1).unsqueeze(2) @ picked).squeeze(2)


def by_sample(q, k, v):
    """The TOP keys of highest score, masked, one sample after the other."""
    out = torch.empty_like(v)
    for i in range(q.shape[0]):
        scores = q[i] @ k[i].mT
        kept = scores.topk(min(TOP, q.shape[1]), -1).indices
        hidden = scores.new_ones(scores.shape, dtype=torch.bool).scatter_(-1, kept, False)
        out[i] = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v[i]
    return out


def test_both_sides_of_a_branch_on_the_length_have_their_formula_and_domain():
    for n, formula, domain in (
        (8, 4 * B * N**2 * D, "N <= 16"),
        (100, 2 * B * N**2 * D + 2 * TOP * B * N * D, "N > 16"),
    ):
        derivation = derive(
            topk_attention, inputs=INPUTS, phases="forward", at={"B": 2, "N": n, "d": 8}
        )
        forms = derivation.phases["forward"]
        assert sympy.expand(derivation.expression("matmul_flops") - formula) == 0
        assert domain in forms.domain
        assert not forms.uncounted
        order = "aten.topk: comparisons, which are 0 FLOPs by convention"
        assert (order in forms.notes) == (n > TOP)


def test_a_loop_over_samples_leaves_their_number_free_where_it_is_asked_for():
    at = {"B": 5, "N": 40, "d": 8}
    derivation = derive(by_sample, inputs=INPUTS, phases="forward", at=at)
    assert sympy.expand(derivation.expression("matmul_flops") - 4 * B * N**2 * D) == 0
    assert derivation.at("matmul_flops", B=7, N=50, d=6) == 4 * 7 * 50**2 * 6


def solved_in_blocks(k, v, block: int = 16):
    """A triangular system in every block, row by row, and a state across blocks."""
    b, n, d = k.shape
    assert n % block == 0
    k, v = (x.unflatten(1, (n // block, block)) for x in (k, v))
    system = (k @ k.mT).tril(-1)
    for i in range(1, block):
        row = system[..., i, :i].clone()
        system[..., i, :i] = row + (row.unsqueeze(-1) * system[..., :i, :i].clone()).sum(-2)
    state, out = k.new_zeros(b, d, d), torch.zeros_like(v)
    for i in range(n // block):
        out[:, i] = k[:, i] @ state + system[:, i] @ v[:, i]
        state = state + k[:, i].mT @ v[:, i]
    return out.flatten(1, 2)


def test_blocks_that_code_asserts_to_be_whole_are_what_lengths_are_counted_in():
    derivation = derive(
        solved_in_blocks, inputs=dict.fromkeys("kv", "B, N, d"), phases="forward",
        at={"B": 2, "N": 64, "d": 8},
    )  # fmt: skip
    expected = 4 * B * N * D**2 + 64 * B * N * D
    assert sympy.expand(derivation.expression("matmul_flops") - expected) == 0
    forms = derivation.phases["forward"]
    assert {"16 divides N", "verified for N from 16 to 2048"} <= {*forms.domain}
    assert forms.formulas["peak_bytes"].expression is not None
