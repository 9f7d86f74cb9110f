"""Loops of the mechanisms here tell which turns are alike: one run on symbols gives formulas."""

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.run.runs import record
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.blocks import Blocks
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.plan import _refined

d = symbol("d")


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
    for length in (40, 512):
        shape = {"B": 2, "N": length, "h": 3, "d": 8}
        forms = derived(target, ["forward"], {"N": length}).phases["forward"]
        assert forms.holds(shape)
        assert forms.method == "symbolic"
        run = totals(record(target, shape, training=False), "forward")
        assert {name: evaluate(x.expression, shape) for name, x in forms.formulas.items()} == run


def test_blocks_know_sizes_that_were_plain_numbers():
    inside = Blocks("N", sympy.Integer(64)).inside({"B": 3, "N": 130})
    assert inside["blocks of B"] == 3
    assert (inside["blocks of N"], inside["N mod 64"]) == (2, 2)


def test_a_rest_that_code_fixes_twice_is_one_of_a_size():
    rest = symbol("N mod 64")
    pins = [sympy.Eq(rest, 37), sympy.Eq(rest * d, 8 * 37)]
    assert set(_refined({"N": sympy.Integer(64)}, pins)) <= {"N", "d"}
