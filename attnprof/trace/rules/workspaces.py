"""Scratch memory: bytes that a CPU kernel takes inside itself and frees before it returns.

Each formula was found by running the operation alone under torch's profiler, and read in torch's
source where it is not obvious; tests compare them with the allocator at random shapes. Operations
of ``UNKNOWN_WORKSPACE`` are not predicted: a peak with one of them is "at least".
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import get_num_threads as threads

from attnprof.costs import not_dearer
from attnprof.trace.events import Size
from attnprof.trace.sizes import nbytes, numel, product, size_of, without_least

#: A formula: bytes of scratch memory, from an operation's result and its arguments by name.
Workspace = Callable[[Any, Any], Size]
#: (size, stride) of each dimension.
_Layout = list[tuple[Size, Size]]

WORKSPACES: dict[str, Workspace] = {}


def words(text: str) -> frozenset[str]:
    """Return names separated by spaces."""
    return frozenset(text.split())


#: Operations whose scratch memory depends on values, or on a library's choice of algorithm.
UNKNOWN_WORKSPACE = words("""
    masked_select nonzero_static unique_consecutive unique_dim _unique2 multinomial linalg_qr
    linalg_eig _linalg_svd _linalg_eigh linalg_pinv linalg_matrix_exp linalg_lstsq
    linalg_householder_product triangular_solve ormqr _thnn_fused_lstm_cell
    flex_attention flex_attention_backward _transformer_encoder_layer_fwd _trilinear _embedding_bag
    _embedding_bag_forward_only upsample_nearest1d upsample_nearest2d upsample_linear1d
    upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d allclose mvlgamma
    affine_grid_generator linalg_svdvals
""")
#: Operations for which, in half precision, a library chooses by the processor.
_PRODUCTS = words("""
    mm bmm addmm baddbmm addbmm mv addmv convolution _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
""")
_HALVES = (torch.bfloat16, torch.float16)


def workspace_of(base: str, out: Any, call: Any) -> tuple[Size, bool]:
    """Return the bytes an operation holds only while it runs, and whether that is all of it."""
    try:
        size = WORKSPACES[base](out, call) if base in WORKSPACES else 0
    except UnknownWorkspaceError as error:
        return error.at_least, False
    by_processor = base in _PRODUCTS and any(x.dtype in _HALVES for x in _tensors(call))
    foreign = "::" in base and base not in WORKSPACES  # it has its namespace in its name
    return size, not (base in UNKNOWN_WORKSPACE or foreign or by_processor)


class UnknownWorkspaceError(Exception):
    """Raised where a formula does not reach, or gives only a lower bound (``at_least``)."""

    def __init__(self, at_least: Size = 0) -> None:
        super().__init__()
        self.at_least = at_least


def workspaces(table: Mapping[str, Workspace]) -> None:
    """Enter formulas for operations; names are separated by spaces."""
    WORKSPACES.update({name: rule for names, rule in table.items() for name in names.split()})


def is_mask(index: Any) -> bool:
    """Return whether an index is a mask: yes or no, entry by entry."""
    return index.dtype in (torch.bool, torch.uint8)


def rows_of(tensor: Any, dim: int) -> Size:
    """Return the number of rows: entries over those along one dimension."""
    last = dim % max(tensor.dim(), 1)
    return product(size for place, size in enumerate(tensor.shape) if place != last)


def _tensors(call: Any) -> list[Any]:
    return [x for x in vars(call).values() if isinstance(x, torch.Tensor)]


def sum_width(tensor: Any) -> int:
    """Return the bytes of a number in the format that sums are kept in."""
    return max(4, tensor.element_size())


# -- how tensors lie: strides of int or symbolic size, no guards -------------------------
def layout(tensor: Any) -> _Layout:
    """Return (size, stride) of each dimension."""
    sizes, strides = map(size_of, tensor.shape), map(size_of, tensor.stride())
    return list(zip(sizes, map(without_least, strides), strict=True))


def same(one: Size, other: Size) -> bool:
    """Return whether two sizes are the same number, or the same expression."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    import sympy

    return bool(sympy.expand(one - other) == 0)


