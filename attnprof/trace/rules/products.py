"""Rules for matrix products, convolutions (every tap counts), pooling, Fourier transforms, solves.

Integer products count nothing; of a convolution, taps on padding count, too. Triangular solves and
decompositions of square matrices count by textbook algorithms: a solve of n unknowns for a column
is n(n-1)/2 multiplications and additions, and n divisions; a Cholesky or LU decomposition subtracts
products step by step. LAPACK's blocks do the same sums.
"""

import math
from itertools import permutations
from typing import Any

import torch

from attnprof.arguments import several
from attnprof.costs import ceil_div, exact_div, floor_div, maximum, minimum
from attnprof.trace.events import Size
from attnprof.trace.rules.table import OperationRule, first_of, is_factor, rule, rules, tensors_in
from attnprof.trace.rules.units import NOTHING, OTHER, A, Counts, D, M, macs, products, sums
from attnprof.trace.rules.workspaces import collapses, is_contiguous, layout, same, workspaces
from attnprof.trace.sizes import levels, nbytes, numel, product, size_of

#: Windows of an adaptive pool, at most, that are added up one by one.
_WINDOWS = 64


def _product(out: Any, call: Any) -> Counts:
    """Count the product of the last two tensors."""
    a, b = tensors_in(vars(call))[-2:]
    return macs(out) * numel(a) * (size_of(b.shape[-1]) if b.dim() > 1 else 1)


def _added(out: Any, call: Any) -> Counts:
    """Count one addition a result if something is added; a multiplication for each factor not 1."""
    added = sums(out) * numel(out) + products(out) * numel(call.self) * is_factor(call.beta)
    return added * bool(call.beta != 0) + products(out) * numel(out) * is_factor(call.alpha)


@rule("_grouped_mm")
def _grouped_product(out: Any, call: Any) -> Counts:
    """Count products of each row, or column, with the matrix of its group alone."""
    a, b = call.self, call.mat2
    columns = numel(b) if b.dim() < a.dim() else size_of(b.shape[-1])
    rows = size_of(a.shape[-2]) if b.dim() < a.dim() else numel(a)
    return macs(out) * rows * columns


@rule("linear mkldnn_linear")
def _linear(out: Any, call: Any) -> Counts:
    x, weight = tensors_in(vars(call))[:2]
    rows = size_of(weight.shape[0]) if weight.dim() > 1 else 1
    return macs(out) * numel(x) * rows + sums(out) * numel(out) * (call.bias is not None)


@rule("linear_backward")
def _linear_backward(_out: Any, call: Any) -> Counts:
    once = macs(call.grad_output) * numel(call.self) * size_of(call.weight.shape[0])
    to_input, to_weight, to_bias = call.output_mask
    return once * to_input + once * to_weight + A * numel(call.grad_output) * to_bias


@rule("_trilinear")
def _trilinear(out: Any, call: Any) -> Counts:
    """Count two products: the first with the second, summed over dimensions the third lacks."""
    one, two, three = map(list, (call.i1.shape, call.i2.shape, call.i3.shape))
    expanded = (call.expand1, call.expand2, call.expand3)
    for sizes, dims in zip((one, two, three), expanded, strict=True):
        for dim in sorted(dims):
            sizes.insert(dim, None)
    both = [b if a is None else a for a, b in zip(one, two, strict=True)]
    kept = [
        c if dim in call.sumdim and c is None else (c if a is None else a)
        for dim, (a, c) in enumerate(zip(both, three, strict=True))
    ]
    pairs, results = (product(1 if n is None else n for n in sizes) for sizes in (both, kept))
    counts = macs(out) * pairs + macs(out) * results
    if call.unroll_dim in call.sumdim:
        counts += sums(out) * numel(out) * size_of(both[call.unroll_dim])
    return counts


@rule("convolution _convolution convolution_overrideable mkldnn_convolution cudnn_convolution "
      "cudnn_convolution_transpose _conv_depthwise2d conv_depthwise3d _slow_conv2d_forward "
      "thnn_conv2d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d")  # fmt: skip
