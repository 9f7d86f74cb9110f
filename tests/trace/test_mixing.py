"""Sizes that code makes numbers of: the others stay symbols, a few numbers stand for these."""

from functools import cache
from types import SimpleNamespace

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy import functions as torch_sizes

from attnprof.algebra.expressions import symbol
from attnprof.trace.events import Call, Trace
from attnprof.trace.report.derivation import Formula, PhaseForms
from attnprof.trace.report.records import answer, disjoint_lengths, ends_of
from attnprof.trace.run.remainders import Rests, in_whole_blocks
from attnprof.trace.solve import mixed
from attnprof.trace.solve.accounts import families
from attnprof.trace.solve.domain import SizeConditions, small_sizes
from attnprof.trace.solve.mixed import trimmed
from attnprof.trace.solve.smaller_sizes import extend_downwards
from attnprof.trace.solve.symbolic import Blocks, SymbolicRun
from reports.derive.cases.loops import HEADS, Strict, blockwise, chunked, recurrence
from tests.oracles.memory import allocator_peak
from tests.trace.checks import check, mixed_formulas, shown

B, N, h, d, C, L = map(symbol, ("B", "N", "h", "d", "C", "L"))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Ranges end where runs become a quarter as long as they may."""
    monkeypatch.setattr(mixed, "LONG", mixed.LONG // 4)


@pytest.mark.parametrize("asked", [{}, {"B": 2, "N": 40, "h": 3, "d": 8}])
def test_a_loop_over_tokens_is_linear_in_them(asked):
    target, derivation = shown(recurrence, inputs=HEADS, at=asked)
    forms = derivation.phases["forward"]
    assert forms.method == "mixed"
    # multiplications and additions are of the state, and of the product with it
    for quantity in ("matmul_flops", "multiplications", "additions"):
        assert sympy.expand(derivation.expression(quantity) - 2 * B * N * h * d**2) == 0
    assert derivation.expression("peak_bytes").free_symbols == {B, N, h, d}
    shapes = [{"B": 3, "N": n, "h": 4, "d": 9} for n in ((40,) if asked else (4, 7, 23, 32))]
    assert check(target, derivation, shapes) == len(shapes)


def test_the_chunk_of_a_recurrence_is_a_symbol():
    target, derivation = shown(chunked, ["chunk=C"], HEADS)
    assert "C divides N" in derivation.phases["forward"].domain
    products = 4 * B * N * h * d * (C + d)
    assert sympy.expand(derivation.expression("matmul_flops") - products) == 0
    shapes = [{"B": 2, "N": n * c, "h": 3, "d": 5, "C": c} for n in (2, 3, 11) for c in (2, 8, 13)]
    assert check(target, derivation, shapes) >= 8


def test_a_length_shorter_than_formulas_begin_at_has_those_of_its_class():
    target, derivation = shown(blockwise, at={"N": 9})
    assert derivation.expression("matmul_flops").has(N)
    shapes = [{"B": 2, "N": n, "d": 8} for n in (9, 62)]
    assert check(target, derivation, shapes) == len(shapes)


def test_blocks_and_a_rest_are_one_formula():
    target, derivation = shown(blockwise, phase="train")
    exponentials = derivation.expression("exponentials", "train")
    assert exponentials.has(sympy.ceiling)
    assert exponentials.subs({B: 1, N: 130}) == 2 * 64**2 + 2**2
    shapes = [{"B": 2, "N": 128 + rest, "d": 8} for rest in (0, 1, 2, 3, 31, 32, 33, 62, 63)]
    assert check(target, derivation, [*shapes, {"B": 3, "N": 1000, "d": 5}], "train") >= 8


def test_settings_that_insist_on_integers():
    target, derivation = shown(Strict, ["d_model=h*d", "num_heads=h"], ["x: B, N, h*d"])
    assert derivation.phases["forward"].method == "mixed"
    products = 4 * B * N**2 * h * d + 6 * B * N * (h * d) ** 2
    assert sympy.expand(derivation.expression("matmul_flops") - products) == 0
    shapes = [{"B": 2, "N": 301, "h": n, "d": w} for n in (2, 5, 16) for w in (8, 24, 40)]
    assert check(target, derivation, shapes) == 9


def encoder(layers, heads, width):
    """Torch's own, of so many layers."""
    layer = nn.TransformerEncoderLayer(heads * width, heads, 4 * heads * width, 0.0)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def test_layers_are_a_symbol():
    args = ["layers=L", "heads=4", "width=d"]
    target, derivation = shown(encoder, args, ["src: N, B, 4*d"])
    assert derivation.phases["forward"].method == "mixed"
    products = L * (24 * B * N * (4 * d) ** 2 + 4 * B * N**2 * 4 * d)
    assert sympy.expand(derivation.expression("matmul_flops") - products) == 0
    shape = {"B": 2, "N": 37, "d": 8, "L": 12}
    assert check(target, derivation, [shape]) == 1


