"""What guards of a run say about sizes, against the integers; shapes outside of a domain."""

import math
from itertools import product

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as F

import attnprof
from attnprof.algebra.expressions import is_zero, symbol
from attnprof.algebra.values import evaluate
from attnprof.errors import RequestError
from attnprof.trace.doubles import DoubleProduct, float_function
from attnprof.trace.report.derivation import curves_of
from attnprof.trace.request.lookup import target_of
from attnprof.trace.solve.conditions import (
    as_ranges,
    condition_text,
    division_in,
    fewest_of_remainders,
    is_wider,
)
from attnprof.trace.solve.domain import SizeConditions
from tests.trace.checks import check, counted_at, shown
from tests.trace.samples import MyAttention

H, W, d, h = map(symbol, ("H", "W", "d", "h"))
f = sympy.floor
HALF = sympy.Rational(1, 2)
#: As floats compute it: ``int(math.sqrt(N - 1)) + 1``.
SQRT = float_function("DoubleSqrt", "sqrt")(H - 1)
ROOT = float_function("DoubleFloor", "floor", whole=True)(SQRT) + 1


def equal(left, right):
    return sympy.Eq(left, right, evaluate=False)


@pytest.mark.parametrize(
    ("condition", "number", "divisor"),
    [
        (equal(d, 2 * f(d / 2 + HALF)), d, 2),
        (equal(h * f(d / 2), h * f(d / 2 + HALF)), d, 2),
        (equal(H / f(H / 8), 8), H, 8),
        (equal(3 * h * d, 12 * f(h * d / 4)), h * d, 4),
        (equal(H / ROOT, f((H + ROOT - 1) / ROOT)), H, ROOT),
        (equal(H * d, d * ROOT * f((H + ROOT - 1) / ROOT)), H, ROOT),
        (equal(H * d, d * f(d / 2) * f((H - 1) / f(d / 2)) + d * f(d / 2)), H - f(d / 2), f(d / 2)),
    ],
)
def test_conditions_that_one_size_divides_another_are_seen(condition, number, divisor):
    assert division_in(condition)[:2] == (number, divisor)
    assert condition_text(condition) == f"{divisor} divides {H if number.has(H) else number}"
    for sizes in product(range(8, 26), repeat=2):
        shape = dict(zip("dh", sizes, strict=True)) | {"H": 3 * sizes[0]}
        divides = evaluate(number, shape) % evaluate(divisor, shape) == 0
        assert bool(evaluate(condition, shape)) is divides


@pytest.mark.parametrize(
    ("low", "high", "unit"), [(448, 512, 64), (35_000, 35_500, 100), (6, 9, 1)]
)
def test_what_is_told_of_a_few_lengths_is_all_that_holds_there(low, high, unit):
    N = symbol("N")
    asked = [sympy.Gt(N, bound) for bound in (unit - 1, low - 3 * unit, low - unit, low)]
    asked.append(sympy.Le(N, high))
    if unit > 1:
        asked.append(equal(N - unit * f(N / unit), 0))
    whole = SizeConditions(asked)
    telling = SizeConditions(whole.essential)
    near = range(low - 5 * unit, high + 5 * unit)
    for length in {*range(2, 3 * unit), *near, *range(2, 2 * high, 7)} & {*range(2, 2 * high)}:
        assert telling.holds({"N": length}) is whole.holds({"N": length})
    assert len(whole.conditions) <= 3


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (sympy.ceiling(d * H / 16) - 2 >= 0, "H*d > 16"),
        (-f(-d / 8) <= 3, "d <= 24"),
        (1 - f(3 * d / 4) < 0, "3*d >= 8"),
        (f(d / 8) < 2, "d < 16"),
        (f(d / 8) <= h, "floor(d/8) <= h"),
        (H / 8 >= 1, "H >= 8"),
        (sympy.Ne(d / 2, 1), "d != 2"),
        (W - 2 < H / 2, "2*W < H + 4"),
    ],
)
def test_a_bound_of_a_quotient_is_told_in_whole_numbers(condition, said):
    assert condition_text(condition) == said
    for shape in ({"d": size, "H": 1 + 3 * size % 17, "h": 3, "W": 5} for size in range(1, 40)):
        assert bool(evaluate(condition, shape)) is eval(said, {"floor": math.floor}, shape)


