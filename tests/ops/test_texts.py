"""Texts in tensor methods count as they run, in every phase, with symbols for sizes, too."""

import math

import pytest
import sympy
import torch

from attnprof.costs import CostTable
from attnprof.ops.counter import Counter
from attnprof.ops.function import Function
from attnprof.ops.functional import join, put_product
from attnprof.ops.loops import each, in_blocks
from attnprof.ops.tensor import Tensor
from tests.oracles.aten import KINDS, count_core
from tests.oracles.evaluate import Evaluator
from tests.oracles.memory import allocator_peak

NAMES = sympy.symbols("B h N d", positive=True)


def softmax_attention(q, k, v):
    weights = (q @ k.transpose(-2, -1) / math.sqrt(3)).softmax(-1)
    return weights @ v


def gated(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    mixed = weights @ v
    del weights
    return mixed * q.sigmoid()


def multi_query(q, k, v):
    one_k, one_v = k.mean(1, keepdim=True), v[:, :1]
    weights = (q @ one_k.transpose(2, 3)).softmax(-1)
    return weights @ one_v


def normalised_by_a_sum(q, k, v):
    features = k.exp()
    total = features.sum(-1, keepdim=True)
    shares = features / total
    return q * shares + v.tanh() - (k - v).relu()


def halves(q, k, v):
    left, right = q.chunk(2, dim=-1)
    turned = join((-right, left), -1)
    return turned * k + 2 * torch.nn.functional.silu(v)


def without_the_first(q, k, v):
    return (q[:, :, 1:] * k[:, :, 1:]).sum(2, keepdim=True) + v


def flattened(q, k, v):
    rows = q.transpose(1, 2).flatten(2)
    mixed = rows.mT @ k.transpose(1, 2).flatten(2)
    return v + mixed.mean((1, 2), keepdim=True).unsqueeze(1)


def matrix_on_the_right(q, k, v):
    square = k.sum((0, 1, 2)).unsqueeze(-1) * v.mean((0, 1, 2)).unsqueeze(0)
    turned = q.transpose(1, 2) @ square
    return turned.transpose(1, 2) + q @ square


def masked(q, k, v):
    scores = q @ k.mT
    visible = scores.new_ones(q.shape[2], q.shape[2], dtype=bool).triu_(1)
    scores = scores.masked_fill(visible, float("-inf"))
    return scores.softmax(-1) @ v


def _squares(x, y):
    out = x.new_empty(*x.shape)
    for rows in in_blocks(x, x.shape[2], 4):
        out[:, :, rows] = x[:, :, rows] * y[:, :, rows]
    return out, (x, y)


def _squares_grads(saved, grad):
    x, y = saved
    return grad * y, grad * x


def _products(x, y):
    out = x.new_empty(*x.shape[:3], x.shape[2])
    for sample in each(x, 0, x.shape[0]):
        put_product(out[sample], x[sample], y[sample].transpose(1, 2))
    return out, (x, y)


def _products_grads(saved, grad):
    x, y = saved
    return (
        (grad.flatten(0, 1)).bmm(y.flatten(0, 1)).view(*x.shape),
        (grad.flatten(0, 1)).transpose(1, 2).bmm(x.flatten(0, 1)).view(*y.shape),
    )


def own_backward(q, k, v):
    products = Function(_products, _products_grads)(q, k)
    return products.softmax(-1) @ Function(_squares, _squares_grads)(v, q)


def _in_order(x, y):
    rows, others = x.flatten(0, 2), y.flatten(0, 2)
    column = rows.abs().max(-1, keepdim=True)[1]
    negative = rows.gather(-1, column) < 0
    order = column.add_(negative * 4).squeeze(-1).sort(dim=0, stable=True)[1]
    out = x.new_empty(rows.shape)
    out.index_copy_(0, order, others.index_select(0, order))
    return out.view(x.shape), ()


def _in_order_grads(_saved, grad):
    return grad * 2, grad / 2


def put_in_order(q, k, v):
    return Function(_in_order, _in_order_grads)(q, k) * v


TEXTS = [
    softmax_attention, gated, multi_query, normalised_by_a_sum, halves, without_the_first,
    flattened, matrix_on_the_right, masked, own_backward, put_in_order,
]  # fmt: skip
SHAPES = [(2, 3, 10, 4), (1, 2, 7, 6), (3, 1, 4, 2)]
#: bytes of numbers that torch wraps as tensors for a moment
NUMBERS = 16
#: what runs without a gradient, then with one
PHASES = ("forward", "train", "backward")


def counted(text, shape, phase) -> CostTable:
    counter = Counter(4, grad=phase != "forward")
    inputs = [Tensor.leaf(counter, *shape) for _ in range(3)]
    out = text(*inputs)
    if phase != "forward":
        out.backward()
    return counter.table(0, "backward" if phase == "backward" else None)


class Module(torch.nn.Module):
    def __init__(self, text):
        super().__init__()
        self.text = text

    def forward(self, q, k, v):
        return self.text(q, k, v)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.__name__)
def test_a_text_counts_as_it_runs(text, phase):
    for shape in SHAPES:
        inputs = tuple(torch.randn(3, *shape))
        counts = count_core(Module(text), inputs, phase)
        table = counted(text, shape, phase)
        assert not counts.unknown
        mine = {kind: getattr(table.total, kind) for kind in KINDS}
        assert mine == counts.by_kind(), shape
        assert table.total.bytes_moved == counts.bytes_moved, shape


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.__name__)
def test_a_text_holds_what_the_allocator_holds(text):
    for shape in SHAPES:
        inputs = tuple(torch.randn(3, *shape))
        with torch.no_grad():
            held = allocator_peak(lambda inputs=inputs: text(*inputs))
        assert 0 <= held - counted(text, shape, "forward").peak() <= NUMBERS, shape
        leaves = [x.requires_grad_() for x in inputs]
        ones = torch.ones_like(text(*leaves))

        def train(leaves=leaves, ones=ones):
            out = text(*leaves)
            out.backward(ones)
            return out

        held = allocator_peak(train)
        assert 0 <= held - counted(text, shape, "train").peak() <= NUMBERS, shape


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.__name__)
def test_symbols_give_the_numbers(text, phase):
    general = counted(text, NAMES, phase)
    for shape in SHAPES:
        value = Evaluator(dict(zip(NAMES, shape, strict=True)))
        table = counted(text, shape, phase)
        for kind in (*KINDS, "bytes_moved"):
            assert value(getattr(general.total, kind)) == getattr(table.total, kind), (shape, kind)
        assert value(general.peak()) == table.peak(), shape
