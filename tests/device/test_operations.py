"""What a call asks of a device, seen without running it."""

import sys
from collections import Counter
from itertools import pairwise
from math import prod

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof import registry
from attnprof.device.operation_forms import kernel_call, loops
from attnprof.device.operations import operations_of
from attnprof.measure.counters import count_with_torch
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject


class Names(TorchDispatchMode):
    """The operations of a real run by name."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != "prim":
            self.seen[func._schema.name.split("::")[1]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "phase"), [
    ("standard", "train"), ("linear", "forward"), ("taylor-efficient", "train"),
    ("nystromformer", "forward"), ("sdpa", "forward"), ("sdpa", "train"),
])  # fmt: skip
def test_a_real_run_asks_for_the_same_operations(name, phase):
    request = PointRequest(name, 96, 2, 8, phase=phase)
    subject = build_subject(request)
    subject.prepare()
    with Names() as names:
        subject.call()
    assert Counter(o.name for o in operations_of(request).operations) == names.seen


@pytest.mark.parametrize("name", registry.names())
def test_products_have_the_flops_that_torch_counts(name):
    request = PointRequest(name, 80, 2, 8)
    work = operations_of(request)
    products = sum(2 * prod(o.sizes) for o in work.operations if o.form == "product")
    fused = [o.sizes for o in work.operations if o.form == "fused"]
    products += sum(2 * heads * n * m * (d + v) for heads, n, m, d, v in fused)
    others = ("aten.convolution", "aten.einsum")
    counted = count_with_torch(request, meta=bool(fused)).counted  # it knows no fused CPU kernel
    assert products == sum(count for op, count in counted.items() if op not in others)


def _starts(shape, strides):
    """How often a walk in the order of the first tensor leaves the step of the innermost axis."""
    order = sorted((i for i in range(len(shape)) if shape[i] > 1), key=lambda i: -strides[0][i])
    places = [
        [sum(index[i] * stride[i] for i in range(len(shape))) for stride in strides]
        for index in sorted(
            torch.cartesian_prod(*[torch.arange(s) for s in shape]).view(-1, len(shape)).tolist(),
            key=lambda index: [index[i] for i in order],
        )
    ]
    step = [stride[order[-1]] for stride in strides]
    jumps = sum(
        [b - a for a, b in zip(here, there, strict=True)] != step
        for here, there in pairwise(places)
    )
    return 1 + jumps


@pytest.mark.parametrize(("shape", "strides"), [
    ((4, 5), [(5, 1), (5, 1)]), ((4, 5), [(5, 1), (1, 0)]), ((4, 5), [(5, 1), (0, 1)]),
    ((4, 5), [(5, 1), (6, 1)]), ((2, 3, 4), [(12, 4, 1), (12, 4, 1), (12, 4, 0)]),
    ((2, 3, 4), [(12, 4, 1), (4, 8, 1)]), ((2, 1, 4), [(4, 4, 1), (4, 0, 1)]),
    ((3, 4), [(4, 1), (1, 3)]),
])  # fmt: skip
def test_loops_start_where_a_walk_through_the_tensors_jumps(shape, strides):
    assert loops(shape, strides)[0] == _starts(shape, strides)


def test_entries_that_lie_apart_are_seen():
    assert loops((3, 4), [(4, 1), (1, 3)])[1] == 3
    assert loops((3, 4), [(4, 1), (4, 0)])[1] == 1


def test_training_makes_nodes_and_knows_its_backward_pass():
    work = operations_of(PointRequest("standard", 16, 2, 8, phase="train"))
    assert work.nodes > 5
    assert {o.backward for o in work.operations} == {False, True}
    assert operations_of(PointRequest("standard", 16, 2, 8)).nodes == 0


def test_what_is_computed_once_and_kept_is_no_part_of_a_call():
    """Where TaylorShift's forms take turns is found in Python, the first time it is asked for."""
    request = PointRequest("taylorshift", 136, 3, 24, phase="decode")
    first, again = operations_of(request), operations_of(request)
    assert first.functions == again.functions


#: A mechanism whose first call imports a module, which calls functions of its own.
IMPORTING = """
from typing import ClassVar

from attnprof.mechanism import Mechanism


class Importing(Mechanism):
    name: ClassVar[str] = "importing"

    def core(self, q, k, v):
        import imported_by_a_call

        for _ in range(60):
            v = v * 2.0
        return v
"""
IMPORTED = """
def nothing():
    pass


for _ in range(100):
    nothing()
"""


def test_what_a_first_call_imports_is_no_part_of_a_call(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_by_a_call.py").write_text(IMPORTED)
    (tmp_path / "importing.py").write_text(IMPORTING)
    request = PointRequest(f"{tmp_path / 'importing.py'}:Importing", 16, 2, 8)
    first, again = operations_of(request), operations_of(request)
    assert len(first.operations) >= 60
    assert first.functions == again.functions


#: A layer that looks up what few functions find once; another one refuses lengths in training.
KEEPS = """
import functools

from torch import nn


@functools.cache
def factor():
    return sum(map(lambda n: n, (1, 2, 3)))


class Keeps(nn.Module):
    def forward(self, x):
        for _ in range(20):
            x = x * factor()
        return x


class Refuses(nn.Module):
    def forward(self, x):
        y = x * 2.0
        if x.shape[1] % 64:
            raise ValueError("no block")
        return y
"""


def test_a_time_is_the_same_whatever_was_predicted_before(tmp_path):
    (tmp_path / "keeps.py").write_text(KEEPS)
    requests = [PointRequest(f"{tmp_path}/keeps.py:Keeps", n, 2, 8) for n in (16, 32, 16)]
    first, second, again = (operations_of(request).functions for request in requests)
    assert first == second == again


def test_a_refusal_leaves_no_hook_in_the_interpreter_which_slows_what_is_timed_next(tmp_path):
    (tmp_path / "refuses.py").write_text(KEEPS)
    request = PointRequest(f"{tmp_path}/refuses.py:Refuses", 100, 2, 8, phase="train")
    hook = sys.getprofile()
    with pytest.raises(ValueError, match="no block"):
        operations_of(request)
    assert sys.getprofile() is hook


@pytest.mark.parametrize(("dtype", "factor", "copies"), [
    ("bfloat16", lambda x: x, 0), ("bfloat16", lambda x: x.mT.contiguous().mT, 0),
    ("bfloat16", lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), 1),
    ("float32", lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), 0),
])  # fmt: skip
def test_factors_are_packed_where_matrices_of_half_formats_lie_apart(dtype, factor, copies):
    a = torch.ones(4, 8, 16, dtype=getattr(torch, dtype))
    b = factor(torch.ones(4, 16, 24, dtype=getattr(torch, dtype)))
    call = kernel_call(torch.ops.aten.bmm.default, (a, b), {}, a @ b)
    assert call.dtype == dtype
    assert [one.name for one in call.packed] == ["clone"] * copies