def is_contiguous(tensor: Any) -> bool:
    """Return whether entries lie in order without gaps."""
    wide = [(size, stride) for size, stride in layout(tensor) if size != 1]
    return collapses(wide) and (not wide or same(wide[-1][1], 1))


def is_channels_last(tensor: Any) -> bool:
    """Return whether the channels of each pixel lie beside each other."""
    if tensor.dim() < 4 or is_contiguous(tensor):
        return False
    samples, channels, *pixels = layout(tensor)
    return collapses([samples, *pixels, channels]) and same(channels[1], 1)


def collapses(dims: _Layout) -> bool:
    """Return whether dimensions can be seen as one."""
    wide = [(size, stride) for size, stride in dims if size != 1]
    return all(same(outer, size * stride) for (_, outer), (size, stride) in pairwise(wide))


def copied(*tensors: Any) -> Size:
    """Return the bytes of the tensors that are copied, as they are not contiguous."""
    anew = (x for x in tensors if x is not None and not is_contiguous(x))
    return sum(map(nbytes, anew), start=0)


# -- what kernels take -----------------------------------------------------------------
def _promoted(_out: Any, call: Any) -> Size:
    """Return bytes of operands converted to a common number format (TensorIterator, on CPU)."""
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KINDS
    from torch._prims_common import elementwise_dtypes

    kinds = torch.Tensor | int | float | complex
    values = [x for x in vars(call).values() if isinstance(x, kinds)]
    tensors = _tensors(call)
    if len({x.dtype for x in tensors}) < 2:
        return 0
    if len(tensors) == 3 and tensors[0].dtype == torch.bool:  # where's condition stays as it is
        values, tensors = values[1:], tensors[1:]
    _, common = elementwise_dtypes(*values, type_promotion_kind=KINDS.DEFAULT)
    other = [x for x in tensors if x.dtype != common and x.dim()]
    return sum((numel(x) * common.itemsize for x in other), start=0)


def _partitioned_copy(_out: Any, call: Any) -> Size:
    """Return bytes of a copy that is partitioned; 0 along a dimension that lies in order."""
    a, dim = call.self, getattr(call, "dim", None)
    in_order = dim is not None and (not a.dim() or same(layout(a)[dim][1], 1))
    return 0 if in_order else nbytes(a)


def _widened(out: Any, call: Any) -> Size:
    """Return bytes of the input in the result's number format, if it has another."""
    return numel(call.self) * out.element_size() if call.self.dtype != out.dtype else 0


def _except_means(_out: Any, call: Any) -> Size:
    """Return 0; raise for a mean, which takes numbers of entries and quotients."""
    if call.reduce == "mean":
        raise UnknownWorkspaceError
    return 0


def _distances(_out: Any, call: Any) -> Size:
    """Return bytes of two factors with two columns more; short lists of points need none."""
    both = (call.x1, call.x2)
    few = all(x.shape[-2] <= 25 for x in both)
    if getattr(call, "p", 2) != 2 or getattr(call, "compute_mode", None) == 2 or few:
        return 0
    width = call.x1.element_size()
    return sum(width * (numel(x) + 2 * product(x.shape[:-1])) for x in both)


def _with_gaps(call: Any) -> list[Any]:
    """Return the factors (of the last two tensors) that are copied.

    Neither rows nor columns of these lie in order without overlapping (as expanded ones do).
    """
    return [x for x in _tensors(call)[-2:] if not _in_lines(*layout(x)[-2:])]


def _in_lines(rows: tuple[Size, Size], columns: tuple[Size, Size]) -> bool:
    """Return whether entries of one dimension lie beside each other, and their lines apart."""
    if any(isinstance(n, int) and n == 1 for n, _ in (rows, columns)):
        return True
    return any(
        same(step, 1) and not (isinstance(apart, int) and apart < (n if isinstance(n, int) else 2))
        for (n, step), (_, apart) in ((rows, columns), (columns, rows))
    )


