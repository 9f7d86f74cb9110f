"""The README's "Add a mechanism", done as it says."""

import math
import re
from pathlib import Path

import pytest
import torch

from attnprof import Workload, attend, build, cost, registry
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.solve.derive import derived

#: bytes of the number in a division that autograd keeps; a recording does not see them
NUMBER = 8
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def name(tmp_path):
    section = README.read_text(encoding="utf-8").partition("## Add a mechanism")[2]
    path = tmp_path / "my.py"
    path.write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1])
    return f"{path}:GatedMultiQuery"


def test_costs_of_every_phase_are_those_of_the_running_module(name):
    spec = registry.get(name)
    shape = {"B": 2, "N": 96, "h": 3, "d": 8}
    for scope, causal in (("layer", False), ("core", True)):
        target = mechanism_target(spec, scope, causal=causal, source=registry.module_of(name))
        phases = ("forward", "backward", "train") if causal else ("forward", "train", "decode")
        derivation = derived(target, phases, shape)
        for phase in phases:
            work = Workload(96, 3, 8, 2, causal=causal, phase=phase)
            table = cost(name, work, scope)
            assert derivation.at("flops", phase, **shape) == table.flops
            assert derivation.at("bytes_moved", phase, **shape) == table.total.bytes_moved
            held = table.peak() - derivation.at("peak_bytes", phase, **shape)
            assert held in (0, NUMBER), (scope, causal, phase)


def test_it_computes_and_is_timed(attnprof, name):
    ended = attnprof(f"profile --attention {name} --seq 64 --format json")
    assert ended.code == 0
    (record,) = ended.json["records"]
    assert record["flops_torch"] == record["matmul_flops_formula"]
    q, k, v, gate = torch.randn(2, 4, 9, 8), *torch.randn(2, 2, 1, 9, 8), torch.randn(8, 8)
    out = attend(name, q, k, v, causal=True, weights={"gate": gate})
    scores = (q @ k.mT / math.sqrt(8)).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
    assert torch.allclose(out, scores.softmax(-1) @ v * (q @ gate).sigmoid(), atol=1e-5)


def test_it_decodes_what_it_computes_at_once(name):
    layer = build(name, 24, 3)
    x = torch.randn(2, 7, 24)
    state, rows = layer.init_state(2), []
    for token in x.unbind(1):
        row, state = layer.step(token, state)
        rows.append(row)
    assert torch.allclose(torch.stack(rows, 1), layer(x, causal=True), atol=1e-5)


def test_what_is_not_written_is_refused(attnprof, name):
    for asked in ("--kv-seq 12", "--kv-heads 2 --heads 4", "--set gate=1"):
        ended = attnprof(f"cost --attention {name} --seq 8", asked)
        assert ended.code == 2
        assert "gatedmultiquery" in ended.err.lower().replace("-", "")
