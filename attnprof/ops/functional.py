"""Functions for texts where torch has no method, on torch's tensors and on counting ones."""

import math
import operator
import sys
from typing import Any

from attnprof.costs import Cost, Number, exact_div, is_plain, more_than_one
from attnprof.ops import arithmetic, shapes
from attnprof.ops.counter import variable
from attnprof.ops.layout import Layout, product
from attnprof.ops.tensor import Tensor


def _torch() -> Any:
    """Return torch, which the caller of a tensor's method has imported."""
    return sys.modules["torch"]


def square_root(size: Any, over: Any = 1) -> float:
    """Return the root of a size or of a ratio of sizes; 1 for sizes that are symbols or arrays.

    The factor by which a tensor is scaled changes no count.
    """
    plain = isinstance(size, int | float) and isinstance(over, int | float)
    return math.sqrt(size / over) if plain else 1.0


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return (…, k) times weight (n, k) transposed, plus bias."""
    if isinstance(x, Tensor):
        return x.linear(weight, bias)
    return _torch().nn.functional.linear(x, weight, bias)


def copy_in_rows(x: Any, like: Any = None) -> Any:
    """Copy a tensor, even if contiguous, into rows, in the number format of another tensor."""
    if isinstance(x, Tensor):
        return x.clone() if like is None else like.new_empty(x.shape).copy_(x)
    dtype = (x if like is None else like).dtype
    return x.to(dtype, copy=True, memory_format=_torch().contiguous_format)


def in_rows_for(group: Any, x: Any) -> Any:
    """Return x laid out row by row, by a copy if needed (for a group above one)."""
    if isinstance(x, Tensor):
        return shapes.in_rows("split heads", x, group)
    return x.contiguous() if group != 1 else x


def repeat_rows(x: Any, times: Any) -> Any:
    """Return (n, m) repeated as (times·n, m); itself for one time."""
    if isinstance(x, Tensor):
        n, m = x.shape
        moved = Cost(bytes_moved=(1 + times) * x.size_bytes)
        layout = Layout.rows((times * n, m))
        return x.copy_if(more_than_one(times), variable("rows"), (times * n, m), layout, moved)
    return x if times == 1 else x.repeat(times, 1)


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, causal: bool = False, group: Any = 1
) -> Any:
    """Return torch's fused softmax attention: q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv)."""
    if isinstance(q, Tensor):
        return arithmetic.fused_attention(variable("fused attention"), q, k, v, causal)
    run = _torch().nn.functional.scaled_dot_product_attention
    return run(q, k, v, is_causal=causal, enable_gqa=group != 1)


def row_norms(x: Any) -> Any:
    """Return the root of the sum of squares of each row of (…, d), as (…, 1); no gradient."""
    if isinstance(x, Tensor):
        return x.norm(dim=-1, keepdim=True)
    return _torch().linalg.vector_norm(x, dim=-1, keepdim=True)


# -- new memory, and results written to given memory -----------------------------------------
def empty_like(x: Any, *, in_rows: bool = False) -> Any:
    """Return uninitialised memory in the shape of x, laid out as x or row by row."""
    if isinstance(x, Tensor):
        return shapes.empty(variable("empty"), x, x.shape, None if in_rows else x.layout)
    return _torch().empty_like(x, memory_format=_memory_format(in_rows))


def zeros_like(x: Any, *, in_rows: bool = False) -> Any:
    """Return zeros in the shape of x, laid out as x or row by row."""
    if isinstance(x, Tensor):
        layout = None if in_rows else x.layout
        return x.result(variable("zeros"), x.shape, Cost(), [], layout=layout)
    return _torch().zeros_like(x, memory_format=_memory_format(in_rows))


def _memory_format(in_rows: bool) -> Any:
    torch = _torch()
    return torch.contiguous_format if in_rows else torch.preserve_format


def put_product(to: Any, a: Any, b: Any) -> None:
    """Write the products of (batch, m, k) and (batch, k, n) to ``to``."""
    if isinstance(to, Tensor):
        arithmetic.put_product(variable("product"), to, a, b)
    else:
        _put(to, "bmm", a, b)


