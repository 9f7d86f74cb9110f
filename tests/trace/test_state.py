"""State that code keeps between its calls: no run meets another's, and formulas say which call."""

import functools
import itertools
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from tests.trace.checks import shown

TABLES = {}
KEPT = None
LISTED = []
BLOCKS = {64: 16, 128: 32}


def triangle(length):
    return torch.ones(length, length).tril()


@functools.lru_cache(maxsize=4)
def cached(length, _device):
    return triangle(length)


def kept(made, length):
    if length not in made:
        made[length] = triangle(length)
    return made[length]


def in_table(length):
    if length not in TABLES:
        TABLES[length] = triangle(length), None
    return TABLES[length][0]


def in_variable(length):
    global KEPT  # noqa: PLW0603 - as people write it
    if KEPT is None or KEPT.shape[0] < length:
        KEPT = triangle(length)
    return KEPT[:length, :length]


def in_list(length):
    if not LISTED or LISTED[0].shape[0] < length:
        LISTED[:] = [triangle(length)]
    return LISTED[0][:length, :length]


def in_default(length, made={}):  # noqa: B006 - as people write it
    return kept(made, length)


class Masked(nn.Module):
    mask = staticmethod(triangle)

    def forward(self, x):
        return (x @ x.mT * self.mask(x.shape[1])) @ x


class OnClass(Masked):
    made = {}  # noqa: RUF012 - as people write it

    def mask(self, length):
        return kept(self.made, length)


class OnMethod(Masked):
    @functools.cache  # noqa: B019 - as people write it
    def mask(self, length):
        return triangle(length)


class OnItself(Masked):
    def __init__(self):
        super().__init__()
        self.made = {}

    mask = OnClass.mask


class OnRequest(Masked):
    def mask(self, length):
        if not hasattr(self, "triangle"):
            self.register_buffer("triangle", triangle(length), persistent=False)
        return self.triangle


def of(mask):
    return type("OfModule", (Masked,), {"mask": lambda _, length: mask(length)})


def in_closure():
    made = {}
    return lambda length: kept(made, length)


KEEPING = {
    "lru_cache": of(lambda length: cached(length, "cpu")),
    "a table of the module": of(in_table),
    "a variable of the module": of(in_variable),
    "a list of the module": of(in_list),
    "a default argument": of(in_default),
    "a closure": of(in_closure()),
    "a class": OnClass,
    "a cached method": OnMethod,
    "a dictionary of itself": OnItself,
    "a buffer made on request": OnRequest,
}


@pytest.mark.parametrize("kind", KEEPING)
def test_masks_that_code_keeps_are_met_in_no_other_run(kind):
    """N² entries times d twice, and the mask: two products and one multiplication an entry."""
    _, derivation = shown(KEEPING[kind])
    forms = derivation.phases["forward"]
    assert forms.method == "symbolic", forms.notes
    for b, n, d in ((2, 7, 5), (3, 100, 8)):
        assert derivation.at("flops", B=b, N=n, d=d) == 4 * b * n * n * d + b * n * n
        # two operands and a result each; the mask is there already
        assert derivation.at("bytes_moved", B=b, N=n, d=d) == 4 * (
            4 * b * n * d + 4 * b * n * n + n * n
        )
    assert any("later" in note for note in forms.notes)
    assert (TABLES, KEPT, LISTED) == ({}, None, [])


@pytest.mark.parametrize("how", [{}, {"on_meta": True}, {"real": True}])
def test_a_run_leaves_nothing_in_the_code_that_ran(how):
    before = dict(vars(OnClass))
    for kind in ("lru_cache", "a table of the module", "a class", "a closure"):
        target = target_of(KEEPING[kind], inputs=["x: B, N, d"])
        first, second = (record(target, {"B": 2, "N": 6, "d": 4}, training=True, **how).calls
                         for _ in range(2))  # fmt: skip
        assert first == second
    assert cached.cache_info().currsize == len(OnClass.made) == len(TABLES) == 0
    assert dict(vars(OnClass)) == before


def test_a_table_made_in_the_constructor_is_made_in_every_run():
    class Early(Masked):
        def __init__(self):
            super().__init__()
            self.kept = in_table(4096)

        def mask(self, length):
            return self.kept[:length, :length]

    _, derivation = shown(Early)
    assert derivation.at("flops", B=2, N=9, d=4) == 4 * 2 * 81 * 4 + 2 * 81


def test_a_module_that_is_imported_late_stays_so(monkeypatch):
    """Some packages fill theirs in at the first look at an attribute, or fail to."""

    class Late(ModuleType):
        def __getattr__(self, name):
            raise ImportError(name)

    monkeypatch.setitem(sys.modules, "module_imported_late", Late("module_imported_late"))
    target = target_of(lambda x: x @ x.mT, inputs=["x: B, N, d"])
    assert record(target, {"B": 2, "N": 6, "d": 4}, training=False).calls


def looks_up(x):
    return x @ x.mT if BLOCKS.get(x.shape[-1], 0) else x * 2


def test_a_table_of_numbers_is_a_question_that_symbols_cannot_answer():
    _, derivation = shown(looks_up, inputs=["x: N, d"])
    assert derivation.phases["forward"].method != "symbolic"
    assert not derivation.phases["forward"].holds({"N": 5, "d": 64})
    assert derivation.at("flops", N=5, d=64) == 2 * 5 * 5 * 64