@pytest.mark.parametrize("rounded", [sympy.ceiling(H / 64) - 5 > 0, f((H - 1) / 64) >= 5])
def test_a_bound_of_a_rounded_quotient_makes_a_wider_one_of_its_size_needless(rounded):
    assert is_wider(H > 256, rounded)
    assert not is_wider(H > 400, rounded)
    assert not is_wider(rounded, H > 256)


@pytest.mark.parametrize(
    ("condition", "divides"),
    [
        (sympy.Gt(-16 * f(-H / 16), H, evaluate=False), False),
        (sympy.Le(16 * sympy.ceiling(H / 16), H, evaluate=False), True),
        (sympy.Lt(16 * d * f(H / 16), H * d, evaluate=False), False),
        (sympy.Ge(16 * f(H / 16), H, evaluate=False), True),
    ],
)
def test_a_rounded_quotient_beside_the_size_itself_is_told_as_a_division(condition, divides):
    assert condition_text(condition) == f"16 {'divides' if divides else 'does not divide'} H"
    for height in range(1, 50):
        held = evaluate(condition, {"H": height, "d": 3})
        assert bool(held) is ((height % 16 == 0) is divides)


def remainder_of(unit, size=H):
    return size - unit * f(size / unit)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([sympy.Ne(remainder_of(2, H - 1), 0, evaluate=False)], ("2 divides H",)),
        ([sympy.Ne(remainder_of(2), 0, evaluate=False)], ("2 does not divide H",)),
        (
            [sympy.Ne(remainder_of(64), 2), sympy.Ne(remainder_of(2), 0)],
            ("2 does not divide H",),
        ),
        ([sympy.Ne(remainder_of(5), 0), remainder_of(5) <= 1], ("5 divides H - 1",)),
        ([equal(remainder_of(6), 0), equal(remainder_of(4), 0)], ("12 divides H",)),
        (
            [sympy.Ne(remainder_of(64), 2), sympy.Ne(remainder_of(3), 0)],
            ("3 does not divide H", "64 does not divide H - 2"),
        ),
        ([sympy.Ne(remainder_of(2), 0), equal(remainder_of(2, d), 0)],
         ("2 divides d", "2 does not divide H")),
    ],
)  # fmt: skip
def test_conditions_on_remainders_are_as_few_as_possible(conditions, said):
    fewest = fewest_of_remainders(conditions)
    assert sorted(map(condition_text, fewest)) == sorted(said)
    for height, depth in product(range(1, 400), (5, 8)):
        shape = {"H": height, "d": depth}
        assert all(evaluate(x, shape) for x in fewest) is all(
            evaluate(x, shape) for x in conditions
        )


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([H >= 4, sympy.Ne(f(H / 4), 1)], ("H >= 8",)),
        ([sympy.Ne(H, 2)], ("H >= 3",)),
        ([sympy.Ne(sympy.ceiling(H / 7), 1), H < 64, sympy.Ne(H, 63)], ("H >= 8", "H <= 62")),
        ([sympy.Ne(f((H + 2) / 3), 1)], ("H >= 4",)),
        ([1 - f(H / 4) < 0, sympy.Ne(3 * f(H / 5), 6)], ("H >= 8", "floor(H/5) != 2")),
        ([sympy.Ne(H, 40)], ("H != 40",)),
        ([sympy.Ne(H, f(H / 2) + 1), H <= 9], ("H <= 9", "H >= 3")),
        ([H - f(H / 2) - 1 > 0], ("H >= 3",)),
        ([H > 2, H < 40], ("H > 2", "H < 40")),
    ],
)
def test_what_is_left_out_at_an_end_of_a_range_moves_the_end(conditions, said):
    assert SizeConditions(conditions).conditions == said
    ranges = as_ranges(conditions)
    for height in range(2, 200):
        shape = {"H": height, "W": 3, "d": 8}
        spelled = all(evaluate(x, shape) for x in ranges)
        assert spelled is all(evaluate(x, shape) for x in conditions)


