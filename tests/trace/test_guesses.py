"""Guesses by names, annotations, code and errors that run; if none does, what to type is told."""

import numbers
import re

import pytest
import torch
from torch import nn

from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.request.lookup import target_of
from attnprof.trace.solve.count import runnable
from attnprof.trace.solve.derive import derived
from attnprof.user_code import error_text
from tests.trace.checks import torchs_products

LIBRARY = {}
SOURCE = """
def unpacked(mask):
    return last(mask)


def last(mask):
    return mask.unsqueeze(-1)
"""
exec(compile(SOURCE, "/site-packages/einops/einops.py", "exec"), LIBRARY)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.map = nn.Linear(dim, dim)

    def forward(self, x):
        return self.map(x)


class Channels(Layer):
    def __init__(self, dim):
        super().__init__(dim)
        self.cross = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x):
        return self.cross(x)


class Looked(Layer):
    def __init__(self, vocab_size, dim):
        super().__init__(dim)
        self.table = nn.Embedding(vocab_size, dim)

    def forward(self, x):
        return self.map(self.table(x))


class Masked(Layer):
    def forward(self, x, unused=None, mask=None):
        return self.map(x).masked_fill(mask.bool()[:, :, None], 0.0)


class Window(Layer):
    def __init__(self, dim, window_size):
        super().__init__(dim)
        self.bias = nn.Parameter(torch.zeros(window_size[0] * window_size[1]))

    def forward(self, x):
        return self.map(x) @ x.mT + self.bias


class Wide(Layer):
    def __init__(self, dim):
        if dim != 512:
            raise ValueError("no such width")
        super().__init__(dim)


class WithClass(Layer):
    def forward(self, x, height, width):
        return self.map(x[:, 1:].unflatten(1, (height, width)))


class Fixed(Layer):
    def __init__(self, dim, resolution=6):
        super().__init__(dim)
        self.bias = nn.Parameter(torch.zeros(dim, resolution, resolution))

    def forward(self, x):
        _b, _c, _h, _w = x.shape
        return self.map((x + self.bias).flatten(2).mT)


class Anything(Layer):
    def forward(self, *args, **named):
        return self.map(args[0])


class Named(Layer):
    def forward(self, *args, context=None):
        assert context is not None, "give it context"
        return self.map(*args) @ context.mT


class Narrower(Layer):
    def __init__(self, dim):
        super().__init__(dim)
        self.other = nn.Linear(768, dim)

    def forward(self, x, context):
        return self.map(x) @ self.other(context).mT