def _convolved(out: Any, call: Any) -> Counts:
    a = tensors_in(vars(call))[0]
    transposed = getattr(call, "transposed", hasattr(call, "output_padding"))
    bias = getattr(call, "bias", None)
    return _taps(a, out, call.weight, transposed) + sums(out) * numel(out) * (bias is not None)


def _taps(a: Any, out: Any, weight: Any, transposed: bool) -> Counts:
    """Count the taps of every result (if transposed, input entry): weight (out, in/groups, …)."""
    return macs(out) * numel(a if transposed else out) * product(weight.shape[1:])


@rule("convolution_backward convolution_backward_overrideable")
def _convolved_backward(_out: Any, call: Any) -> Counts:
    """Count as many products for each gradient as forward; the bias' is a sum."""
    grad = call.grad_output
    once = _taps(call.input, grad, call.weight, call.transposed)
    to_input, to_weight, to_bias = call.output_mask
    return once * to_input + once * to_weight + sums(grad) * numel(grad) * to_bias


def _means(means: Any, kernel: Any) -> Counts:
    """Count a sum over each window and a division; windows that padding cuts count in full."""
    return (sums(means) * product(kernel) + D) * numel(means)


def _adaptive_means(means: Any, a: Any, dims: int) -> Counts | None:
    """Count a sum over each window of the last dimensions, and a division."""
    taps = _adaptive_taps(a, means.shape[-dims:])
    return None if taps is None else sums(means) * taps + D * numel(means)


def _adaptive_taps(a: Any, sizes: Any) -> Size | None:
    """Return the entries under all windows, which share one where they meet.

    None for a symbolic number of windows, unless each has one entry.
    """
    shape, results = ([size_of(size) for size in each] for each in (a.shape, sizes))
    total: Size = math.prod(shape[: -len(results)])
    for long, short in zip(shape[-len(results) :], results, strict=True):
        if same(long, short):
            total *= long
            continue
        if not (isinstance(short, int) and short <= _WINDOWS):
            return None
        ends = [i * long for i in range(1, short)]
        total *= long + sum((ceil_div(e, short) - floor_div(e, short) for e in ends), start=0)
    return total


def _resized(kind: str, points: int, dims: int) -> dict[str, OperationRule]:
    """Return the rules of an image's resizing by weighted sums of so many points of each side.

    An entry is a sum along each side after another; its gradient goes to all points. Weights, one
    for each row and column, are not counted.
    """
    each = (points * M + (points - 1) * A) * sum(points**side for side in range(dims))
    back = (dims * M + A) * points**dims
    return {
        f"upsample_{kind}": lambda out, _: each * numel(out),
        f"upsample_{kind}_backward": lambda _, c: back * numel(c.grad_output),
    }


for _kind, _points, _dims in (
    ("linear1d", 2, 1), ("bilinear2d", 2, 2), ("trilinear3d", 2, 3), ("bicubic2d", 4, 2),
):  # fmt: skip
    rules(_resized(_kind, _points, _dims))


# -- Fourier transforms, counted as radix 2 whatever the library does -------------------
# A complex transform of F points has L = log2 F levels (rounded up) of F/2 butterflies, each of 4
# multiplications and 6 additions; one between real points and half a spectrum is half of that.
# The factor of a normalisation is taken to be part of the last level.
def _complex(shape: Any, dims: Any) -> Counts:
    """Count transforms along each of these dimensions, one after another."""
    if not dims:
        return NOTHING
    deep: Size = sum((levels(size_of(shape[dim])) for dim in dims), start=0)
    return (2 * M + 3 * A) * product(shape) * deep