def add_product(to: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> None:
    """Write ``alpha`` times the (batched) product plus ``beta`` times ``to`` to ``to``."""
    if isinstance(to, Tensor):
        factors = (abs(beta) != 1) + (abs(alpha) != 1)
        arithmetic.put_product(variable("product"), to, a, b, add=True, factors=factors)
    elif _reaches_into_next(to):
        # oneDNN refuses such batches, and torch then does without it for the rest of the process
        for one, first, second in zip(to, a, b, strict=True):
            _put(one, "addmm", one, first, second, beta=beta, alpha=alpha)
    else:
        _put(to, "baddbmm" if to.dim() == 3 else "addmm", to, a, b, beta=beta, alpha=alpha)


def _reaches_into_next(to: Any) -> bool:
    """Return whether a matrix's rows reach into the next matrix, in a format of oneDNN."""
    half = to.dim() == 3 and to.is_cpu and to.element_size() < 4
    return bool(half and to.shape[1] * to.stride(1) > to.stride(0))


def add_row_(x: Any, row: Any) -> Any:
    """Return (b, n, d) plus one row (b, 1, d), in place."""
    return (
        arithmetic.row_added(variable("add row"), x, row) if isinstance(x, Tensor) else x.add_(row)
    )


_PER_ENTRY = {"mul": arithmetic.TIMES, "div": arithmetic.OVER, "add": arithmetic.ADD}


def put_entries(to: Any, operation: str, a: Any, b: Any) -> None:
    """Write ``mul``, ``div`` or ``add`` of a and b, which may be a number, to ``to``."""
    if isinstance(to, Tensor):
        operands = (a, b) if isinstance(b, Tensor) else (a,)
        arithmetic.entrywise(variable(operation), _PER_ENTRY[operation], *operands, into=to)
    else:
        _put(to, operation, a, b)


def put_rows(to: Any, x: Any, index: Any) -> None:
    """Write the rows of x (m, d) at ``index`` (r) to ``to`` (r, d); only these are read."""
    if isinstance(to, Tensor):
        read = Cost(bytes_moved=to.size_bytes)
        to.result(variable("rows"), to.shape, read, [index], into=to)
    else:
        _put(to, "index_select", x, dim=0, index=index)


def put_along(to: Any, operation: str, x: Any, dim: int) -> None:
    """Write the ``sum`` or the largest entry (``amax``) along an axis of x to ``to``."""
    if isinstance(to, Tensor):
        added = Cost(additions=x.count, reduction_outputs=to.count)
        cost = added if operation == "sum" else Cost(other=x.count)
        to.result(variable(operation), to.shape, cost, [x], into=to)
    else:
        _put(to, operation, x, dim=dim, keepdim=to.dim() == x.dim())


def _put(to: Any, operation: str, *operands: Any, **options: Any) -> None:
    """Write the result of torch's function ``name`` to its place, strided or not.

    A compiler takes the same values by a copy: it refuses strided places, and removes the copy
    itself. In-place methods would do too, but torch's own counter of operations overlooks those.
    """
    torch = _torch()
    run = getattr(torch, operation)
    if torch.compiler.is_compiling():
        to.copy_(run(*operands, **options))
    else:
        run(*operands, **options, out=to)


def solve_unit_lower_(system: Any, to: Any, *, transposed: bool = False) -> None:
    """Solve (I + L) X = ``to``, or with (I + L) transposed, where ``to`` lies, row by row.

    L is the part of ``system`` (batch, c, c) below the diagonal, ``to`` is (batch, c, n). A column
    of c rows takes c(c-1)/2 products.
    """
    if isinstance(to, Tensor):
        c = to.shape[1]
        cost = Cost(multiplications=1, additions=1) * exact_div(to.count * (c - 1), 2)
        to.result("triangular solve", to.shape, cost, [system, to], into=to)
        return
    torch = _torch()
    matrix = system.mT if transposed else system
    how = {"upper": transposed, "unitriangular": True}
    if torch.compiler.is_compiling():
        to.copy_(torch.linalg.solve_triangular(matrix, to, **how))
    else:
        torch.linalg.solve_triangular(matrix, to, **how, out=to)


def silu(x: Any) -> Any:
    """Return x / (1 + exp(-x)) of every entry."""
    return x.silu() if isinstance(x, Tensor) else _torch().nn.functional.silu(x)


def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)) of every entry."""
    if isinstance(x, Tensor):
        return arithmetic.softplus(variable("softplus"), x)
    return _torch().nn.functional.softplus(x)


def searchsorted(rows: Any, numbers: Any) -> Any:
    """Return the place of each number in its ascending row: of the first entry not smaller."""
    if isinstance(rows, Tensor):
        size = rows.counter.bytes_of(8)
        return rows.result(
            variable("place"), numbers.shape, Cost(), [rows, numbers], item_size=size, whole=True
        )
    return _torch().searchsorted(rows, numbers)


def records(like: Any) -> bool:
    """Return whether autograd records operations."""
    if isinstance(like, Tensor):
        return like.counter.grad
    return bool(_torch().is_grad_enabled())


def plain_size(size: Any) -> Any:
    """Return a size as an int, also from torch.compile; that of a symbolic run stays a symbol."""
    torch = _torch()
    symbolic = isinstance(size, torch.SymInt) and not torch.compiler.is_compiling()
    return size if symbolic else operator.index(size)


def softmax_(scores: Any) -> None:
    """Compute the softmax over the last axis of contiguous scores, in their memory."""
    if isinstance(scores, Tensor):
        arithmetic.softmax(variable("softmax"), scores, into=scores)
        return
    _torch().softmax(scores, -1, out=scores)


def softmax_grad_(grad: Any, weights: Any) -> None:
    """Compute the scores' gradient from that of the weights, in the latter's memory."""
    if isinstance(grad, Tensor):
        cost = arithmetic.SOFTMAX_BACKWARD * grad.count
        grad.result(variable("softmax: grad"), grad.shape, cost, [grad, weights], into=grad)
        return
    run = _torch().ops.aten._softmax_backward_data.out  # noqa: SLF001 - an operation
    run(grad, weights, -1, grad.dtype, grad_input=grad)


def join(parts: Any, dim: int) -> Any:
    """Return tensors one after the other along an axis (torch.cat)."""
    if isinstance(parts[0], Tensor):
        return Tensor.join(parts, dim)
    return _torch().cat(parts, dim)


# -- new tensors ---------------------------------------------------------------------------
def wide_zeros(like: Any, *shape: Any) -> Any:
    """Return zeros in a tensor's number format, or in float32 where that has fewer digits."""
    if isinstance(like, Tensor):
        return _wide(variable("zeros"), like, shape)
    return like.new_zeros(shape, dtype=_wide_format(like))


