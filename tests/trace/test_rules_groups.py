"""Operations over groups of entries: reductions, norms, placing, distances, losses, transforms."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.trace.counted import bytes_of, counted, counted_by_symbols, each, named, plus

SHAPE = (2, 3, 7)
N, ROWS = 42, 6
aten = torch.ops.aten

#: call on one tensor → operations an entry, and a row of 7
BY_ROW = {
    "sum": (lambda x: x.sum(-1), "A", ""),
    "sum of all": (torch.sum, "A", ""),
    "nansum": (torch.nansum, "A", ""),
    "mean": (lambda x: x.mean(-1), "A", "D"),
    "prod": (lambda x: x.prod(-1), "M", ""),
    "amax": (lambda x: x.amax(-1), "O", ""),
    "max": (lambda x: x.max(-1), "O", ""),
    "min": (lambda x: x.min(-1), "O", ""),
    "argmax": (lambda x: x.argmax(-1), "O", ""),
    "aminmax": (lambda x: x.aminmax(dim=-1), "2O", ""),
    "any": (lambda x: x.any(-1), "", ""),
    "var": (lambda x: x.var(-1), "3A M", "2D"),
    "var_mean": (lambda x: torch.var_mean(x, -1), "3A M", "2D"),
    "std": (lambda x: x.std(-1), "3A M", "2D O"),
    "norm": (lambda x: x.norm(dim=-1), "M A", "O"),
    "norm of order 1": (lambda x: x.norm(p=1, dim=-1), "A O", ""),
    "norm of order 3": (lambda x: x.norm(p=3, dim=-1), "A 2O", "O"),
    "norm of order infinity": (lambda x: x.norm(p=math.inf, dim=-1), "2O", ""),
    "logsumexp": (lambda x: x.logsumexp(-1), "O 2A E", "3O A"),
    "log softmax": (lambda x: x.log_softmax(-1), "O 3A E", "O"),
    "safe softmax": (lambda x: aten._safe_softmax(x, -1), "2O 2A E D", ""),
    "layer norm": (lambda x: F.layer_norm(x, (x.shape[-1],)), "4A 2M", "2D A O D"),
    "rms norm": (lambda x: F.rms_norm(x, (x.shape[-1],)), "2M A", "2D A O"),
    "normalize": (lambda x: F.normalize(x, dim=-1), "M A D", "2O"),
    "histogram of all": (lambda x: torch.histc(x, 9, 0, 1), "2O 2A M D", ""),
    "batch of distances": (lambda x: aten._cdist_forward(x, x[:, :1], 2.0, None), "2A M", "O"),
}


@pytest.mark.parametrize("call", BY_ROW)
def test_a_group_of_entries_counts(call):
    run, entry, row = BY_ROW[call]
    rows = ROWS if "of all" not in call else 1
    expected = plus(each(entry, N), *(each(word, rows) for word in row.split()))
    assert counted(run, SHAPE) == expected
    assert counted_by_symbols(run, SHAPE) == expected


def test_layer_norm_with_weights_and_backward():
    def run(x, weight, bias):
        return F.layer_norm(x, (7,), weight, bias)

    shapes, affine = (SHAPE, (7,), (7,)), each("M A", N)
    assert counted(run, *shapes) == plus(each("4A 2M", N), each("3D A O", ROWS), affine)
    to_input = plus(each("6M 4A", N), each("8M 2A", ROWS))
    to_weights = plus(each("2M 3A", N), each("M", ROWS))
    assert counted(run, *shapes, backward=True) == plus(to_input, to_weights)


def test_batch_norm_in_training_and_after():
    def run(x, mean, var, weight, bias, *, training):
        return F.batch_norm(x, mean, var, weight, bias, training=training)

    sizes = ((2, 6, 5), (6,), (6,), (6,), (6,))
    after = plus(each("M A", 60), each("A O D", 6), each("2M A", 6))
    assert counted(lambda *x: run(*x, training=False), *sizes) == after
    moments = plus(each("3A M", 60), each("2D", 6), each("4M 2A", 6))
    assert counted(lambda *x: run(*x, training=True), *sizes) == plus(after, moments)


INDEX = torch.tensor([0, 2, 2, 1])
INDICES = INDEX[:, None].expand(4, 7)

#: placing of 4 × 7 entries
PLACED = {
    "index add": (lambda x, y: x.index_add(0, INDEX, y), "A"),
    "index add scaled": (lambda x, y: x.index_add(0, INDEX, y, alpha=2), "A M"),
    "index put": (lambda x, y: x.index_put((INDEX,), y), ""),
    "index put accumulated": (lambda x, y: x.index_put((INDEX,), y, accumulate=True), "A"),
    "one value everywhere": (lambda x, y: x.index_put((INDEX,), y[0, 0], accumulate=True), "A"),
    "scatter": (lambda x, y: x.scatter(0, INDICES, y), ""),
    "scatter add": (lambda x, y: x.scatter_add(0, INDICES, y), "A"),
    "scatter with sum": (lambda x, y: x.scatter_reduce(0, INDICES, y, "sum"), "A"),
    "scatter with maximum": (lambda x, y: x.scatter_reduce(0, INDICES, y, "amax"), "O"),
    "scatter by product": (lambda x, y: x.scatter(0, INDICES, y, reduce="multiply"), "M"),
    "index copy": (lambda x, y: x.index_copy(0, INDEX, y), ""),
    "index select": (lambda x, _: x.index_select(0, INDEX), ""),
    "gather": (lambda x, _: x.gather(0, INDICES), ""),
    "embedding": (lambda x, _: F.embedding(INDEX, x), ""),
    "embedding backward": (lambda _, y: aten.embedding_dense_backward(y, INDEX, 5, -1, False), "A"),
}


@pytest.mark.parametrize("call", PLACED)
def test_entries_that_are_placed_count(call):
    run, expected = PLACED[call]
    assert counted(run, (5, 7), (4, 7)) == each(expected, 28)


LABELS = torch.zeros(6, dtype=torch.long)
#: Call, shapes of its tensors, and what it counts.
CALLS = {
    "group norm": (  # 2 samples of 2 groups
        lambda x, weight, bias: F.group_norm(x, 2, weight, bias), [(2, 6, 5), (6,), (6,)],
        plus(each("4A 2M", 60), each("3D A O", 4), each("2M A", 12))),
    "a mean that is scattered": (
        lambda x, y: x.scatter_reduce(0, INDICES, y, "mean"), [(5, 7), (4, 7)],
        {"A": 28, "D": 35}),
    "distances": (torch.cdist, [(4, 3), (5, 3)], {"A": 2 * 60, "M": 60, "O": 20}),
    "mean square": (F.mse_loss, [SHAPE, SHAPE], {"A": 2 * N, "M": N, "D": 1}),
    "squares": (
        lambda x, y: F.mse_loss(x, y, reduction="sum"), [SHAPE, SHAPE], {"A": 2 * N, "M": N}),
    "mean difference": (F.l1_loss, [SHAPE, SHAPE], {"A": 2 * N, "O": N, "D": 1}),
    "entropy": (
        lambda x: F.cross_entropy(x.view(6, 7), LABELS), [SHAPE],
        plus(each("O 3A E", N), {"O": 6, "A": 6, "D": 1})),
    "transform of rows and columns": (
        torch.fft.rfft2, [(6, 8)],
        plus({"M": 48 * 3, "A": 72 * 3}, {"M": 2 * 6 * 5 * 3, "A": 3 * 6 * 5 * 3})),
    "adaptive pool": (  # windows of 10 entries to 4: 0-3, 2-5, 5-8, 7-10
        lambda x: F.adaptive_avg_pool1d(x, 4), [(1, 2, 10)], {"A": 2 * 12, "D": 8}),
    "means of pools": (nn.AvgPool2d(2), [(1, 1, 4, 6)], {"A": 24, "D": 6}),
    "maxima of pools": (nn.MaxPool2d(2), [(1, 1, 4, 6)], {"O": 24}),
    "lines": (nn.Upsample(5, mode="linear"), [(2, 3, 4)], each("2M A", 30)),
    # a column between rows of two points each, or of four of them
    "images": (nn.Upsample(5, mode="bilinear"), [(1, 2, 4, 3)], each("6M 3A", 50)),
    "volumes": (nn.Upsample(2, mode="trilinear"), [(1, 1, 3, 4, 5)], each("14M 7A", 8)),
    "curves": (nn.Upsample(5, mode="bicubic"), [(1, 2, 4, 3)], each("20M 15A", 50)),
    "smooth differences": (
        F.smooth_l1_loss, [SHAPE, SHAPE], plus(each("3A 2M 2O D", N), {"D": 1})),
    "Huber's loss": (
        lambda x, y: F.huber_loss(x, y, reduction="sum"), [SHAPE, SHAPE], each("3A 3M 2O", N)),
    # of 3 slices of 14 entries each
    "slices of norms up to 1": (
        lambda x: x.renorm(2, 1, 1.0), [SHAPE], plus(each("2M A", N), each("2O A D", 3))),
    "medians": (lambda x: x.median(-1).values, [SHAPE], {}),
    "places in an order": (torch.searchsorted, [SHAPE, SHAPE], {}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call_counts(call):
    run, shapes, expected = CALLS[call]
    assert counted(run, *shapes) == expected


def test_distances_of_many_rows_are_a_product():
    assert counted(torch.cdist, (30, 3), (40, 3))["P"] == 2 * 30 * 40 * 5


@pytest.mark.parametrize(
    ("run", "shape", "additions"),
    [
        (lambda x: x[INDEX], (5, 7), 28),
        (lambda x: x.unfold(0, 3, 1), (7,), 15),
        (nn.ReflectionPad1d(2), (1, 2, 5), 18),
        (nn.MaxPool2d(2), (1, 1, 4, 6), 6),
        (nn.AdaptiveMaxPool2d((2, 3)), (1, 1, 5, 7), 6),
        (lambda x: x.as_strided((3, 5), (2, 1)), (9,), 15),
    ],
)
def test_gradients_of_entries_that_are_taken_are_added(run, shape, additions):
    assert counted(run, shape, backward=True) == {"A": additions}


@pytest.mark.parametrize(("mode", "points"), [("bilinear", 4), ("bicubic", 16)])
def test_gradients_of_points_between_are_weighted_along_both_sides_and_added(mode, points):
    resized = nn.Upsample(5, mode=mode)
    assert counted(resized, (1, 2, 4, 3), backward=True) == each("2M A", 50 * points)


def _levels(points):
    return math.ceil(math.log2(points))


@pytest.mark.parametrize("points", [2, 8, 64, 12, 7])
def test_fourier_transforms_are_radix_2(points):
    n, deep = 3 * points, _levels(points)
    complex_ = {"M": 2 * n * deep, "A": 3 * n * deep}
    real = {"M": n * deep, "A": (n + n // 2) * deep}
    assert counted(torch.fft.fft, (3, points), dtype=torch.complex64) == complex_
    assert counted(torch.fft.rfft, (3, points)) == real
    back = counted(lambda z: torch.fft.irfft(z, n=points), (3, points // 2 + 1),
                   dtype=torch.complex64)  # fmt: skip
    assert back == real


def test_butterflies_of_a_small_transform_counted_one_by_one():
    """4 multiplications and 6 additions for each butterfly of a radix-2 transform."""
    count = 0

    def fft(z):
        nonlocal count
        if len(z) == 1:
            return z
        even, odd = fft(z[::2]), fft(z[1::2])
        turned = odd * np.exp(-2j * np.pi * np.arange(len(odd)) / len(z))
        count += len(odd)
        return np.concatenate([even + turned, even - turned])

    z = np.random.default_rng(0).normal(size=16) + 0j
    assert np.allclose(fft(z), np.fft.fft(z))
    expected = {"M": 4 * count, "A": 6 * count}
    assert counted(torch.fft.fft, (16,), dtype=torch.complex64) == expected


@pytest.mark.parametrize("shape", [(3, 8), (3, 10), (4, 7), (2, 5, 6)])
def test_transforms_with_symbolic_sizes(shape):
    for run in (torch.fft.rfft, lambda x: torch.fft.rfft(x, n=2 * x.shape[-1])):
        assert counted_by_symbols(run, shape) == counted(run, shape)


NAMED = {
    "linalg_qr": torch.linalg.qr,
    "linalg_pinv": torch.linalg.pinv,
    "linalg_matrix_exp": lambda x: torch.matrix_exp(x[..., :2, :2]),
    "frexp": torch.frexp,
}


@pytest.mark.parametrize("name", NAMED)
def test_what_has_no_rule_is_named(name):
    assert f"aten.{name}" in named(NAMED[name], SHAPE)


def test_a_custom_operation_is_named():
    @torch.library.custom_op("attnprof_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)
    assert named(twice, SHAPE) == {"attnprof_tests.twice"}


#: Of a table of 7 columns, operations on INDEX: it picks 4 rows, one of them twice. How many rows
#: are read or written, and how many numbers of 8 bytes the index has.
PICKED = {
    "embedding": (lambda x, _: F.embedding(INDEX, x), 4 + 4, 4),
    "index": (lambda x, _: x[INDEX], 4 + 4, 4),
    "index of columns": (lambda x, _: x.T[:, INDEX], 4 + 4, 4),
    "index select": (lambda x, _: x.index_select(0, INDEX), 4 + 4, 4),
    "index put": (lambda x, y: x.index_put_((INDEX,), y), 4 + 4, 4),
    "item assignment": (lambda x, y: x.__setitem__(INDEX, y), 4 + 4, 4),
    "a row everywhere": (lambda x, y: x.index_put_((INDEX,), y[0]), 1 + 4, 4),
    "index put accumulated": (
        lambda x, y: x.index_put_((INDEX,), y, accumulate=True), 4 + 2 * 4, 4),
    "index copy": (lambda x, y: x.index_copy_(0, INDEX, y), 4 + 4, 4),
    "index add": (lambda x, y: x.index_add_(0, INDEX, y), 4 + 2 * 4, 4),
    "index fill": (lambda x, _: x.index_fill_(0, INDEX, 0), 4, 4),
    "scatter add": (lambda x, y: x.scatter_add_(0, INDICES, y), 4 + 2 * 4, 28),
    "scatter to the largest": (
        lambda x, y: x.scatter_reduce_(0, INDICES, y, "amax"), 4 + 2 * 4, 28),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKED)
def test_only_rows_that_are_picked_are_read_or_written(name):
    run, rows, numbers = PICKED[name]
    for table in (3, 50):
        assert bytes_of(run, (table, 7), (4, 7)) == 4 * 7 * rows + 8 * numbers


def test_what_is_made_anew_is_written_whole():
    for run in (
        lambda x, y: x.index_copy(0, INDEX, y),
        lambda x, y: x.index_put((INDEX,), y),
        lambda x, y: x.index_add(0, INDEX, y),
    ):
        assert bytes_of(run, (50, 7), (4, 7)) == 4 * 7 * (50 + 50 + 4) + 8 * 4


def test_a_mask_writes_what_it_is_given():
    def first_rows(x, y):
        x[torch.arange(50) < 4] = y

    written = 4 * 7 * (4 + 4)  # and the mask, made of 50 numbers of 8 bytes
    assert bytes_of(first_rows, (50, 7), (4, 7)) == written + 50 * (8 + 8 + 1 + 1)


def test_gradients_of_picked_rows_are_added_to_zeros():
    ones, zeros, added = 4 * 28, 4 * 50 * 7, 4 * 7 * (4 + 2 * 4) + 8 * 4
    assert bytes_of(lambda x: x[INDEX], (50, 7), backward=True) == ones + zeros + added


class Number(float):
    """A number that counts what is done with it."""

    done: ClassVar[dict[str, int]] = {}

    def _count(self, letter, value):
        self.done[letter] = self.done.get(letter, 0) + 1
        return Number(value)

    def __add__(self, other):
        return self._count("A", float(self) + float(other))

    def __sub__(self, other):
        return self._count("A", float(self) - float(other))

    def __mul__(self, other):
        return self._count("M", float(self) * float(other))

    def floor(self):
        return self._count("O", math.floor(self))


def sampled_by_hand(image, places, *, from_corners):
    """``F.grid_sample`` of one image (channels, height, width), pixel by pixel."""
    _, height, width = image.shape
    out = torch.zeros(len(image), len(places))
    for column, place in enumerate(places):
        spots = []
        for x, size in zip(place.tolist(), (width, height), strict=True):
            spot = (Number(x) + 1) * ((size - 1) / 2 if from_corners else size / 2)
            spots.append(spot if from_corners else spot - 0.5)
        (left, top) = corner = [spot.floor() for spot in spots]
        right, low = (spot - whole for spot, whole in zip(spots, corner, strict=True))
        rest = Number(1) - right, Number(1) - low
        weights = rest[0] * rest[1], right * rest[1], rest[0] * low, right * low
        for channel, pixels in enumerate(image.tolist()):
            corners = [(int(top) + y, int(left) + x) for y in (0, 1) for x in (0, 1)]
            values = [
                pixels[y][x] if 0 <= y < height and 0 <= x < width else 0.0 for y, x in corners
            ]
            parts = [weight * value for weight, value in zip(weights, values, strict=True)]
            out[channel, column] = float(parts[0] + parts[1] + parts[2] + parts[3])
    return out


@pytest.mark.parametrize("from_corners", [True, False])
def test_samples_of_an_image_count_as_a_loop_over_pixels(from_corners):
    image, places = torch.randn(3, 5, 7), 2 * torch.rand(6, 2) - 1

    def run(x, grid):
        return F.grid_sample(x, grid, align_corners=from_corners)

    Number.done = {}
    by_hand = sampled_by_hand(image, places, from_corners=from_corners)
    torch.testing.assert_close(run(image[None], places[None, None])[0, :, 0], by_hand)
    assert counted(run, (1, 3, 5, 7), (1, 1, 6, 2)) == Number.done
    assert counted_by_symbols(run, (1, 3, 5, 7), (1, 1, 6, 2)) == Number.done
    # pixels get four gradients; a place in each direction two weighted differences
    entries, again = 6 * 3, plus(Number.done, each("-4M -3A", 6 * 3))
    gradients = plus(each("4M 4A", entries), each("6M 8A", entries), each("2M", 6))
    assert counted(run, (1, 3, 5, 7), (1, 1, 6, 2), backward=True) == plus(again, gradients)


def test_cubic_samples_are_named():
    def run(x, grid):
        return F.grid_sample(x, grid, mode="bicubic", align_corners=False)

    assert named(run, (1, 3, 5, 7), (1, 1, 6, 2)) == {"aten.grid_sampler_2d"}


#: mode of bags → operations an entry of a row, and a result
BAGS = {"sum": ("A", ""), "mean": ("A", "D"), "max": ("O", "")}


@pytest.mark.parametrize("mode", BAGS)
def test_bags_count_an_operation_for_each_entry_that_they_hold(mode):
    ids, starts = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([0, 2, 3])

    def run(weight):
        return F.embedding_bag(ids, weight, starts, mode=mode)

    entry, result = BAGS[mode]
    assert counted(run, (4, 7)) == plus(each(entry, 5 * 7), each(result, 3 * 7))
    added = each("A", 3 * 7) if mode == "max" else each("A M", 5 * 7)
    scales = each("D", 5) if mode == "mean" else {}
    assert counted(run, (4, 7), backward=True) == plus(added, scales)
