"""The benchmarks of a calibration: calls of single operations over grids of sizes, no attention."""

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
    ON_CPU,
    ON_GPU,
    PLAIN,
    ProductLimits,
    product_shapes,
    transposed,
)
from attnprof.device.tables import Benchmark, Call


@dataclass(frozen=True)
class Grids:
    """Sizes at which operations are measured, from those at which a call is nothing but overhead.

    ``entries``: of memory that is read, up to more than caches hold, closer where a cache is just
    exceeded. ``few``: of single operations: overhead, one thread, all threads. ``runs``: of entries
    that lie apart. ``most``: the limit on entries of rows, runs and moved pieces. ``adjacent``: how
    many rows that are not contiguous lie next to each other in memory (None: all of a tensor).
    """

    entries: tuple[int, ...]
    few: tuple[int, ...]
    runs: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    sorted_rows: tuple[int, ...]
    pieces: tuple[int, ...]
    most: int
    products: ProductLimits
    adjacent: int | None = None


CPU_GRIDS = Grids(
    entries=(*(4**power for power in range(3, 8)), *(2**power for power in range(16, 23)), 4**12),
    few=(64, 4096, 2**17),
    runs=(2, 16, 128, 1024, 4096),
    rows=(1, 16, 256, 4096, 65536),
    columns=(4, 16, 64, 256, 1024, 4096, 16384),
    sorted_rows=(1, 16, 256, 4096),
    pieces=(16, 256, 4096, 65536),
    most=2**22,
    products=ON_CPU,
)
#: A GPU does far more at once, and its cache holds far more.
GPU_GRIDS = Grids(
    entries=(*(4**power for power in range(3, 9)), *(2**power for power in range(18, 28))),
    few=(64, 4096, 2**17, 2**21, 2**25),
    runs=(2, 16, 128, 1024, 4096, 2**16, 2**20, 2**24),
    rows=(1, 16, 256, 4096, 65536, 2**20),
    columns=(4, 16, 64, 256, 1024, 4096, 16384, 65536),
    sorted_rows=(1, 16, 256, 4096, 65536),
    pieces=(16, 256, 4096, 65536, 2**20),
    most=2**28,
    products=ON_GPU,
    adjacent=64,
)


def grids(device: str) -> Grids:
    """Return the sizes that suit a device."""
    return GPU_GRIDS if device.startswith("cuda") else CPU_GRIDS


#: Rows and columns of a weight; total entries of the weights that a vector is multiplied with in
#: turn, from what a near cache holds to more than any cache holds.
WEIGHT = (512, 512)
WEIGHTS = tuple(parts * 2**18 for parts in (1, 4, 8, 16, 20, 24, 32, 64, 128))
#: Turns of a call: with 1 it finds memory as it left it, with 2 as the call before the last did.
NEAR, HOT = 1, 2
#: Distances between entries of a run; multiples of large powers of two share few lines of a cache.
STRIDES = (2, 16, 128, 1024, 8192)


def benchmarks(dtype: torch.dtype, device: str) -> list[Benchmark]:
    """Return everything that is measured for a number format."""
    made: Any = {"dtype": dtype, "device": device}
    kinds = (_products, _patterns, _entries, _rows, _moves)
    of_grids = [one for kind in kinds for one in kind(made, grids(device))]
    return [*of_grids, *sequences(made), *(fused_benchmarks(made) if device == "cpu" else ())]


