"""Memory that a CPU kernel takes inside itself and gives back before it returns.

Each formula was found by running the operation alone under torch's profiler, and read in torch's
source where it is not obvious; tests hold them to the allocator at random shapes. Operations of
``UNKNOWN_WORKSPACE`` take memory that is not predicted: a peak with one of them is "at least".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import copied, has_unit_stride
from attnprof.trace.rules.moves import words
from attnprof.trace.rules.scatters import is_mask
from attnprof.trace.sizes import nbytes, numel, product, size_of

Workspace = Callable[..., Size]

#: By operation: bytes, from the result and the operation's arguments.
WORKSPACES: dict[str, Workspace] = {}

#: What these take depends on values, or on a library's own choice of algorithm.
UNKNOWN_WORKSPACE = words(
    """
    masked_select nonzero nonzero_static unique_consecutive unique_dim _unique2 multinomial bincount
    histc linalg_qr linalg_inv_ex _linalg_det linalg_lu_factor_ex linalg_lu linalg_eig _linalg_svd
    _linalg_eigh _linalg_solve_ex linalg_solve_triangular linalg_pinv linalg_matrix_exp
    linalg_lstsq linalg_householder_product _linalg_slogdet triangular_solve cholesky_inverse
    cholesky_solve ormqr lu_unpack mkldnn_rnn_layer _thnn_fused_lstm_cell
    flex_attention flex_attention_backward _transformer_encoder_layer_fwd _trilinear
    scatter_reduce _embedding_bag _embedding_bag_forward_only upsample_nearest1d upsample_nearest2d
    upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d allclose mvlgamma
    affine_grid_generator linalg_svdvals
    """
)


def workspace_of(base: str, out: Any, args: tuple[Any, ...]) -> tuple[Size, bool]:
    """Bytes an operation holds only while it runs, and whether that is all of it.

    ``args`` are in the schema's order, all of them. What an operation from elsewhere takes is
    not known (``base`` has its namespace then).
    """
    found = WORKSPACES.get(base)
    try:
        held = found(out, *args) if found else 0
    except UnknownWorkspaceError as error:
        return error.at_least, False
    known = base not in UNKNOWN_WORKSPACE and "::" not in base and not _by_processor(base, args)
    return held, known


class UnknownWorkspaceError(Exception):
    """A formula does not reach this far, or gives only what is taken at least."""

    def __init__(self, at_least: Size = 0) -> None:
        super().__init__()
        self.at_least = at_least


def _by_processor(base: str, args: tuple[Any, ...]) -> bool:
    """Whether a library decides by the processor: half-precision products and convolutions."""
    import torch

    halves = {torch.bfloat16, torch.float16}
    return base in _PRODUCTS and any(
        isinstance(x, torch.Tensor) and x.dtype in halves for x in args
    )


_PRODUCTS = words(
    """
    mm bmm addmm baddbmm addbmm mv addmv convolution _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    """
)


def workspace(names: str) -> Callable[[Workspace], Workspace]:
    """Enter a formula for these operations."""

    def enter(function: Workspace) -> Workspace:
        WORKSPACES.update(dict.fromkeys(names.split(), function))
        return function

    return enter


def threads() -> int:
    """How many threads kernels share their work among: some take memory for each."""
    import torch

    return torch.get_num_threads()


@workspace("add sub mul div maximum minimum pow eq ne lt le gt ge where atan2 fmod hypot remainder "
           "copysign addcmul addcdiv lerp")  # fmt: skip
def _promoted(_out: Any, *args: Any) -> Size:
    """Operands of other number formats are converted first (TensorIterator, on CPU)."""
    import torch
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KINDS
    from torch._prims_common import elementwise_dtypes

    values = [x for x in args if isinstance(x, torch.Tensor | int | float | complex)]
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    if len({x.dtype for x in tensors}) < 2:
        return 0
    if len(tensors) == 3 and tensors[0].dtype == torch.bool:  # where's condition stays as it is
        values, tensors = values[1:], tensors[1:]
    _, common = elementwise_dtypes(*values, type_promotion_kind=KINDS.DEFAULT)
    other = [x for x in tensors if x.dtype != common and x.dim()]
    return sum((numel(x) * common.itemsize for x in other), start=0)


@workspace("any all")
def _truth(_out: Any, a: Any, *_rest: Any) -> Size:
    """Numbers become truth values."""
    import torch

    return 0 if a.dtype in {torch.bool, torch.uint8} else numel(a)


@workspace("count_nonzero")
def _nonzero_counted(_out: Any, a: Any, dims: Any = None) -> Size:
    """Along dimensions: truth values, and those as integers."""
    return 0 if dims is None else 9 * numel(a)


@workspace("repeat")
def _repeated(out: Any, *_rest: Any) -> Size:
    """Positions along each dimension."""
    return 32 * out.dim()


@workspace("index")
def _picked(out: Any, _a: Any, indices: Any) -> Size:
    """Of each mask the places that it picks."""
    found: Size = 0
    for place, index in enumerate(indices):
        if index is not None and is_mask(index):
            found = found + 8 * index.dim() * size_of(out.shape[place])
    return found


@workspace("isinf")
def _magnitudes(_out: Any, a: Any) -> Size:
    return nbytes(a) if a.is_floating_point() else 0


@workspace("isfinite")
def _finite(_out: Any, a: Any) -> Size:
    """Magnitudes and two comparisons."""
    return nbytes(a) + 2 * numel(a) if a.is_floating_point() else 0


@workspace("abs angle")
def _complex_magnitude(_out: Any, a: Any) -> Size:
    """Magnitudes of complex numbers are complex first."""
    return nbytes(a) if a.is_complex() else 0


@workspace("sum nansum mean prod cumsum cumprod")
def _converted(out: Any, a: Any, *_rest: Any) -> Size:
    """The input in the result's number format."""
    return numel(a) * out.element_size() if a.dtype != out.dtype else 0


