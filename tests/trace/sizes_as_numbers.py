"""Functions and modules that use a size as a Python number, and their counts on real tensors.

Written as people write them: with ``math`` and without, names bound at import, loops of log N
steps, shares, roots, rounding up. ``compared`` holds a derivation against real runs at random
shapes of the domain it states.
"""

import math
import random
from math import ceil, log2

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.oracles.aten import count

#: Random shapes of the stated domain for each.
SHAPES = 6
_LARGEST = {"B": 4, "N": 1100, "d": 72}


def _self(x):
    """Scores of every row with every row, and their mean of rows."""
    return (x @ x.mT).softmax(-1) @ x


def _padded(x, length):
    return _self(F.pad(x, (0, 0, 0, length - x.shape[1])))[:, : x.shape[1]]


def power_of_two_by_imported_log2(x):
    return _padded(x, 2 ** ceil(log2(x.shape[1])))


def power_of_two_by_int(x):
    return _padded(x, 2 ** int(math.ceil(math.log(x.shape[1], 2))))  # noqa: FURB163, RUF046


def power_of_two_by_bit_length(x):
    return _padded(x, 1 << (x.shape[1] - 1).bit_length())


def power_of_two_by_numpy(x):
    return _padded(x, int(2 ** np.ceil(np.log2(x.shape[1]))))


def power_of_two_only(x):
    n = x.shape[1]
    return _self(x) if n & (n - 1) == 0 else x * 2.0


