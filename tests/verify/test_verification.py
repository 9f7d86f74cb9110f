"""Printed formulas against ours: verdicts, differences, hints."""

from functools import cache

import mpmath
import pytest
import sympy

import attnprof
from attnprof.algebra.expressions import symbol
from attnprof.closed_form.quantities import quantity_of
from attnprof.errors import CannotRunError, RequestError
from attnprof.verify import comparison, own_formulas, verification
from attnprof.verify.own_formulas import Formulas, Source
from attnprof.verify.printed import Printed, read_formula
from attnprof.verify.verification import verified
from attnprof.workload import Workload

DIRECT = Source("taylor-direct", scope="core")
BITS = """
from torch import nn

class Bits(nn.Module):
    def forward(self, x):
        for _ in range(bin(int(x.shape[1])).count("1")):  # ones of the length in base 2
            x = x * 2.0
        return x
"""
MODULE = """
import torch
from torch import nn

class Pooled(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.up(self.down(x))
"""


@cache
def ours(quantity, scope="core", name="taylor-direct", **params):
    B, N, h, d = (sympy.Symbol(letter, positive=True) for letter in "BNhd")
    table = attnprof.cost(name, Workload(N, h, d, batch_size=B), scope, **params)
    return sympy.expand(getattr(table, quantity))


def one(formula, source=DIRECT, **asked):
    return verified([Printed(formula, source, **asked)])[0]


def test_our_own_formula_is_a_match():
    answer = one(str(ours("flops")))
    assert (answer.verdict, answer.difference, answer.leading_agrees) == ("match", None, True)
    assert answer.values[0]["printed"] == answer.values[0]["ours"]


def test_any_term_more_is_an_erratum_with_that_term():
    extras = ["1", "N", "B*N*h", "B*N**2*h*d", "-B*N", "d/N"]
    rows = [Printed(f"{ours('flops')} + ({extra})", DIRECT) for extra in extras]
    for extra, answer in zip(extras, verified(rows), strict=True):
        assert answer.verdict == "erratum"
        assert read_formula(answer.difference) + read_formula(extra) == 0
        word = "omits" if extra.startswith("-") else "overcounts by"
        assert answer.why.startswith(f"the printed formula {word} ")


def test_a_difference_is_ordered_by_growth():
    printed = ours("flops") - read_formula("7*B*N*h + 5*B*N**2*h*d**2 + 11*B*N*h*d")
    answer = one(str(printed))
    assert answer.difference == "5*B*N**2*d**2*h + 11*B*N*d*h + 7*B*N*h"


def test_leading_terms_can_agree_where_the_rest_does_not():
    exact, leading = (one("4*N**2*d*h", up_to=level) for level in ("exact", "leading"))
    assert (exact.verdict, exact.leading_agrees) == ("erratum", True)
    assert leading.verdict == "match"
    assert one("2*N**2*d*h", up_to="leading").verdict == "erratum"


#: An order, the sizes that grow, the verdict and a word of it; below sizes are rounded.
ORDERS = [
    ("taylor-direct", "O(N**2)", (), "match", ""),
    ("taylor-direct", "O(N**3)", (), "match", "not tight"),
    ("taylor-direct", "O(N)", (), "erratum", "faster"),
    ("taylor-direct", "O(N**2*d)", ("N", "d"), "match", ""),
    ("taylor-direct", "O(N*d)", (), "erratum", "faster"),
    ("sparse", "O(N*sqrt(N))", ("N",), "match", "from values"),
    ("sparse", "O(N*log(N))", ("N",), "erratum", "faster"),
    ("sparse", "O(N**2)", ("N",), "match", "not tight"),
    ("reformer", "O(N*log(N))", ("N",), "erratum", "faster"),
    ("linformer", "O(N)", ("N",), "match", ""),
    ("linformer", "O(sqrt(N))", ("N",), "erratum", "faster"),
    ("linformer", "O(0*N)", ("N",), "erratum", "faster"),
    ("sparse", "O(0*N)", ("N",), "erratum", "faster"),
]


