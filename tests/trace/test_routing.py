"""Experts that tokens choose: derived for even choices, refused where the number chosen is open."""

from functools import cache
from itertools import chain, combinations, product

import pytest
import torch
from torch import nn
from torch.nn import functional

import attnprof
from attnprof.errors import CannotRunError
from attnprof.trace.request.lookup import target_of
from attnprof.trace.solve import count
from tests.oracles.memory import allocator_peak
from tests.trace.checks import torchs_products

EVEN = "tokens are spread evenly over the experts: every expert gets {} rows"


class Experts(nn.Module):
    """Every row goes to two of four experts: each looks for its own."""

    def __init__(self, width, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(experts)])

    def forward(self, x):
        rows = x.flatten(0, -2)
        weights, chosen = self.gate(rows).softmax(-1).topk(2, -1)
        return self.mixed(rows, weights, chosen).view(x.shape)

    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out[token] += expert(x[token]) * weights[token, place, None]
        return out


class Masked(Experts):
    """By a mask over rows, where any is for this expert."""

    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = (chosen == number).any(-1)
            if mask.any():
                out[mask] += expert(x[mask])
        return out


class Sorted(Experts):
    """Rows sorted by their expert and split by how many each has."""

    def mixed(self, x, weights, chosen):
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        parts = zip(self.experts, x[order // 2].split(counts), strict=True)
        done = torch.cat([expert(part) for expert, part in parts])
        back = torch.empty_like(done)
        back[order] = done
        return (back.view(*chosen.shape, -1) * weights[..., None]).sum(1)


class Marked(Experts):
    """How many rows each has is the sum of a table of ones among zeros, taken as a list."""

    def mixed(self, x, weights, chosen):
        marks = torch.zeros(x.shape[0], 4, dtype=weights.dtype).scatter(1, chosen, 1)
        counts = marks.long().sum(0).tolist()
        order = chosen.flatten().sort(0)[1]
        token = order.div(2, rounding_mode="trunc")
        parts = zip(self.experts, x[token].split(counts), strict=True)
        done = torch.cat([expert(part) for expert, part in parts]) * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, token, done)


class Hot(Experts):
    """As transformers does it: one-hot masks, experts that were hit, rows added up."""

    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        mask = functional.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        for number in mask.sum(dim=(-1, -2)).gt(0).nonzero():
            place, token = torch.where(mask[number].squeeze(0))
            rows_of_expert = self.experts[number](x[token]) * weights[token, place, None]
            out.index_add_(0, token, rows_of_expert)
        return out


class Buffered(Experts):
    """Rows of all experts in one buffer, as long for each as the longest; numbers by ``len``."""

    def mixed(self, x, weights, chosen):
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=4)
        expert = torch.repeat_interleave(torch.arange(4), counts)
        place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[expert]
        buffer = torch.zeros(4, int(counts.max()), x.shape[-1])
        buffer[expert, place] = x[order // 2]
        done = buffer @ torch.stack([expert.weight for expert in self.experts])
        done = done[expert, place] * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // 2, done)


class Nearest(Experts):
    """Each row to the expert whose vector is nearest, sorted and split."""

    def forward(self, x):
        nearest = torch.cdist(x, self.gate.weight).argmin(-1)
        order = nearest.argsort()
        parts = x[order].split(torch.bincount(nearest, minlength=4).tolist())
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])


