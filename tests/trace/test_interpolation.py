import sys
from types import SimpleNamespace

import pytest
import sympy
import torch
from torch import nn

import attnprof
from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.trace.report.records import operations, subtotals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.solve.lattice import Lattice, SampledSizes, degree, lower_set
from attnprof.trace.solve.mixed import narrow_to_corners
from attnprof.trace.solve.small_runs import short_sizes
from attnprof.trace.solve.verification import NoFormulaError, Runs
from tests.trace import hazards
from tests.trace.checks import check, mixed_formulas, shown

B, N, h, d = map(symbol, ("B", "N", "h", "d"))
HOW = ["d_model=h*d"], ["x: B, N, h*d"]


def test_degrees_need_two_more_points_than_they_say():
    assert degree([2, 3, 4], [4, 9, 16]) is None
    assert degree([2, 3, 4, 5], [4, 9, 16, 25]) == 2
    assert degree([2, 3, 7], [5, 5, 5]) == 0
    assert degree([2, 3], [0, 0]) == 0
    assert degree([1, 2, 4, 8, 16], [0, 1, 2, 3, 4]) is None


def factors_of(value, axes, boxes):
    """Factors by index of a polynomial's values, at the points of a lower set and two more."""
    indices = lower_set(boxes)
    points = [tuple(x.nodes[i] for x, i in zip(axes, index, strict=True)) for index in indices]
    points += [tuple(x.xs[-1] + more for x in axes) for more in (1, 4)]
    row = tuple(value(*point) for point in points)
    return Lattice(axes, indices, points).fit({row}).get(row)


def test_a_lower_set_of_points_fixes_exactly_its_monomials():
    axes = [SampledSizes(xs) for xs in ((3, 5, 11), (4, 7, 9), (2, 6))]
    boxes = [(2, 1, 0), (0, 2, 1)]
    assert len(lower_set(boxes)) == 10

    def value(x, y, z):
        return 7 * x**2 * y - x * y + y**2 * z * 3 - 12 + x * (x + 1) // 2

    factors = factors_of(value, axes, boxes)
    total = sum(sympy.Rational(x) * B**i * N**j * h**k for (i, j, k), x in factors.items())
    assert sympy.expand(total - (7 * B**2 * N - B * N + 3 * N**2 * h - 12 + B * (B + 1) / 2)) == 0
    assert factors_of(lambda x, y, z: value(x, y, z) + x * z, axes, boxes) is None


def numbers(fits):
    """Formulas over B and N, both numbers, that hold where ``fits`` says."""
    forms = {"forward": {"flops": B * N, "peak_bytes": N}}
    formulas = mixed_formulas(
        {"B": 3, "N": 421}, {"B": 1, "N": 1}, {"B": 64, "N": 4096}, {"B": 2, "N": 4}, forms=forms
    )
    formulas.fits = lambda shape, _: fits(formulas, shape)
    return formulas


RUNS = SimpleNamespace(run_or_none=lambda _: True)


def test_ranges_of_numbers_end_where_formulas_hold_at_all_corners():
    formulas = numbers(lambda _, shape: shape["B"] * shape["N"] <= 1000)
    narrow_to_corners(formulas, RUNS)
    assert formulas.ends == {"B": 3, "N": 131}
    assert formulas.forms["forward"].keys() == {"flops", "peak_bytes"}


def test_without_its_peak_a_formula_may_hold_at_corners_where_no_range_has_one():
    formulas = numbers(lambda it, _: "peak_bytes" not in it.forms["forward"])
    narrow_to_corners(formulas, RUNS)
    assert formulas.ends == {"B": 64, "N": 4096}
    assert formulas.withheld["forward"].keys() == {"peak_bytes"}


def test_formulas_that_hold_at_no_corner_are_refused():
    with pytest.raises(NoFormulaError, match="nowhere"):
        narrow_to_corners(numbers(lambda *_: False), RUNS)


def test_along_a_period_factors_count_numbers_of_each_kind():
    axes = [SampledSizes((5, 6, 7, 8), (1, 2, 0)), SampledSizes((2, 7))]

    def value(layers, width):
        return 11 + sum((3, 50, 7 * width)[i % 3] for i in range(layers))

    # place 1 is for layers like number 5, place 2 for those like 6, place 3 for those like 7
    expected = {(0, 0): 11, (1, 1): 7, (2, 0): 3, (3, 0): 50}
    assert factors_of(value, axes, [(3, 1)]) == expected


class Padded(nn.Module):
    """Pads the tokens to whole blocks of 16, by a table of lengths."""

    pads = tuple(-length % 16 for length in range(9000))

    def __init__(self, d_model):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        pad = self.pads[x.shape[1]]
        blocks = nn.functional.pad(x, (0, 0, 0, pad)).reshape(-1, 16, x.shape[2])
        return self.proj((blocks @ blocks.transpose(1, 2)).softmax(-1) @ blocks)


