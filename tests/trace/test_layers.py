"""Layers: alike ones, worked out once; markers, which cost nothing; sizes that come late."""

import pytest
import torch
from torch import nn

from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import hints_for
from attnprof.trace.run import remembered
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import run_symbolically
from tests.trace.checks import shown


class Layers(nn.Module):
    def __init__(self, d_model, num_layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d_model, 2 * d_model) for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            one, other = layer(x).tanh_().chunk(2, -1)
            x = torch.cat([x, one.relu() @ other.mT @ x], 1)[:, : x.shape[1]] + x
        return x


def test_what_is_remembered_changes_nothing(monkeypatch):
    target = target_of(Layers, {"d_model": "d"}, {"x": "B, N, d"})
    hints = hints_for(target.symbols, {})

    def runs():
        run = run_symbolically(target, hints, ["backward", "train"])
        numbers = [record(target, hints, training=True, on_meta=meta) for meta in (False, True)]
        return run.forms, run.guards.conditions, run.trace, *numbers

    with_memory = runs()
    monkeypatch.setattr(remembered, "_is_made_again", lambda _: False)
    assert runs() == with_memory


class Recurrence(nn.Module):
    def forward(self, x):
        state, rows = x[:, 0], []
        for token in range(x.shape[1]):
            state = torch.tanh(x[:, token] @ x[:, token : token + 2].mT.sum(-1) + state)
            rows.append(state[:, None].expand(-1, 2, -1)[:, 1])
        x[:, : len(rows)] = torch.stack(rows, 1)
        return torch.as_strided(x[:, 1], (2, 2), (1, 1), 1)


@pytest.mark.parametrize("on_meta", [False, True])
def test_turns_of_a_loop_over_tokens_are_those_that_torch_makes(monkeypatch, on_meta):
    target = target_of(Recurrence, {}, {"x": "4, N, 4"})
    trace = record(target, {"N": 24}, training=False, on_meta=on_meta)
    monkeypatch.setattr(remembered, "_is_made_again", lambda _: False)
    assert record(target, {"N": 24}, training=False, on_meta=on_meta) == trace


def test_where_an_operand_begins_decides_what_complex_views_raise():
    target = target_of(
        lambda x: [torch.view_as_complex(x[i : i + 2]) for i in (0, 1)], {}, {"x": "N"}
    )
    with pytest.raises(RuntimeError, match="storage_offset"):
        record(target, {"N": 8}, training=False)


def test_a_remembered_view_of_a_conjugate_is_no_conjugate_itself():
    def transformed(x):  # the transform is itself a conjugate of one
        return sum(torch.fft.ifft(1j * y, dim=1).real for y in (x, x + 1))

    target, sizes = target_of(transformed, {}, {"x": "B, N, d"}), {"B": 2, "N": 6, "d": 4}
    runs = [record(target, sizes, training=True, real=real) for real in (False, True)]
    assert totals(runs[0], "train") == totals(runs[1], "train")


class Marked(nn.Module):
    def forward(self, x):
        with torch.profiler.record_function("ours"), torch.cuda.nvtx.range("theirs"):
            torch._assert(x.dim() == 3, "tokens")
            torch.profiler.itt.mark("here")
            return torch.relu(x)


def test_markers_of_profilers_take_nothing_and_leave_totals_exact():
    _, derivation = shown(Marked, phase="train")
    forms = derivation.phases["train"]
    assert not forms.uncounted
    assert not any("at least" in note for note in forms.notes)
    assert str(derivation.expression("flops", "train")) == "2*B*N*d"


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
    targets = [
        target_of(layer, arguments, [f"input: {shape}"])
        for layer, arguments in ((lazy, given), (settled, given | width))
    ]
    formulas = [derived(target, ("train",)).phases["train"].formulas for target in targets]
    assert formulas[0] == formulas[1]


def test_a_lazy_module_that_exists_stays_lazy():
    module = nn.LazyLinear(8)
    derivation = derived(target_of(module, inputs=["input: B, 24"]), ("forward",), {})
    assert derivation.at("matmul_flops", B=2) == 2 * 2 * 24 * 8
    assert module.has_uninitialized_params()