class Numpy(Experts):
    """Numbers leave torch: runs are on real tensors."""

    def mixed(self, x, weights, chosen):
        counts = torch.bincount(chosen.flatten(), minlength=4).numpy()
        rows, start, done = x[chosen.flatten().argsort() // 2], 0, []
        for expert, number in zip(self.experts, counts, strict=True):
            done.append(expert(rows[start : start + number]))
            start += number
        return torch.cat(done)[: len(x)]


class First(Experts):
    """Each row to one expert; gradients go through its probability."""

    def forward(self, x):
        rows = x.flatten(0, -2)
        weights, chosen = self.gate(rows).softmax(-1).max(-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().squeeze(-1)
            out.index_copy_(0, places, expert(rows.index_select(0, places)))
        return (out * weights[:, None]).view(x.shape)


class Threshold(Experts):
    """How many rows an expert gets is not said."""

    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        return sum(e(x[shares[..., n] > 0.3]).sum() for n, e in enumerate(self.experts)) * x


@cache
def derived(module, phases="forward"):
    how = {"args": {"width": 4}, "inputs": {"x": "N, 4"}, "phases": phases}
    return attnprof.derive(module, **how)


@pytest.mark.parametrize("module", [Experts, Masked, Sorted, Marked, Hot])
def test_experts_are_derived_for_even_choices(module):
    derivation = derived(module)
    forms = derivation.phases["forward"]
    assert forms.method == "symbolic"
    assert forms.domain[-1] == EVEN.format("N/2")
    assert forms.bound("peak_bytes") == "even routing"
    assert any("those of even routing" in note for note in forms.notes)
    assert forms.holds({"N": 18})
    assert not forms.holds({"N": 19})
    # whatever the choices: each row is in two products
    products = torchs_products(module(4), torch.randn(18, 4))
    assert derivation.at("matmul_flops", N=18) == products
    calls = [call for call in forms.trace.calls if call.op == "addmm"]
    assert {str(call.counts["matmul_flops"]) for call in calls} == {"16*N"}
    assert [call.module for call in calls] == [f"experts.{n}" for n in range(4)]


def test_rows_of_all_experts_in_one_buffer_are_as_many_as_the_choices():
    derivation = derived(Buffered)
    assert derivation.phases["forward"].method == "symbolic"
    x = torch.randn(6, 4)
    evenly = torch.tensor([[0, 1], [2, 3]] * 3)  # three rows an expert
    module, weights = Buffered(4), torch.ones(6, 2)
    products = torchs_products(module.gate, x)
    products += torchs_products(lambda rows: module.mixed(rows, weights, evenly), x)
    assert derivation.at("matmul_flops", N=6) == products


def test_rows_of_the_nearest_of_four_vectors_are_spread_evenly_as_well():
    derivation = derived(Nearest)
    assert derivation.phases["forward"].domain[-1] == EVEN.format("N/4")
    x = torch.randn(20, 4)  # few enough rows for distances without a product
    assert derivation.at("matmul_flops", N=20) == torchs_products(Nearest(4), x)


def test_the_peak_is_higher_where_one_expert_gets_every_row():
    module, x = Experts(4), torch.ones(512, 4)  # rows alike choose alike
    with torch.no_grad():
        seen = allocator_peak(lambda: module(x))
    assert seen > 1.1 * derived(Experts).at("peak_bytes", N=512)


def test_training_counts_the_backward_pass_of_each_expert():
    derivation = derived(First, "train")
    assert derivation.phases["train"].domain[-1] == EVEN.format("N/4")
    products = torchs_products(First(4), torch.randn(20, 4, requires_grad=True), training=True)
    assert derivation.at("matmul_flops", "train", N=20) == products
    one = next(part for part in derivation.submodules("train") if part.name == "experts.0-3")
    assert one.times == 4
    assert str(one.flops) == f"{6 * 4 * 4 + 2 * 4}*N"  # three products, a bias and its gradient


def test_choices_that_leave_torch_are_followed_on_real_tensors():
    derivation = derived(Numpy)
    assert derivation.phases["forward"].domain[-1] == EVEN.format("N/2")
    assert str(derivation.expression("matmul_flops")) == "96*N"


def test_what_values_decide_otherwise_is_refused_with_its_line():
    with pytest.raises(CannotRunError, match=r"depends on the values .*test_routing.py:\d+"):
        derived(Threshold)


class Capacity(nn.Module):
    """Tokens take the places of their expert in order, those beyond its capacity none."""

    def __init__(self, width, experts=4, capacity=20):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.zeros(experts, width, width))
        self.experts, self.capacity = experts, capacity

    def forward(self, x):
        rows = x.flatten(0, -2)
        weights, chosen = self.gate(rows).softmax(-1).max(-1)
        marks = functional.one_hot(chosen, self.experts)
        place = (marks.cumsum(0) * marks).sum(-1) - 1
        last = self.experts * self.capacity
        place = torch.where(place < self.capacity, chosen * self.capacity + place, last)
        slots = torch.zeros(last + 1, rows.shape[-1]).index_copy(0, place, rows)
        done = slots[:-1].view(self.experts, self.capacity, -1) @ self.up
        done = torch.cat([done.flatten(0, 1), slots[-1:]])
        return (done[place] * weights[:, None]).view(x.shape)


def test_one_hot_choices_for_slots_of_a_fixed_number_need_no_assumption():
    derivation = derived(Capacity)
    assert not any("evenly" in text for text in derivation.phases["forward"].domain)
    module = Capacity(4)
    for tokens in (5, 50, 301):
        x = torch.randn(tokens, 4)
        with torch.no_grad():
            peak = allocator_peak(lambda: module(x))  # noqa: B023
        assert derivation.phases["forward"].holds({"N": tokens})
        assert derivation.at("peak_bytes", N=tokens) == peak
        assert derivation.at("matmul_flops", N=tokens) == torchs_products(module, x)


def weights_read(module, rows):
    """Bytes that the experts' products read and write, in a run at so many rows."""
    target = target_of(module, ["width=64"], ["x: N, 64"]).running(routed=True)
    calls = count.count(target, {"N": rows}, "forward").calls
    return sum(call.bytes_moved for call in calls if call.op == "addmm")


@pytest.mark.parametrize("module", [Experts, Masked, Sorted, Marked, Hot, First])
@pytest.mark.parametrize("rows", [3, 9])
def test_weights_are_read_of_as_many_experts_as_rows_meet_on_average(module, rows):
    """On average over all ways in which rows choose."""
    chosen = 1 if module is First else 2
    ways = list(combinations(range(4), chosen))
    if rows < 4:
        choices = list(product(ways, repeat=rows))
        met = sum(len(set(chain(*choice))) for choice in choices) / len(choices)
    else:
        met = 4 * (1 - (1 - chosen / 4) ** rows)
    each = 64 * 64 * 4
    moved = chosen * rows * (64 + 64) * 4 + 64 * 4 * min(4, chosen * rows)  # rows and biases
    assert weights_read(module, rows) == pytest.approx(met * each + moved, abs=8)


class Multiplied(Sorted):
    """By weights that are one tensor, of a width of 4 inside."""

    def __init__(self, width):
        nn.Module.__init__(self)
        self.gate = nn.Linear(width, 4, bias=False)
        self.up = nn.Parameter(torch.zeros(4, width, 4))
        self.down = nn.Parameter(torch.zeros(4, 4, width))

    def forward(self, x):
        return self.mixed(x, *self.gate(x).softmax(-1).topk(2, -1))

    @property
    def experts(self):
        pairs = zip(self.up, self.down, strict=True)
        return [lambda rows, up=up, down=down: (rows @ up).sin() @ down for up, down in pairs]


def test_the_gradient_of_weights_reads_all_rows_where_these_are_as_many_as_columns():
    target = target_of(Multiplied, ["width=500"], ["x: N, 500"]).running(routed=True)
    calls = count.count(target, {"N": 8}, "train").calls  # 4 rows an expert
    moved = [x.bytes_moved for x in calls if (x.op, x.shape) == ("mm", (4, 500))]
    assert moved.count(4 * (4 * 4 + 2 * 4 * 500)) == 4  # of ``down``


def test_millions_of_rows_are_spread_over_experts_too():
    rows = 2**21 + 4
    moved = 2 * rows * (64 + 64) * 4
    assert weights_read(Experts, rows) == 4 * (64 * 64 + 64) * 4 + moved