def _batch_of_products(_out: Any, call: Any) -> Size:
    """Return bytes of conjugates, and of factors with gaps, one matrix each; 0 for small ones."""
    a, b = factors = _tensors(call)[-2:]
    conjugates = sum((nbytes(x) for x in factors if x.is_conj()), start=0)
    gaps = [nbytes(x[0]) for x in _with_gaps(call) if not x.is_conj()]
    if not gaps:
        return conjugates
    return conjugates + sum(gaps, start=0) * not_dearer(400, numel(a[0]) * size_of(b.shape[-1]))


def _product(_out: Any, call: Any) -> Size:
    """Return bytes of factors with gaps, and of conjugates, which are read in columns alone."""
    rows = [x for x in _tensors(call)[-2:] if x.is_conj() and same(layout(x)[-1][1], 1)]
    return sum(map(nbytes, {id(x): x for x in (*_with_gaps(call), *rows)}.values()), start=0)


def _triangles(out: Any, call: Any) -> Size:
    """Return bytes of a copy if matrices do not lie one after the other; two copies in place.

    In place it does not matter for three dimensions, nor for the first one if that is repeated
    (checkTrilTriuBatchContiguous in torch's TriangularOpsUtils.h).
    """
    *batches, rows, columns = layout(call.self)
    if out is call.self:
        repeated = batches and (batches[0][0] == 1 or batches[0][1] == 0)
        batches = batches[bool(repeated) :] if call.self.dim() > 3 else []
    step = rows[0] * columns[0]
    for size, stride in () if is_contiguous(call.self) else reversed(batches):
        if not same(stride, step):
            return nbytes(call.self) * (1 + (out is call.self))
        step = step * size
    return 0


def _batch_norm(_out: Any, call: Any) -> Size:
    """Return bytes of each channel's scale and shift; of sums by thread with channels last."""
    training = getattr(call, "training", False)
    sums = threads() if training and is_channels_last(call.input) else 0
    return (2 + sums) * size_of(call.input.shape[1]) * sum_width(call.input)


def _batch_norm_backward(_out: Any, call: Any) -> Size:
    """Return bytes of a gradient laid out as its operands, or of a sum by channel."""
    both = call.grad_out, call.input
    if not (all(map(is_contiguous, both)) or all(map(is_channels_last, both))):
        return size_of(call.input.shape[1]) * sum_width(call.input)
    return nbytes(call.input) if call.output_mask[0] else 0


def _relaid(x: Any) -> Size:
    """Return the bytes of a tensor that is copied.

    Pooling reads entries in order, or with the channels of a pixel beside each other.
    """
    return 0 if is_channels_last(x) else copied(x)


def _pool_backward(_out: Any, call: Any) -> Size:
    """Return bytes of tensors copied to the gradient's layout, the result's among them."""
    gradient, chosen = call.grad_output, getattr(call, "indices", None)
    size = _relaid(gradient)
    if is_channels_last(gradient) != is_channels_last(call.self):
        size += nbytes(call.self) + (0 if chosen is None else 8 * numel(chosen))
    return size


