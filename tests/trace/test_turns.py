"""Loops: of mechanisms here by one run on symbols; in loops with peaks that are the allocator's."""

import math
from types import SimpleNamespace

import pytest
import sympy
import torch

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.algebra.maxima import covering
from attnprof.algebra.values import evaluate
from attnprof.trace.events import Call, Trace
from attnprof.trace.request.lookup import mechanism_target, target_of
from attnprof.trace.run.remainders import SizeClasses
from attnprof.trace.solve import mixed
from attnprof.trace.solve.accounts import PeakMoments
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.mixed import LONG, check_large_corner
from attnprof.trace.solve.plan import _refined, plan_for
from attnprof.trace.solve.symbolic import Blocks, run_symbolically
from attnprof.trace.solve.turns import holds_at_asked
from tests.oracles.memory import allocator_peak
from tests.trace.checks import check, counted_at, mixed_formulas, shown, torchs_products

B, C, N, d, h, rest = map(symbol, ("B", "C", "N", "d", "h", "N mod C"))


def test_a_width_of_d_log_d_and_blocks_of_tokens_are_one_formula():
    target = mechanism_target(registry.get("performer"), scope="core")
    derivation = derived(target, ["forward"])
    assert derivation.phases["forward"].method == "symbolic"
    assert "floor(d*log(d))" in str(derivation.expression())
    sizes = (259, 9), (511, 3), (514, 64), (1000, 9)
    shapes = [{"B": 2, "N": n, "h": 3, "d": d} for n, d in sizes]
    assert check(target, derivation, shapes) >= 3


def test_formulas_hold_at_an_asked_width_if_they_do_at_a_length_that_runs_are_made_at():
    """Of 421 tokens the last block is one row at this width, which is another case."""
    target = mechanism_target(registry.get("neural"), scope="core")
    hints = {"B": 3, "N": 421, "h": 6, "d": 64}
    run = run_symbolically(target, {**hints, "N": 1021}, ["forward"])
    assert not run.holds(hints)
    assert holds_at_asked(run, hints, {"d": 64})
    assert not holds_at_asked(run, hints, {"N": 421, "d": 64})


@pytest.mark.parametrize(
    ("name", "settings", "causal", "phase", "other", "outside"),
    [
        ("reformer", {"num_hashes": 1}, False, "forward", 52, 65),
        ("taylor-efficient", {}, True, "train", 6, 64),
        ("me", {}, False, "forward", 25, 64),
    ],
)
def test_formulas_of_a_short_length_are_those_of_its_class(
    name, settings, causal, phase, other, outside
):
    spec = registry.get(name, **settings)
    target = mechanism_target(spec, "core" if spec.abilities.attend else "layer", causal=causal)
    run = run_symbolically(target, {"B": 3, "N": 40, "h": 2, "d": 32}, [phase], classed=("N",))
    assert any(quantity.has(symbol("N")) for quantity in run.forms[phase].values())
    shape = {"B": 2, "N": other, "h": 3, "d": 32}
    assert run.holds(shape)
    assert not run.holds({**shape, "N": outside})
    assert run.numbers(shape)[phase] == counted_at(target, shape, phase)


@pytest.mark.parametrize(
    ("condition", "ends"),
    [
        (sympy.Eq(-64 * sympy.floor(-N / 32) - 32, 96), (33, 64)),
        (sympy.Eq(d * sympy.floor((N + 3) / 128), d), (125, 252)),
        (sympy.Eq(d * sympy.ceiling(N / 16), 3 * d), (33, 48)),
        (sympy.Eq(N - 64 * sympy.floor(N / 64), 40), None),
        (sympy.Eq(sympy.floor(d / 4), 8), None),
        (sympy.Eq(sympy.floor(N / 1), 40), None),
    ],
)
def test_an_equation_of_one_quotient_fixes_a_class(condition, ends):
    classes = SizeClasses(frozenset([N]))
    classes.learn([SimpleNamespace(expr=condition)])
    assert classes.ends.get(N) == ends
    inside = [n for n in range(2, 300) if evaluate(condition, {"N": n, "d": 5})]
    if ends is not None:
        assert (inside[0], inside[-1]) == ends
        assert classes.rounded(condition) == True  # noqa: E712 - sympy's true
        assert [
            n for n in range(2, 300) if all(evaluate(x, {"N": n}) for x in classes.conditions)
        ] == inside


def test_blocks_know_sizes_that_were_plain_numbers():
    inside = Blocks("N", sympy.Integer(64)).shape({"B": 3, "N": 130})
    assert inside["blocks of B"] == 3
    assert (inside["blocks of N"], inside["N mod 64"]) == (2, 2)


