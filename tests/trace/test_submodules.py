"""Costs by submodule: held against torch's own counter, and against submodules derived alone."""

import pytest
import sympy
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof.algebra.values import evaluate
from attnprof.trace.events import flops_of
from attnprof.trace.request.lookup import target_of
from tests.trace.checks import counted_at
from tests.trace.samples import MyAttention

PHASES = ("forward", "backward", "train")
HOW = {"args": {"d_model": 8, "num_heads": 2}, "inputs": {"x": "B, N, 8"}}


class Block(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention = MyAttention(d_model, num_heads)
        self.norm = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.GELU(),
                                 nn.Linear(2 * d_model, d_model))  # fmt: skip

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    """Two kinds of blocks, one of them twice."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.blocks = nn.ModuleList([Block(d_model, num_heads) for _ in range(2)])
        self.blocks.append(nn.Linear(d_model, d_model))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x * 2


@pytest.fixture(scope="module")
def stack():
    return attnprof.derive(Stack, phases=PHASES, **HOW)


def test_products_by_module_are_those_of_torchs_counter(stack):
    sizes = {"B": 2, "N": 7}
    module, x = Stack(8, 2), torch.randn(2, 7, 8, requires_grad=True)
    with FlopCounterMode(display=False, depth=None) as counter:
        module(x).sum().backward()
    theirs = {
        name.removeprefix("Stack").removeprefix("."): sum(by_operation.values())
        for name, by_operation in counter.get_flop_counts().items()
        if name != "Global"
    }
    calls = stack.phases["train"].trace.calls
    for name, flops in theirs.items():
        inside = [c for c in calls if f"{c.module}.".startswith(f"{name}." if name else "")]
        ours = [evaluate(c.counts.get("matmul_flops", 0), sizes) for c in inside]
        assert sum(ours) == flops, name
    assert len(theirs) > 10


@pytest.mark.parametrize("phase", PHASES)
def test_leaves_and_what_modules_do_themselves_are_the_whole(stack, phase):
    parts = stack.submodules(phase)
    for name in ("flops", "parameters", "peak_bytes"):
        difference = getattr(parts[0], name) - stack.expression(name, phase)
        assert difference == 0 or sympy.simplify(difference) == 0, name
    assert sympy.expand(sum(part.flops_itself for part in parts) - parts[0].flops) == 0
    leaves = [part.flops for part in parts if not part.inside]
    others = [part.flops_itself for part in parts if part.inside]
    assert sympy.expand(sum(leaves) + sum(others) - parts[0].flops) == 0
    assert parts[0].flops == flops_of(stack.phases[phase].trace.part(phase))


def test_siblings_that_are_alike_are_one(stack):
    times = {part.name: part.times for part in stack.submodules("train")}
    assert times == {
        "": 1, "blocks": 1, "blocks.0-1": 2, "blocks.0-1.attention": 2,
        "blocks.0-1.attention.qkv": 2, "blocks.0-1.attention.out": 2, "blocks.0-1.norm": 2,
        "blocks.0-1.mlp": 2, "blocks.0-1.mlp.0": 2, "blocks.0-1.mlp.1": 2, "blocks.0-1.mlp.2": 2,
        "blocks.2": 1,
    }  # fmt: skip


def test_a_submodule_costs_what_it_costs_alone(stack):
    alone = attnprof.derive(Block, phases=["backward"], **HOW)
    (inside,) = (part for part in stack.submodules("backward") if part.name == "blocks.0-1")
    assert inside.flops == 2 * alone.expression("flops", "backward")
    assert inside.parameters == 2 * alone.expression("parameters", "backward")
    (mine,) = (part for part in alone.submodules("backward") if part.name == "attention")
    sizes, held = {"B": 3, "N": 50}, 4 * 3 * 50 * 8  # alone, its result is held until the end
    attention = counted_at(target_of(MyAttention, **HOW), sizes, "backward")
    assert evaluate(mine.peak_bytes, sizes) + held == attention["peak_bytes"]


def test_recomputed_operations_belong_to_their_submodule():
    class Checkpointed(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(d_model, d_model), nn.Sigmoid())

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

    derivation = attnprof.derive(Checkpointed, phases=["backward"], args={"d_model": "d"})
    again = [c for c in derivation.phases["backward"].trace.calls if c.op == "addmm"]
    assert [(c.part, c.module) for c in again] == [("forward", "block.0"), ("backward", "block.0")]
    names = [part.name for part in derivation.submodules("backward")]
    assert names == ["", "block", "block.0", "block.1"]
