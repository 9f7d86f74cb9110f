"""What the extraction of HE, WE and ME executes, on the tape: by FFT or by blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from attnprof.costs import Cost, Number, ceil_div, exact_div, is_plain, minimum, not_dearer
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import Tape, product_cost
from attnprof.mechanisms.extractors.products import triangle

#: tokens of a block of the direct convolution
BLOCK = 64
#: ``auto`` takes the FFT from this length on: there it counts fewer FLOPs than one block of
#: direct sums (with many rows a filter; with a single one from 60 on)
FFT_FROM = 50


def log_length(n: Number) -> Number:
    """Binary logarithm of the FFT's length: the smallest power of two not below 2n."""
    if is_plain(n):
        return (2 * n - 1).bit_length()
    if hasattr(n, "free_symbols"):
        import sympy

        return sympy.ceiling(sympy.log(2 * n, 2))
    import numpy as np

    return np.ceil(np.log2(2 * n)).astype("int64")


def padded_length(n: Number) -> Number:
    """Points of the FFT for n tokens: the smallest power of two not below 2n."""
    return 2 ** log_length(n)


def transform_cost(n: Number, times: Number) -> Cost:
    """Real FFTs of the padded length F, each way: F·log2 F multiplications, 3/2 of it additions.

    The radix-2 count, half of a complex transform's F/2·log2 F butterflies of 4
    multiplications and 6 additions, whatever the library does; 5/2·F·log2 F in all.
    """
    count = times * padded_length(n) * log_length(n)
    return Cost(multiplications=count, additions=exact_div(3 * count, 2))


@dataclass(frozen=True)
class Convolution:
    """Sizes of one call: x (b, n, d), w (n, groups) with groups d (HE, WE) or 1 (ME)."""

    b: Number
    n: Number
    d: Number
    groups: Number
    #: known to fit one block, where a symbol does not tell
    short: bool = False

    @property
    def block(self) -> Number:
        """Tokens of a block."""
        return self.n if self.short else minimum(BLOCK, self.n)

    @property
    def blocks(self) -> Number:
        """Number of token blocks, the last one padded."""
        return 1 if self.short else ceil_div(self.n, self.block)

    @property
    def bins(self) -> Number:
        """Entries of a real signal's spectrum."""
        return exact_div(padded_length(self.n), 2) + 1

    def products(self) -> Cost:
        """All products of blocks, without what accumulates them."""
        width = self.b * self.d
        return product_cost(self.block, self.block, width, triangle(self.blocks))


def wide(item_size: int) -> int:
    """Bytes of an element inside a convolution: half formats are summed in float32."""
    return 4 if item_size == 2 else item_size


def _copied(tape: Tape, name: str, x: Tensor, item_size: int) -> None:
    """A copy of x into memory that is there, in entries of ``item_size`` bytes."""
    tape.record(name, x.shape, Cost(bytes_moved=x.size + x.count * item_size))


Result = TypeVar("Result")


def convolution(tape: Tape, s: Convolution, x: Tensor, w: Tensor, impl: str) -> Tensor:
    """The extraction of x (b, n, d) with w (n, groups), forward and backward.

    ``impl`` is ``direct`` (blocks), ``fft``, or ``auto``: by length. Where a symbol decides, both
    are written, each under its condition.
    """

    def backward(grad: Tensor) -> Gradients:
        return _either(
            tape,
            s,
            impl,
            lambda sizes: _block_backward(tape, sizes, x, w, grad),
            lambda sizes: _fft_backward(tape, sizes, x, w, grad),
        )

    out = _either(
        tape,
        s,
        impl,
        lambda sizes: _block_forward(tape, sizes, x, w),
        lambda sizes: _fft_forward(tape, sizes, x, w),
    )
    return tape.custom("extraction", out, [x, w], backward)


def is_direct(impl: str, n: Number) -> Number:
    """1 for direct sums, 0 for the FFT."""
    return int(impl == "direct") if impl != "auto" else not_dearer(n, FFT_FROM - 1)


