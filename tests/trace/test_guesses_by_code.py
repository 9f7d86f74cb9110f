"""What conditions, constructors and annotations say of a module's call is guessed from them."""

import numbers

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnprof.trace.request.lookup import target_of
from attnprof.trace.solve.count import tried
from attnprof.trace.solve.derive import derived


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.map = nn.Linear(dim, dim)

    def forward(self, x):
        return self.map(x)


class Square(Layer):
    """An image as high and wide as its table is told to be, if it is told."""

    def __init__(self, dim, n=None):
        super().__init__(dim)
        assert n, "You must specify the size (n)"
        self.table = nn.Parameter(torch.zeros(n, n))
        self.pixels = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        return self.pixels(x) * self.table


class Pixels(Layer):
    def __init__(self, dim, *, input_channels=3, input_axis=2):
        super().__init__(dim)
        self.axes = input_axis
        self.wider = nn.Linear(input_channels, dim)

    def forward(self, data):
        assert data.dim() - 2 == self.axes, "input data must have the right number of axes"
        return self.map(self.wider(data))


class Scales(Layer):
    def forward(self, inputs: list[torch.Tensor]):
        return self.map(torch.cat([one.mean(1) for one in inputs]))


class Images(Layer):
    """Scales of an image in a list, to one resolution."""

    def __init__(self, dim, output_resolution: int):
        super().__init__(dim)
        self.side = output_resolution
        self.pixels = nn.Conv2d(dim, dim, 1)

    def forward(self, inputs: list[torch.Tensor]):
        first = inputs[0].shape[-2:]
        same = [nn.functional.interpolate(one, size=first) for one in inputs]
        return nn.functional.interpolate(self.pixels(torch.cat(same, 1)), size=self.side)


class Stage(Layer):
    """Takes a class that makes what comes last, or None, and a rate of each layer."""

    def __init__(self, dim, depth, rates_drop: list[float], finally_made):
        super().__init__(dim)
        self.layers = nn.ModuleList(nn.Dropout(rates_drop[i]) for i in range(depth))
        self.last = finally_made(dim) if finally_made is not None else None

    def forward(self, x):
        for layer in self.layers:
            x = layer(self.map(x))
        return x


class Model(nn.Module):
    """Images by numbers, as pretrained models have it, and a text of another width."""

    def __init__(self, sample_size=8, in_channels=4, inner=32, caption_dim=48, pooled_dim=24):
        super().__init__()
        self.image = nn.Conv2d(in_channels, inner, 2, 2)
        self.text = nn.Linear(caption_dim, inner)
        self.pooled = nn.Linear(pooled_dim, inner)

    def forward(self, hidden_states, encoder_hidden_states=None, pooled=None):
        x = self.image(hidden_states).flatten(2).mT + self.pooled(pooled)[:, None]
        return (x @ self.text(encoder_hidden_states).mT).softmax(-1)


class Norm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        shape = (channels,) if isinstance(channels, numbers.Integral) else tuple(channels)
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x):
        return x * self.weight


class Normed(Layer):
    def __init__(self, dim):
        super().__init__(dim)
        self.norm = Norm(dim)

    def forward(self, x):
        return self.norm(self.map(x))


class Axes(Layer):
    def forward(self, x):
        assert len(x.shape) == 4, "input tensor does not have the correct number of dimensions"
        assert x.shape[-1] == self.dim
        return self.map(x)


class Scaled(Layer):
    def __init__(self, dim, fmap_size):
        super().__init__(dim)
        self.bias = nn.Parameter(torch.zeros(fmap_size * fmap_size, fmap_size * fmap_size))
        self.pixels = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        flat = self.pixels(x).flatten(2)
        return flat.mT @ flat + self.bias


class Haloed(Layer):
    def __init__(self, dim, block_size):
        super().__init__(dim)
        self.size = block_size
        self.pixels = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        _b, _c, height, width = x.shape
        fits = height % self.size == 0 and width % self.size == 0
        assert fits, "height and width must be divisible by the block size"
        blocks = self.pixels(x).unflatten(2, (-1, self.size)).unflatten(4, (-1, self.size))
        return self.map(blocks.permute(0, 2, 4, 3, 5, 1))


class Latents(Layer):
    def __init__(self, *, dim, num_latents=None):
        super().__init__(dim)
        learned = num_latents is not None
        self.latents = nn.Parameter(torch.zeros(num_latents, dim)) if learned else None

    def forward(self, x, latents=None):
        assert (latents is None) ^ (self.latents is None), "learn the latents, or pass them in"
        latents = self.latents if latents is None else latents
        return (self.map(latents) @ x.mT).softmax(-1) @ x


WORKING = {
    Square: "x: B, h*d, N, N",
    Pixels: "data: B, H, W, 3",
    Scales: "inputs[1]: B, N, h*d",
    Images: "inputs[0]: B, h*d, 14, 14",
    Stage: "x: B, N, h*d",
    Model: "encoder_hidden_states: B, N, 48",
    Normed: "x: B, N, h*d",
    Axes: "x: B, H, W, h*d",
    Latents: "latents: B, N, h*d",
}


@pytest.mark.parametrize("layer", WORKING)
def test_what_code_says_of_its_call_is_what_it_is_called_with(layer):
    target = target_of(layer)
    assert WORKING[layer] in target.spelled_inputs
    tried(target, {})


@pytest.mark.parametrize("layer", [Scaled, Haloed])
def test_modules_of_images_run_by_the_plainest_command(layer):
    target = target_of(layer)
    assert "tried first: " in " ".join(target.notes)
    tried(target, {})
    assert derived(target, ("forward",)).phases["forward"].method in ("symbolic", "mixed")


def test_guessed_lists_give_formulas_that_torch_counts():
    found = derived(target_of(Scales), ("forward",))
    sizes = {"B": 3, "N": 5, "h": 2, "d": 3}
    with FlopCounterMode(display=False) as counter:
        Scales(6)([torch.zeros(3, 5, 6)] * 2)
    assert found.at("matmul_flops", "forward", **sizes) == counter.get_total_flops()


def test_norms_that_ask_for_whole_numbers_take_symbols():
    found = derived(target_of(Normed), ("forward",)).phases["forward"]
    assert found.method == "symbolic"
    assert str(found.formulas["parameters"].expression) == "d**2*h**2 + 2*d*h"
    assert isinstance(3, numbers.Integral)
    assert isinstance(numbers.Integral, type)  # as it was


def test_a_class_of_no_whole_sizes_is_passed_over():
    def blocks(x):
        total = x.sum()
        for _ in range(int(x.shape[1])):
            total = total + x.sum()
        return total

    found = derived(target_of(blocks, inputs=["x: B, N/8 - 1, 8, d"]), ("forward",))
    assert found.phases["forward"].method in ("mixed", "interpolated")
    sizes = {"B": 2, "N": 40, "d": 3}
    count = found.at("additions", "forward", **sizes)
    assert count == 5 * (2 * 4 * 8 * 3) + 4  # a sum at first and in each turn, which adds it
