"""Derivations against runs on real tensors: where they part, the real way is what counts."""

from functools import cache
from itertools import product

import pytest
import torch
from torch import nn

from attnprof import registry
from attnprof.errors import CannotRunError
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import mechanism_target, target_of
from attnprof.trace.run.runs import TooLargeError, record
from attnprof.trace.solve.count import count, smallest_real_run
from attnprof.trace.solve.derive import derived
from tests.trace.checks import check, counted_at, shown

SHAPES = ({"B": 3, "N": 7}, {"B": 5, "N": 121})
BOTH = ("forward", "train")


def target(layer):
    return target_of(layer, inputs=["x: B, N, 16"])


def everywhere(_sizes):
    return True


@pytest.mark.parametrize("name", ["sdpa", "performer"])
def test_runs_on_fake_and_on_real_tensors_are_the_same_call_by_call(name):
    target = mechanism_target(registry.get(name))
    outcome = smallest_real_run(target, True, everywhere, iter(()))
    assert not isinstance(outcome, str), outcome
    assert outcome[1].calls


@pytest.mark.parametrize("name", ["softplus", "elu", "hardtanh", "hardswish", "logsigmoid"])
def test_gradients_in_columns_are_laid_out_as_the_kernels_lay_them_out(name):
    def activated(x):
        function = getattr(nn.functional, name)
        return function(x).mT.contiguous() + function(x.mT)

    sizes = {"B": 3, "N": 7}
    fake, real = (counted_at(target(activated), sizes, "train", real=x) for x in (False, True))
    assert fake == real


def asks_its_type(x):
    """Another way on anything that is not exactly a tensor."""
    return x.sin() if type(x) is torch.Tensor else x @ x.mT @ x


def asks_its_type_on_the_way(x):
    """A mask only on fake tensors, as code has it that must not read values when it is traced."""
    scores = x @ x.mT
    if type(scores).__name__ == "FakeTensor":
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = scores.masked_fill(mask, 0.0)
    return scores.softmax(-1) @ x


def asks_whether_sizes_are_numbers(x):
    return x.sin() if type(x.shape[1]) is int else x @ x.mT @ x


def asks_for_addresses(x):
    try:
        known = x.data_ptr() != 0
    except RuntimeError:
        known = False
    return x.sin() if known else x @ x.mT @ x


def reads_positions(x):
    """A number from values that depend on sizes alone: whether positions follow each other."""
    positions = torch.arange(x.shape[1], device=x.device)
    packed = (torch.diff(positions) != 1).cumsum(-1)
    if (packed[-1] == 0).all():
        return x.sin()
    return x @ x.mT @ x


class WarnsOfPadding(nn.Module):
    """Looks at its input's values, but does the same whatever they are."""

    def forward(self, x):
        if 0.0 in x[:, [-1, 0]]:
            self.warned = True
        return x.sin()


def checks_its_input(x):
    if (x.abs() > 1e6).any():
        raise ValueError("too large")
    return x.sin()


@cache
def derivation(layer, phases):
    return derived(target(layer), phases, {})


@pytest.mark.parametrize(
    ("layer", "phases"),
    [
        (asks_its_type, BOTH), (asks_its_type_on_the_way, ("forward",)),
        (asks_for_addresses, ("train",)), (asks_whether_sizes_are_numbers, ("train",)),
        (reads_positions, ("forward",)), (WarnsOfPadding, BOTH), (checks_its_input, ("train",)),
    ],
)  # fmt: skip
def test_the_way_on_real_tensors_is_what_is_counted(layer, phases):
    """By formulas, and by the count of one shape, which profile and the gate show."""
    formulas = derivation(layer, phases)
    for sizes, phase in product(SHAPES, phases):
        real = counted_at(target(layer), sizes, phase, real=True)
        values = {name: formulas.at(name, phase, **sizes) for name in real}
        assert values == real, (phase, sizes)
        assert totals(count(target(layer), sizes, phase), phase) == real


def test_runs_without_numbers_contradict_nothing_on_their_own():
    """Meta tensors are a shortcut of the check: what they alone do is no reason to refuse."""

    def grows(x):
        return x * 2 + torch.ones(1) if x.is_meta and x.shape[0] > 40 else x * 2

    formulas = derived(target_of(grows, inputs=["x: N"]), ("forward",), {})
    assert formulas.at("flops", "forward", N=1000) == 1000
    assert formulas.phases["forward"].method == "symbolic"