def _either(
    tape: Tape,
    s: Convolution,
    impl: str,
    by_blocks: Callable[[Convolution], Result],
    by_fft: Callable[[Convolution], Result],
) -> Result:
    """One result; written twice, its memory is that of the branch taken."""
    direct = is_direct(impl, s.n)
    if is_plain(direct):
        return by_blocks(s) if direct else by_fft(s)
    with tape.when(direct):
        result = by_blocks(replace(s, short=True))
    with tape.when(not_dearer(FFT_FROM, s.n)):
        by_fft(s)
    return result


# -- through the frequency domain ---------------------------------------------------------
def _fft_forward(tape: Tape, s: Convolution, x: Tensor, w: Tensor) -> Tensor:
    """The stages of ``FourierConvolution``."""
    spectrum = _spectrum(tape, s, "tokens", x, s.b * s.d)
    filters = _spectrum(tape, s, "weights", w, s.groups)
    _bin_products(tape, "products of spectra", spectrum, filters)
    tape.free(filters)
    return _tokens(tape, s, "extraction", spectrum, x)


def _fft_backward(tape: Tape, s: Convolution, x: Tensor, w: Tensor, grad: Tensor) -> Gradients:
    spectrum = _spectrum(tape, s, "grad", grad, s.b * s.d)
    other = _spectrum(tape, s, "tokens", x, s.b * s.d)
    _conjugate(tape, other)
    _bin_products(tape, "grad weights: products", other, spectrum)
    entries = other.count
    cost = Cost(additions=2 * entries, reduction_outputs=2 * s.groups * s.bins)
    shape = (s.groups, s.bins)
    size = other.item_size
    summed = tape.emit("grad weights: sum", shape, cost, [other], item_size=size)
    tape.free(other)
    grad_w = _tokens(tape, s, "grad weights", summed, w)
    filters = _spectrum(tape, s, "weights", w, s.groups)
    _conjugate(tape, filters)
    _bin_products(tape, "grad tokens: products", spectrum, filters)
    tape.free(filters)
    return [(x, _tokens(tape, s, "grad tokens", spectrum, x)), (w, grad_w)]


def _spectrum(tape: Tape, s: Convolution, name: str, x: Tensor, channels: Number) -> Tensor:
    """Zero-padded channels of x and their transform."""
    size, length = wide(tape.item_size), padded_length(s.n)
    rows = tape.emit(f"{name}: padding", (channels, length), Cost(), item_size=size)
    _copied(tape, f"{name}: by channel", x, size)
    cost = transform_cost(s.n, channels)
    out = tape.emit(f"{name}: FFT", (channels, s.bins), cost, [rows], item_size=2 * size)
    tape.free(rows)
    return out


def _tokens(tape: Tape, s: Convolution, name: str, spectrum: Tensor, like: Tensor) -> Tensor:
    """A spectrum back to tokens, in the shape of ``like``; takes the spectrum over."""
    channels, size = spectrum.shape[0], wide(tape.item_size)
    cost = transform_cost(s.n, channels)
    shape = (channels, padded_length(s.n))
    rows = tape.emit(f"{name}: inverse FFT", shape, cost, [spectrum], item_size=size)
    tape.free(spectrum)
    return _cut(tape, name, rows, like)


def _cut(tape: Tape, name: str, rows: Tensor, like: Tensor) -> Tensor:
    """The entries of ``rows`` that belong to tokens, copied to the shape of ``like``."""
    read = tape.constant(*like.shape, item_size=wide(tape.item_size))
    out = tape.emit(name, like.shape, Cost(), [read])
    tape.free(rows)
    return out


def _bin_products(tape: Tape, name: str, a: Tensor, b: Tensor) -> None:
    """Complex products a·b in place of a: 4 multiplications and 2 additions each."""
    cost = Cost(multiplications=4, additions=2) * a.count
    tape.emit(name, a.shape, cost, [a, b], into=a, item_size=a.item_size)