class Kinds(nn.Module):
    """Every third layer mixes tokens."""

    def __init__(self, layers):
        super().__init__()
        self.mixes = [i % 3 == 1 for i in range(layers)]

    def forward(self, x):
        for mixes in self.mixes:
            x = x @ x.mT @ x if mixes else x.sin()
        return x


def test_layers_of_several_kinds_are_counted_by_kind():
    target, derivation = shown(Kinds, ["layers=L"], phase="train")
    expected = 3 * 4 * B * N**2 * d * sympy.floor((L + 1) / 3)
    assert sympy.expand(derivation.expression("matmul_flops", "train") - expected) == 0
    sizes = [{"B": 2, "N": 5, "d": 90}, {"B": 3, "N": 200, "d": 4}]
    shapes = [{**shape, "L": layers} for layers in (7, 8, 9, 23) for shape in sizes]
    assert check(target, derivation, shapes, "train") == len(shapes)


class Rarely(nn.Module):
    """Every sixth layer mixes tokens, by scores that the first of them makes."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        scores = None
        for i in range(self.layers):
            if i % 6 == 5:
                scores = x @ x.mT if scores is None else scores
            x = scores @ x if i % 6 == 5 else x.sin()
        return x


def test_a_kind_of_layer_that_comes_rarely():
    target, derivation = shown(Rarely, ["layers=L"])
    expected = 2 * B * N**2 * d * (1 + sympy.floor(L / 6))
    assert sympy.expand(derivation.expression("matmul_flops") - expected) == 0
    shapes = [{"B": 2, "N": 5, "d": 90, "L": layers} for layers in (6, 11, 12, 29, 30)]
    assert check(target, derivation, shapes) == len(shapes)


class HeadByHead(nn.Module):
    """A map of its own for each head."""

    def __init__(self, num_heads, head_dim):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(head_dim, head_dim) for _ in range(int(num_heads)))

    def forward(self, x):
        return sum(each(x) for each in self.maps)


def test_a_size_that_code_makes_a_number_of_keeps_its_range_if_one_is_asked_for():
    target, derivation = shown(HeadByHead, ["num_heads=h", "head_dim=d"], at={"h": 12})
    assert sympy.expand(derivation.expression("matmul_flops") - 2 * B * N * h * d**2) == 0
    shapes = [{"B": 2, "N": 5, "h": heads, "d": 8} for heads in (2, 12, 30)]
    assert check(target, derivation, shapes) == len(shapes)
    parts, maps = derivation.submodules(), 2 * B * N * h * d**2 + B * N * h * d
    assert [part.name for part in parts] == ["", "maps", "maps.*"]  # told together
    assert all(sympy.expand(part.flops - maps) == 0 for part in parts[1:])
    assert all(sympy.expand(part.parameters - h * (d**2 + d)) == 0 for part in parts)


class HeadsInAWindow(nn.Module):
    """Heads one after the other, over windows of 16 tokens, or of all 256."""

    def __init__(self, num_heads):
        super().__init__()
        self.heads = num_heads

    def forward(self, x):
        rows = x if x.shape[1] == 256 else x.view(x.shape[0], -1, 16, x.shape[2])
        for _ in range(self.heads):
            rows = rows @ rows.mT @ rows
        return rows


def test_an_asked_length_that_is_a_case_of_its_own_leaves_the_heads_their_range():
    _, derivation = shown(HeadsInAWindow, ["num_heads=h"], at={"N": 256})
    assert derivation.phases["forward"].domain[0] == "N = 256"
    assert sympy.expand(derivation.expression("matmul_flops") - 4 * B * 256**2 * h * d) == 0


def padded(q, k, v, chunk=8):
    """Causal linear attention in chunks, at any length: zeros fill the last one."""
    length, pad = q.shape[2], -q.shape[2] % chunk
    if pad:
        q, k, v = (nn.functional.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q, k, v))
    states = k.mT @ v
    out = q @ (states.cumsum(2) - states) + (q @ k.mT).tril() @ v
    return out.flatten(2, 3)[:, :, :length]


def test_padding_to_whole_chunks_leaves_no_length_out():
    target, derivation = shown(padded, inputs=["q: B, h, N, d", "k: B, h, N, d", "v: B, h, N, d"])
    chunks = sympy.ceiling(N / 8)
    products = 32 * B * h * chunks * d * (8 + d)
    assert sympy.expand(derivation.expression("matmul_flops") - products) == 0
    shapes = [{"B": 3, "N": n, "h": 2, "d": 5} for n in (9, 10, 15, 16, 17, 63, 64, 100)]
    assert check(target, derivation, shapes) == len(shapes)


def of_any_width(x, chunk):
    """A state for each chunk, then each row of all chunks: what a rest leaves changes the width."""
    x = x.view(x.shape[0], x.shape[1] // chunk, chunk, -1)
    states = [torch.zeros_like(x[:, 0])]
    for part in x.unbind(1):
        states.append(states[-1] + part)
    sums, rows = torch.stack(states[1:], 1), torch.zeros_like(x)
    for row in range(chunk):
        rows[..., row, :] = sums[..., row, :] * x[..., row, :]
    return rows.flatten(1, 2)


def test_a_view_that_runs_with_a_rest_at_some_widths_is_one_of_whole_blocks():
    _, derivation = shown(of_any_width, ["chunk=C"])
    assert "C divides N" in derivation.phases["forward"].domain
    assert str(derivation.expression()) == "2*B*N*d"


def test_a_size_that_is_padded_or_cut_is_one_of_whole_blocks():
    n, c, b = (sympy.Symbol(name, integer=True, positive=True) for name in "ncb")
    mod, after = torch_sizes.Mod, torch_sizes.PythonMod
    whole = [n + mod(8 - mod(n, 8), 8), n + after(-n, c), b * c + n + mod(c - mod(n, c), c)]
    whole += [2 * n + 3 + after(-2 * n - 3, 8), n - mod(n, c), b + n - mod(n + 16, 8)]
    others = [n + mod(n, 8), n + mod(8 - mod(n, 8), c), 2 * n + after(-n, 8) - b]
    for total in (*whole, *others):
        simplified = in_whole_blocks(total)
        shapes = [{n: x, c: y, b: 5} for x in (1, 7, 8, 9, 16, 41) for y in (1, 3, 8)]
        assert all(simplified.xreplace(at) == total.xreplace(at) for at in shapes)
        assert simplified.has(mod, after) == (total in others)


def gated_steps(x):
    """A recurrence whose largest moment, at the end, is no large one in few steps."""
    gates, state, rows = x.repeat(1, 1, 4), x.new_zeros(x.shape[0], x.shape[2]), []
    for t in range(x.shape[1]):
        a, b, c, e = gates[:, t].sigmoid().chunk(4, -1)
        state = a * state + b * c
        rows.append(e * state)
    return torch.stack(rows, 1)


def test_a_peak_that_begins_late():
    target, derivation = shown(gated_steps)
    shapes = [{"B": 3, "N": n, "d": 9} for n in (5, 9, 40)]
    assert check(target, derivation, shapes) == len(shapes)


class Convolved(nn.Module):
    """A recurrence after a convolution whose kernel takes the larger of two amounts."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Conv1d(width, width, 4, padding=3, groups=width)

    def forward(self, x):
        mixed = self.inner(x.mT)[..., : x.shape[1]]
        state, rows = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = state * 0.5 + mixed[..., t]
            rows.append(state)
        return torch.stack(rows, 1)