def test_an_order_of_growth_is_a_bound_where_sizes_are_rounded_too():
    answers = verified([
        Printed(text, Source(name, scope="core"), growing=growing)
        for name, text, growing, *_ in ORDERS
    ])  # fmt: skip
    for answer, (*row, verdict, word) in zip(answers, ORDERS, strict=True):
        assert (row, answer.verdict, answer.up_to) == (row, verdict, "order")
        assert (row, word in answer.why, answer.values) == (row, True, [])


def test_one_sequence_where_nothing_is_said_of_the_batch():
    assert one(str(ours("flops").subs("B", 1)).replace("B*", "")).verdict == "match"


def test_names_mean_what_where_says():
    answer = one("4*n*n*w", where={"n": "N", "w": "d", "h": "1"}, up_to="leading")
    assert answer.verdict == "match"


def test_sizes_that_grow_may_have_the_names_of_the_paper():
    rows = {"up_to": "order", "growing": ("n",), "where": {"n": "N"}}
    assert one("n**2", **rows).verdict == "match"
    assert one("n", **rows).verdict == "erratum"


def test_hints_say_what_the_formula_is_instead():
    products = str(ours("matmul_flops")).replace("B*", "")
    assert "formula of matmul FLOPs" in one(products).why
    half = f"({str(ours('flops')).replace('B*', '')})/2"
    assert "2 times the printed formula" in one(half).why
    single = str(ours("flops").subs("h", 1)).replace("B*", "")
    assert sympy.Symbol("h", positive=True) in ours("flops").free_symbols
    assert one(single, where={"h": "1"}).verdict == "match"


def test_the_definition_has_its_own_formulas():
    source = Source("standard", convention="operations", causal=True, params=(("bias", "false"),))
    answer = one("l**2*D + 4*l*D**2 + l*D", source, quantity="multiplications",
                 where={"l": "N", "D": "h*d"})  # fmt: skip
    assert answer.verdict == "match"


def test_code_is_derived_and_its_own_sizes_are_names(tmp_path):
    path = tmp_path / "pooled.py"
    path.write_text(MODULE)
    source = Source(f"{path}:Pooled", args=("width=D", "rank=k"), inputs=("x: B, N, D",))
    rows = [
        Printed("2*N*D*k", source, quantity="macs"),
        Printed("2*D*k", source, quantity="parameters"),
        Printed("4*N*D*k", source, phase="backward"),
        Printed("O(N)", source),
    ]
    macs, parameters, backward, order = verified(rows)
    assert [macs.verdict, parameters.verdict, order.verdict] == ["match"] * 3
    assert (macs.kind, macs.domain[0]) == ("derived", "B = 1")
    assert len(macs.verified_at) >= 3
    assert (backward.verdict, backward.difference) == ("erratum", "4*D*N*k")


def test_code_without_a_formula_is_compared_where_it_was_run(tmp_path):
    path = tmp_path / "bits.py"
    path.write_text(BITS)
    source, at = Source(f"{path}:Bits", inputs=("x: B, N, d",)), {"N": 11, "d": 4}
    right, wrong, order = verified([
        Printed(text, source, at=at) for text in ("3*N*d", "2*N*d", "O(N)")
    ])  # fmt: skip
    for answer, verdict in ((right, "match"), (wrong, "erratum")):
        assert (answer.verdict, answer.ours) == (verdict, "33*d")
        assert "N = 11" in answer.domain
        (shown,) = answer.values
        assert shown["sizes"] == {"N": 11, "d": 4, "B": 1}
        assert shown["ours"] == 132
    assert "N=11 alone" in order.skipped
    with pytest.raises(CannotRunError, match="--at"):
        one("3*N*d", source)