@workspace("logsumexp")
def _log_sum_exp(out: Any, a: Any, *_rest: Any) -> Size:
    """Exponentials of all entries, and maxima."""
    return numel(a) * out.element_size() + nbytes(out)


@workspace("_softmax _log_softmax")
def _normalised(_out: Any, a: Any, *_rest: Any) -> Size:
    return copied(a)


@workspace("_softmax_backward_data _log_softmax_backward_data")
def _normalised_backward(_out: Any, grad: Any, y: Any, *_rest: Any) -> Size:
    return copied(grad, y)


@workspace("_safe_softmax")
def _safe_softmax(_out: Any, a: Any, dim: int, *_rest: Any) -> Size:
    """Whether entries are -inf, and whether all of a row are; before that softmax's own copy."""
    marks = numel(a) + product(size for i, size in enumerate(a.shape) if i != dim % a.dim())
    return copied(a) or marks


@workspace("sort")
def _sorted(_out: Any, a: Any, *rest: Any) -> Size:
    """One line of positions."""
    places = [x for x in rest if isinstance(x, int) and not isinstance(x, bool)]
    return 8 * size_of(a.shape[places[0]]) if a.dim() else 0


@workspace("kthvalue")
def _kth(_out: Any, a: Any, *_rest: Any) -> Size:
    """A copy that is partitioned, and its positions."""
    return nbytes(a) + 8 * numel(a)


@workspace("roll")
def _rolled(out: Any, _a: Any, shifts: Any, *_rest: Any) -> Size:
    """One dimension after the other."""
    return nbytes(out) * max(0, len(shifts) - 1) if isinstance(shifts, list | tuple) else 0


@workspace("index_select")
def _selected(_out: Any, a: Any, dim: int, _index: Any) -> Size:
    """Dimension 1 has a kernel of its own, for tensors that lie in order."""
    return copied(a) if dim % a.dim() == 1 else 0


@workspace("native_dropout")
def _dropped(_out: Any, a: Any, *_rest: Any) -> Size:
    """The mask as numbers."""
    return nbytes(a)


@workspace("native_layer_norm")
def _layer_norm(_out: Any, a: Any, *_rest: Any) -> Size:
    return copied(a)


@workspace("native_layer_norm_backward")
def _layer_norm_backward(_out: Any, grad: Any, a: Any, shape: Any, *rest: Any) -> Size:
    """Two rows for each thread, where the parameters have gradients."""
    asked = rest[-1]
    rows = 2 * threads() * product(shape) * max(4, a.element_size()) if any(asked[1:]) else 0
    return rows + copied(grad, a)


@workspace("native_group_norm_backward")
def _group_norm_backward(_out: Any, _grad: Any, a: Any, *rest: Any) -> Size:
    """Two sums for each sample and channel."""
    samples, channels = (size_of(x) for x in rest[3:5])
    return 2 * samples * channels * max(4, a.element_size())


@workspace("native_batch_norm")
def _batch_norm(_out: Any, a: Any, *_rest: Any) -> Size:
    """Scale and shift of each channel."""
    return 2 * size_of(a.shape[1]) * max(4, a.element_size())


@workspace("_cdist_forward _euclidean_dist")
def _distances(_out: Any, a: Any, b: Any, p: float = 2.0, mode: Any = None) -> Size:
    """Long lists of points are compared by a product of points with two columns more."""
    rows = [size_of(x.shape[-2]) for x in (a, b)]
    if p != 2 or mode == 2 or all(isinstance(n, int) and n <= 25 for n in rows):
        return 0
    return sum(a.element_size() * (numel(x) + 2 * product(x.shape[:-1])) for x in (a, b))


@workspace("mm addmm")
def _product(_out: Any, *args: Any) -> Size:
    """Operands whose rows and columns both have gaps are laid out anew."""
    return sum((nbytes(x) for x in _factors(args) if not has_unit_stride(x)), start=0)


def _factors(args: tuple[Any, ...]) -> list[Any]:
    """The two that are multiplied: the last tensors."""
    return [x for x in args if hasattr(x, "shape")][-2:]


@workspace("bmm baddbmm")
def _batched_product(_out: Any, *args: Any) -> Size:
    """The same, one matrix of the batch at a time."""
    gaps = [x for x in _factors(args) if not has_unit_stride(x)]
    return sum((nbytes(x[0]) for x in gaps), start=0)


@workspace("im2col")
def _columns(_out: Any, a: Any, *_rest: Any) -> Size:
    return nbytes(a)


@workspace("unfold_backward")
def _folded(_out: Any, _grad: Any, sizes: Any, dim: int, size: int, step: int) -> Size:
    """Which windows an entry is in."""
    windows = (size_of(sizes[dim]) - size) // step
    return 8 * (windows * step + size)