def test_a_kernel_that_takes_the_larger_of_two_amounts_in_a_run_for_each_length():
    target, derivation = shown(Convolved, ["width=h*d"], ["x: B, N, h*d"])
    shapes = [{"B": b, "N": n, "h": 2, "d": w} for b, n, w in ((2, 5, 9), (3, 40, 4), (33, 9, 30))]
    assert check(target, derivation, shapes) == len(shapes)


def test_as_many_whole_chunks_as_there_were_before_a_rest_are_too_few():
    hints, blocks = {"N": 421, "C": 7}, {"N": C, "C": 1}
    least, ends = {"N": 2, "C": 2}, {"N": 999, "C": 99}
    formulas = mixed_formulas(hints, blocks, ends, least, 2, unit=Blocks("N", C))
    assert not formulas.holds({"N": 6, "C": 3})  # at whole chunks it was made from three of them
    assert formulas.holds({"N": 7, "C": 3})
    assert "N > 2*C" in formulas.domain
    formulas.whole_only = True
    assert formulas.holds({"N": 6, "C": 3})


def test_sizes_that_are_meant_lie_beyond_a_branch():
    formulas = mixed_formulas({"N": 421}, {"N": 1}, {"N": 16}, {"N": 4}, 4)
    assert not formulas.narrow
    formulas.borders.append("the code branches between N = 16 and 17")
    assert formulas.narrow
    formulas.plan.hints["N"] = 9  # that is what was asked for
    assert not formulas.narrow


