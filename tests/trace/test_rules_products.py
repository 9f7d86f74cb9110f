"""Products in every spelling, against torch's own formulas and against each other.

Triangular solves and decompositions: against textbook loops that count each operation.
"""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.trace.checks import torchs_products
from tests.trace.counted import counted, counted_by_symbols, each, plus, products

aten = torch.ops.aten

#: spelling → call, shapes, multiply-adds, what else an entry of the result counts
SPELLINGS = {
    "mm": (torch.mm, [(3, 5), (5, 7)], 105, ""),
    "bmm": (torch.bmm, [(2, 3, 5), (2, 5, 7)], 210, ""),
    "matmul by vector": (torch.matmul, [(3, 5), (5,)], 15, ""),
    "dot": (torch.dot, [(5,), (5,)], 5, ""),
    "linear": (F.linear, [(3, 5), (7, 5)], 105, ""),
    "linear with bias": (F.linear, [(3, 5), (7, 5), (7,)], 105, "A"),
    "linear of three": (F.linear, [(2, 3, 5), (7, 5), (7,)], 210, "A"),
    "addmm": (torch.addmm, [(3, 7), (3, 5), (5, 7)], 105, "A"),
    "addmm in place": (lambda c, a, b: c.addmm_(a, b), [(3, 7), (3, 5), (5, 7)], 105, "A"),
    "addmm scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        [(3, 7), (3, 5), (5, 7)], 105, "A 2M"),
    "addmm, minus": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=-1), [(3, 7), (3, 5), (5, 7)], 105, "A"),
    "addmm without what was": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0), [(3, 7), (3, 5), (5, 7)], 105, ""),
    "baddbmm": (torch.baddbmm, [(2, 3, 7), (2, 3, 5), (2, 5, 7)], 210, "A"),
    "baddbmm in place": (
        lambda c, a, b: c.baddbmm_(a, b), [(2, 3, 7), (2, 3, 5), (2, 5, 7)], 210, "A"),
    "baddbmm to a place": (
        lambda c, a, b: torch.baddbmm(c, a, b, out=c), [(2, 3, 7), (2, 3, 5), (2, 5, 7)], 210,
        "A"),
    "addbmm": (torch.addbmm, [(3, 7), (2, 3, 5), (2, 5, 7)], 210, "A"),
    "addmv": (torch.addmv, [(3,), (3, 5), (5,)], 15, "A"),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(3, 5), (5, 7)], 105, ""),
    "einsum of heads": (
        lambda a, b: torch.einsum("bnhd,bmhd->bhnm", a, b), [(2, 3, 4, 5), (2, 7, 4, 5)], 840, ""),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), [(2, 3, 5), (5, 7)], 210, ""),
    "inner": (torch.inner, [(3, 5), (7, 5)], 105, ""),
    "multi_dot": (lambda a, b: torch.linalg.multi_dot([a, b]), [(3, 5), (5, 7)], 105, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_product_counts(name):
    run, shapes, macs, rest = SPELLINGS[name]
    with torch.device("meta"):
        size = run(*(torch.zeros(shape) for shape in shapes)).numel()
    expected = plus(products(macs), each(rest, size))
    assert counted(run, *shapes) == expected
    assert counted_by_symbols(run, *shapes) == expected


@pytest.mark.parametrize(
    ("run", "shapes", "expected"),
    [
        (torch.outer, [(3,), (5,)], {"M": 15}),
        (lambda a, b: (a * b).sum(-1), [(3, 5), (3, 5)], {"M": 15, "A": 15}),
        (torch.kron, [(2, 3), (5, 7)], {"M": 210}),
        (torch.addr, [(3, 5), (3,), (5,)], {"M": 15, "A": 15}),
        # 4 pairs of (3, 5) to 7: x w for every output, then times y
        (F.bilinear, [(4, 3), (4, 5), (7, 3, 5)], products(4 * 7 * 3 * 5 + 4 * 7 * 5)),
    ],
)
def test_forms_of_no_and_of_two_products(run, shapes, expected):
    assert counted(run, *shapes) == expected


def test_products_of_integers_count_nothing_and_of_complex_numbers_four_times():
    assert counted(torch.bmm, (2, 3, 5), (2, 5, 7), dtype=torch.int64) == {}
    assert counted(torch.mm, (3, 5), (5, 7), dtype=torch.complex64) == products(420)


CONVOLUTIONS = {
    "1d": (nn.Conv1d(4, 6, 3), (2, 4, 9)),
    "padded": (nn.Conv1d(4, 6, 3, padding=2), (2, 4, 9)),
    "strided": (nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9)),
    "dilated": (nn.Conv1d(4, 6, 3, dilation=2), (2, 4, 9)),
    "depthwise": (nn.Conv1d(4, 4, 3, groups=4), (2, 4, 9)),
    "of groups": (nn.Conv1d(4, 6, 3, groups=2, bias=False), (2, 4, 9)),
    "2d": (nn.Conv2d(3, 5, (2, 3)), (2, 3, 6, 7)),
    "3d": (nn.Conv3d(2, 3, 2), (1, 2, 4, 5, 6)),
    "transposed": (nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 9)),
    "transposed of groups": (nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), (2, 4, 5, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_counts_as_torch_does_and_its_bias(name):
    layer, shape = CONVOLUTIONS[name]
    flops = torchs_products(layer, torch.zeros(shape))
    results = layer(torch.zeros(shape)).numel()
    expected = plus(products(flops // 2), {"A": 0 if layer.bias is None else results})
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    shapes = [tuple(p.shape) for p in parameters]
    assert counted(run, shape, *shapes) == expected
    back = counted(run, shape, *shapes, backward=True)
    assert back == plus(expected, products(flops // 2))


@pytest.mark.parametrize(("channels", "groups"), [(8, 8), (8, 2), (6, 3), (4, 1)])
def test_torchs_counter_multiplies_a_kernels_gradient_by_the_number_of_groups(channels, groups):
    x, weight = (3, channels, 7), (channels, channels // groups, 4)
    settings = [1], [3], [1], False, [0], groups

    def gradient(x, weight, grad):
        mask = [False, True, False]
        return aten.convolution_backward.default(grad, x, weight, [0], *settings, mask)

    count = 0
    for _ in itertools.product(range(3), range(channels), range(10)):  # batch, results, places
        for _ in itertools.product(range(channels // groups), range(4)):  # of the group, taps
            count += 1
    grad = torch.zeros(3, channels, 10)
    assert counted(gradient, x, weight, tuple(grad.shape)) == products(count)
    torchs = torchs_products(gradient, torch.zeros(x), torch.zeros(weight), grad)
    assert torchs == groups * 2 * count


def test_the_documented_count_of_a_mamba_layers_kernel_gradient():
    layer, x = nn.Conv1d(128, 128, 4, padding=3, groups=128), torch.zeros(3, 128, 37)
    result = layer(x)  # 40 places; the input has no gradient
    torchs = torchs_products(result.backward, torch.ones_like(result))
    text = (Path(__file__).parents[2] / "docs/comparison.md").read_text()
    assert torchs == 15_728_640
    assert f"{torchs:,} for {torchs // 128:,}" in text


B, H, T, W = 2, 3, 5, 7


def _by_einsum(q, k, v):
    return torch.einsum("bhnm,bhmd->bhnd", torch.einsum("bhnd,bhmd->bhnm", q, k).softmax(-1), v)


def _by_matmul(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def _by_heads(q, k, v):
    heads = [a @ b.mT for a, b in zip(q.unbind(1), k.unbind(1), strict=True)]
    return torch.stack([s.softmax(-1) @ c for s, c in zip(heads, v.unbind(1), strict=True)], 1)


def _by_broadcasting(q, k, v):
    weights = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1).softmax(-1)
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


ATTENTIONS = [_by_einsum, _by_matmul, _by_heads]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_has_two_products_in_any_spelling(attention):
    shapes = [(B, H, T, W)] * 3
    macs = 2 * B * H * T * T * W
    counts = counted(attention, *shapes)
    assert counts == plus(products(macs), each("O 2A E D", B * H * T * T))
    assert counted(attention, *shapes, backward=True)["P"] == 4 * macs
    if attention is not _by_heads:
        assert counted_by_symbols(attention, *shapes) == counts


def test_attention_by_broadcasting_is_the_same_work_but_no_product():
    counts = counted(_by_broadcasting, *[(B, H, T, W)] * 3)
    product = counted(_by_matmul, *[(B, H, T, W)] * 3)
    assert counts == {letter: value for letter, value in product.items() if letter != "P"}


GROUPS = (5, 4, 7)  # rows, columns or terms of each
GROUPED = {
    "rows": ((16, 8), (3, 8, 24), [(n, 8, 24) for n in GROUPS]),
    "columns": ((3, 6, 8), (8, 16), [(6, 8, n) for n in GROUPS]),
    "terms": ((6, 16), (16, 24), [(6, n, 24) for n in GROUPS]),
    "all": ((3, 6, 8), (3, 8, 24), [(6, 8, 24)] * 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", GROUPED)
def test_products_of_groups_count_and_lie_as_on_real_tensors(kind, dtype):
    a, b, parts = GROUPED[kind]
    lies = []

    def run(x, y):
        ends = None if kind == "all" else torch.tensor(GROUPS, dtype=torch.int32).cumsum(0).int()
        out = torch._grouped_mm(x, y, offs=ends)
        lies.append((out.shape, out.stride(), out.dtype))
        return out

    run(torch.randn(a, dtype=dtype), torch.randn(b, dtype=dtype))
    assert counted(run, a, b, dtype=dtype)["P"] == sum(2 * m * k * n for m, k, n in parts)
    assert lies[0] == lies[1]


class Number:
    """A real number that counts what is done with it."""

    def __init__(self, value, seen):
        self.value, self.seen = float(value), seen

    def _new(self, letter, value):
        self.seen[letter] += 1
        return Number(value, self.seen)

    def __mul__(self, other):
        return self._new("M", self.value * other.value)

    def __sub__(self, other):
        return self._new("A", self.value - other.value)

    def __truediv__(self, other):
        return self._new("D", self.value / other.value)

    def __gt__(self, other):
        self.seen["O"] += 1
        return abs(self.value) > abs(other.value)

    def root(self):
        return self._new("O", self.value**0.5)


def matrix(rows, columns, seen, *, dominant=False):
    values = np.random.default_rng(rows).normal(size=(rows, columns))
    if dominant:
        values = values @ values.T + rows * np.eye(rows)
    return [[Number(x, seen) for x in row] for row in values]


def solved(a, b, *, ones=False):
    """Forward substitution, in place, for each column of b."""
    for column in range(len(b[0])):
        for i in range(len(a)):
            for j in range(i):
                b[i][column] = b[i][column] - a[i][j] * b[j][column]
            if not ones:
                b[i][column] = b[i][column] / a[i][i]


def choleskied(a):
    for j in range(len(a)):
        for i in range(j, len(a)):
            for k in range(j):
                a[i][j] = a[i][j] - a[i][k] * a[j][k]
            a[i][j] = a[j][j].root() if i == j else a[i][j] / a[j][j]


def eliminated(a):
    rows, columns = len(a), len(a[0])
    for j in range(min(rows, columns)):
        best = j
        for i in range(j + 1, rows):
            if a[i][j] > a[best][j]:
                best = i
        a[j], a[best] = a[best], a[j]
        for i in range(j + 1, rows):
            a[i][j] = a[i][j] / a[j][j]
            for k in range(j + 1, columns):
                a[i][k] = a[i][k] - a[i][j] * a[j][k]


def loops(a, b, steps, times):
    """Counts of loops over a matrix and its right hand sides, for so many matrices."""
    seen = Counter()
    for step in steps:
        left = matrix(*a[-2:], seen, dominant=step is choleskied)
        step(*([left] if step in (choleskied, eliminated) else [left, matrix(*b[-2:], seen)]))
    return {letter: times * count for letter, count in seen.items() if count}


def unit(a, b):
    solved(a, b, ones=True)


def lower(a, b):
    return torch.linalg.solve_triangular(a, b, upper=False)


#: By elimination, and two substitutions.
SYSTEM = [eliminated, unit, solved]
SOLVES = {
    "solve_triangular": (lower, 3, (5, 5), (5, 4), [solved]),
    "batches": (lower, 6, (2, 3, 5, 5), (2, 3, 5, 4), [solved]),
    "a matrix for all": (lower, 3, (5, 5), (3, 5, 4), [solved]),
    "ones on the diagonal": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, unitriangular=True),
        3, (5, 5), (5, 4), [unit],
    ),
    "from the right": (
        lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=True, left=False),
        3, (5, 5), (5, 4), [solved],
    ),
    "cholesky": (lambda a, _: torch.linalg.cholesky(a), 3, (7, 7), (7, 1), [choleskied]),
    "cholesky_solve": (lambda a, b: torch.cholesky_solve(b, a), 3, (5, 5), (5, 4), [solved] * 2),
    "lu_factor": (lambda a, _: torch.linalg.lu_factor(a), 3, (6, 6), (6, 6), [eliminated]),
    "lu of a tall one": (lambda a, _: torch.linalg.lu(a), 3, (7, 4), (7, 4), [eliminated]),
    "lu of a wide one": (lambda a, _: torch.linalg.lu(a), 3, (4, 7), (4, 7), [eliminated]),
    "solve": (torch.linalg.solve, 3, (5, 5), (5, 4), SYSTEM),
    "inv": (lambda a, _: torch.linalg.inv(a), 3, (5, 5), (5, 5), SYSTEM),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVES)
def test_solves_and_decompositions_count_what_loops_count(name):
    run, times, a, b, steps = SOLVES[name]
    batched = [shape if len(shape) > 2 or name == "a matrix for all" else (times, *shape)
               for shape in (a, b)]  # fmt: skip
    expected = loops(a, b, steps, times)
    assert counted(run, *batched) == expected
    if len({*a, *b, times}) == len(set(a)) + len({*b} - {*a}) + 1:  # sizes apart
        assert counted_by_symbols(run, *batched) == expected


def test_determinants_multiply_their_diagonal():
    factored = counted(torch.linalg.lu_factor, (3, 5, 5))
    assert counted(torch.linalg.det, (3, 5, 5)) == plus(factored, {"M": 15})
    assert counted(torch.linalg.slogdet, (3, 5, 5)) == plus(factored, {"O": 15, "A": 15})


def test_a_solve_is_differentiated_by_a_solve_and_a_product():
    counts = counted(lower, (2, 5, 5), (2, 5, 4), backward=True)
    macs = 2 * 5 * 4 * 5
    solve = counted(lower, (2, 5, 5), (2, 5, 4))
    assert counts["P"] == 2 * macs
    assert counts["D"] == solve["D"]
    assert counts["M"] == solve["M"] + macs
