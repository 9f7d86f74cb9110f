"""The README's "Add a mechanism", done as it says."""

import re
from pathlib import Path

import pytest
import torch

from attnprof import Workload, attend, cost, registry
from attnprof.trace.deriving import derive_target
from attnprof.trace.mechanisms import mechanism_target

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def name(tmp_path):
    section = README.read_text(encoding="utf-8").partition("## Add a mechanism")[2]
    path = tmp_path / "my.py"
    path.write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1])
    return f"{path}:MyAttention"


def test_costs_of_every_phase_are_those_of_the_running_module(name):
    spec = registry.get(name)
    shape = {"B": 2, "N": 96, "h": 3, "d": 8}
    for scope in ("layer", "core"):
        target = mechanism_target(spec, scope, source=registry.module_of(name))
        found = derive_target(target, ("forward", "backward", "train"), shape)
        for phase in ("forward", "backward", "train"):
            work = Workload(96, 3, 8, 2, phase=phase)
            table = cost(name, work, scope)
            for quantity, value in (
                ("flops", table.flops),
                ("bytes_moved", table.total.bytes_moved),
                ("peak_bytes", table.peak()),
            ):
                assert found.at(quantity, phase, **shape) == value, (scope, phase, quantity)


def test_it_computes_and_is_timed(attnprof, name):
    ended = attnprof("profile", "--attention", name, "--seq", "64", "--format", "json")
    assert ended.code == 0
    (record,) = ended.json["records"]
    assert record["flops_torch"] == record["matmul_flops_formula"]
    q, k, v = torch.randn(3, 2, 4, 10, 8)
    out = attend(name, q, k, v)
    assert torch.allclose(out, torch.softmax(q @ k.transpose(-1, -2), -1) @ v, atol=1e-5)


@pytest.mark.parametrize("asked", [["--causal"], ["--phase", "decode"]])
def test_what_is_not_written_is_refused(attnprof, name, asked):
    ended = attnprof("cost", "--attention", name, "--seq", "8", *asked)
    assert ended.code == 2
    assert "mine" in ended.err
