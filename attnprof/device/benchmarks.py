"""The benchmarks of a calibration: calls of single operations over grids of sizes.

A prediction adds up times of single operations, so a calibration times each kind of operation, from
sizes at which a call is pure overhead to tensors larger than every cache. No attention mechanism is
among them: predictions of layers are checked against times that nothing was fitted to.
Entry point: :func:`benchmarks`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from attnprof.device.call_costs import sequences
from attnprof.device.fused_times import fused_benchmarks
from attnprof.device.product_times import (
    AS_A_BATCH,
    CPU_PRODUCTS,
    GPU_PRODUCTS,
    PLAIN,
    ProductLimits,
    product_shapes,
    transposed,
    vector_shapes,
)
from attnprof.device.tables import ALTERNATING, JUST_USED, Benchmark, Call, Sizes


@dataclass(frozen=True)
class Grids:
    """Sizes at which operations are timed on a kind of device: entries of tensors, or counts.

    ``entries``: tensors for patterns of memory access, closer together where a cache overflows.
    ``overhead_sizes``: tensors for pointwise arithmetic: pure overhead, one thread, all threads.
    ``runs``: lengths of strided runs. ``rows``, ``columns``: of reductions over rows.
    ``sorted_rows``: rows of a sort. ``pieces``: pieces that a gather or scatter moves.
    ``max_entries``: the largest tensor of rows, runs and pieces. ``adjacent_rows``: rows with
    interleaved entries that form a group in memory (None: all rows of the tensor).
    """

    entries: tuple[int, ...]
    overhead_sizes: tuple[int, ...]
    runs: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    sorted_rows: tuple[int, ...]
    pieces: tuple[int, ...]
    max_entries: int
    products: ProductLimits
    adjacent_rows: int | None = None


CPU_GRIDS = Grids(
    entries=(*(4**power for power in range(3, 8)), *(2**power for power in range(16, 23)), 4**12),
    overhead_sizes=(64, 4096, 2**17),
    runs=(2, 16, 128, 1024, 4096),
    rows=(1, 16, 256, 4096, 65536),
    columns=(4, 16, 64, 256, 1024, 4096, 16384),
    sorted_rows=(1, 16, 256, 4096),
    pieces=(16, 256, 4096, 65536),
    max_entries=2**22,
    products=CPU_PRODUCTS,
)
#: A GPU needs larger tensors to be busy, and has larger caches.
GPU_GRIDS = Grids(
    entries=(*(4**power for power in range(3, 9)), *(2**power for power in range(18, 28))),
    overhead_sizes=(64, 4096, 2**17, 2**21, 2**25),
    runs=(2, 16, 128, 1024, 4096, 2**16, 2**20, 2**24),
    rows=(1, 16, 256, 4096, 65536, 2**20),
    columns=(4, 16, 64, 256, 1024, 4096, 16384, 65536),
    sorted_rows=(1, 16, 256, 4096, 65536),
    pieces=(16, 256, 4096, 65536, 2**20),
    max_entries=2**28,
    products=GPU_PRODUCTS,
    adjacent_rows=64,
)


def grids(device: str) -> Grids:
    """Return the sizes for a device: ``cpu`` or one of CUDA's."""
    return GPU_GRIDS if device.startswith("cuda") else CPU_GRIDS


#: Rows and columns of one weight; total entries of the weights that a vector is multiplied with one
#: after the other, from the size of a near cache to more than any cache holds.
WEIGHT_SHAPE = (512, 512)
WEIGHT_ENTRIES = tuple(parts * 2**18 for parts in (1, 4, 8, 16, 20, 24, 32, 64, 128))
#: Entries from one entry of a strided run to the next; multiples of large powers of two map to few
#: lines of a cache.
STRIDES = (2, 16, 128, 1024, 8192)


def benchmarks(dtype: torch.dtype, device: str) -> list[Benchmark]:
    """Return all benchmarks of a calibration for a number format on a device."""
    options: Any = {"dtype": dtype, "device": device}
    groups = (_products, _patterns, _entries, _rows, _moves)
    on_grids = [benchmark for group in groups for benchmark in group(options, grids(device))]
    return [*on_grids, *sequences(options), *(fused_benchmarks(options) if device == "cpu" else ())]