def windows(x):
    """Attention within windows of 4 × 4, as vision transformers cut them."""
    batch, height, width, channels = x.shape
    cut = x.view(batch, height // 4, 4, width // 4, 4, channels).transpose(2, 3)
    rows = cut.reshape(-1, 16, channels)
    return (rows @ rows.mT).softmax(-1) @ rows


def test_a_size_with_a_larger_bound_is_not_said_to_be_at_least_two_as_well():
    conditions = SizeConditions([H >= 4, d > 2 * h])
    assert conditions.conditions == ("H >= 4", "d > 2*h")
    assert conditions.least_of(["H", "d", "h"]) == ["d, h >= 2"]
    assert conditions.least_of(["H"]) == []


def test_images_in_windows_are_symbolic():
    _, derivation = shown(windows, inputs=["x: B, H, W, d"])
    forms = derivation.phases["forward"]
    assert forms.method == "symbolic"
    assert {"4 divides H", "4 divides W"} <= set(forms.domain)
    assert derivation.at("matmul_flops", B=2, H=12, W=20, d=3) == 2 * 2 * (2 * 240 * 16 * 3)


def test_a_product_that_is_not_none_is_a_condition_of_each_factor():
    def keys_of_patches(x):
        keys = F.avg_pool2d(x, 4).flatten(2)
        return F.scaled_dot_product_attention(x.flatten(2).mT, keys.mT, keys.mT)

    target, derivation = shown(keys_of_patches, inputs=("x: B, C, H, W",))
    shapes = [{"B": 2, "C": 20, "H": h, "W": w} for h, w in ((8, 12), (9, 17), (13, 30))]
    assert check(target, derivation, shapes) == len(shapes)
    assert {"H >= 8", "W >= 8"} <= set(derivation.phases["forward"].domain)


def test_whole_numbers_are_not_rounded():
    def neighbours(x):
        return torch.nn.functional.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1).softmax(-1)

    _, derivation = shown(neighbours, phase="train")
    assert not derivation.expression("peak_bytes", "train").has(f)


@pytest.mark.parametrize("size", [4, 8])
def test_a_condition_on_what_has_no_value_there_does_not_hold(size):
    n = symbol("N")
    assert not evaluate(sympy.log(n - 8, 2) >= sympy.log(n, 2) - 100, {"N": size})
    assert evaluate(sympy.log(n - 8, 2) >= sympy.log(n, 2) - 100, {"N": 9 + size})


def test_a_maximum_of_roundings_of_floats_has_its_value():
    d, n = sympy.symbols("d n", positive=True)
    rounded = sympy.floor(DoubleProduct(d, float_function("DoubleLog", "log")(d)))
    largest = sympy.Max(2 * n * rounded + n, 3 * n)
    sizes = {d: sympy.Integer(403960), n: sympy.Integer(2)}
    assert largest.xreplace(sizes) == 4 * math.floor(403960 * math.log(403960)) + 2
    assert not is_zero(largest)


@pytest.mark.parametrize(
    ("code", "inside", "outside"),
    [
        (lambda x: torch.stack(x.chunk(2, -1)), {"B": 2, "N": 5, "d": 2}, {"B": 2, "N": 5, "d": 3}),
        (lambda x: x.unfold(1, 3, 1).sum(-1), {"B": 3, "N": 3, "d": 4}, {"B": 3, "N": 2, "d": 4}),
    ],
)
def test_a_single_one_is_no_case_of_its_own_where_all_is_done_as_for_others(code, inside, outside):
    target, derivation = shown(code, phase="train")
    assert check(target, derivation, [inside, outside], "train") == 1
    assert not derivation.phases["train"].holds(outside)


# -- shapes outside of a formula's domain are run, not guessed ---------------------------------
@pytest.fixture(scope="module")
def free():
    """With no size given."""
    return attnprof.derive(MyAttention, phases=["forward", "backward"])


@pytest.mark.parametrize("sizes", [(1, 9, 3, 4), (2, 9, 1, 4), (3, 1, 2, 1)])
def test_a_size_of_one_is_a_case_of_its_own(free, sizes):
    at = dict(zip("BNhd", sizes, strict=True))
    for phase in ("forward", "backward"):
        counts = counted_at(target_of(MyAttention), at, phase, real=True)
        assert {name: free.at(name, phase, **at) for name in counts} == counts