def blocks_of_the_root(x):
    n, root = x.shape[1], int(math.sqrt(x.shape[1]))
    kept = x[:, : root * (n // root)].unflatten(1, (-1, root))
    return _self(kept)


def landmarks_of_the_power(x):
    m = int(x.shape[1] ** 0.5)
    return (x @ x[:, :m].mT).softmax(-1) @ x[:, :m]


def share_of_products(x):
    k = max(1, int(0.1 * x.shape[1]))
    return x @ x[:, :k].mT


def halvings(x):
    n = x.shape[1]
    while n > 1:
        n //= 2
        x = x @ x.mT @ x
    return x


def doublings(x):
    n, step = x.shape[1], 1
    y = x
    while step < n:
        y = torch.cat([y[:, :step], y[:, step:] * 0.5 + y[:, :-step]], 1)
        step *= 2
    return y @ x.mT


def strided(x):
    stride = max(1, x.shape[1] // 128)
    return x @ x[:, ::stride].mT


def whole_minutes(x):
    minutes, rest = divmod(x.shape[1], 60)
    scores = x @ x[:, : 1 + minutes].mT
    return scores @ scores[:, :rest].mT if rest else scores


def to_the_nearest_ten(x):
    n = x.shape[1]
    return x @ x[:, : min(n, 1 + round(n, -1))].mT


def room_in_a_block(x):
    return x @ x.new_ones(x.shape[2], 1 + (~x.shape[1] & 31))


def common_divisor(x):
    return x @ x[:, : math.gcd(x.shape[1], 12)].mT


def chunks(x):
    return torch.cat([x[:, i : i + 64] @ x.mT for i in range(0, x.shape[1], 64)], 1)


def by_len(x):
    return sum(x[i] @ x[i].T for i in range(len(x)))


def by_dunder(x):
    return x @ x[:, : x.size(1).__int__() // 2].mT


def by_numel(x):
    return x @ x.new_ones(x.shape[0], x.shape[2], max(1, int(math.log(x.numel()))))


def whole_by_int(x):
    n = int(x.shape[1])
    return (x @ x.mT + torch.zeros(n, n)).softmax(-1) @ x


def told_apart_by_int(x):
    n = x.shape[1]
    return _self(x[:, : int(n) // 2 + 1]) if isinstance(n, int) else x


def float_of_a_length(x):
    return x @ x[:, : int(float(x.shape[1]) / 4) + 1].mT


def branch_on_a_float(x):
    return _self(x) if float(x.shape[1]) > 300 else x @ x.mT


def scaled_up(x):
    long = F.interpolate(x.mT, scale_factor=1.5)
    return x @ long


def resized_to_a_length(x):
    return x @ F.interpolate(x.mT, scale_factor=64 / x.shape[1])


def steps_of_a_root(x):
    return x @ x[:, torch.arange(0, x.shape[1] ** 0.5).long()].mT


def looked_up(x):
    table = {64: 8, 128: 16}
    return x @ x[:, : table.get(int(x.shape[1]), 4)].mT


def named_by_length(x):
    names = {f"{x.size(1)}": x.size(1) // 2}
    return x @ x[:, : names[str(x.size(1))]].mT


def digits(x):
    return x @ x[:, : len(str(x.size(1)))].mT


def far_threshold(x):
    return x @ x.mT if x.shape[1] // 1000 else x * 2.0


class Gated(nn.Module):
    """A hidden width of two thirds of 4d, rounded up to whole 32s."""

    def __init__(self, d):
        super().__init__()
        hidden = int(8 * d / 3)
        hidden = 32 * ((hidden + 32 - 1) // 32)
        self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Rank(nn.Module):
    """Steps of rank ceil(d / 16), as state-space layers have."""

    def __init__(self, d):
        super().__init__()
        self.rank = math.ceil(d / 16)
        self.into, self.out = nn.Linear(d, self.rank + 32), nn.Linear(self.rank, d)

    def forward(self, x):
        return F.softplus(self.out(self.into(x)[..., : self.rank]))


class Heads(nn.Module):
    """As many heads as widths of 32 fit in."""

    def __init__(self, d):
        super().__init__()
        self.heads = max(1, int(math.log2(d)))
        self.qkv = nn.Linear(d, 3 * 8 * self.heads)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, 8).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT / math.sqrt(8)).softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)


class FloatScale(nn.Module):
    """Its floats are factors only."""

    def __init__(self, d):
        super().__init__()
        self.scale = float(d) ** -0.5
        self.root = np.sqrt(d)
        self.map = nn.Linear(d, d)

    def forward(self, x):
        q = self.map(x) * self.scale
        return F.scaled_dot_product_attention(q, x, x, scale=1 / self.root) * log2(x.shape[1])


FUNCTIONS = (
    power_of_two_by_imported_log2, power_of_two_by_int, power_of_two_by_bit_length,
    power_of_two_by_numpy, power_of_two_only, blocks_of_the_root, landmarks_of_the_power,
    share_of_products, halvings, doublings, strided, whole_minutes, to_the_nearest_ten,
    room_in_a_block, common_divisor, chunks, by_len, by_dunder, by_numel, whole_by_int,
    told_apart_by_int, float_of_a_length, branch_on_a_float, scaled_up,
    resized_to_a_length, steps_of_a_root, looked_up, named_by_length, digits, far_threshold,
)  # fmt: skip
MODULES = (Gated, Rank, Heads, FloatScale)
CASES = {case.__name__: case for case in (*FUNCTIONS, *MODULES)}
INPUTS = {"x": "B, N, d"}
ARGUMENTS = {"d": "d"}


def asked_of(case):
    """What ``attnprof.derive`` is given for a case."""
    arguments = {"args": ARGUMENTS} if isinstance(case, type) else {}
    return {"inputs": INPUTS, "phases": ["forward"], **arguments}


def shapes_of(derivation, wanted=SHAPES):
    """Random shapes inside the stated domain, small ones and borders among them. Repeatable."""
    forms = derivation.phases["forward"]
    base = dict(forms.verified_at[0])
    sizes = {}
    for name in derivation.symbols:
        inside = [n for n in range(2, _LARGEST[name]) if forms.holds({**base, name: n})]
        sizes[name] = inside or [base[name]]
    chance, shapes = random.Random(12), []
    for _ in range(4000):
        shape = {name: _one(chance, inside) for name, inside in sizes.items()}
        if shape not in shapes and forms.holds(shape):
            shapes.append(shape)
        if len(shapes) == wanted:
            break
    return shapes


def _one(chance, sizes):
    """Small sizes as often as large ones, and both ends."""
    place = int(len(sizes) ** chance.random()) - 1
    return chance.choice([sizes[place], sizes[-1 - place], chance.choice(sizes)])


def counted(case, sizes):
    """Products by torch's counter and all kinds of operations, on real tensors."""
    call = case(sizes["d"]).eval() if isinstance(case, type) else case
    x = torch.zeros(sizes["B"], sizes["N"], sizes["d"])
    with torch.no_grad(), FlopCounterMode(display=False) as products:
        trace = count(lambda: call(x))
    counts = {**trace.by_kind(), "bytes_moved": trace.bytes_moved, "flops": trace.flops}
    if case is FloatScale:  # torch counts fused attention on a CPU as nothing
        return counts
    return {**counts, "matmul_flops": products.get_total_flops()}


def compared(case, derivation, wanted=SHAPES):
    """Shapes of the domain that were run, and where formulas are wrong: shape, quantity, both."""
    wrong = []
    shapes = shapes_of(derivation, wanted)
    for shape in shapes:
        for quantity, value in counted(case, shape).items():
            formula = derivation.phases["forward"].formulas[quantity].expression
            if formula is not None and derivation.at(quantity, "forward", **shape) != value:
                wrong.append((shape, quantity, derivation.at(quantity, "forward", **shape), value))
    return shapes, wrong