def _products(options: Any, sizes: Grids) -> list[Benchmark]:
    """Return benchmarks of matrix products: weights in turn (CPU only), all shapes, vectors.

    ``options`` are the dtype and device of new tensors, here and in the functions below.
    """
    limits = sizes.products

    def matrix(batch: int, rows: int, columns: int, by_columns: bool) -> Tensor:
        size = (batch, columns, rows) if by_columns else (batch, rows, columns)
        x = torch.randn(size[-1], **options).expand(size).clone()  # quicker than all random
        return x.mT if by_columns else x

    def call(batch: int, m: int, n: int, k: int, layout: int = PLAIN) -> Call:
        first, second = transposed(layout)
        a, b = matrix(batch, m, k, first > 0), matrix(batch, k, n, second > 0)
        in_batches = batch > 1 or layout > AS_A_BATCH
        return (lambda: torch.bmm(a, b)) if in_batches else lambda: torch.mm(a[0], b[0])

    def one_after_the_other(entries: int) -> Call:
        count = entries // prod(WEIGHT_SHAPE)
        matrices = [matrix(1, *WEIGHT_SHAPE, by_columns=True)[0] for _ in range(count)]
        x = torch.ones(1, WEIGHT_SHAPE[0], **options)
        return lambda: [torch.mm(x, weight) for weight in matrices]

    def products(name: str, shapes: tuple[Sizes, ...], copies: int) -> Benchmark:
        return Benchmark(name, (), call, limits.work, copies, scattered=shapes, flops=2)

    shapes, weights = product_shapes(limits), (WEIGHT_ENTRIES,)
    if options["device"] != "cpu":
        vectors = (1,), (1, 16, 128, 1024), (16, 128, 2048, 32768, 2**18)
        return [
            products("product", shapes, ALTERNATING),
            Benchmark("vector product", vectors, partial(call, 1), 2**25, ALTERNATING, flops=2),
        ]
    return [
        Benchmark("weights", weights, one_after_the_other, weights[0][-1], JUST_USED, flops=2),
        products("product", tuple(shape for shape in shapes if shape[1] > 1), ALTERNATING),
        products("vector product", vector_shapes(), JUST_USED),
    ]


def _patterns(options: Any, sizes: Grids) -> list[Benchmark]:
    """Return benchmarks of patterns of memory access, with the cheapest arithmetic."""

    def ones(n: int) -> Tensor:
        return torch.ones(n, **options)

    def transposed(length: int, stride: int) -> Call:
        x = ones(length * stride).view(length, stride).T
        # rows of a wider tensor, since torch transposes into a contiguous one in blocks
        rows = torch.empty(stride, length + 1, **options)[:, :length]
        return lambda: rows.copy_(x)

    def with_(run: Callable[..., object], operands: int) -> Callable[[int], Call]:
        return lambda n: partial(run, *(ones(n) for _ in range(operands)))

    patterns = {
        "fill": with_(lambda x: x.fill_(1.0), 1), "in place": with_(lambda x: x.mul_(1.0), 1),
        "unary": with_(lambda x: x * 1.0, 1), "binary": with_(torch.mul, 2),
        "binary in place": with_(lambda x, y: x.mul_(y), 2),
    }  # fmt: skip
    return [
        *(
            Benchmark(
                name, (sizes.entries,), make, sizes.entries[-1], JUST_USED, repeat_in_pass=True
            )
            for name, make in patterns.items()
        ),
        Benchmark("strided", (sizes.runs, STRIDES), transposed, sizes.max_entries),
    ]


#: Pointwise operations with a table of their arithmetic; all others are priced as ``mul``.
POINTWISE: dict[str, Callable[[Tensor], object]] = {
    "mul": lambda x: x * 1.5, "add": lambda x: x + 1.5, "sub": lambda x: x - 1.5,
    "div": lambda x: x / 1.5, "neg": torch.neg, "reciprocal": torch.reciprocal, "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "pow": lambda x: x**3,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf, "cos": torch.cos,
    "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "relu": torch.relu,
    "clamp": lambda x: x.clamp(min=0.5), "eq": lambda x: x == 0.5, "abs": torch.abs,
    "floor": torch.floor, "remainder": lambda x: x.remainder(0.3),
    "maximum": lambda x: torch.maximum(x, x), "clone": torch.clone, "randn": torch.randn_like,
    "bernoulli": lambda x: x.bernoulli(0.5),
    "native_dropout": lambda x: torch.native_dropout(x, 0.1, train=True),
    "gelu_backward": lambda x: torch.ops.aten.gelu_backward(x, x),
    "silu_backward": lambda x: torch.ops.aten.silu_backward(x, x),
}  # fmt: skip
#: Pointwise operations with a table whose operands are prepared, untimed, from the entries.
POINTWISE_PREPARED: dict[str, Callable[[Tensor], Call]] = {
    "masked_fill": lambda x: partial(x.masked_fill, _mask_in_runs(x), 0.5),
    "where": lambda x: partial(torch.where, _mask_in_runs(x), x, x),
    "cat": lambda x: partial(torch.cat, x.chunk(2)),
    "tril": lambda x: x.view(16, -1).tril,
    "constant_pad_nd": lambda x: partial(torch.nn.functional.pad, x.view(16, -1), (0, 1)),
}