@pytest.mark.parametrize(
    ("formula", "at", "verdict"),
    [
        ("3*N*d", {"N": 11, "d": 4, "h": 1}, "match"),
        ("3*N*d + 1", {"N": 11, "d": 4, "h": 1}, "erratum"),
        ("3*N*d", {"N": 11}, None),
        ("O(N)", {"N": 11, "d": 4, "h": 1}, None),
    ],
)
def test_without_a_formula_the_numbers_of_the_run_are_compared(monkeypatch, formula, at, verdict):
    ours = Formulas(
        ["flops"], lambda _: None, lambda *_: None, ("B", "N", "h", "d"), method="counted",
        numbers={"flops": 132},
    )  # fmt: skip
    monkeypatch.setattr(verification, "own_formulas", lambda *_: {"forward": ours})
    answer = one(formula, at=at)
    assert (answer.verdict, answer.ours) == (verdict, None)
    assert ("this shape alone" in answer.why) is (verdict is not None)
    assert bool(answer.skipped) is (verdict is None)


def test_a_maximum_is_compared_where_each_side_wins():
    source = Source("standard", params=(("bias", "false"),))
    peak = one("0", source, quantity="peak_bytes").ours
    sides = read_formula(peak)
    assert one(peak, source, quantity="peak_bytes").verdict == "match"
    assert isinstance(sides, sympy.Max)
    for side in sides.args:
        answer = one(str(side), source, quantity="peak_bytes")
        assert answer.verdict == "erratum"
        assert "the printed formula gives" in answer.why


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (Printed("x*N", DIRECT), "called x"),
        (Printed("N", DIRECT, where={"z": "N"}), "no formula here has z"),
        (Printed("n", DIRECT, where={"n": "q"}), "called q"),
        (Printed("N", DIRECT, quantity="speed"), "quantity 'speed'"),
        (Printed("N", Source("nothing")), "nothing"),
        (
            Printed("N", Source("taylor-direct", kind="derived", convention="operations")),
            "definition",
        ),
        (Printed("N", Source("a.py:A", kind="formula")), "derived"),
        (Printed("N", Source("standard", args=("a=1",))), "--arg"),
        (Printed("N", DIRECT, at={"q": 3}), "--at q"),
        (Printed("N", DIRECT, growing=("q",)), "--in q"),
    ],
)
def test_what_cannot_be_asked_is_a_request_error(row, word):
    with pytest.raises(RequestError, match=word):
        verified([row])


def test_only_the_formula_that_is_asked_for_is_made_in_symbols(monkeypatch):
    calls = []

    def counted(mechanism, sizes, scope, quantity):
        calls.append((quantity, isinstance(sizes.seq_len, int)))
        return quantity_of(mechanism, sizes, scope, quantity)

    monkeypatch.setattr(own_formulas, "quantity_of", counted)
    answer = one("N**7", Source("reformer"))
    assert answer.verdict == "erratum"
    assert [quantity for quantity, in_numbers in calls if not in_numbers] == ["flops"]


@pytest.mark.parametrize("text", ["O(sqrt(N)*log(N))", "O(N**(3/2))", "O(max(N, d)*pi)"])
def test_what_values_tell_of_growth_does_not_depend_on_how_they_are_evaluated(text):
    """Parts evaluated once each give what sympy's own evaluation gives, to all its digits."""
    expression = read_formula(text[2:-1].replace("pi", "355/113"))
    evaluated = comparison._evaluator(expression, ["N", "d"])
    with mpmath.workprec(400):
        sizes = {sympy.Symbol("N", positive=True): 2**97 + 3, sympy.Symbol("d", positive=True): 7}
        exact = mpmath.mpf(str(expression.subs(sizes).evalf(110)))
        assert mpmath.almosteq(evaluated(mpmath.mpf(2**97 + 3), mpmath.mpf(7)), exact, 1e-100)


@pytest.mark.parametrize(("more", "agrees"), [(1, True), (symbol("N"), False)])
def test_without_leading_terms_values_at_long_lengths_say_whether_a_ratio_goes_to_one(more, agrees):
    padded = 2 ** sympy.ceiling(sympy.log(symbol("N"), 2))  # the next power of two
    answer = comparison.compared(padded + more, padded, "leading", ("N",), [{"N": 257}])
    assert answer.agrees is agrees
    assert "2**2048" in answer.why