def test_a_peak_is_without_moments_that_only_short_runs_had():
    sides = [5 * N * d, 3 * d * N**2 + d, 2 * d * N**2 - 40 * d]
    seen = 5 * 100 * 7
    at = {"N": 100, "d": 7}
    assert trimmed(sympy.Max(*sides[::2]), seen, at, [{"N": 4}, {"N": 5}]) == sides[0]
    # the worst in one of the first runs stays
    assert trimmed(sympy.Max(*sides[:2]), seen, at, [{"N": 4}]) == sympy.Max(*sides[:2])


def test_smaller_sizes_are_tried_with_another_far_larger():
    def at(numbers, *_, **__):
        held = sympy.Max(4 * d * numbers["N"], d * numbers["h"] ** 2 * int(numbers["N"] < 4) / 2)
        return SymbolicRun(("d",), {"train": {"peak_bytes": held}}, SizeConditions([]), None, {})

    hints, blocks = {"N": 421, "h": 6, "d": 32}, {"N": 1, "h": 1}
    forms, least, ends = {"train": {"peak_bytes": 4 * d * N}}, {"N": 5, "h": 2}, {"N": 64, "h": 64}
    formulas = mixed_formulas(hints, blocks, ends, least, forms=forms)
    formulas.plan.at, formulas.plan.run_of_whole_blocks = at, lambda *_, **__: None
    formulas.fits = lambda *_: True
    extend_downwards(formulas, "N", SimpleNamespace(phases=["train"]))
    assert formulas.least == {"N": 4, "h": 2}  # below 4 not with 9 for h