def test_a_rest_that_code_fixes_twice_is_one_of_a_size():
    rest = symbol("N mod 64")
    pins = [sympy.Eq(rest, 37), sympy.Eq(rest * d, 8 * 37)]
    assert set(_refined({"N": sympy.Integer(64)}, pins)) <= {"N", "d"}


def in_chunks(x, chunk):
    """Products within chunks."""
    rows = x.unflatten(1, (-1, chunk))
    return (rows @ rows.mT).flatten(1, 2)


def row_by_row(x, chunk):
    """Each row of all chunks with the first one; at even widths other lengths would fit, too."""
    rows = x.view(x.shape[0], x.shape[1] // chunk, chunk, -1)
    first = rows[:, :, 0].unsqueeze(-1)
    return torch.cat([rows[:, :, i : i + 1] @ first for i in range(chunk)], 2)


def test_a_chunk_is_found_among_sizes_by_the_lengths_that_run():
    for code in (in_chunks, row_by_row):
        target = target_of(code, ["chunk=C"], ["x: B, N, s"])
        plan = plan_for(
            target, {"B": 3, "N": 21, "s": 10, "C": 7}, ["forward"], [], by_module=False
        )
        assert plan.blocks["N"] == symbol("C")
        assert plan.whole


def test_loops_over_one_of_two_sizes_are_counted_with_the_other(monkeypatch):
    monkeypatch.setattr(mixed, "LONG", 100)
    _, derivation = shown(row_by_row, ["chunk=C"], ["x: B, N, s"])
    for b, n, s, c in ((2, 30, 9, 5), (3, 28, 6, 7)):
        shape = {"B": b, "N": n, "s": s, "C": c}
        assert derivation.phases["forward"].holds(shape)
        theirs = torchs_products(row_by_row, torch.zeros(b, n, s), c)
        assert derivation.at("matmul_flops", **shape) == theirs


def levels(x):
    """Something at every level of a tree over tokens."""
    for level in range(math.ceil(math.log2(x.shape[1])) + 1):
        x = x * (level + 1)
    return x


def test_lengths_of_as_many_levels_have_a_formula():
    _, derivation = shown(levels)
    assert derivation.phases["forward"].method == "symbolic"
    assert {"N > 256", "N <= 512"} <= set(derivation.phases["forward"].domain)
    assert derivation.at("flops", B=2, N=300, d=3) == 10 * 2 * 300 * 3


def tiles(q, k, block):
    """Causal weights in tiles, each row of them summed: what is saved grows with their number."""
    rows = []
    for i in range(0, q.shape[1], block):
        queries, total = q[:, i : i + block], 0.0
        for j in range(0, i + block, block):
            total = total + (queries @ k[:, j : j + block].mT).exp().sum(-1)
        rows.append(total)
    return torch.cat(rows, 1)


def test_a_peak_of_loops_in_loops_is_the_allocators_at_many_more_blocks():
    target, derivation = shown(tiles, ["block=C"], ["q: B, N, d", "k: B, N, d"], "train")
    forms, formula = derivation.phases["train"], derivation.expression("peak_bytes", "train")
    assert formula is not None
    assert "N from" in forms.domain[-1]
    assert "*C" in forms.domain[-1]
    for count, block, width in ((23, 2, 3), (15, 3, 40), (12, 8, 2)):
        for left in {0, block - 1} - {1}:
            sizes = {"B": 2, "N": count * block + left, "d": width, "C": block}
            counts = counted_at(target, sizes, "train", on_meta=True)
            assert evaluate(formula, sizes) == counts["peak_bytes"]
            assert evaluate(formula, sizes) == pytest.approx(real_peak(sizes), abs=4096, rel=0)


def real_peak(sizes):
    q, k = (torch.ones(sizes["B"], sizes["N"], sizes["d"], requires_grad=True) for _ in "qk")

    def train():
        result = tiles(q, k, sizes["C"])
        result.backward(torch.ones_like(result))

    train()
    q.grad = k.grad = None
    return allocator_peak(train) - 4 * sizes["B"] * sizes["N"]  # the ones


def test_of_whole_blocks_and_rests_no_moment_that_is_the_worst_is_left_out():
    moments = {
        "whole": {B * C: 4},
        "shorter": {B * rest: 4},
        "both": {B * C: 3, B * rest: 1},
        "wide": {B * d: 1},
        "less": {B * d: 1, B * C: -1, B * rest: 1},
    }
    worst = PeakMoments({rest: C}).among(moments)
    assert set(worst) == {"whole", "wide"}
    moments = {"x": {B * C: 1}, "y": {B * rest: 1, B: 1}}
    assert set(PeakMoments({rest: C}).among(moments)) == {"x", "y"}


def test_products_of_sizes_from_two_on_are_larger_than_the_sizes():
    peaks = PeakMoments({})
    assert set(peaks.among({"x": {B * d: 2}, "y": {B: 2, d: 2}})) == {"x"}
    assert set(peaks.among({"x": {B * d: 1}, "y": {B: 2, sympy.Integer(1): 1}})) == {"x", "y"}


def test_what_is_exactly_a_mean_of_two_is_covered():
    one, other = {1: 98, 2: 0, 3: 49 * 7}, {1: 0, 2: 49 * 3, 3: 49}
    for weight in range(1, 49):
        value = {x: (weight * one[x] + (49 - weight) * other[x]) // 49 for x in one}
        assert covering([one, other])(value), weight
        assert not covering([one, other])({**value, 1: value[1] + 1}), weight


def test_a_range_in_blocks_of_a_size_ends_at_a_number_of_them():
    hints, blocks = {"N": 421, "C": 7}, {"N": C}
    forms = mixed_formulas(hints, blocks, {"N": 14}, {"N": 2}, unit=Blocks("N", C))
    inside = [(42, 3), (41, 3), (112, 8)]
    assert all(forms.holds({"N": length, "C": block}) for length, block in inside)
    assert not any(forms.holds({"N": length, "C": block}) for length, block in [(43, 3), (44, 2)])
    assert forms.domain[-1] == "verified for N from 2 to 14*C"


@pytest.mark.parametrize("together", [0, 4])
def test_formulas_are_held_where_all_numbers_are_large(together):
    def run(sizes):
        length, heads = sizes["N"], sizes["h"]
        ran.append(length * heads)
        held = 4 * length + 4 * heads + together * length * heads * (length > 9) * (heads > 9)
        return Trace([Call("mm", {"additions": length * heads}, 0, "forward", "", takes=held)])

    ran: list[int] = []
    forms = {"forward": {"additions": N * h, "peak_bytes": 4 * N + 4 * h}}
    trace = Trace([Call("mm", {}, 0, "forward", "", times=N * h)])
    hints, blocks = {"N": 421, "h": 6}, {"N": 1, "h": 1}
    formulas = mixed_formulas(
        hints, blocks, {"N": 4096, "h": 64}, {"N": 2, "h": 2}, 0, forms=forms, trace=trace
    )
    check_large_corner(formulas, SimpleNamespace(run_or_none=run, phases=["forward"]))
    assert LONG / 4 < ran[0] <= LONG
    assert ("peak_bytes" in formulas.forms["forward"]) == (not together)
    assert "additions" in formulas.forms["forward"]


# -- sparse attention and recurrences as public code writes them ------------------------------
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
        (8, 4 * B * N**2 * d, "N <= 16"),
        (100, 2 * B * N**2 * d + 2 * TOP * B * N * d, "N > 16"),
    ):
        _, derivation = shown(topk_attention, inputs=INPUTS, at={"B": 2, "N": n, "d": 8})
        forms = derivation.phases["forward"]
        assert sympy.expand(derivation.expression("matmul_flops") - formula) == 0
        assert domain in forms.domain
        assert not any("evenly" in text for text in forms.domain)  # as experts are chosen
        assert not forms.uncounted
        order = "aten.topk: comparisons, which are 0 FLOPs by convention"
        assert (order in forms.notes) == (n > TOP)


def test_a_loop_over_samples_leaves_their_number_free_where_it_is_asked_for():
    _, derivation = shown(by_sample, inputs=INPUTS, at={"B": 5, "N": 40, "d": 8})
    assert sympy.expand(derivation.expression("matmul_flops") - 4 * B * N**2 * d) == 0
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
    inputs = dict.fromkeys("kv", "B, N, d")
    _, derivation = shown(solved_in_blocks, inputs=inputs, at={"B": 2, "N": 64, "d": 8})
    expected = 4 * B * N * d**2 + 64 * B * N * d
    assert sympy.expand(derivation.expression("matmul_flops") - expected) == 0
    forms = derivation.phases["forward"]
    assert {"16 divides N", "verified for N from 16 to 2048"} <= {*forms.domain}
    assert forms.formulas["peak_bytes"].expression is not None
