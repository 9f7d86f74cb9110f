"""Shapes outside of a formula's domain are run, not guessed."""

import pytest
from torch import nn

import attnprof
from attnprof.errors import RequestError


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, c // self.h).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(b, n, c)


@pytest.fixture(scope="module")
def free():
    """With no size given."""
    return attnprof.derive(Attention)


@pytest.mark.parametrize("sizes", [(1, 9, 3, 4), (2, 9, 1, 4), (1, 1, 1, 4), (3, 1, 2, 1)])
def test_a_size_of_one_is_a_case_of_its_own(free, sizes):
    at = dict(zip("BNhd", sizes, strict=True))
    asked = attnprof.derive(Attention, at=at)
    for phase in ("forward", "backward"):
        for quantity in ("flops", "bytes_moved", "peak_bytes", "parameters"):
            assert free.at(quantity, phase, **at) == asked.at(quantity, phase, **at)


def test_where_the_code_does_not_run_there_is_no_number():
    def rows(x):
        return x.view(x.shape[0], 4, -1) * 2.0

    found = attnprof.derive(rows, inputs={"x": "B, 4*N"}, phases=["forward"])
    assert found.at("flops", "forward", B=2, N=3) == 24
    with pytest.raises(RequestError):
        found.at("flops", "forward", B=2)


def test_another_branch_is_run():
    def branching(x):
        return x @ x.mT @ x if x.shape[1] > 64 else x * 2.0

    found = attnprof.derive(branching, inputs={"x": "B, N, d"}, phases=["forward"])
    assert found.at("flops", "forward", B=2, N=10, d=3) == 2 * 10 * 3
    assert found.at("flops", "forward", B=2, N=100, d=3) == 4 * 2 * 100 * 100 * 3