def test_short_runs_have_a_width_inside():
    hints, least = {"B": 3, "N": 421, "h": 6, "d": 32}, {"N": 4}
    wide = small_sizes(hints, least, lambda sizes: -(-sizes["h"] * sizes["d"] // 16) > 1)
    assert wide == {"B": 2, "N": 4, "h": 2, "d": 16}
    assert small_sizes(hints, least, lambda _: False)["d"] == 8


def test_moments_that_longer_runs_do_not_have_belong_nowhere():
    def held(turns, place):  # one turn further on where there is a turn more, or two
        moments = {("mm", (k, 0)): {d: turns * (k + 1)} for k in range(turns)}
        return moments, {("mm", (place, 0)): moments["mm", (place, 0)]}

    def grouped(places):
        worst = {id(moments): largest for moments, largest in runs(places)}
        return [*families([moments for moments, _ in runs(places)], lambda x: worst[id(x)])]

    @cache
    def runs(places):
        return [held(turns, place) for turns, place in zip(range(9, 14), places, strict=True)]

    assert len(grouped((5, 6, 7, 8, 9))) == 1
    assert not grouped((3, 5, 7, 9, 11))  # of 13 turns; of 18 there would be a 22nd


def test_a_quotient_of_a_quotient_that_depends_on_a_rest_stays():
    rest = sympy.Symbol("rest", positive=True, integer=True)
    rests = Rests({rest: sympy.Integer(64)}, {rest: sympy.Integer(37)})
    halves = torch_sizes.FloorDiv(-rest, 32)  # -1 or -2
    outer = torch_sizes.FloorDiv(3 * halves, 7)
    assert rests.rounded(outer) == outer
    assert rests.rounded(torch_sizes.FloorDiv(-rest, 64)) == -1


# -- fits that several lengths would show by accident --------------------------------------
def attended(x):
    """Two products of 2*n*n*d FLOPs for each sample."""
    return (x @ x.mT) @ x


def test_a_length_cut_into_parts_has_a_class_and_no_polynomial_of_four_lengths():
    """Of N = 4 to 7 in four parts the squares sum to 4, 9, 12 and 13: -N**2 + 14*N - 36."""

    def cut(x):
        return torch.cat([attended(part) for part in x.chunk(4, 1)], 1)

    _, derivation = shown(cut)
    assert "4 divides N" in derivation.phases["forward"].domain
    for n in (80, 132, 2000):
        assert derivation.phases["forward"].holds({"B": 2, "N": n, "d": 5})
        assert derivation.at("matmul_flops", B=2, N=n, d=5) == 4 * 2 * 4 * (n // 4) ** 2 * 5


def test_a_moment_that_grows_with_the_square_is_a_side_though_another_one_grows_more_at_first():
    """Up to N = 128*d the 32 copies of the input are the peak, and grow the most."""

    def halves(x):
        n = x.shape[1]
        first, second = (x[:, i : i + n // 2] for i in range(0, n, n // 2))
        wide = torch.cat([x] * 32, -1).sum(-1)
        return first @ second.mT @ second + wide[:, : n // 2, None]

    target, derivation = shown(halves)
    forms = derivation.phases["forward"]
    assert forms.method == "mixed"
    shapes = [{"B": 2, "N": n, "d": d} for n in (16, 600, 60_000) for d in (2, 3, 40)]
    assert check(target, derivation, shapes) == len(shapes)
    x = torch.zeros(2, 600, 2)
    halves(x)
    assert derivation.at("peak_bytes", B=2, N=600, d=2) == allocator_peak(lambda: halves(x))


def every_second(x):
    return attended(x[:, ::2])


def third_attends(x):
    return attended(x) if x.shape[1] % 3 == 0 else x * 2


@pytest.mark.parametrize("code", [every_second, third_attends])
def test_branches_by_the_rest_of_a_length_are_the_domain_as_it_is(code):
    derivation, divisor = shown(code)[1], 3 if code is third_attends else 2
    forms = derivation.phases["forward"]
    assert forms.method == "symbolic"
    assert f"{divisor} does not divide N" in forms.domain
    for n in (7, 25, 1001):
        assert forms.holds({"B": 2, "N": n, "d": 5})
        expected = 4 * 2 * ((n + 1) // 2) ** 2 * 5 if code is every_second else 2 * n * 5
        assert derivation.at("flops", B=2, N=n, d=5) == expected


def test_a_size_that_makes_a_class_of_two_is_no_class_of_sixteen():
    """A rest of N/2 becomes a Python number: no run on symbols; every second number fits."""

    def halves(x):
        half = len(range(0, x.shape[1] - 1, 2))
        return attended(x[:, : len(bytearray(half))])

    _, derivation = shown(halves)
    forms = derivation.phases["forward"]
    for n in (10, 26, 40, 42):
        assert forms.holds({"B": 2, "N": n, "d": 5}), forms.domain
        assert derivation.at("flops", B=2, N=n, d=5) == 4 * 2 * (n // 2) ** 2 * 5


def formulas(flops, peak_bytes, *domain, **fields):
    expressions = {"flops": flops, "peak_bytes": peak_bytes}
    made = {name: Formula("train", name, formula) for name, formula in expressions.items()}
    return PhaseForms("train", "symbolic", made, domain, **fields)


#: A run of an operation without a rule, so that FLOPs are "at least".
FLOOR = Trace([Call("op", {}, 0, "forward", "", uncounted="op")])


def test_a_headline_ends_where_its_formulas_do_and_says_at_least():
    forms = 4 * N**2 * d + 3 * N * d, sympy.Max(N**2, 1000 * N, evaluate=False)
    bounded = formulas(*forms, "N, d >= 2", "N <= 128", verified_at=({"d": 8},), trace=FLOOR)
    headline = answer(bounded)
    assert headline == (
        "Where N <= 128, FLOPs grow at least with N**2, at least about 4*N**2*d at N = 128; "
        "peak memory grows with N, about 1000*N bytes at N = 128"
    )
    assert "for long inputs" in answer(formulas(*forms, "N >= 15", "17 <= N"))
    assert answer(formulas(*forms, "d >= 2", "N = 256")) == ""  # there N is a number: none grows
    constant = answer(formulas(7 * d, 7 * d, trace=FLOOR))
    assert constant.startswith("FLOPs are at least an amount that does not")
    peak = sympy.Piecewise((7 * d, N <= 2 * B), (N**2 + 8 * N * d, True), evaluate=False)
    said = "peak memory grows with N**2, about N**2 bytes for long inputs"
    assert answer(formulas(None, peak)) == said


def test_phases_that_share_no_length_say_so_with_both_domains():
    forward = PhaseForms("forward", "mixed", {}, ("B >= 2", "N >= 160", "N <= 672"))
    backward = PhaseForms("backward", "symbolic", {}, ("B, N >= 2", "N < 129"))
    overlapping = PhaseForms("train", "symbolic", {}, ("160 <= N",))
    (note,) = disjoint_lengths(forward, [forward, backward, overlapping])
    assert note.startswith("this holds for N >= 160; N <= 672, the formulas of backward for B, N")
    assert [*disjoint_lengths(overlapping, [overlapping, forward])] == []
    (note,) = disjoint_lengths(backward, [forward, backward])
    assert "the formulas of forward for N >= 160; N <= 672" in note


def test_of_several_ends_of_a_domain_the_least_is_told():
    domain = ["B, N >= 2", "N <= 704", "B <= 64", "N <= 65536", "N <= 8*h"]
    assert ends_of(domain) == ["N <= 704", "N <= 8*h"]
    assert ends_of(["N < 9", "N <= 20"]) == ["N < 9"]
