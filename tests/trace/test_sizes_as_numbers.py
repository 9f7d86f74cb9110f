"""A size that becomes a Python number: kept, a condition, or the end of the symbolic way."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import attnprof
from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError
from attnprof.trace.run.symbols import conversions_kept
from attnprof.trace.solve.domain import telling_sizes
from tests.trace.checks import shown, torchs_products
from tests.trace.sizes_as_numbers import CASES, INPUTS, SHAPES, asked_of, compared, counted

#: Cases whose formula keeps a function of the size.
KEPT = {
    "power_of_two_by_imported_log2": "2**(2*ceiling(log(N, 2)))",
    "power_of_two_by_bit_length": "2**(2*floor(log(N - 1, 2)))",
    "steps_of_a_root": "ceiling(sqrt(N))",
    "Rank": "ceiling(d/16)",
    "whole_by_int": "4*B*N**2*d",
}
#: Cases that are right where their formulas are said to hold, and are run elsewhere.
STAIRCASES = ("landmarks_of_the_power", "looked_up", "power_of_two_by_int")
#: The line of a case at which a size becomes a number, which is told.
LINES = {"float_of_a_length": "float(x.shape[1])", "digits": "len(str(x.size(1)))"}
#: Functions of a length that stay in a formula, and as what.
SHARES = {
    "floor(N/3)": lambda n: n // 3 + 1,
    "floor(N/4)": lambda n: int(n * 0.25) + 1,
    "ceiling(0.07*N)": lambda n: math.ceil(n * 0.07),
    "round(0.3*N)": lambda n: round(n * 0.3),
    "floor(0.29*N)": lambda n: math.floor(n * 0.29) + 1,
    "round(N/2)": lambda n: round(n * 0.5) + 1,
    "N/0.7": lambda n: math.ceil(n / 0.7),
}
ROOTS = {
    "floor(sqrt(N))": lambda n: math.isqrt(n) + int(math.sqrt(n)),
    "ceiling(sqrt(N))": lambda n: math.ceil(math.sqrt(n)) + math.ceil(n**0.5),
    "N**0.333": lambda n: math.floor(n ** (1 / 3)),
}
LOGARITHMS = {
    "2**floor(log(N, 2))": lambda n: 2 ** math.floor(math.log2(n)),
    "ceiling(log(N))": lambda n: 5 * math.ceil(math.log(n)),
    "ceiling(log(N)/0.693": lambda n: math.ceil(math.log(n, 2)),  # noqa: FURB163 - it is not the same
    "ceiling(log(N)/2.302": lambda n: math.ceil(math.log(n) / math.log(10)),
    "floor(log(N)/2.302": lambda n: math.floor(math.log(n, 10)) + 1,  # noqa: FURB163
}


def check_kept(derivation, text):
    """A formula keeps a function of the size, and is said to hold as far as floats were tried."""
    forms, expression = derivation.phases["forward"], str(derivation.expression("matmul_flops"))
    assert forms.method == "symbolic"
    assert text in expression
    if any(word in expression for word in ("log", "sqrt", "0.")):
        assert "N <= 65536" in forms.domain
        assert not forms.holds({"B": 2, "N": 65537, "d": 8})


def check_resized(derivation, length):
    """Lengths at which a rounded float gives another number are outside."""
    others = [n for n in range(2, 65537) if math.floor(n * (length / n)) != length]
    assert len(others) > 3000
    forms = derivation.phases["forward"]
    assert not [n for n in others if forms.holds({"B": 2, "N": n, "d": 8})]


@pytest.mark.parametrize("name", CASES)
def test_formulas_are_what_real_tensors_count_all_over_their_domain(name):
    derivation = attnprof.derive(CASES[name], None, **asked_of(CASES[name]))
    shapes, wrong = compared(CASES[name], derivation)
    assert not wrong
    assert len(shapes) == SHAPES
    if name in KEPT:
        check_kept(derivation, KEPT[name])
    if name == "resized_to_a_length":
        check_resized(derivation, 64)
    if name in STAIRCASES:
        for length in (2, 63, 64, 128, 513, 784, 1023, 1025):
            shape = {"B": 2, "N": length, "d": 8}
            products = counted(CASES[name], shape)["matmul_flops"]
            assert derivation.at("matmul_flops", **shape) == products, length
    if name in LINES:
        source = Path(__file__).with_name("sizes_as_numbers.py").read_text(encoding="utf-8")
        number = next(n for n, text in enumerate(source.splitlines(), 1) if LINES[name] in text)
        notes = " ".join(derivation.phases["forward"].notes)
        assert f"becomes a number at sizes_as_numbers.py:{number}" in notes


@pytest.mark.parametrize("functions", [SHARES, ROOTS, LOGARITHMS])
def test_rounded_floats_are_those_of_python(functions):
    """``N*0.07`` of 100 is a little more than 7, ``log(N)/log(10)`` of 1000 less than 3."""

    def rows(x):
        n, twice = x.shape[1], torch.cat([x, x], 1)
        return [x @ twice[:, : torch.sym_min(keep(n), 2 * n)].mT for keep in functions.values()]

    derivation = attnprof.derive(rows, inputs=INPUTS, phases=["forward"])
    for text in functions:
        check_kept(derivation, text)
    expression = derivation.expression("matmul_flops")
    borders = (round(base**power) for base in (2, 3, 10) for power in range(1, 17))
    near = {border + more for border in borders for more in (-1, 0, 1)}
    for length in {*range(2, 260), *range(300, 1100, 50), *near} & {*range(2, 65_537)}:
        kept = [min(keep(length), 2 * length) for keep in functions.values()]
        counted_ = 2 * 3 * length * 5 * sum(kept)
        assert evaluate(expression, {"B": 3, "N": length, "d": 5}) == counted_, (length, kept)


class Factors(nn.Module):
    """Floats of sizes that only scale."""

    def __init__(self, d):
        super().__init__()
        self.scale = float(d) ** -0.5
        self.root = torch.tensor(d**0.5)
        self.name = f"width {d}"

    def forward(self, x):
        return (x @ x.mT * self.scale / self.root * float(x.shape[1])).softmax(-1) @ x


def test_floats_that_only_scale_keep_a_run_symbolic():
    forms = attnprof.derive(Factors, args={"d": "d"}, inputs=INPUTS, phases=["forward"])
    assert forms.phases["forward"].method == "symbolic"
    assert str(forms.expression("matmul_flops")) == "4*B*N**2*d"


def test_functions_of_math_are_themselves_again_after_a_run():
    before = math.log2, CASES["power_of_two_by_imported_log2"].__globals__["log2"]
    with conversions_kept():
        assert math.log2 is not before[0]
        assert math.log2(8) == 3.0
    assert (math.log2, CASES["power_of_two_by_imported_log2"].__globals__["log2"]) == before


def test_lengths_at_which_a_rounded_float_is_another_number_are_outside():
    def resized(x):
        return x @ nn.functional.interpolate(x.mT, scale_factor=250 / x.shape[1])

    derivation = attnprof.derive(resized, None, inputs=INPUTS, phases=["forward"])
    check_resized(derivation, 250)


def test_sizes_to_try_are_ends_powers_of_two_and_others():
    sizes = telling_sizes(range(4, 3073), 20)
    assert len(sizes) == 20
    assert {4, 3072, 8, 64, 128, 1024, 2048} <= set(sizes)
    assert telling_sizes(range(640, 897, 64), 20) == [640, 704, 768, 832, 896]


class OfImages(nn.Module):
    """Tokens of a square image, mixed with the means of its rows by a map and attention."""

    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(2 * dim, dim)

    def forward(self, x):
        batch, tokens, width = x.shape
        side = int(tokens**0.5)
        image = x.view(batch, side, side, width)
        means = image.mean(1, keepdim=True) * math.sqrt(tokens)
        mixed = torch.cat([image - means, image], -1).view(batch, tokens, 2 * width)
        return _attended(self.map(mixed), math.isqrt(tokens))


def _attended(x, side):
    rows = x.reshape(x.shape[0] * side, side, x.shape[-1])
    return ((rows @ rows.mT).softmax(-1) @ rows).reshape(x.shape)


def test_a_length_that_has_to_be_a_square_is_typed_as_one():
    _, derivation = shown(OfImages, {"dim": "d"}, {"x": "B, S**2, d"}, "train")
    assert "B*S**3*d" in str(derivation.expression("matmul_flops", "train"))
    for b, s, d in ((2, 7, 6), (3, 20, 5)):
        assert derivation.phases["train"].holds({"B": b, "S": s, "d": d})
        x = torch.randn(b, s**2, d, requires_grad=True)
        flops = derivation.at("matmul_flops", "train", B=b, S=s, d=d)
        assert flops == torchs_products(OfImages(d), x, training=True)
        assert isinstance(flops, int)


def test_of_a_length_that_has_to_be_a_square_it_is_said_how_to_type_it():
    with pytest.raises(AttnprofError, match=r"type S\*\*2 for it in --input"):
        attnprof.derive(OfImages, inputs={"x": "B, N, d"}, args={"dim": "d"}, phases=["forward"])