def test_where_the_ways_part_is_said_with_the_line_and_both_operations():
    forms = derivation(asks_its_type_on_the_way, ("forward",)).phases["forward"]
    note = " ".join(forms.notes)
    assert "test_reality.py:" in note
    assert "on real tensors" in note
    assert "_softmax" in note
    assert "ones" in note
    assert forms.method == "interpolated"


def branches_on_its_input(x):
    return x.sin() if x.sum() > 0 else x @ x.mT @ x


class BranchesOnItsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x.sin() if self.gate.item() > 0 else x @ x.mT @ x


def scales_by_its_input(x):
    return x[:, : int(x.abs().max()) + 1]


def picks_by_its_input(x):
    return x[x > 0]


def reads_nothing(x):
    """Scores of 5 GiB, piece by piece."""
    return [x[:, i : i + 1000] @ x.mT for i in range(0, x.shape[1], 1000)]


class Huge(nn.Module):
    """Weights of 16 GiB."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(16, 2**28))

    def forward(self, x):
        return x @ self.weight[:, :16]


class HugeReader(Huge):
    def forward(self, x):
        return super().forward(x) if torch.linspace(0, 1, x.shape[1]).any() else x


class ReadsOnes(nn.Module):
    """As models look for padding, and drop no layer in training."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        mask = torch.ones(x.shape[:2]).to(torch.bool)
        if self.training and torch.rand([]) < 0.0:
            return x
        return self.linear(x) if mask.sum() == mask.numel() else x @ x.mT @ x


def test_values_that_sizes_make_are_known_as_far_as_it_is_tried():
    given, derivation = shown(ReadsOnes, inputs=["x: B, N, 8"], phase="train")
    forms = derivation.phases["train"]
    assert forms.method == "symbolic"
    assert any(text.startswith("N <= ") for text in forms.domain)
    shapes = [{"B": 3, "N": 57}, {"B": 2, "N": 130}]
    assert check(given, derivation, shapes, "train", real=True) == 2


def test_nothing_large_is_run_and_that_is_said():
    forms = derived(target(Huge), ("forward",), {}).phases["forward"]
    assert any("not held against a run on real tensors: it takes 16." in n for n in forms.notes)


def scales_by_its_input_after_a_choice(x):
    """A choice of eight is even whatever the input is."""
    chosen = nn.functional.one_hot(x[..., :8].topk(2).indices, 8).sum(-2)
    return chosen * x.sum().item()


BY_VALUES = r"value of a tensor.*test_reality\.py:\d+"
LATER_LINE = scales_by_its_input_after_a_choice.__code__.co_firstlineno + 3


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (branches_on_its_input, BY_VALUES), (BranchesOnItsWeights, BY_VALUES),
        (scales_by_its_input, BY_VALUES), (HugeReader, "GiB"),
        (scales_by_its_input_after_a_choice, rf"test_reality\.py:{LATER_LINE}\)"),
        (picks_by_its_input, "size of a result depends on the values"),
    ],
)  # fmt: skip
def test_what_depends_on_values_is_refused_with_its_line(layer, words):
    with pytest.raises(CannotRunError, match=words):
        derived(target(layer), ("forward",), {})


def test_a_run_on_real_tensors_ends_before_it_takes_the_machines_memory():
    with pytest.raises(TooLargeError, match="1024 MiB"):
        record(target(reads_nothing), {"B": 2, "N": 40_000}, training=False, real=True)


def test_a_module_that_exists_is_left_as_it_is():
    module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(7), nn.Dropout(0.5)).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for how in ({}, {"real": True}):
        record(target_of(module, inputs=["input: B, 7, 16"]), {"B": 3}, training=True, **how)
    assert not module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(x.grad is None and type(x) is nn.Parameter for x in module.parameters())


def test_random_numbers_of_the_caller_are_not_used_up():
    torch.manual_seed(3)
    derived(target(lambda x: x.sin()), ("forward",), {})
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))


def test_formulas_are_verified_at_all_magnitudes_and_at_real_shapes():
    forms = derived(mechanism_target(registry.get("standard")), ("forward",), {}).phases["forward"]
    assert {"B": 2, "N": 6, "h": 2, "d": 8} in forms.verified_at
    lengths = [shape["N"] for shape in forms.verified_at]
    assert len(lengths) >= 6
    assert min(lengths) < 10
    assert max(lengths) > 10_000
    assert not forms.notes