workspaces(
    {
        "add sub mul div maximum minimum pow eq ne lt le gt ge where atan2 fmod hypot remainder "
        "copysign addcmul addcdiv lerp": _promoted,
        # numbers become truth values; counted along dimensions, those become integers
        "any all": lambda _, c: 0 if is_mask(c.self) else numel(c.self),
        "count_nonzero": lambda _, c: 0 if c.dim is None else 9 * numel(c.self),
        # positions along each dimension
        "repeat": lambda out, _: 32 * out.dim(),
        # of each mask the places that it picks
        "index": lambda out, c: sum(
            8 * x.dim() * size_of(out.shape[place])
            for place, x in enumerate(c.indices) if x is not None and is_mask(x)
        ),
        # magnitudes, and two comparisons
        "isinf": lambda _, c: nbytes(c.self) if c.self.is_floating_point() else 0,
        "isfinite": lambda _, c: (
            nbytes(c.self) + 2 * numel(c.self) if c.self.is_floating_point() else 0
        ),
        # magnitudes of complex numbers are complex first
        "abs angle": lambda _, c: nbytes(c.self) if c.self.is_complex() else 0,
        # the input in the result's number format
        "sum nansum prod cumsum cumprod": _widened,
        # in half precision the input and the sums in float32
        "mean": lambda out, c: (
            4 * (numel(c.self) + numel(out)) if out.dtype in _HALVES else _widened(out, c)
        ),
        # exponentials of all entries, and maxima
        "logsumexp": lambda out, c: numel(c.self) * out.element_size() + nbytes(out),
        "_softmax _log_softmax": lambda _, c: copied(c.self),
        "_softmax_backward_data "
        "_log_softmax_backward_data": lambda _, c: copied(c.grad_output, c.output),
        # whether entries are -inf, and whether all of a row are; before that softmax's own copy
        "_safe_softmax": lambda _, c: copied(c.self) or numel(c.self) + rows_of(c.self, c.dim),
        "searchsorted": lambda _, c: copied(c.sorted_sequence, c.sorter) + (
            copied(c.self) if isinstance(c.self, torch.Tensor) else 0
        ),
        "repeat_interleave": lambda _, c: nbytes(c.repeats) if hasattr(c, "repeats") else 0,
        "scatter_reduce": _except_means,
        # one line of positions
        "sort": lambda _, c: 8 * size_of(c.self.shape[c.dim]) if c.self.dim() else 0,
        # a copy that is partitioned, and its positions
        "kthvalue": lambda _, c: nbytes(c.self) + 8 * numel(c.self),
        "median nanmedian": _partitioned_copy,
        # one dimension after the other
        "roll": lambda out, c: nbytes(out) * max(0, len(c.shifts) - 1),
        # dimension 1 has a kernel of its own, for tensors that lie in order
        "index_select": lambda _, c: copied(c.self) if c.dim % c.self.dim() == 1 else 0,
        # the mask as numbers
        "native_dropout": lambda _, c: nbytes(c.input),
        "_cdist_forward _euclidean_dist": _distances,
        "mm addmm": _product,
        "bmm baddbmm": _batch_of_products,
        "tril triu": _triangles,
        "im2col": lambda _, c: nbytes(c.self),
        # which windows an entry is in
        "unfold_backward": lambda _, c: (
            8 * ((size_of(c.input_sizes[c.dim]) - c.size) // c.step * c.step + c.size)
        ),
        # the sigmoid's logarithms and what they are made of, of a copy, or the weights less one;
        # the losses are in it if they are added up
        "binary_cross_entropy_with_logits": lambda _, c: (
            (copied(c.self) or (0 if c.pos_weight is None else nbytes(c.pos_weight)))
            + nbytes(c.self) * (1 + bool(c.reduction))
        ),
        # the losses, if those are added up
        "mse_loss smooth_l1_loss huber_loss": lambda _, c: nbytes(c.self) if c.reduction else 0,
        # exponentials, and those plus one
        "soft_margin_loss_backward": lambda _, c: 2 * nbytes(c.self),
        "native_layer_norm": lambda _, c: copied(c.input),
        # two rows for each thread that shares the work, where the parameters have gradients
        "native_layer_norm_backward": lambda _, c: copied(c.grad_out, c.input) + (
            2 * threads() * product(c.normalized_shape) * sum_width(c.input)
            if any(c.output_mask[1:]) else 0
        ),
        # two sums for each sample and channel
        "native_group_norm_backward": lambda _, c: 2 * product((c.N, c.C)) * sum_width(c.input),
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training":
            _batch_norm,
        "native_batch_norm_backward": _batch_norm_backward,
        # the bins' edges, each thread's counts, and numbers that are laid out as a list
        "histc": lambda out, c: (
            (1 + threads()) * nbytes(out) + out.element_size()
            + nbytes(c.self) * int(not collapses(layout(c.self)))
        ),
        "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d "
        "avg_pool3d max_pool3d_with_indices": lambda _, c: _relaid(c.self),
        "avg_pool2d_backward max_pool2d_with_indices_backward _adaptive_avg_pool2d_backward "
        "adaptive_max_pool2d_backward": _pool_backward,
        "max_pool1d reflection_pad1d replication_pad1d": lambda _, c: copied(c.self),
        "grid_sampler_2d_backward": lambda _, c: copied(c.grad_output),
    }
)  # fmt: skip