# -- calls of one module, one after the other ----------------------------------------------
CALLS = 0


class Counts(nn.Module):
    """Every so many calls it attends; else it doubles."""

    every = 2
    total = 0

    def __init__(self):
        super().__init__()
        self.calls, self.turns, self.kept = 0, itertools.cycle([False, True]), []

    def attends(self):
        self.calls += 1
        return self.calls % self.every == 0

    def forward(self, x):
        return x @ x.mT @ x if self.attends() else x * 2


class CountsToFive(Counts):
    every = 5


class CountsOnItsClass(Counts):
    def attends(self):
        type(self).total += 1
        return self.total % 3 == 0


class CountsInItsModule(Counts):
    def attends(self):
        global CALLS  # noqa: PLW0603 - as people write it
        CALLS += 1
        return CALLS % 2 == 0


class TakesTurns(Counts):
    def attends(self):
        return next(self.turns)


class TakesTurnsInTraining(Counts):
    def attends(self):
        return self.training and super().attends()


class AttendsToEarlierCalls(Counts):
    def forward(self, x):
        self.kept.append(x.detach())
        return x @ torch.cat(self.kept, 1).mT


#: Layers, and products of their first call: of 2 samples of 6 tokens and 8 entries.
CHANGING = {
    Counts: "0", CountsToFive: "0", CountsOnItsClass: "0", CountsInItsModule: "0", TakesTurns: "0",
    AttendsToEarlierCalls: "2*B*N**2*d",
}  # fmt: skip


@pytest.mark.parametrize("layer", CHANGING)
def test_formulas_of_a_module_that_changes_between_calls_are_of_one_call(layer):
    _, derivation = shown(layer, at={"B": 2, "N": 6, "d": 8})
    forms = derivation.phases["forward"]
    assert "one call of a module, which changes between calls" in forms.domain
    assert str(derivation.expression("matmul_flops")) == CHANGING[layer]
    (note,) = [note for note in forms.notes if "of the same module costs" in note]
    if layer is CountsToFive:
        products, factors = 2 * 2 * 2 * 6 * 6 * 8, 2 * 6 * 8
        costs = f"call 5 of the same module costs {products} forward flops, not {factors}"
        assert costs in note
    assert Counts.total == CALLS == 0


def test_a_module_that_changes_in_training_alone_has_formulas_of_every_forward_call():
    derivation = derived(target_of(TakesTurnsInTraining, inputs=["x: N, d"]), ("forward", "train"))
    changes = [
        any("changes between" in condition for condition in derivation.phases[phase].domain)
        for phase in ("forward", "train")
    ]
    assert changes == [False, True]


class Keeps(nn.Module):
    """Counts its calls, has statistics and drops entries: every call costs the same."""

    def __init__(self, dim=16):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(dim), nn.Dropout(0.1)
        self.map = nn.utils.parametrizations.spectral_norm(nn.Linear(dim, dim))
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        self.last = self.drop(self.norm(self.map(x)))
        return self.last


class SetsItselfUp(nn.Module):
    is_ready = False

    def forward(self, x):
        if not self.is_ready:
            self.shift, self.is_ready = x.detach().mean(), True
        return x - self.shift


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        self.history.append(x * 2)
        return self.history[-1]


AT, FLOPS = {"N": 6, "d": 8}, 6 * 8


@pytest.mark.parametrize(
    ("layer", "dims", "phase", "said"),
    [
        (Keeps, "N, 16", "train", ""),
        # the mean is a sum and a division
        (SetsItselfUp, "N, d", "forward",
         f"the first call of a module costs {2 * FLOPS + 1} forward flops, not {FLOPS}"),
        (Remembers, "N, d", "forward",
         f"every call of a module leaves {4 * FLOPS} bytes more in memory"),
    ],
)  # fmt: skip
def test_state_that_changes_no_cost_withholds_nothing_and_what_it_takes_is_said(
    layer, dims, phase, said
):
    _, derivation = shown(layer, inputs=[f"x: {dims}"], phase=phase, at=AT if said else None)
    forms, notes = derivation.phases[phase], " ".join(derivation.phases[phase].notes)
    assert not any("changes between" in condition for condition in forms.domain)
    assert "of the same module" not in notes
    assert said in notes
    if said:
        assert derivation.at("flops", N=6, d=8) == FLOPS
    assert ("set up by its first call" in notes) == (layer is SetsItselfUp)


SETTINGS = {"rounds": 1}


class Repeated(nn.Module):
    def forward(self, x):
        for _ in range(SETTINGS["rounds"]):
            x = x * 2
        return x


def test_a_setting_changed_between_derivations_is_kept_and_followed():
    """Only between runs of one derivation is nothing compared: no other code is there."""
    for rounds in (1, 3, 2):
        SETTINGS["rounds"] = rounds
        derivation = derived(target_of(Repeated, inputs=("x: B, N, d",)), ["forward"])
        assert SETTINGS["rounds"] == rounds
        assert derivation.at("flops", B=2, N=3, d=5) == 30 * rounds