def _products(made: Any, sizes: Grids) -> list[Benchmark]:
    limits = sizes.products

    def matrix(batch: int, rows: int, columns: int, by_columns: bool) -> Tensor:
        size = (batch, columns, rows) if by_columns else (batch, rows, columns)
        x = torch.randn(size[-1], **made).expand(size).clone()  # far quicker than all at random
        return x.mT if by_columns else x

    def call(batch: int, m: int, n: int, k: int, layout: int = PLAIN) -> Call:
        first, second = transposed(layout)
        a, b = matrix(batch, m, k, first > 0), matrix(batch, k, n, second > 0)
        in_batches = batch > 1 or layout > AS_A_BATCH
        return (lambda: torch.bmm(a, b)) if in_batches else lambda: torch.mm(a[0], b[0])

    def one_after_the_other(entries: int) -> Call:
        matrices = [matrix(1, *WEIGHT, by_columns=True)[0] for _ in range(entries // prod(WEIGHT))]
        x = torch.ones(1, WEIGHT[0], **made)
        return lambda: [torch.mm(x, weight) for weight in matrices]

    vectors = (1,), (1, 16, 128, 1024), (16, 128, 2048, 32768, 2**18)
    read = [Benchmark("weights", (WEIGHTS,), one_after_the_other, WEIGHTS[-1], NEAR, flops=2)]
    return [
        *(read if made["device"] == "cpu" else ()),
        Benchmark("product", (), call, limits.work, HOT, scattered=product_shapes(limits), flops=2),
        Benchmark("vector product", vectors, partial(call, 1), 2**25, HOT, flops=2),
    ]


def _patterns(made: Any, sizes: Grids) -> list[Benchmark]:
    """Return benchmarks of patterns of memory access, with the cheapest arithmetic."""

    def ones(n: int) -> Tensor:
        return torch.ones(n, **made)

    def transposed(length: int, stride: int) -> Call:
        x = ones(length * stride).view(length, stride).T
        rows = torch.empty(stride, length + 1, **made)[:, :length]  # or torch copies in blocks
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
            Benchmark(name, (sizes.entries,), make, sizes.entries[-1], NEAR, often=True)
            for name, make in patterns.items()
        ),
        Benchmark("strided", (sizes.runs, STRIDES), transposed, sizes.most),
    ]


