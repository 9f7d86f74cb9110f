"""Markers of profilers, which cost nothing, and layers whose sizes come with their first call."""

import pytest
import torch
from torch import nn

from attnprof.algebra.expressions import symbol
from attnprof.trace.request.lookup import target_of
from attnprof.trace.solve.derive import derived


class Marked(nn.Module):
    def forward(self, x):
        with torch.profiler.record_function("ours"), torch.cuda.nvtx.range("theirs"):
            torch._assert(x.dim() == 3, "tokens")
            torch.profiler.itt.mark("here")
            return torch.relu(x)


def test_markers_of_profilers_take_nothing_and_leave_totals_exact():
    derivation = derived(target_of(Marked, inputs=["x: B, N, d"]), ("forward", "backward"), {})
    for phase, forms in derivation.phases.items():
        assert not forms.uncounted
        assert not any("at least" in note for note in forms.notes)
        assert derivation.expression("flops", phase) == symbol("B") * symbol("N") * symbol("d")


@pytest.mark.parametrize(
    ("lazy", "settled", "given", "width", "shape"),
    [
        (nn.LazyLinear, nn.Linear, {"out_features": 8}, {"in_features": "d"}, "B, 5, d"),
        (nn.LazyConv1d, nn.Conv1d, {"out_channels": 8, "kernel_size": 3}, {"in_channels": 5},
         "B, 5, N"),
        (nn.LazyBatchNorm1d, nn.BatchNorm1d, {}, {"num_features": 5}, "B, 5, N"),
    ],
)  # fmt: skip
def test_lazy_layers_cost_what_layers_of_their_sizes_cost(lazy, settled, given, width, shape):
    def found(layer, arguments):
        derivation = derived(
            target_of(layer, arguments, [f"input: {shape}"]), ("forward", "train"), {}
        )
        return {
            (phase, quantity): derivation.expression(quantity, phase)
            for phase in derivation.phases
            for quantity in ("flops", "bytes_moved", "peak_bytes", "parameters")
        }

    assert found(lazy, given) == found(settled, given | width)


def test_a_lazy_module_that_exists_stays_lazy():
    module = nn.LazyLinear(8)
    derivation = derived(target_of(module, inputs=["input: B, 24"]), ("forward",), {})
    assert derivation.at("matmul_flops", B=2) == 2 * 2 * 24 * 8
    assert module.has_uninitialized_params()