def wide_positions(like: Any, count: Any) -> Any:
    """Return the numbers 1 to ``count``, in float32 where a tensor's format has fewer digits."""
    if isinstance(like, Tensor):
        return _wide(variable("positions"), like, (count,))
    return _torch().arange(1, count + 1, device=like.device, dtype=_wide_format(like))


def _wide(name: str, like: Tensor, shape: tuple[Any, ...]) -> Tensor:
    size = 4 if like.item_size == 2 else like.item_size
    return like.result(name, shape, Cost(), [], item_size=size)


def _wide_format(like: Any) -> Any:
    return _torch().float32 if like.dtype.itemsize < 4 else like.dtype


def empty_int32(like: Any, *shape: Any) -> Any:
    """Return memory for whole numbers of 4 bytes each."""
    if isinstance(like, Tensor):
        size = like.counter.bytes_of(4)
        return shapes.empty(variable("empty"), like, shape, item_size=size, whole=True)
    return like.new_empty(shape, dtype=_torch().int32)


def arange(like: Any, count: Any, step: Any = 1) -> Any:
    """Return ``count`` numbers from 0 on, as whole numbers, or else of 8 bytes each."""
    if isinstance(like, Tensor):
        size = like.item_size if like.whole else like.counter.bytes_of(8)
        return like.result(variable("range"), (count,), Cost(), [], item_size=size, whole=True)
    torch = _torch()
    dtype = torch.int64 if like.is_floating_point() else like.dtype
    return torch.arange(0, count * step, step, dtype=dtype, device=like.device)