def test_formulas_asked_for_at_sizes_of_one_are_those_of_that_case(free):
    at = {"B": 1, "N": 1, "h": 1, "d": 4}
    asked = attnprof.derive(MyAttention, phases=["forward", "backward"], at=at)
    for phase, name in product(("forward", "backward"), ("flops", "bytes_moved", "peak_bytes")):
        assert free.at(name, phase, **at) == asked.at(name, phase, **at)


def test_where_the_code_does_not_run_there_is_no_number():
    def rows(x):
        return x.view(x.shape[0], 4, -1) * 2.0

    _, derivation = shown(rows, inputs={"x": "B, 4*N"})
    assert derivation.at("flops", "forward", B=2, N=3) == 24
    with pytest.raises(RequestError):
        derivation.at("flops", "forward", B=2)


def test_another_branch_is_run_and_curves_are_values_of_formulas_where_they_hold():
    _, branching = shown(lambda x: x @ x.mT @ x if x.shape[1] > 64 else x * 2.0)
    assert branching.at("flops", "forward", B=2, N=10, d=3) == 2 * 10 * 3
    assert branching.at("flops", "forward", B=2, N=100, d=3) == 4 * 2 * 100 * 100 * 3
    flops = curves_of(branching)[0]
    assert flops["seq_len"] == [2**n for n in range(7, 19)]
    assert flops["value"] == [4 * 2 * n**2 * 64 for n in flops["seq_len"]]
    assert flops["sizes"] == {"B": 2, "d": 64}


def test_curves_of_a_shorter_last_block_are_drawn_just_below_whole_ones():
    blockwise = attnprof.derive("linear", scope="core", phases=["forward"])
    curves = curves_of(blockwise)
    assert [one["quantity"] for one in curves] == ["flops", "bytes_moved", "peak_bytes"]
    assert curves[0]["seq_len"] == [2**n - 1 for n in range(9, 19)]


LOOKUPS = {
    "embedded": lambda table, n: F.embedding(torch.arange(n), table),
    "expanded": lambda table, n: F.embedding(torch.arange(n)[None].expand(2, n), table)[0],
    "moved": lambda table, n: F.embedding(torch.arange(n) + 2, table),
    "cut": lambda table, n: F.embedding(torch.arange(2 * n)[:n], table),
    "backwards": lambda table, n: table.index_select(0, torch.arange(n).flip(0)),
    "negative": lambda table, n: table[torch.arange(n) - n],
    "relative": lambda table, n: table[torch.arange(n)[:, None] - torch.arange(n) + 500].sum(0),
    "gathered": lambda table, n: table.gather(0, torch.arange(n)[:, None].expand(n, 4)),
    "folded": lambda table, n: F.embedding(torch.arange(n) % 1000, table),
}


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_rows_are_looked_up_as_far_as_the_table_reaches(lookup):
    """Fake tensors look nothing up: what real ones refuse must not be in the domain."""
    table = torch.randn(1000, 4)

    def looks_up(x):
        return x * lookup(table, x.shape[0])

    _, derivation = shown(looks_up, inputs={"x": "N, 4"})
    for n in (2, 500, 501, 998, 999, 1000, 1001, 1500):
        try:
            looks_up(torch.randn(n, 4))
        except (IndexError, RuntimeError):  # the latter by gather
            assert not derivation.phases["forward"].holds({"N": n}), n
            with pytest.raises(RequestError, match="out of range"):
                derivation.at("flops", N=n)
        else:
            assert derivation.phases["forward"].holds({"N": n}), n


@pytest.mark.parametrize("longest", [13, 600])
def test_code_with_a_longest_sequence_is_derived_up_to_there(longest):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(longest, longest).tril())

        def forward(self, x):
            n = x.shape[1]
            return (x @ x.mT).masked_fill(self.mask[:n, :n] == 0, -1e9).softmax(-1) @ x

    _, derivation = shown(Masked)
    inside = {"B": 2, "N": longest - 1, "d": 4}
    pairs = 2 * (longest - 1) ** 2
    assert derivation.phases["forward"].holds(inside)
    assert derivation.at("matmul_flops", **inside) == 2 * 2 * 4 * pairs
    assert not derivation.phases["forward"].holds({**inside, "N": longest + 1})
    with pytest.raises(RequestError):
        derivation.at("flops", **{**inside, "N": longest + 1})