class Quarter(Layer):
    """Takes layouts, as wide as the code asks in terms of the width."""

    def __init__(self, dim, num_heads):
        super().__init__(dim)
        self.narrow = nn.Linear(dim // 4, dim)

    def forward(self, hidden_states, layout_inputs):
        return self.map(hidden_states) + self.narrow(layout_inputs)


class Apart(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.map = nn.Linear(head_dim, head_dim)

    def forward(self, q, k, v):
        return (self.map(q) @ k.mT).softmax(-1) @ v


class Beside(Layer):
    def forward(self, x, others: torch.Tensor | None = None):
        if others is None:
            x = x.reshape(-1)
        return self.map(x) @ others.mT


class Twice(Layer):
    def __init__(self, dim):
        super().__init__(2 * dim)


class Pair(Layer):
    def forward(self, query, key):
        _, _, _, _ = query.shape
        return (self.map(query) @ key.mT).sum((0, 1))


class Ids(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)

    def forward(self, x):
        return self.table(x)


class Features(Layer):
    def forward(self, tokens):
        return self.map(tokens).softmax(-1)


class Either(Layer):
    def __init__(self, dim=None, width=None):
        if (dim is None) == (width is None):
            raise ValueError("give `dim` or `width`, and one alone")
        super().__init__(dim or width)


class Square(Layer):
    """An image as high and wide as its table is told to be, if it is told."""

    def __init__(self, dim, n=None):
        super().__init__(dim)
        assert n, "You must specify the size (n)"
        self.table = nn.Parameter(torch.zeros(n, n))
        self.pixels = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        return self.pixels(x) * self.table


class Pairs(Layer):
    """A map of pairs of tokens, changed by a few slots of its own."""

    def __init__(self, dim, num_slots, window_block_size):
        super().__init__(dim)
        self.slots = nn.Parameter(torch.zeros(num_slots * window_block_size, dim))

    def forward(self, x):
        assert x.shape[1] == x.shape[2], "the map must be symmetric"
        return self.map(x + self.slots.mean(0))


class Unset(Layer):
    """A length of -1 stands for one that has to be given."""

    def __init__(self, dim, context_length=-1):
        super().__init__(dim)
        self.register_buffer("mask", torch.ones(context_length, context_length).tril())

    def forward(self, x):
        return self.map(self.mask[: x.shape[1], : x.shape[1]] @ x)


class Unpacked(Layer):
    """Whether tokens count is said in a line of a library that the layer calls."""

    def forward(self, x, mask=None):
        mask = LIBRARY["unpacked"](mask)
        return self.map(x) * mask


class Attended(nn.Module):
    """Queries, keys and values that are split into heads."""

    def forward(self, queries, keys, values):
        *_, _tokens, _width = queries.shape
        return queries.permute(0, 1, 2, 3) @ (keys.mT @ values)


class Pixels(Layer):
    def __init__(self, dim, *, input_channels=3, input_axis=2):
        super().__init__(dim)
        self.axes = input_axis
        self.wider = nn.Linear(input_channels, dim)

    def forward(self, data):
        assert data.dim() - 2 == self.axes, "input data must have the right number of axes"
        return self.map(self.wider(data))


class Pooled(Layer):
    def forward(self, inputs: list[torch.Tensor]):
        return self.map(torch.cat([one.mean(1) for one in inputs]))


class Images(Layer):
    """Pooled of an image in a list, to one resolution."""

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


class Counted(Layer):
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


class Scales(Layer):
    """A picture's channels in parts; a map runs on all of them but the last."""

    def __init__(self, dim, scales=1):
        super().__init__(dim)
        self.cross = nn.Conv2d(dim // scales, dim // scales, 3, padding=1)

    def forward(self, x):
        first, second = x.chunk(2, 1)
        x = torch.cat([self.cross(first), second], 1)
        return self.map(x.movedim(1, 3))


class Windows(Layer):
    """Sides of windows and of their shift, as lists alone."""

    def __init__(self, dim, window_size, shift_size):
        super().__init__(dim)
        self.window, self.shift = window_size.copy(), shift_size.copy()

    def forward(self, x):
        _, height, width, _ = x.shape
        rolled = x.roll((self.shift[0], self.shift[1]), (1, 2))
        return self.map(rolled[:, : height // self.window[0], : width // self.window[1]])


class Placed(Layer):
    """A table for a picture whose sides a constructor insists on."""

    def __init__(self, dim, feat_size=None):
        super().__init__(dim)
        assert feat_size is not None
        self.table = nn.Parameter(torch.zeros(dim, *feat_size))

    def forward(self, x):
        _, _, _height, _width = x.shape
        return self.map((x + self.table).movedim(1, 3))


class Sided(Layer):
    """Tokens of a picture, and one more; the sides are said twice."""

    def __init__(self, dim, feat_size):
        super().__init__(dim)
        self.table = nn.Parameter(torch.zeros(*feat_size, dim))

    def forward(self, x, feat_size):
        height, width = feat_size
        tokens = x[:, 1:].unflatten(1, (height, width))
        return self.map(tokens + self.table[torch.arange(height)])


WORKING = {
    Either: "x: B, N, h*d",
    Beside: "others: B, N, h*d",
    Twice: "x: B, N, 2*h*d",
    Pair: "key: B, H, W, h*d",
    Channels: "x: B, h*d, H, W",
    Looked: "x: B, N int64",
    Ids: "x: B, N int64",
    Features: "tokens: B, N, h*d",
    Masked: "mask: B, N bool",
    Window: "x: B, 49, h*d",
    Wide: "x: B, N, 512",
    WithClass: "x: B, H*W + 1, h*d",
    Fixed: "x: B, h*d, 6, 6",
    Anything: "x: B, N, h*d",
    Named: "context: B, N, h*d",
    Narrower: "context: B, N, 768",
    Quarter: "layout_inputs: B, N, h*d/4",
    Apart: "k: B, h, N, d",
    Square: "x: B, h*d, N, N",
    Pairs: "x: B, N, N, h*d",
    Unset: "x: B, N, h*d",
    Unpacked: "mask: B, N bool",
    Attended: "keys: B, h, N, d",
    Pixels: "data: B, H, W, 3",
    Pooled: "inputs[1]: B, N, h*d",
    Images: "inputs[0]: B, h*d, 14, 14",
    Stage: "x: B, N, h*d",
    Model: "encoder_hidden_states: B, N, 48",
    Axes: "x: B, H, W, h*d",
    Latents: "latents: B, N, h*d",
    Scaled: "x: B, h*d, 14, 14",
    Haloed: "x: B, h*d, H, W",
    Scales: "x: B, h*d, H, W",
    Windows: "x: B, H, W, h*d",
    Placed: "x: B, h*d, 14, 14",
    Sided: "x: B, 14*14 + 1, h*d",
}
#: Arguments that pictures need by what their code says.
ARGUMENTS = {
    Scales: "scales=2", Windows: "window_size=[7, 7], shift_size=[1, 1]",
    Placed: "feat_size=(14, 14)", Pairs: "num_slots=16, window_block_size=16",
    Unset: "context_length=N",
}  # fmt: skip


@pytest.mark.parametrize("layer", WORKING)
def test_what_runs_is_found_and_told(layer):
    target = target_of(layer)
    assert WORKING[layer] in target.spelled_inputs
    notes = " ".join(target.notes)
    assert WORKING[layer] in notes
    assert ARGUMENTS.get(layer, "") in target.notes[0]
    assert ("tried first: " in notes) == (layer not in (Anything, Looked, Pooled, Stage))
    runnable(target, {})


class Narrow(Layer):
    """Its width is half of h*d where guesses are run."""

    def __init__(self, c=64):
        super().__init__(c)

    def forward(self, x):
        return (self.map(x) @ x.mT).softmax(-1) @ x


class Normed(nn.LayerNorm):
    def __init__(self):
        super().__init__(256)

    def forward(self, x):
        return super().forward(x)


class Multiplied(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(128, 128))

    def forward(self, x):
        return x @ self.weight


def narrow():
    return Narrow()


@pytest.mark.parametrize(
    ("thing", "width"), [(Narrow, 64), (Normed, 256), (Multiplied, 128), (narrow, 64)]
)
def test_widths_of_the_codes_own_are_numbers(thing, width):
    target = target_of(thing)
    assert target.spelled_inputs == [f"x: B, N, {width}"]
    derivation = derived(target, ("forward",))
    x = torch.zeros(2, 5, width)
    count = derivation.at("matmul_flops", "forward", B=2, N=5)
    assert count == torchs_products(thing(), x)


class Lettered(nn.Module):
    def __init__(self, D, h, d=None):
        super().__init__()
        self.maps = nn.Linear(D, h * (d or D // h)), nn.Linear(h * (d or D // h), D)

    def forward(self, x):
        return self.maps[1](self.maps[0](x))


class Headed(Lettered):
    def __init__(self, dim, h, d):
        super().__init__(dim, h, d)


@pytest.mark.parametrize(
    ("layer", "guessed"), [(Lettered, "D=h*d, h=h, "), (Headed, "dim=h*d, h=h, d=d, ")]
)
def test_letters_are_sizes_too(layer, guessed):
    assert target_of(layer).notes[0].startswith(f"guessed: {guessed}")


class TokensFirst(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_code_that_takes_tokens_first_is_told_what_to_type():
    note = 'products grow with B**2: if the code takes tokens first, type --input "x: N, B, h*d"'
    assert derived(target_of(TokensFirst), ("forward",)).notes[-1] == note
    for typed in ("x: N, B, h*d", "x: B, N, h*d"):
        assert note not in derived(target_of(TokensFirst, inputs=[typed]), ("forward",)).notes
    assert note not in derived(target_of(Narrow), ("forward",)).notes


def test_a_module_on_the_meta_device_is_derived_and_stays_there():
    layer = Narrow()
    here, there = (derived(target_of(each), ("train",)) for each in (layer, layer.to("meta")))
    assert here.phases == there.phases
    assert layer.map.weight.is_meta
    with torch.device("meta"):
        large = nn.Linear(2**16, 2**16)
    with pytest.raises(RequestError, match=r"lambda: Linear\(…\), which takes none"):
        target_of(large)


def test_what_was_given_stays():
    target = target_of(Wide, ["dim=64"])
    with pytest.raises(RequestError, match="no such width"):
        runnable(target, {})
    with pytest.raises(RequestError, match="x: B, N, h"):
        runnable(target_of(Layer, inputs=["x: B, N, h"]), {})


class Never(Layer):
    def forward(self, x, mask=None, *, scale=1.0):
        raise RuntimeError("not on a Monday")


def test_where_nothing_runs_there_is_something_to_type():
    with pytest.raises(RequestError) as refused:
        runnable(target_of(Never), {})
    message = str(refused.value)
    assert re.search(r"RuntimeError: not on a Monday \(test_guesses.py:\d+\)", message)
    assert "Never(dim), Never.forward(x, mask=None, scale=1.0)" in message
    assert message.endswith("attnprof derive Never --arg 'dim=h*d' --input \"x: B, N, h*d\"")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nn:TransformerDecoder", "decoder_layer=TransformerDecoderLayer(d_model=h*d, nhead=h"),
        ("nn:TransformerDecoder", "memory: B, N, h*d"),
        ("nn.functional:scaled_dot_product_attention", "query: B, h, N, d"),
        *((f"nn:{layer}", "") for layer in ("Conv2d", "LSTM", "GRUCell", "Embedding")),
    ],
)
def test_layers_and_functions_of_torch_are_called_as_they_like(name, said):
    target = target_of(f"torch.{name}")
    assert said in " ".join([*target.notes, *target.spelled_inputs])
    runnable(target, {})


class Normed(Layer):
    def __init__(self, dim, norm_layer, kind):
        super().__init__(dim)
        self.norm = norm_layer(dim)
        self.bias = {"plain": 1.0}[kind] if kind == "plain" else None

    def forward(self, x):
        return self.norm(self.map(x)) + self.bias


def test_classes_and_texts_are_arguments_too():
    runnable(target := target_of(Normed), {})
    assert "norm_layer=torch.nn:LayerNorm" in target.notes[0]
    assert "kind=plain" in target.notes[0]
    given = target_of(Normed, ["norm_layer=torch.nn:RMSNorm", "kind=plain"])
    plain = derived(given, ("forward",)).at("parameters", "forward", h=2, d=4)
    assert plain == Normed(8, nn.RMSNorm, "plain").map.weight.numel() + 8 + 8
    with pytest.raises(RequestError, match=r"torch\.nn has no 'Nrm'"):
        target_of(Normed, ["norm_layer=torch.nn:Nrm"])


class Cached(Layer):
    """Keeps keys and values as people did before there were classes for it."""

    def __init__(self, dim):
        super().__init__(dim)
        self.both = nn.Linear(dim, 2 * dim)

    def forward(self, hidden_states, layer_past=None, use_cache=False):
        k, v = self.both(hidden_states).chunk(2, -1)
        if layer_past is not None:
            k = torch.cat([layer_past[0], k], 1)
            v = torch.cat([layer_past[1], v], 1)
        out = (self.map(hidden_states) @ k.mT).softmax(-1) @ v
        return (out, (k, v)) if use_cache else out


def test_a_cache_guessed_from_the_signature_gives_a_decoding_step():
    derivation = derived(target_of(Cached), ("decode",))
    assert derivation.phases["decode"].method == "symbolic"
    sizes = {"B": 3, "N": 9, "h": 2, "d": 4}
    past = torch.randn(3, 8, 8)
    theirs = torchs_products(Cached(8).eval(), torch.randn(3, 1, 8), (past, past))
    assert derivation.at("matmul_flops", "decode", **sizes) == theirs
    peaks = [derivation.at("peak_bytes", "decode", **{**sizes, "N": n}) for n in (100, 101)]
    assert peaks[1] - peaks[0] == 3 * 8 * 4 * 2 + 3 * 4 * 2  # keys, values, scores twice


class Kept:
    """Rows of earlier tokens, which random ones can stand for."""

    def __init__(self, rows):
        self.rows = rows

    def advance(self, tokens):
        self.rows = self.rows.new_empty(self.rows.shape[0], tokens, self.rows.shape[2]).normal_()


class Stepping(Layer):
    """Decodes by a method of its own."""

    def forward(self, x):
        return (self.map(x) @ x.mT).softmax(-1) @ x

    def init_state(self, batch_size):
        return Kept(torch.empty(batch_size, 0, self.map.in_features))

    def step(self, x_t, state):
        state.rows = torch.cat([state.rows, x_t], 1)
        return (self.map(x_t) @ state.rows.mT).softmax(-1) @ state.rows, state


def stepping(dim):
    return Stepping(dim)


@pytest.mark.parametrize("make", [Stepping, stepping])
def test_a_step_of_its_own_is_one_token_after_others(make):
    derivation = derived(target_of(make, inputs={"x": "B, N, h*d"}), ("decode",))
    assert derivation.phases["decode"].method == "symbolic"
    module = Stepping(8).eval()
    state = module.init_state(3)
    state.advance(8)
    theirs = torchs_products(module.step, torch.randn(3, 1, 8), state)
    assert derivation.at("matmul_flops", "decode", B=3, N=9, h=2, d=4) == theirs


def test_without_a_cache_in_the_answer_there_is_no_step():
    class Plain(Layer):
        def forward(self, x, state=None):
            return self.map(x)

    with pytest.raises(RequestError, match="it gives one tensor, and no cache"):
        derived(target_of(Plain), ("decode",))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotImplementedError("Could not run 'my::op' with arguments from the 'Meta' backend. T"),
         "the operation my::op says nothing of its result"),
        (NotImplementedError("Could not run 'my::op' with arguments from the 'CPU' backend."),
         "my::op has no kernel for CPU tensors"),
        (AssertionError("Torch not compiled with CUDA enabled"), "it asks for a CUDA device"),
        (ModuleNotFoundError("No module named 'flash_attn.ops'"), "the kernels of flash_attn,"),
    ],
)  # fmt: skip
def test_kernels_that_are_not_there_are_told_in_plain_words(error, words):
    assert words in error_text(error)
    assert "--arg" in error_text(error)


class Unknown(Layer):
    def __init__(self, dim, foo, *, bar):
        super().__init__(dim)
        self.maps = nn.Sequential(nn.Linear(dim, foo * bar), nn.Linear(foo * bar, dim))

    def forward(self, x):
        return self.maps(x)


class Shared(Layer):
    def __init__(self, dim, part=None):
        super().__init__(dim)
        self.part = part

    def forward(self, x):
        return self.part(self.map(x))


def mapped(x, odd):
    return x @ odd.mT


@pytest.mark.parametrize(
    ("thing", "words", "given"),
    [
        (Unknown, r"needs 'foo' and 'bar', which cannot be guessed: add --arg foo=… --arg bar=…",
         {"args": ["foo=64", "bar=64"]}),
        (mapped, r"needs 'odd', which cannot be.*add sizes, like --input \"odd: B, N, h\*d\"",
         {"inputs": ["odd: B, N, h*d"]}),
        (Shared, r"calls what is None by default \(part\): point at a f", None),
    ],
)  # fmt: skip
def test_what_nothing_says_is_asked_for(thing, words, given):
    with pytest.raises(RequestError, match=words):
        runnable(target_of(thing), {})
    assert given is None or runnable(target_of(thing, **given), {})


class Grid(Layer):
    def forward(self, x, size):
        height, width = size
        return self.map(x).unflatten(1, (height, width))


def test_sizes_are_values_of_a_call():
    inputs = ["x: B, H*W, h*d", "size.0: =H", "size.1: =W"]
    assert target_of(Grid).spelled_inputs == inputs
    for size in ("=(H, W)", "=H, W"):
        typed = target_of(Grid, inputs=[f"size: {size}"])
        assert typed.spelled_inputs == ["x: B, N, h*d", *inputs[1:]]
    derivation = derived(target_of(Grid, inputs=inputs), ("forward",))
    assert str(derivation.expression("matmul_flops", "forward")) == "2*B*H*W*d**2*h**2"


class Halved(Layer):
    def forward(self, x):
        n = x.shape[1]
        assert n & (n - 1) == 0
        while n > 1:
            x, n = x[:, : n // 2] + x[:, n // 2 :], n // 2
        return self.map(x)


def halved_heads(x):
    """Heads in powers of two, added up by halves."""
    n = x.shape[1]
    assert n & (n - 1) == 0
    while n > 1:
        x, n = x[:, : n // 2] + x[:, n // 2 :], n // 2
    return x


@pytest.mark.parametrize(
    ("layer", "given", "number"),
    [
        (Halved, {"args": ["dim=8"], "inputs": ["x: B, N, 8"]}, "N=256"),
        (halved_heads, {"inputs": ["x: B, h, N, d"]}, "h=4"),
    ],
)
def test_a_refusal_names_sizes_that_lead_on(layer, given, number):
    target = target_of(layer, **given)
    with pytest.raises(CannotRunError, match=f"type --at {number} for formulas in the other sizes"):
        derived(target, ["forward"])
    name, size = number.split("=")
    derivation = derived(target, ["forward"], {name: int(size)})
    assert derivation.phases["forward"].domain[0] == f"{name} = {size}"


class Handed(Layer):
    def forward(self, x):
        return torch.from_numpy(self.map(x).detach().numpy())


def test_numpy_on_a_tensor_is_refused_with_its_line():
    with pytest.raises(CannotRunError, match=r"to numpy.* \(test_guesses.py:\d+\); write"):
        runnable(target_of(Handed), {})


def test_guessed_lists_give_formulas_that_torch_counts():
    derivation = derived(target_of(Pooled), ("forward",))
    sizes = {"B": 3, "N": 5, "h": 2, "d": 3}
    theirs = torchs_products(Pooled(6), [torch.zeros(3, 5, 6)] * 2)
    assert derivation.at("matmul_flops", "forward", **sizes) == theirs


def test_norms_that_ask_for_whole_numbers_take_symbols():
    forms = derived(target_of(Counted), ("forward",)).phases["forward"]
    assert forms.method == "symbolic"
    assert str(forms.formulas["parameters"].expression) == "d**2*h**2 + 2*d*h"
    assert isinstance(3, numbers.Integral)
    assert isinstance(numbers.Integral, type)  # as it was


def test_a_class_of_no_whole_sizes_is_passed_over():
    def blocks(x):
        total = x.sum()
        for _ in range(int(x.shape[1])):
            total = total + x.sum()
        return total

    derivation = derived(target_of(blocks, inputs=["x: B, N/8 - 1, 8, d"]), ("forward",))
    assert derivation.phases["forward"].method in ("mixed", "interpolated")
    sizes = {"B": 2, "N": 40, "d": 3}
    count = derivation.at("additions", "forward", **sizes)
    assert count == 5 * (2 * 4 * 8 * 3) + 4  # a sum at first and in each turn, which adds it