def padded(x: Any, *, before: int = 0, after: int = 0, value: float = 0.0) -> Any:
    """Return x with columns of one number in front and at the end."""
    if isinstance(x, Tensor):
        name, old = variable("padded"), x.shape
        return x.result(
            name, (*old[:-1], old[-1] + before + after), Cost(), [x],
            backward=lambda grad: [grad.result(f"{name}: grad", old, Cost(), [grad])],
        )  # fmt: skip
    return _torch().nn.functional.pad(x, (before, after), value=value)


# -- number formats --------------------------------------------------------------------------
def wide(x: Any) -> Any:
    """Return x in float32 if its format has fewer digits; else itself."""
    if isinstance(x, Tensor):
        return arithmetic.cast(variable("wide"), x, max(x.item_size, 4) if x.item_size > 1 else 1)
    return x.float() if x.element_size() < 4 else x


def as_format_of(x: Any, like: Any) -> Any:
    """Return x in another tensor's number format: a copy if that differs, else itself."""
    if isinstance(x, Tensor):
        return arithmetic.cast(variable("cast"), x, like.item_size)
    return x.to(like.dtype)


class Spectrum(Tensor):
    """A counting tensor of complex numbers, two entries' bytes each; it has no gradient."""

    __slots__ = ()

    def mul_(self, other: Any) -> "Spectrum":
        """Return products in place: 4 multiplications and 2 additions each."""
        cost = Cost(multiplications=4, additions=2) * self.count
        return self.result(variable("multiply"), self.shape, cost, [self, other], into=self)

    def conj_physical_(self) -> "Spectrum":
        """Return complex conjugates: bytes, no counted operation."""
        return self.result(variable("conjugate"), self.shape, Cost(), [self], into=self)

    def sum(self, dim: Any, keepdim: bool = False, dtype: type | None = None) -> "Spectrum":
        """Return the sum over some axes: two additions an entry."""
        shape, count = arithmetic.without(self.shape, dim, keepdim), self.count
        cost = Cost(additions=2 * count, reduction_outputs=2 * product(shape))
        return self.result(variable("sum"), shape, cost, [self])


def rfft(x: Any) -> Any:
    """Return the spectra (…, points / 2 + 1) of real rows (…, points)."""
    if isinstance(x, Tensor):
        *before, points = x.shape
        shape, cost = (*before, exact_div(points, 2) + 1), _cost(product(before), points)
        out = x.result(variable("FFT"), shape, cost, [x], item_size=2 * x.item_size)
        return Spectrum(x.counter, shape, out.layout, out.storages, out.item_size)
    return _torch().fft.rfft(x)


def irfft(x: Any, points: Any) -> Any:
    """Return real rows (…, points) of their spectra."""
    if isinstance(x, Tensor):
        shape = (*x.shape[:-1], points)
        cost, size = _cost(product(shape[:-1]), points), x.item_size // 2
        out = x.result(variable("inverse FFT"), shape, cost, [x], item_size=size)
        return Tensor(x.counter, shape, out.layout, out.storages, size)
    return _torch().fft.irfft(x, n=points)


def _cost(rows: Number, points: Number) -> Cost:
    """Return the cost of a transform: F·log2 F multiplications a row of F points, 3/2 additions.

    The radix-2 count, half of a complex transform's F/2·log2 F butterflies of 4
    multiplications and 6 additions, whatever the library does; 5/2·F·log2 F in all.
    """
    count = rows * points * _binary_logarithm(points)
    return Cost(multiplications=count, additions=exact_div(3 * count, 2))


def padded_length(n: Number) -> Number:
    """Return the points of a transform of n tokens: the smallest power of two from 2n on."""
    if is_plain(n):
        return 2 ** (2 * n - 1).bit_length()  # of a symbol of torch's, too
    if hasattr(n, "free_symbols"):
        import sympy

        return 2 ** sympy.ceiling(sympy.log(2 * n, 2))
    import numpy as np

    return 2 ** np.ceil(np.log2(2 * n)).astype("int64")


def _binary_logarithm(points: Number) -> Number:
    """Return the exponent of a power of two."""
    if is_plain(points):
        return points.bit_length() - 1
    if hasattr(points, "free_symbols"):
        return points.as_base_exp()[1]
    import numpy as np

    return np.log2(points).astype("int64")