def calls_within(run):
    """Return the number of Python functions that a call enters."""
    calls = 0

    def look(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def test_padding_gives_a_class_of_lengths_and_formulas_that_take_few_steps():
    _, derivation = shown(Padded, ["d_model=d"])
    forms = derivation.phases["forward"]
    assert forms.method == "interpolated"
    assert "16 divides N" in forms.domain
    blocks = N / 16
    products = B * blocks * (4 * 16**2 * d + 2 * 16 * d**2)
    assert sympy.expand(derivation.expression("matmul_flops") - products) == 0
    assert derivation.expression("peak_bytes") is not None
    # 100 tokens are padded to 112: outside of the class the code is run
    for length in (100, 112):
        counted = derivation.at("matmul_flops", B=2, N=length, d=8)
        assert counted == products.subs({B: 2, N: 112, d: 8})
    sizes, formulas = {"B": 2, "N": 16 * 48, "d": 64}, forms.formulas.values()
    steps = calls_within(lambda: [evaluate(one.expression, sizes) for one in formulas])
    assert steps < 6000  # some 0.1 microseconds each


class Branching(nn.Module):
    """Does other things up to 300 tokens."""

    def __init__(self, d_model):
        super().__init__()
        self.scale = float(torch.tensor(d_model).shape == ()) / int(d_model / 1)

    def forward(self, x):
        if x.shape[1] > 300:
            return (x * self.scale).softmax(-1)
        return x @ x.transpose(1, 2)


def test_the_formula_is_of_the_branch_that_was_asked_for():
    _, derivation = shown(Branching, *HOW, at={"N": 100})
    assert derivation.expression("exponentials") == 0
    assert derivation.expression("matmul_flops") == 2 * B * N**2 * h * d
    assert "N <= 300" in derivation.phases["forward"].domain


def test_an_asked_length_that_is_a_case_of_its_own_has_its_own_formula():
    def windowed(x):  # of 16 tokens, or of all 256
        rows = x if x.shape[1] == 256 else x.view(x.shape[0], -1, 16, x.shape[2])
        return rows @ rows.mT

    _, derivation = shown(windowed, at={"N": 256})
    assert derivation.phases["forward"].domain == ("N = 256", "B, d >= 2")
    assert derivation.expression("matmul_flops") == 2 * 256**2 * B * d


def looping(x):
    """One sample at a time, joined where there are several."""
    parts = [(part @ part.T).softmax(-1) @ part for part in x]
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def test_one_sample_may_be_a_case_of_its_own():
    sizes = {"B": 1, "N": 128, "h": 2, "d": 16}
    target, derivation = shown(looping, inputs=["x: B, N, h*d"], at=sizes)
    assert check(target, derivation, [sizes]) == 1
    assert "B = 1" in derivation.phases["forward"].domain


def repeated(x):
    state = x[:, :64]
    for block in x.view(x.shape[0], x.shape[1] // 64, 64).unbind(1):
        state = state + block * 2.0
    return state.sort(-1).values


def test_calls_are_operations_and_not_the_lines_they_are_on():
    derivation = attnprof.derive(repeated, inputs={"x": "2, N"}, phases=["forward"], at={"N": 640})
    trace = derivation.phases["forward"].trace
    assert derivation.phases["forward"].method == "interpolated"
    for at, adds, line in (({}, "N/64", "N/32"), ({"N": 640}, 10, 20)):
        calls = {row["operation"]: row["calls"] for row in operations(trace, "forward", at)}
        assert (calls["add"], calls["mul"], calls["sort"]) == (adds, adds, 1)
        assert line in [row["calls"] for row in subtotals(trace, "forward", at)]
    assert not derivation.phases["forward"].uncounted


def test_calls_of_a_run_by_symbols_are_counted_one_by_one():
    _, derivation = shown(lambda x: x * 2.0 * 3.0)
    (row,) = derivation.report().summary["phases"]["forward"]["operations"]
    assert (row["operation"], row["calls"]) == ("mul", 2)


@pytest.mark.parametrize("layer", [hazards.token_loop, hazards.Mapping])
def test_runs_that_remember_layouts_are_those_on_fake_tensors(layer):
    """Results that share what they were given, as a view of a product does, share it each time."""
    target = target_of(layer, inputs=["x: B, N, h*d"])
    sizes = {"B": 3, "N": 21, "h": 2, "d": 4}
    for training in (False, True):
        fake, meta = (record(target, sizes, training=training, on_meta=m) for m in (False, True))
        assert meta.calls == fake.calls


def test_lengths_of_which_a_part_is_taken_are_whole_where_runs_begin():
    target = target_of(lambda x: x @ x.mT, inputs=["x: B, N/2, d"])
    sizes = short_sizes(Runs(target, ["forward"]), {"B": 3, "N": 37, "d": 5}, {})
    assert sizes["N"] % 2 == 0
