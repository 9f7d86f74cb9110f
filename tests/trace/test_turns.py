"""Loops of the mechanisms here tell which turns are alike: one run on symbols gives formulas."""

import math
from types import SimpleNamespace

import pytest
import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import mechanism_target, target_of
from attnprof.trace.run.classes import SizeClasses
from attnprof.trace.run.runs import record
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve import reach
from attnprof.trace.solve.blocks import Blocks
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.plan import _refined, plan_for
from attnprof.trace.solve.reach import holds_beyond
from attnprof.trace.solve.symbolic import SymbolicRun, run_symbolically

N, d = symbol("N"), symbol("d")


def test_a_width_of_d_log_d_and_blocks_of_tokens_are_one_formula():
    target = mechanism_target(registry.get("performer"), scope="core")
    forms = derived(target, ["forward"]).phases["forward"]
    flops = forms.formulas["flops"].expression
    assert forms.method == "symbolic"
    assert "floor(d*log(d))" in str(flops)
    shapes = [{"B": 2, "N": n, "h": 3, "d": 9} for n in (259, 511, 514, 1000)]
    for shape in filter(forms.holds, shapes):
        run = totals(record(target, shape, training=False), "forward")
        assert {name: evaluate(x.expression, shape) for name, x in forms.formulas.items()} == run
    assert sum(map(forms.holds, shapes)) >= 3


def test_a_length_of_another_class_has_a_formula_of_its_own():
    target = mechanism_target(registry.get("linear"), scope="core")
    shape = {"B": 2, "N": 40, "h": 3, "d": 8}
    forms = derived(target, ["forward"], {"N": 40}).phases["forward"]
    assert forms.holds(shape)
    assert forms.method == "symbolic"
    run = totals(record(target, shape, training=False), "forward")
    assert {name: evaluate(x.expression, shape) for name, x in forms.formulas.items()} == run


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
    assert run.numbers(shape)[phase] == totals(
        record(target, shape, training=phase == "train"), phase
    )


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
    inside = Blocks("N", sympy.Integer(64)).inside({"B": 3, "N": 130})
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
    monkeypatch.setattr(reach, "LONG", 100)
    target = target_of(row_by_row, ["chunk=C"], ["x: B, N, s"])
    found = derived(target, ["forward"])
    for shape in ({"B": 2, "N": 30, "s": 9, "C": 3}, {"B": 3, "N": 28, "s": 6, "C": 7}):
        with FlopCounterMode(display=False) as counter:
            row_by_row(torch.zeros(shape["B"], shape["N"], shape["s"]), shape["C"])
        assert found.phases["forward"].holds(shape)
        assert found.at("matmul_flops", **shape) == counter.get_total_flops()


@pytest.mark.parametrize("grows", [False, True])
def test_at_a_smaller_size_another_one_is_far_larger(grows):
    def at(counts, _phases, **_how):
        held = 4 * d * counts["N"]
        own = sympy.Max(held, d * counts["N"] ** 2 / 2) if grows else held  # alike up to 8 tokens
        return SymbolicRun(("d",), {"train": {"peak_bytes": own}}, SizeConditions([]), None, {})

    found = SimpleNamespace(
        plan=SimpleNamespace(at=at), blocks=None, least={"N": 2, "n": 3}, strides={},
        forms={"train": {"peak_bytes": 4 * d * symbol("N")}}, conditions=SizeConditions([]),
        near=lambda **sizes: {"N": 2, "n": 3, "d": 8} | sizes,
    )  # fmt: skip
    runs = SimpleNamespace(phases=["train"])
    assert holds_beyond(found, "n", 2, runs) is not grows


def levels(x):
    """Something at every level of a tree over tokens."""
    for level in range(math.ceil(math.log2(x.shape[1])) + 1):
        x = x * (level + 1)
    return x


def test_lengths_of_as_many_levels_have_a_formula():
    forms = derived(target_of(levels, [], ["x: B, N, d"]), ["forward"]).phases["forward"]
    assert forms.method == "symbolic"
    assert {"N > 256", "N <= 512"} <= set(forms.domain)
    flops = forms.formulas["flops"].expression
    assert evaluate(flops, {"B": 2, "N": 300, "d": 3}) == 10 * 2 * 300 * 3
