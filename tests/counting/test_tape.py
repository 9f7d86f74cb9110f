"""The tape: stages, lifetimes, repetition, and the order of the backward pass."""

import numpy as np
import pytest
import sympy

from attnprof.algebra.maxima import maximum_of
from attnprof.costs import (
    Cost,
    ceil_div,
    exact_div,
    floor_div,
    maximum,
    minimum,
    more_than_one,
    not_dearer,
)
from attnprof.counting.tape import Tape


def peak_of(tape):
    return tape.table().peak()


def test_a_product_counts_multiplications_and_additions():
    tape = Tape(4)
    tape.bmm("p", tape.input(2, 3, 5), tape.input(2, 5, 7))
    total = tape.table().total
    assert (total.multiplications, total.additions) == (210, 210)
    assert (total.matmul_flops, total.macs, total.dot_outputs) == (420, 210, 42)
    assert total.bytes_moved == 4 * (30 + 70 + 42)
    assert total.operations == 420 - 42


def test_memory_dies_with_its_last_holder():
    tape = Tape(1)
    x = tape.input(10)
    a = tape.move("a", x)
    b = tape.view(a, 5, 2)
    tape.free(a)
    tape.move("beside", x)
    assert peak_of(tape) == 20
    tape.free(b)
    tape.move("after", x)
    assert peak_of(tape) == 20


def test_what_autograd_saves_stays_until_its_backward_ran():
    tape = Tape(1, grad=True)
    x = tape.input(8)
    y = tape.square("square", x)
    z = tape.square("again", y)
    tape.free(y)
    tape.backward(z)
    names = [stage.name for stage in tape.stages]
    assert names == ["square", "again", "again: 2a", "again: grad", "square: 2a", "square: grad"]
    # y, z, 2y and the gradient of y
    assert peak_of(tape) == 4 * 8


def test_a_tensor_used_twice_gets_its_gradients_added():
    tape = Tape(1, grad=True)
    x = tape.input(6)
    out = tape.mul("x times x", x, x)
    tape.backward(out)
    added = [stage for stage in tape.stages if stage.name == "add gradients"]
    assert [stage.cost.additions for stage in added] == [6]


def test_no_gradient_is_computed_for_what_needs_none():
    tape = Tape(1, grad=True)
    a, b = tape.input(1, 2, 3), tape.input(1, 3, 4, requires_grad=False)
    tape.backward(tape.bmm("p", a, b))
    assert [stage.name for stage in tape.stages] == ["p", "p: grad a"]


@pytest.mark.parametrize(("n", "chunk"), [(1, 4), (4, 4), (9, 4), (12, 4), (3, 8)])
def test_a_repeated_part_counts_its_times_and_peaks_once(n, chunk):
    def scan(n):
        tape = Tape(1)
        x = tape.input(chunk)
        for times, size in ((floor_div(n, chunk), chunk), (minimum(1, n % chunk), n % chunk)):
            with tape.repeat(times):
                tape.free(tape.scale("scale", tape.constant(size), divide=True))
        tape.move("end", x)
        return tape.table()

    symbol = sympy.Symbol("n", positive=True)
    whole, symbolic = scan(n), scan(symbol)
    assert whole.total.divisions == n
    assert whole.peak() == chunk
    assert sympy.sympify(symbolic.total.divisions).subs(symbol, n) == n
    assert symbolic.peak().subs(symbol, n) == chunk


@pytest.mark.parametrize("values", [(7, 2), (8, 4), (1, 3)])
def test_helpers_agree_on_ints_arrays_and_symbols(values):
    a, b = sympy.symbols("a b", positive=True)
    for helper in (floor_div, ceil_div, maximum, minimum, not_dearer):
        expected = helper(*values)
        assert helper(a, b).subs({a: values[0], b: values[1]}) == expected
        assert helper(np.array([values[0]]), values[1])[0] == expected


def test_exact_division_refuses_a_remainder():
    assert exact_div(12, 4) == 3
    with pytest.raises(ValueError, match="does not divide"):
        exact_div(12, 5)


def test_more_than_one_is_an_indicator():
    assert [more_than_one(size) for size in (1, 2, 9)] == [0, 1, 1]


def test_the_maximum_of_polynomials_drops_dominated_ones_and_keeps_crossing_ones():
    x, y = sympy.symbols("x y", positive=True)
    peak = maximum_of([x + y, 2 * x + y, x**2, sympy.Integer(0)])
    assert set(peak.args) == {2 * x + y, x**2}
    assert maximum_of([x, 2 * x]) == 2 * x


def test_costs_add_and_repeat():
    one = Cost(multiplications=1, additions=2, divisions=3, exponentials=4, other=5)
    assert (one + one) == 2 * one == one * 2
    assert (3 * one).flops == 45