def _conjugate(tape: Tape, a: Tensor) -> None:
    """Signs turned in place: bytes, no counted operation."""
    tape.emit("conjugate", a.shape, Cost(), [a], into=a, item_size=a.item_size)


# -- direct sums by blocks ----------------------------------------------------------------
def _block_forward(tape: Tape, s: Convolution, x: Tensor, w: Tensor) -> Tensor:
    """The stages of ``BlockConvolution``."""
    rows = _blocks(tape, s, "tokens", x)
    out = _block_products(tape, s, "products of blocks", rows, w)
    return _cut(tape, "extraction", out, x)


def _block_backward(tape: Tape, s: Convolution, x: Tensor, w: Tensor, grad: Tensor) -> Gradients:
    grads = _blocks(tape, s, "grad", grad)
    rows = _blocks(tape, s, "tokens", x)
    grad_w = _weight_sums(tape, s, w)
    tape.free(rows)
    out = _block_products(tape, s, "grad tokens: products", grads, w)
    return [(x, _cut(tape, "grad tokens", out, x)), (w, grad_w)]


def _blocks(tape: Tape, s: Convolution, name: str, x: Tensor) -> Tensor:
    size = wide(tape.item_size)
    shape = (s.blocks, s.b * s.d, s.block)
    out = tape.emit(f"{name}: blocks", shape, Cost(), item_size=size)
    _copied(tape, f"{name}: by block", x, size)
    return out


def _block_products(tape: Tape, s: Convolution, name: str, rows: Tensor, w: Tensor) -> Tensor:
    """One product a distance, added up; takes the rows over."""
    size, c = wide(tape.item_size), s.block
    shape = (s.groups, (s.blocks + 1) * c - 1)
    filters = tape.emit("weights: padding", shape, Cost(), item_size=size)
    _copied(tape, "weights: by group", w, size)
    out = tape.emit("zeros", rows.shape, Cost(), item_size=size)
    outputs = s.b * s.d * c * triangle(s.blocks)
    toeplitz = s.groups * c * c
    moved = size * (3 * outputs + 3 * s.blocks * toeplitz)
    cost = s.products() + Cost(additions=outputs, bytes_moved=moved)
    tape.record(name, rows.shape, cost, workspace=toeplitz * size)
    tape.free(rows, filters)
    return out


def _weight_sums(tape: Tape, s: Convolution, w: Tensor) -> Tensor:
    """Products of blocks summed along their diagonals."""
    size, c = wide(tape.item_size), s.block
    sums = tape.emit("grad weights: zeros", (s.groups, (s.blocks + 1) * c), Cost(), item_size=size)
    skewed = tape.emit("grad weights: skewed", (s.groups, c, 2 * c), Cost(), item_size=size)
    entries = s.groups * c * c
    inputs = s.b * s.d * c * triangle(s.blocks)
    products = product_cost(c, s.b * s.d * triangle(s.blocks), c)
    # dot products run over the token blocks of one distance: one result a block
    cost = Cost(
        products.multiplications, products.additions, matmul_flops=products.matmul_flops,
        dot_outputs=s.blocks * entries, bytes_moved=size * (2 * inputs + 3 * s.blocks * entries),
    )  # fmt: skip
    tape.record("grad weights: products", (s.groups, c, c), cost, workspace=entries * size)
    diagonals = 2 * s.groups * c
    cost = Cost(
        additions=s.blocks * (2 * entries + diagonals), reduction_outputs=s.blocks * diagonals,
        bytes_moved=size * s.blocks * (2 * entries + 4 * diagonals),
    )  # fmt: skip
    tape.record("grad weights: diagonals", sums.shape, cost, workspace=diagonals * size)
    read = tape.constant(*w.shape, item_size=size)
    out = tape.emit("grad weights", w.shape, Cost(), [read])
    tape.free(skewed, sums)
    return out