#: Operations on entries that have a table of their own; others have the time of ``mul``.
OF_ENTRIES: dict[str, Callable[[Tensor], object]] = {
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
#: Operations with a table whose operands are first made of the entries.
OF_MADE: dict[str, Callable[[Tensor], Call]] = {
    "masked_fill": lambda x: partial(x.masked_fill, _in_runs(x), 0.5),
    "where": lambda x: partial(torch.where, _in_runs(x), x, x),
    "cat": lambda x: partial(torch.cat, x.chunk(2)),
    "tril": lambda x: x.view(16, -1).tril,
    "constant_pad_nd": lambda x: partial(torch.nn.functional.pad, x.view(16, -1), (0, 1)),
}


def _in_runs(x: Tensor) -> Tensor:
    """Return a mask with half of its entries True, in runs as masks of attention have them."""
    return torch.arange(len(x), device=x.device) % RUN < RUN // 2


def _entries(made: Any, sizes: Grids) -> list[Benchmark]:
    def of(prepare: Callable[[Tensor], Call]) -> Callable[[int], Call]:
        return lambda n: prepare(torch.rand(n, **made) + 0.5)

    def plain(run: Callable[[Tensor], object]) -> Callable[[Tensor], Call]:
        return lambda x: partial(run, x)

    def broadcast(runs: int, length: int) -> Call:
        x = torch.rand(runs // BLOCK, BLOCK, 1, **made)
        y = torch.rand(runs // BLOCK, 1, length, **made)
        return lambda: x * y

    def in_pieces(n: int) -> Call:
        return broadcast(max(BLOCK, n // PIECE), PIECE)

    prepared = {name: plain(run) for name, run in OF_ENTRIES.items()} | OF_MADE
    single = [Benchmark(f"of {name}", (sizes.few,), of(prepare), sizes.few[-1])
              for name, prepare in prepared.items()]  # fmt: skip
    if made["device"] == "cpu":
        lengths = ((MANY_RUNS,), (*OF_RESTS, WHOLE))
        return [*single, Benchmark("broadcast", lengths, broadcast, 2**23, HOT)]
    return [*single, Benchmark("in pieces", (sizes.entries,), in_pieces, sizes.entries[-1])]


#: Entries after which a mask repeats itself.
RUN = 512
#: Contiguous pieces of memory in a broadcast product, and how many of them share the entries of one
#: of its two factors.
MANY_RUNS, BLOCK = 2**12, 16
#: Entries of a piece on a GPU, where only the total number of entries matters.
PIECE = 8
#: Entries of a piece that fills whole vector registers (of ``VECTOR`` entries), and of pieces that
#: leave each kind of rest.
WHOLE, OF_RESTS, RESTS, VECTOR = 48, (4, 24, 12), (4, 8, 12), 16


def _rows(made: Any, sizes: Grids) -> list[Benchmark]:
    def tensor(rows: int, columns: int, outer: bool) -> tuple[Tensor, int]:
        """Return rows with contiguous entries, or with entries a row apart, and their dimension.

        A GPU's kernel chooses by that dimension how many rows it computes at once.
        """
        if not outer:
            return torch.rand(rows, columns, **made), -1
        if sizes.adjacent is None:
            return torch.rand(columns, rows, **made).T, -1
        group = min(rows, sizes.adjacent)
        return torch.rand(rows // group, columns, group, **made), 1

    def make(run: Callable[[Tensor, int], object], *, outer: bool = False) -> Callable[..., Call]:
        return lambda rows, columns: partial(run, *tensor(rows, columns, outer))

    def softmax_backward(*, outer: bool = False) -> Callable[..., Call]:
        def call(rows: int, columns: int) -> Call:
            (dy, dim), (y, _) = (tensor(rows, columns, outer) for _ in range(2))
            return lambda: torch._softmax_backward_data(dy, y, dim, y.dtype)  # noqa: SLF001

        return call

    def norm_backward(rows: int, columns: int) -> Call:
        x, w = torch.rand(rows, columns, **made), torch.ones(columns, **made)
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
        Benchmark(name, (sizes.rows, sizes.columns), run, sizes.most) for name, run in runs.items()
    ]


def _moves(made: Any, sizes: Grids) -> list[Benchmark]:
    def sort(rows: int, columns: int) -> Call:
        return partial(torch.rand(rows, columns, **made).sort, -1)

    def gather(rows: int, run: int) -> Call:
        x, at = torch.rand(rows, run, **made), torch.randperm(rows, device=made["device"])
        return lambda: x.index_select(0, at)

    def scatter(rows: int, run: int) -> Call:
        x, y = (torch.rand(rows, run, **made) for _ in range(2))
        at = torch.randperm(rows, device=made["device"])
        return lambda: x.index_copy_(0, at, y)

    def fourier(rows: int, points: int) -> Call:
        x = torch.rand(rows, points, device=made["device"])
        return lambda: torch.fft.rfft(x)

    def fourier_back(rows: int, points: int) -> Call:
        x = torch.rand(rows, points // 2 + 1, device=made["device"]) + 0j
        return lambda: torch.fft.irfft(x)

    def view(_: int) -> Call:
        x = torch.empty(4, 4, 4, device=made["device"])
        return lambda: (x.view(16, 4), x.transpose(1, 2), x[1:3], x.unsqueeze(0))

    def functions(_: int) -> Call:
        layers, x = torch.nn.Sequential(*[_Layer() for _ in range(CHAIN)]), torch.ones(1, 1, 1)
        return lambda: layers(x)

    return [
        Benchmark("sort", (sizes.sorted_rows, (16, 256, 4096)), sort, sizes.most // 16),
        Benchmark("gather", (sizes.pieces, (1, 16, 256)), gather, sizes.most, NEAR),
        Benchmark("scatter", (sizes.pieces, (1, 16, 256)), scatter, sizes.most, NEAR),
        Benchmark("fourier", ((1, 16, 256), (64, 512, 4096, 32768)), fourier, 2**21),
        Benchmark("inverse fourier", ((1, 16, 256), (64, 512, 4096, 32768)), fourier_back, 2**21),
        Benchmark("4 views", ((1,),), view, 1, often=True, host=True),
        Benchmark("functions", ((1,),), functions, 1, often=True, host=True),
        *_autograd(made["device"]),
    ]


#: Operations in a row whose nodes are timed, and layers that do nothing.
CHAIN = 64
#: Python functions that a call of :class:`_Layer` runs: two of torch's and ``forward``, the same
#: three of the layer inside, a lookup of each of its two attributes, and one of its own.
OF_A_LAYER = 9


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
    """Return the first argument; stands for functions that check their arguments."""
    if mask is not None or heads < 1 or x.dim() != 3 or weight.dim() != 1:
        raise ValueError("no such input")
    return x


def _autograd(device: str) -> list[Benchmark]:
    """Return benchmarks of a chain of operations: without autograd, recorded, with its backward."""

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
        Benchmark(name, ((1,),), chain(*how), 1, often=True, host=True)
        for name, how in kinds.items()
    ]
