"""Counting tensors do what torch's do: the same views, copies, strides and lives of memory."""

import itertools
import random

import pytest
import sympy
import torch

from attnprof.costs import is_symbolic
from attnprof.ops.counter import Counter
from attnprof.ops.tensor import Tensor
from tests.oracles.evaluate import Evaluator

NAMES = sympy.symbols("b n h d", positive=True)
SIZES = [
    (1, 1, 1, 1),
    (2, 3, 4, 5),
    (1, 3, 4, 5),
    (2, 1, 4, 5),
    (2, 3, 1, 5),
    (2, 3, 4, 1),
    (1, 6, 1, 2),
]


def split(x, b, n, h, d):
    return x.view(b, n, h, d).transpose(1, 2).reshape(b * h, n, d)


def merged(x, b, n, h, d):
    return x.view(b, h, n, d).transpose(1, 2).reshape(b, n, h * d)


def there_and_back(x, b, n, h, d):
    y = x.view(b, n, h, d).transpose(1, 2).reshape(b * h, n, d)
    return y.view(b, h, n, d).transpose(1, 2).reshape(b, n, h * d)


def columns(x, b, n, h, d):
    return x.view(b * n, h, d).transpose(1, 2).reshape(b * n * d, h)


def across(x, b, n, h, d):
    return x.view(b, n, h, d).permute(2, 0, 3, 1).reshape(h, b * d, n)


TEXTS = (split, merged, there_and_back, columns, across)


def strides_of(tensor, value):
    """Strides of the case that holds, by dimension of more than one entry."""
    for line, strides in tensor.layout.cases:
        if all((value(size) > 1) == many for size, many in line):
            sizes = map(value, tensor.shape)
            lines = zip(sizes, map(value, strides), strict=True)
            return [stride for size, stride in lines if size > 1]
    raise AssertionError("no case holds")


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.__name__)
@pytest.mark.parametrize("symbolic", [False, True])
def test_reshapes_copy_where_torch_copies(text, symbolic):
    for sizes in SIZES:
        b, n, h, d = sizes
        real = torch.zeros(b, n, h * d)
        expected = text(real, *sizes)
        asked = NAMES if symbolic else sizes
        counter = Counter(4)
        tensor = Tensor.external(counter, (asked[0], asked[1], asked[2] * asked[3]))
        got = text(tensor, *asked)
        value = Evaluator(dict(zip(NAMES, sizes, strict=True)))
        copied = sum(value(stage.allocates) for stage in counter.stages) > 0
        assert copied == (expected.data_ptr() != real.data_ptr()), (sizes, copied)
        lines = zip(expected.shape, expected.stride(), strict=True)
        assert strides_of(got, value) == [stride for size, stride in lines if size > 1], sizes


def test_random_permutations_and_reshapes_lie_as_torch_lays_them():
    chance = random.Random(3)
    for _ in range(300):
        sizes = [chance.choice((1, 2, 3, 4, 6)) for _ in range(4)]
        real, mine = torch.zeros(sizes), Tensor.external(Counter(4), tuple(sizes))
        for _ in range(3):
            order = chance.sample(range(real.dim()), real.dim())
            real, mine = real.permute(order), mine.permute(*order)
            shape = chance.choice(list(shapes_of(real.numel())))
            before = real.data_ptr()
            real = real.reshape(shape)
            mine.counter.stages.clear()
            mine = mine.reshape(shape)
            assert bool(mine.counter.stages) == (real.data_ptr() != before)
            lines = zip(real.shape, real.stride(), strict=True)
            value = Evaluator({})
            assert strides_of(mine, value) == [stride for size, stride in lines if size > 1]


def shapes_of(count):
    """Shapes of three dimensions with so many entries."""
    for a, b in itertools.product(range(1, count + 1), repeat=2):
        if count % (a * b) == 0:
            yield (a, b, count // (a * b))


def test_memory_dies_with_the_last_tensor_on_it():
    counter = Counter(4)
    first = Tensor.external(counter, (2, 3)) / 2
    view = first.view(6)
    del first
    assert counter.stages[-1].frees == 0
    del view
    assert counter.stages[-1].frees == 24


def test_a_stage_is_called_as_the_variable_or_the_function():
    def scaled_rows(x):
        halves = x / 2
        return halves / 2

    counter = Counter(4)
    kept = scaled_rows(Tensor.external(counter, (2, 3)))
    assert [stage.name for stage in counter.stages] == ["halves", "scaled rows"]
    assert not is_symbolic(kept.count)
