"""Shapes outside of a formula's domain are run, not guessed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnprof
from attnprof.errors import RequestError
from attnprof.trace.events import totals
from attnprof.trace.report.derivation import curves_of
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from tests.trace.samples import MyAttention


@pytest.fixture(scope="module")
def free():
    """With no size given."""
    return attnprof.derive(MyAttention)


QUANTITIES = ("flops", "bytes_moved", "peak_bytes", "parameters")


@pytest.mark.parametrize("sizes", [(1, 9, 3, 4), (2, 9, 1, 4), (3, 1, 2, 1)])
def test_a_size_of_one_is_a_case_of_its_own(free, sizes):
    at = dict(zip("BNhd", sizes, strict=True))
    for phase in ("forward", "backward"):
        trace = record(target_of(MyAttention), at, training=phase == "backward", real=True)
        counts = totals(trace, phase)
        assert {name: free.at(name, phase, **at) for name in QUANTITIES} == {
            name: counts[name] for name in QUANTITIES
        }


def test_formulas_asked_for_at_sizes_of_one_are_those_of_that_case(free):
    at = {"B": 1, "N": 1, "h": 1, "d": 4}
    asked = attnprof.derive(MyAttention, at=at)
    for phase in ("forward", "backward"):
        for name in QUANTITIES:
            assert free.at(name, phase, **at) == asked.at(name, phase, **at)


def test_where_the_code_does_not_run_there_is_no_number():
    def rows(x):
        return x.view(x.shape[0], 4, -1) * 2.0

    derivation = attnprof.derive(rows, inputs={"x": "B, 4*N"}, phases=["forward"])
    assert derivation.at("flops", "forward", B=2, N=3) == 24
    with pytest.raises(RequestError):
        derivation.at("flops", "forward", B=2)


@pytest.fixture(scope="module")
def branching():
    """Code that does something else for short inputs."""

    def branching(x):
        return x @ x.mT @ x if x.shape[1] > 64 else x * 2.0

    return attnprof.derive(branching, inputs={"x": "B, N, d"}, phases=["forward"])


def test_another_branch_is_run(branching):
    assert branching.at("flops", "forward", B=2, N=10, d=3) == 2 * 10 * 3
    assert branching.at("flops", "forward", B=2, N=100, d=3) == 4 * 2 * 100 * 100 * 3


def test_curves_are_values_of_formulas_at_lengths_where_they_hold(branching):
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

    derivation = attnprof.derive(looks_up, inputs={"x": "N, 4"}, phases=["forward"])
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

    derivation = attnprof.derive(Masked, inputs={"x": "B, N, d"}, phases=["forward"])
    inside = {"B": 2, "N": longest - 1, "d": 4}
    pairs = 2 * (longest - 1) ** 2
    assert derivation.phases["forward"].holds(inside)
    assert derivation.at("matmul_flops", **inside) == 2 * 2 * 4 * pairs
    assert not derivation.phases["forward"].holds({**inside, "N": longest + 1})
    with pytest.raises(RequestError):
        derivation.at("flops", **{**inside, "N": longest + 1})