def _mask_in_runs(x: Tensor) -> Tensor:
    """Return a mask of ``len(x)`` entries, half of them True, in runs like attention masks."""
    return torch.arange(len(x), device=x.device) % MASK_PERIOD < MASK_PERIOD // 2


def _entries(options: Any, sizes: Grids) -> list[Benchmark]:
    """Return benchmarks of pointwise operations, and of a product that is broadcast in pieces."""

    def on_random(prepare: Callable[[Tensor], Call]) -> Callable[[int], Call]:
        return lambda n: prepare(torch.rand(n, **options) + 0.5)

    def plain(run: Callable[[Tensor], object]) -> Callable[[Tensor], Call]:
        return lambda x: partial(run, x)

    def broadcast(runs: int, length: int) -> Call:
        x = torch.rand(runs // RUNS_PER_ROW, RUNS_PER_ROW, 1, **options)
        y = torch.rand(runs // RUNS_PER_ROW, 1, length, **options)
        return lambda: x * y

    def in_pieces(n: int) -> Call:
        return broadcast(max(RUNS_PER_ROW, n // GPU_PIECE), GPU_PIECE)

    prepared = {name: plain(run) for name, run in POINTWISE.items()} | POINTWISE_PREPARED
    counts = sizes.overhead_sizes
    single = [
        Benchmark(f"of {name}", (counts,), on_random(prepare), counts[-1])
        for name, prepare in prepared.items()
    ]
    if options["device"] == "cpu":
        lengths = ((BROADCAST_RUNS,), (*REMAINDER_LENGTHS, WHOLE_VECTORS))
        return [*single, Benchmark("broadcast", lengths, broadcast, 2**23, ALTERNATING)]
    return [*single, Benchmark("in pieces", (sizes.entries,), in_pieces, sizes.entries[-1])]


#: Entries after which a mask repeats itself.
MASK_PERIOD = 512
#: Contiguous runs of memory in a broadcast product, and how many of them are multiplied with the
#: same row of the other factor.
BROADCAST_RUNS, RUNS_PER_ROW = 2**12, 16
#: Entries of a run on a GPU, where only the total number of entries matters.
GPU_PIECE = 8
#: Entries of a vector register, and of a run that fills three of them.
VECTOR_ENTRIES, WHOLE_VECTORS = 16, 48
#: Entries of runs that do not fill whole registers (4, 24, 12), and by what modulo 16, ascending.
REMAINDER_LENGTHS, REMAINDERS = (4, 24, 12), (4, 8, 12)


def _rows(options: Any, sizes: Grids) -> list[Benchmark]:
    """Return benchmarks of reductions over rows; "outer" ones over entries that are a row apart."""

    def tensor(rows: int, columns: int, outer: bool) -> tuple[Tensor, int]:
        """Return a tensor of ``rows`` rows of ``columns`` entries, and the dimension to reduce.

        ``outer`` interleaves rows in memory: all of them, or groups of ``adjacent_rows``, since a
        GPU's kernel chooses by the inner dimension how many rows it computes at once.
        """
        if not outer:
            return torch.rand(rows, columns, **options), -1
        if sizes.adjacent_rows is None:
            return torch.rand(columns, rows, **options).T, -1
        group = min(rows, sizes.adjacent_rows)
        return torch.rand(rows // group, columns, group, **options), 1

    def make(run: Callable[[Tensor, int], object], *, outer: bool = False) -> Callable[..., Call]:
        return lambda rows, columns: partial(run, *tensor(rows, columns, outer))

    def softmax_backward(*, outer: bool = False) -> Callable[..., Call]:
        def call(rows: int, columns: int) -> Call:
            (dy, dim), (y, _) = (tensor(rows, columns, outer) for _ in range(2))
            return lambda: torch._softmax_backward_data(dy, y, dim, y.dtype)  # noqa: SLF001

        return call

    def norm_backward(rows: int, columns: int) -> Call:
        x, w = torch.rand(rows, columns, **options), torch.ones(columns, **options)
        _, mean, scale = torch.native_layer_norm(x, [columns], w, w, 1e-5)
        masks = [True, True, True]
        return lambda: torch.ops.aten.native_layer_norm_backward(
            x, x, [columns], mean, scale, w, w, masks
        )

    either: dict[str, Callable[[Tensor, int], object]] = {
        "sum": torch.sum, "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
        "amax": torch.amax, "softmax": torch.softmax,
    }  # fmt: skip
    runs = {
        **{name: make(run) for name, run in either.items()},
        **{f"outer {name}": make(run, outer=True) for name, run in either.items()},
        "softmax backward": softmax_backward(),
        "outer softmax backward": softmax_backward(outer=True),
        "max": make(torch.max), "cumsum": make(torch.cumsum),
        "layer norm": make(lambda x, _: torch.nn.functional.layer_norm(x, x.shape[-1:])),
        "layer norm backward": norm_backward,
    }  # fmt: skip
    return [
        Benchmark(name, (sizes.rows, sizes.columns), run, sizes.max_entries)
        for name, run in runs.items()
    ]


def _moves(options: Any, sizes: Grids) -> list[Benchmark]:
    """Return benchmarks of sorts, gathers, scatters, transforms, views, functions and autograd."""

    def sort(rows: int, columns: int) -> Call:
        return partial(torch.rand(rows, columns, **options).sort, -1)

    def gather(rows: int, run: int) -> Call:
        x, at = torch.rand(rows, run, **options), torch.randperm(rows, device=options["device"])
        return lambda: x.index_select(0, at)

    def scatter(rows: int, run: int) -> Call:
        x, y = (torch.rand(rows, run, **options) for _ in range(2))
        at = torch.randperm(rows, device=options["device"])
        return lambda: x.index_copy_(0, at, y)

    def fourier(rows: int, points: int) -> Call:
        x = torch.rand(rows, points, device=options["device"])
        return lambda: torch.fft.rfft(x)

    def fourier_back(rows: int, points: int) -> Call:
        x = torch.rand(rows, points // 2 + 1, device=options["device"]) + 0j
        return lambda: torch.fft.irfft(x)

    def view(_: int) -> Call:
        x = torch.empty(4, 4, 4, device=options["device"])
        return lambda: (x.view(16, 4), x.transpose(1, 2), x[1:3], x.unsqueeze(0))

    def functions(_: int) -> Call:
        layers, x = torch.nn.Sequential(*[_Layer() for _ in range(CHAIN)]), torch.ones(1, 1, 1)
        return lambda: layers(x)

    return [
        Benchmark("sort", (sizes.sorted_rows, (16, 256, 4096)), sort, sizes.max_entries // 16),
        Benchmark("gather", (sizes.pieces, (1, 16, 256)), gather, sizes.max_entries, JUST_USED),
        Benchmark("scatter", (sizes.pieces, (1, 16, 256)), scatter, sizes.max_entries, JUST_USED),
        Benchmark("fourier", ((1, 16, 256), (64, 512, 4096, 32768)), fourier, 2**21),
        Benchmark("inverse fourier", ((1, 16, 256), (64, 512, 4096, 32768)), fourier_back, 2**21),
        Benchmark("4 views", ((1,),), view, 1, repeat_in_pass=True, host_time=True),
        Benchmark("functions", ((1,),), functions, 1, repeat_in_pass=True, host_time=True),
        *_autograd(options["device"]),
    ]


#: Operations of a chain whose autograd nodes are timed; layers without operations in a row.
CHAIN = 64
#: Python functions that a call of :class:`_Layer` runs: two of torch's and ``forward``, the same
#: three of the layer inside, a lookup of each of its two attributes, and one of its own.
FUNCTIONS_PER_LAYER = 9


class _Layer(torch.nn.Module):
    """A layer without operations: it looks up attributes, reads shapes, passes arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.inner, self.num_heads = torch.nn.Identity(), 4

    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        batch, _, _ = x.shape
        return self.inner(_checked(x, self.weight, mask=mask, heads=self.num_heads * batch))


def _checked(x: Tensor, weight: Tensor, *, mask: Tensor | None, heads: int) -> Tensor:
    """Return ``x`` after the checks of arguments that layers usually make."""
    if mask is not None or heads < 1 or x.dim() != 3 or weight.dim() != 1:
        raise ValueError("no such input")
    return x


def _autograd(device: str) -> list[Benchmark]:
    """Return benchmarks of a chain of operations: without autograd, recorded, and with backward."""

    def chain(grad: bool, back: bool) -> Callable[[int], Call]:
        def make(_: int) -> Call:
            x = torch.ones(8, device=device, requires_grad=grad)

            def call() -> object:
                with torch.set_grad_enabled(grad):
                    y = x
                    for _ in range(CHAIN):
                        y = y * 1.5
                if back:
                    torch.autograd.backward([y], [torch.ones_like(y)])
                return y

            return call

        return make

    kinds = {"chain": (False, False), "recorded": (True, False), "played": (True, True)}
    return [
        Benchmark(name, ((1,),), chain(grad, back), 1, repeat_in_pass=True, host_time=True)
        for name, (grad, back) in kinds.items()
    ]
