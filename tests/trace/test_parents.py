"""Arguments and inputs that nobody guesses are those that a model beside a module gives it."""

import pytest
import torch
from torch import nn

from attnprof.trace.request.guesses import Request
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.parents import uses
from attnprof.trace.solve.derive import derived
from tests.trace.checks import torchs_products


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x):
        return self.map(x)


class Relative(nn.Module):
    """Takes positions of twice as many tokens, in a tuple, with something that may be None."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads, self.map = num_heads, nn.Linear(dim, dim)

    def forward(self, x, extras, *, blocked):
        (near, far), nothing, name = extras
        assert nothing is None
        assert name == "long"
        rows = self.map(x) @ near.mT + torch.cat([far, far[:, :1]], 1)[:, : x.shape[1]]
        return rows.softmax(-1) + (blocked * 1.0).sum()


class RelativeModel(nn.Module):
    def __init__(self, dim, num_heads, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(Relative(dim, num_heads) for _ in range(depth))

    def forward(self, x):
        batch, tokens, dim = x.shape
        near, far = x.new_zeros(2 * tokens - 1, dim), x.new_zeros(batch, tokens, 2 * tokens - 1)
        blocked = torch.zeros(batch, tokens // 16, 16, dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, [[near, far], None, "long"], blocked=blocked)[..., :dim]
        return x


def test_inputs_are_those_of_a_model_beside_it():
    target = target_of(Relative)
    assert target.spelled_inputs == [
        "x: B, N, h*d", "extras[0][0]: 2*N - 1, h*d", "extras[0][1]: B, N, 2*N - 1",
        "extras[1]: None", "extras[2]: 'long'", "blocked: B, N/16, 16 bool",
    ]  # fmt: skip
    assert target.notes[-1] == "what it is called with is what RelativeModel calls it with"
    derivation = derived(target, ("forward", "train"))
    for b, n, h, d in ((3, 48, 2, 6), (2, 80, 3, 5)):
        model = RelativeModel(h * d, h, depth=1)
        theirs = torchs_products(model, torch.zeros(b, n, h * d))
        assert derivation.at("matmul_flops", B=b, N=n, h=h, d=d) == theirs


class Rows(Mixer):
    def forward(self, x, rows):
        return self.map(x.flatten(0, 1)) * rows.mean()


ROWS = {"plain": Rows}


class Whole(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.part = ROWS["plain"](dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        return self.part(torch.cat([x, x[:, :1]], 1), x.new_zeros(batch * (tokens + 1), dim // 2))


def test_a_size_may_be_a_product_of_others_and_more():
    request = Request("Rows", {}, {}, causal=False, dtype="float32")
    inputs = [repair.inputs for _, repair in uses(Rows, request, set(), have_all=True)]
    assert inputs == [{"x": "B, N + 1, h*d", "rows": "B*(N + 1), h*d/2"}]


class Scale(nn.Module):
    def __init__(self, dim, power=1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.power = power

    def forward(self, x):
        return x * self.weight**self.power


class Built(nn.Module):
    """Takes a module that others share, a table and a class."""

    def __init__(self, dim, shared, table, kind):
        super().__init__()
        self.shared, self.table = shared, table
        self.map = kind(dim, table["wide"][1])

    def forward(self, x):
        return self.map(self.shared(x))


class Builder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        shared = Scale(dim, power=2)
        self.parts = nn.Sequential(Built(dim, shared, {"wide": [1, 3 * dim]}, nn.Linear))

    def forward(self, x):
        return self.parts(x)


def test_arguments_are_those_of_a_model_beside_it():
    target = target_of(Built)
    assert "shared=Scale(dim=h*d, power=2)" in target.notes[0]
    assert "kind=torch.nn.modules.linear:Linear" in target.notes[0]
    derivation = derived(target, ("forward",))
    assert derivation.at("parameters", "forward", h=2, d=4) == 8 + 8 * 24 + 24
    assert derivation.phases["forward"].method == "symbolic"


class Odd(Mixer):
    def forward(self, x, rows):
        return self.map(x) + rows[0]


class OddModel(Odd):
    def forward(self, x):
        return Odd.forward(self, x, [x.new_zeros(x.shape[1] ** 2 // x.shape[1] + 1)])


@pytest.mark.parametrize("given", [{"x": "B, N, h*d"}, {"x": "B, N, h*d", "rows": "B, N, h*d"}])
def test_what_is_given_is_kept(given):
    target = target_of(Odd, inputs=given)
    assert set(given) <= {item.name for item in target.inputs}
    assert "x: B, N, h*d" in target.spelled_inputs


class Shared(Mixer):
    """Is called with a module that somebody else has to make."""

    def __init__(self, dim, mixer=None):
        super().__init__(dim)
        self.mixer = mixer

    def forward(self, x, size):
        assert x.shape[1] == 1 + size[0] * size[1]
        return self.mixer(self.map(x))


class Pictured(nn.Module):
    """Takes images, as what it is built with says."""

    def __init__(self, img_size=32, in_chans=3, embed_dims=(12, 24)):
        super().__init__()
        self.cut = nn.Conv2d(in_chans, embed_dims[0], 8, 8)
        self.part = Shared(embed_dims[0], Mixer(embed_dims[0]))

    def forward(self, x):
        x = self.cut(x)
        tokens = x.flatten(2).mT
        return self.part(torch.cat([tokens[:, :1], tokens], 1), tuple(x.shape[2:]))


def test_a_model_of_images_gives_its_parts_what_they_take(monkeypatch):
    monkeypatch.setitem(globals(), "Volume", None)
    assert target_of(Pictured).spelled_inputs == ["x: B, 3, 32, 32"]
    target = target_of(Shared)
    assert target.spelled_inputs == ["x: B, 17, 12", "size.0: 4", "size.1: 4"]
    derivation = derived(target, ("forward",))
    assert derivation.at("matmul_flops", "forward", B=3) == 2 * (2 * 3 * 17 * 12 * 12)


class Volume(nn.Module):
    """Takes five sizes, of four channels, which no name says."""

    def __init__(self, in_channels=4, dim=8):
        super().__init__()
        self.cut = nn.Conv3d(in_channels, dim, 1)
        self.part = Shared(dim, Mixer(dim))

    def forward(self, x):
        _b, _c, _frames, high, wide = x.shape
        tokens = self.cut(x)[:, :, 0].flatten(2).mT
        return self.part(torch.cat([tokens[:, :1], tokens], 1), (high, wide))


def test_a_model_that_fails_at_first_is_tried_with_other_inputs(monkeypatch):
    monkeypatch.setitem(globals(), "Pictured", None)
    target = target_of(Shared)
    assert target.notes[-1] == "what it is called with is what Volume calls it with"
    assert target.spelled_inputs[0] == "x: B, H*W + 1, 8"
