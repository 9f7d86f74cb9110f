"""Fourier transforms of real rows, on torch tensors and counting ones."""

from typing import Any

from attnprof.costs import Cost, Number, exact_div, is_plain
from attnprof.ops import pointwise
from attnprof.ops.counter import variable
from attnprof.ops.groups import product
from attnprof.ops.tensor import Tensor


class Spectrum(Tensor):
    """A counting tensor of complex numbers, two entries' bytes each; it has no gradient."""

    __slots__ = ()

    def mul_(self, other: Any) -> "Spectrum":
        """Products in place: 4 multiplications and 2 additions each."""
        cost = Cost(multiplications=4, additions=2) * self.count
        return self.result(variable("multiply"), self.shape, cost, [self, other], into=self)

    def conj_physical_(self) -> "Spectrum":
        """Signs of the imaginary parts turned: bytes, no counted operation."""
        return self.result(variable("conjugate"), self.shape, Cost(), [self], into=self)

    def sum(self, dim: Any, keepdim: bool = False, dtype: type | None = None) -> "Spectrum":
        """The sum over some axes: two additions an entry."""
        shape, count = pointwise.without(self.shape, dim, keepdim), self.count
        cost = Cost(additions=2 * count, reduction_outputs=2 * product(shape))
        return self.result(variable("sum"), shape, cost, [self])


def rfft(x: Any) -> Any:
    """The spectra (…, points / 2 + 1) of real rows (…, points)."""
    if isinstance(x, Tensor):
        *before, points = x.shape
        shape, cost = (*before, exact_div(points, 2) + 1), _cost(product(before), points)
        out = x.result(variable("FFT"), shape, cost, [x], item_size=2 * x.item_size)
        return Spectrum(x.counter, shape, out.layout, out.held, out.item_size)
    import torch

    return torch.fft.rfft(x)


def irfft(x: Any, points: Any) -> Any:
    """Real rows (…, points) of their spectra."""
    if isinstance(x, Tensor):
        shape = (*x.shape[:-1], points)
        cost, size = _cost(product(shape[:-1]), points), x.item_size // 2
        out = x.result(variable("inverse FFT"), shape, cost, [x], item_size=size)
        return Tensor(x.counter, shape, out.layout, out.held, size)
    import torch

    return torch.fft.irfft(x, n=points)


def _cost(rows: Number, points: Number) -> Cost:
    """F·log2 F multiplications a row of F points, 3/2 of it additions, each way.

    The radix-2 count, half of a complex transform's F/2·log2 F butterflies of 4
    multiplications and 6 additions, whatever the library does; 5/2·F·log2 F in all.
    """
    count = rows * points * _binary_logarithm(points)
    return Cost(multiplications=count, additions=exact_div(3 * count, 2))


def padded_length(n: Number) -> Number:
    """Points of a transform that keeps n tokens apart: the smallest power of two not below 2n."""
    if is_plain(n):
        return 2 ** (2 * n - 1).bit_length()  # of a symbol of torch's, too
    if hasattr(n, "free_symbols"):
        import sympy

        return 2 ** sympy.ceiling(sympy.log(2 * n, 2))
    import numpy as np

    return 2 ** np.ceil(np.log2(2 * n)).astype("int64")


def _binary_logarithm(points: Number) -> Number:
    """The exponent of a power of two."""
    if is_plain(points):
        return points.bit_length() - 1
    if hasattr(points, "free_symbols"):
        return points.as_base_exp()[1]
    import numpy as np

    return np.log2(points).astype("int64")