def _real(tensor: Any, dim: int) -> Counts:
    """Count half the butterflies: 3/2 additions a point and level, rounded down."""
    points = numel(tensor)
    if isinstance(points, int):
        half = points // 2
    elif any(size_of(size // 2) * 2 == size_of(size) for size in tensor.shape):
        half = points / 2
    else:  # by torch's own arithmetic of sizes, which knows that they are whole
        half = size_of(tensor.numel() // 2)
    return (M * points + A * (points + half)) * levels(size_of(tensor.shape[dim]))


def _to_spectrum(out: Any, call: Any) -> Counts:
    """Count the last dimension from real points, the others over its spectrum."""
    *others, last = call.dim
    shape = list(out.shape)
    if not call.onesided:
        shape[last] = call.self.shape[last] // 2 + 1
    return _real(call.self, last) + _complex(shape, others)


def _relaid(a: Any, transformed: Any) -> Size:
    """Return the bytes of a copy if a tensor is no list of lines, in any order (``_exec_fft``)."""
    dims = layout(a)
    inside = {dim % len(dims) for dim in transformed}
    rest = [pair for i, pair in enumerate(dims) if i not in inside]
    return 0 if any(collapses(list(order)) for order in permutations(rest)) else nbytes(a)


def _inverse(out: Any, call: Any) -> Size:
    """Return the bytes of copies; of several dimensions the last is transformed last."""
    a, (*others, last) = call.self, call.dim
    if not others:
        return _relaid(a, [last])
    between = torch.ops.aten._fft_c2c(a, others, 0, False)
    return nbytes(a) + maximum(_relaid(between, [last]), _relaid(a, others) - nbytes(out))


rules(
    {
        "mm bmm mv dot vdot": _product,
        "addmm baddbmm addbmm addmv": lambda out, c: _product(out, c) + _added(out, c),
        # the activation is ReLU, or GELU by erf as on a CPU
        "_addmm_activation": lambda out, c: (
            _product(out, c) + _added(out, c)
            + (OTHER + (3 * M + A if c.use_gelu else NOTHING)) * numel(out)
        ),
        # an outer product is entry by entry: no sums of products
        "addr": lambda out, c: products(out) * numel(out) + _added(out, c),
        # the weight is (taps, in, out)
        "conv_tbc": lambda out, c: (
            macs(out) * numel(out) * product(c.weight.shape[:2]) + sums(out) * numel(out)
        ),
        "avg_pool2d avg_pool3d": lambda out, c: _means(out, c.kernel_size),
        "avg_pool2d_backward avg_pool3d_backward": (
            lambda _, c: _means(c.grad_output, c.kernel_size)
        ),
        "_adaptive_avg_pool2d": lambda out, c: _adaptive_means(out, c.self, 2),
        "_adaptive_avg_pool3d": lambda out, c: _adaptive_means(out, c.self, 3),
        "_adaptive_avg_pool2d_backward": lambda _, c: _adaptive_means(c.grad_output, c.self, 2),
        "_adaptive_avg_pool3d_backward": lambda _, c: _adaptive_means(c.grad_output, c.self, 3),
        "max_pool1d max_pool2d_with_indices max_pool3d_with_indices": lambda out, c: (
            OTHER * numel(first_of(out)) * product(several("kernel_size", c.kernel_size))
        ),
        "adaptive_max_pool2d adaptive_max_pool3d": lambda _, c: (
            None if (taps := _adaptive_taps(c.self, c.output_size)) is None else OTHER * taps
        ),
        "_fft_c2c": lambda _, c: _complex(c.self.shape, c.dim),
        "_fft_r2c": _to_spectrum,
        "_fft_c2r": lambda out, c: _real(out, c.dim[-1]) + _complex(c.self.shape, c.dim[:-1]),
    }
)  # fmt: skip
workspaces({"_fft_r2c _fft_c2c": lambda _, c: _relaid(c.self, c.dim), "_fft_c2r": _inverse})


# -- solves and decompositions ------------------------------------------------------------
def _batch(a: Any) -> Size:
    return product(a.shape[:-2])


def _width(a: Any) -> Size:
    return size_of(a.shape[-1])


def _rows(a: Any) -> Size:
    """Return the number of rows of all matrices, each of which has a pivot."""
    return product(a.shape[:-1])


def _solve(out: Any, n: Size, *, divided: bool = True) -> Counts:
    """Count a triangular solve of n unknowns for every column of a result."""
    return ((M + A) * exact_div(n * (n - 1), 2) + D * n * divided) * exact_div(numel(out), n)


def _triangular(out: Any, call: Any) -> Counts:
    """Count a solve for rows of the result as unknowns, or, from the right, for columns."""
    return _solve(out, size_of(out.shape[-2 if call.left else -1]), divided=not call.unitriangular)


def _solves(out: Any, factor: Any, *, by_lu: bool = False) -> Counts:
    """Count two solves with a factor; that with the ones of an LU's diagonal divides nothing."""
    return _solve(out, _width(factor), divided=not by_lu) + _solve(out, _width(factor))


def _cholesky(n: Size) -> Counts:
    """Count a decomposition column by column: subtract earlier columns, take a root, divide."""
    each = exact_div(n * (n - 1) * (n + 1), 6)
    return (M + A) * each + D * exact_div(n * (n - 1), 2) + OTHER * n


def _lu(call: Any) -> Counts:
    """Count a decomposition step by step: find the largest of a column, divide by it, subtract."""
    rows, columns = map(size_of, call.A.shape[-2:])
    steps = minimum(rows, columns)
    below = steps * rows - exact_div(steps * (steps + 1), 2)
    squares = exact_div((steps - 1) * steps * (2 * steps - 1), 6)
    # sum over j < steps of (rows - 1 - j)·(columns - 1 - j)
    updates = steps * (rows - 1) * (columns - 1) + squares
    updates = updates - exact_div((rows + columns - 2) * steps * (steps - 1), 2)
    pivoted = getattr(call, "pivot", True)
    return ((D + OTHER * pivoted) * below + (M + A) * updates) * _batch(call.A)


def _of_reals(rule: OperationRule) -> OperationRule:
    """Return a rule for real numbers only; complex ones stay uncounted."""
    return lambda out, call: None if first_of(out).is_complex() else rule(out, call)


rules({names: _of_reals(rule) for names, rule in {
    "linalg_solve_triangular": _triangular,
    "triangular_solve": lambda out, c: _solve(out[0], _width(c.A), divided=not c.unitriangular),
    "linalg_cholesky_ex cholesky": lambda out, _: (
        _cholesky(_width(first_of(out))) * _batch(first_of(out))
    ),
    "cholesky_solve": lambda out, c: _solves(out, c.input2),
    "cholesky_inverse": lambda out, c: _solves(out, c.self),
    "linalg_lu_factor_ex linalg_lu": lambda _, c: _lu(c),
    "linalg_lu_solve": lambda out, c: _solves(out, c.LU, by_lu=True),
    "lu_unpack": lambda *_: NOTHING,
    "_linalg_solve_ex linalg_inv_ex": lambda out, c: _lu(c) + _solves(out[0], c.A, by_lu=True),
    # the product of the diagonal; of its logarithms the sum
    "_linalg_det": lambda _, c: _lu(c) + M * _rows(c.A),
    "_linalg_slogdet": lambda _, c: _lu(c) + (OTHER + A) * _rows(c.A),
}.items()})  # fmt: skip


def _laid_out(out: Any, call: Any) -> Size:
    """Return bytes of a triangle copied for each result, where the given ones lie otherwise."""
    a = call.self
    in_order = is_contiguous(a) or is_contiguous(a.mT)
    whole = _batch(out) * _width(a) ** 2 * a.element_size()
    return 0 if in_order and nbytes(a) == whole else whole


workspaces(
    {
        "linalg_solve_triangular": _laid_out,
        "linalg_lu": lambda _, c: nbytes(c.A) + 4 * _rows(c.A) + 4 * _batch(c.A),
        # whether pivots are inside
        "_linalg_solve_ex": lambda _, c: _rows(c.A),
        "linalg_lu_solve": lambda _, c: _rows(c.LU),
        "linalg_inv_ex": lambda _, c: nbytes(c.A) + 5 * _rows(c.A),
        "_linalg_det": lambda _, c: 9 * _rows(c.A) + 4 * _width(c.A) + 16 * _batch(c.A),
        "_linalg_slogdet": lambda _, c: 9 * _rows(c.A) + 4 * _width(c.A) + 12 * _batch(c.A),
        "cholesky_solve": lambda out, c: _batch(out) * _width(c.input2) ** 2 * out.element_size(),
        # permutations, of one matrix more where there are several
        "lu_unpack": lambda _, c: 8 * size_of(c.LU_data.shape[-2]) * (
            _batch(c.LU_data) + (_batch(c.LU_data) != 1)
        ),
    }
)  # fmt: skip
