"""Peaks of loops in loops are the allocator's at many more blocks than formulas were made from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sympy
import torch

from attnprof.algebra.expressions import symbol
from attnprof.algebra.maxima import covered
from attnprof.trace.events import Call, Trace, peak
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.accounts import Worst
from attnprof.trace.solve.blocks import Blocks
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.mixed import Mixed
from attnprof.trace.solve.reach import LONG, check_large_corner
from tests.oracles.memory import allocator_peak

B, C, N, d, h, rest = map(symbol, ("B", "C", "N", "d", "h", "N mod C"))


def tiles(q, k, block):
    """Causal weights in tiles, each row of them summed: what is saved grows with their number."""
    rows = []
    for i in range(0, q.shape[1], block):
        own, total = q[:, i : i + block], 0.0
        for j in range(0, i + block, block):
            total = total + (own @ k[:, j : j + block].mT).exp().sum(-1)
        rows.append(total)
    return torch.cat(rows, 1)


def test_a_peak_of_loops_in_loops_is_the_allocators_at_many_more_blocks():
    target = target_of(tiles, ["block=C"], ["q: B, N, d", "k: B, N, d"])
    forms = derived(target, ["train"]).phases["train"]
    formula = forms.formulas["peak_bytes"].expression
    assert formula is not None
    assert "N from" in forms.domain[-1]
    assert "*C" in forms.domain[-1]
    for count, block, width in ((23, 2, 3), (17, 3, 40), (12, 8, 2)):
        for left in {0, block - 1} - {1}:
            sizes = {"B": 2, "N": count * block + left, "d": width, "C": block}
            assert evaluate(formula, sizes) == peak(record(target, sizes, training=True), "train")
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
    worst = Worst({rest: C}).of(moments)
    assert set(worst) == {"whole", "wide"}
    assert set(Worst({rest: C}).of({"x": {B * C: 1}, "y": {B * rest: 1, B: 1}})) == {"x", "y"}


def test_products_of_sizes_from_two_on_are_larger_than_the_sizes():
    assert set(Worst({}).of({"x": {B * d: 2}, "y": {B: 2, d: 2}})) == {"x"}
    assert set(Worst({}).of({"x": {B * d: 1}, "y": {B: 2, sympy.Integer(1): 1}})) == {"x", "y"}


@pytest.mark.parametrize("weight", range(1, 49))
def test_what_is_exactly_a_mean_of_two_is_covered(weight):
    one, other = {1: 98, 2: 0, 3: 49 * 7}, {1: 0, 2: 49 * 3, 3: 49}
    value = {x: (weight * one[x] + (49 - weight) * other[x]) // 49 for x in one}
    assert covered(value, [one, other])
    assert not covered({**value, 1: value[1] + 1}, [one, other])


def test_a_range_in_blocks_of_a_size_ends_at_a_number_of_them():
    target = SimpleNamespace(symbols=("N", "C"))
    plan = SimpleNamespace(target=target, hints={"N": 421, "C": 7}, blocks={"N": C})
    found = Mixed(plan, Blocks("N", C), {}, None, SizeConditions([]), {"N": 2}, {"N": 14}, {}, 1)
    inside = [(42, 3), (41, 3), (112, 8)]
    assert all(found.holds({"N": length, "C": block}) for length, block in inside)
    assert not any(found.holds({"N": length, "C": block}) for length, block in [(43, 3), (44, 2)])
    assert found.domain[-1] == "verified for N from 2 to 14*C"


@pytest.mark.parametrize("together", [0, 4])
def test_formulas_are_held_where_all_numbers_are_large(together):
    def run(sizes):
        length, heads = sizes["N"], sizes["h"]
        ran.append(length * heads)
        held = 4 * length + 4 * heads + together * length * heads * (length > 9) * (heads > 9)
        return Trace([Call("mm", {"additions": length * heads}, 0, "forward", "", takes=held)])

    ran: list[int] = []
    target = SimpleNamespace(symbols=("N", "h"))
    plan = SimpleNamespace(target=target, hints={"N": 421, "h": 6}, blocks={"N": 1, "h": 1})
    forms = {"forward": {"additions": N * h, "peak_bytes": 4 * N + 4 * h}}
    trace = Trace([Call("mm", {}, 0, "forward", "", times=N * h)])
    least, ends = {"N": 2, "h": 2}, {"N": 4096, "h": 64}
    found = Mixed(plan, None, forms, trace, SizeConditions([]), least, ends, {}, 0)
    check_large_corner(found, SimpleNamespace(tried=run, phases=["forward"]))
    assert LONG / 4 < ran[0] <= LONG
    assert ("peak_bytes" in found.forms["forward"]) == (not together)
    assert "additions" in found.forms["forward"]
