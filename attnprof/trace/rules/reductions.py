"""Rules for reductions, scatters, norms and softmax, and for layers that normalise.

Mean and variance count by their definition (``moments``).
"""

from typing import Any

from attnprof.costs import exact_div, minimum
from attnprof.trace.events import Size
from attnprof.trace.rules.table import (
    addressed,
    first_of,
    is_factor,
    per_entry,
    rule,
    rules,
    tensors_in,
)
from attnprof.trace.rules.units import NOTHING, OTHER, A, Counts, D, E, M, products, sums
from attnprof.trace.rules.workspaces import rows_of
from attnprof.trace.sizes import is_floating, numel, product, size_of

#: Operations of 1/sqrt(variance + epsilon), once per row.
_ROOT = A + OTHER + D
_INFINITE = float("inf")
_NORMS = {2: M + A, 1: A + OTHER, 0: A + OTHER, _INFINITE: 2 * OTHER, -_INFINITE: 2 * OTHER}

per_entry("_softmax softmax _masked_softmax", OTHER + 2 * A + E + D)
per_entry("_softmax_backward_data _masked_softmax_backward", 2 * M + 2 * A)
# the row's sum of gradients, times the softmax, subtracted
per_entry("_log_softmax_backward_data", 2 * A + E + M)
# maximum, minimum, log1p; their difference, its exponential, the sum
per_entry("logcumsumexp _logcumsumexp", 3 * OTHER + 2 * A + E)


def moments(count: Size, rows: Size) -> Counts:
    """Count a mean and a variance by definition: a mean of entries, one of squared deviations."""
    return (3 * A + M) * count + 2 * D * rows


def _variance(out: Any, call: Any, of_row: Counts = NOTHING) -> Counts | None:
    rows = numel(first_of(out))
    return None if call.self.is_complex() else moments(numel(call.self), rows) + of_row * rows


def _norms(count: Size, rows: Size, order: float | None) -> Counts:
    """Count norms of ``rows`` groups of entries, ``count`` entries in all; most are roots."""
    order = 2 if order is None else order
    rooted = order not in (0, 1, _INFINITE, -_INFINITE)
    return _NORMS.get(order, A + 2 * OTHER) * count + OTHER * rows * rooted


def _norm(out: Any, a: Any, order: Any) -> Counts | None:
    return None if a.is_complex() else _norms(numel(a), numel(out), order)


@rule("dist")
def _distance(_out: Any, call: Any) -> Counts | None:
    n = numel(call.self)
    return A * n + _norms(n, 1, call.p) if call.self.shape == call.other.shape else None


@rule("_cdist_forward")
def _distances(out: Any, call: Any) -> Counts:
    """Count a difference for each pair and dimension, then its norm."""
    n = numel(out) * size_of(call.x1.shape[-1])
    return A * n + _norms(n, numel(out), call.p)


@rule("_cdist_backward")
def _distances_backward(_out: Any, call: Any) -> Counts | None:
    """Count (a - b)·gradient/distance, or the gradient with the difference's sign, summed."""
    last = {2: D, 1: OTHER}.get(call.p)
    n = numel(call.grad) * size_of(call.x1.shape[-1])
    return None if last is None else (2 * A + M + last) * n


def _reduced_to(out: Any, kind: str | None, placed: Any) -> Counts:
    """Count 0 for a move, else one operation an entry; a mean also divides each result."""
    if kind is None:
        return NOTHING
    once = {"sum": A, "add": A, "mean": A, "prod": M, "multiply": M}.get(kind, OTHER)
    return (once * numel(placed) + D * numel(out) * (kind == "mean")) * is_floating(out)


rules(
    {
        "sum cumsum nansum "
        "sum_to_size _grad_sum_to_size": lambda _, c: sums(c.self) * numel(c.self),
        # the diagonal: min(rows, columns) entries
        "trace": lambda out, c: sums(out) * minimum(*map(size_of, c.self.shape)),
        # a sum, and a division a result (two of a complex one)
        "mean": lambda out, c: (
            sums(c.self) * numel(c.self) + D * numel(out) * (1 + out.is_complex())
        ),
        "prod cumprod": lambda _, c: products(c.self) * numel(c.self),
        "var var_mean": _variance,
        "std std_mean": lambda out, c: _variance(out, c, OTHER),
        "linalg_vector_norm": lambda out, c: _norm(out, c.self, c.ord),
        "norm": lambda out, c: _norm(out, c.self, c.p),
        # a comparison an entry; of two tensors, one a result
        "amax amin max min argmax argmin cummax cummin _cummax_helper _cummin_helper": (
            lambda out, c: OTHER * numel(out if hasattr(c, "other") else c.self)
            * is_floating(c.self)
        ),
        "aminmax _aminmax": lambda _, c: 2 * OTHER * numel(c.self) * is_floating(c.self),
        # as softmax, with the row's logarithm subtracted in place of a division
        "_log_softmax log_softmax": lambda out, c: (
            (OTHER + 3 * A + E) * numel(out) + OTHER * rows_of(c.self, c.dim)
        ),
        # whether an entry is inside, its bin (x - least)·bins/(most - least), one more of those
        "histc": lambda _, c: (2 * OTHER + 2 * A + M + D) * numel(c.self) * is_floating(c.self),
        "bincount": lambda _, c: NOTHING if c.weights is None else A * numel(c.self),
        "scatter_add": lambda out, c: sums(out) * numel(c.index),
        "index_add": lambda out, c: (
            (sums(out) + products(out) * is_factor(c.alpha)) * numel(c.source)
        ),
        "scatter scatter_reduce": lambda out, c: (
            _reduced_to(out, getattr(c, "reduce", None), c.index)
        ),
        "index_reduce": lambda out, c: _reduced_to(out, c.reduce, c.source),
        "index_put _index_put_impl _unsafe_index_put": lambda out, c: (
            sums(out) * addressed(c) if c.accumulate else NOTHING
        ),
        "_unsafe_masked_index_put_accumulate": lambda out, c: sums(out) * numel(c.values),
        "put": lambda out, c: sums(out) * numel(c.index) * c.accumulate,
        # each entry is added to the one it came from
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
        "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward "
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
        "adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "unfold_backward col2im": lambda out, c: sums(out) * numel(tensors_in(vars(c))[0]),
        # each row of the gradient added to its token's; by frequency, divided by it
        "embedding_dense_backward": lambda _, c: (
            (A + D * c.scale_grad_by_freq) * numel(c.grad_output)
        ),
        # a norm for each slice, its factor most/(norm + ε) if it is more, and a product an entry
        "renorm": lambda _, c: (
            _norms(numel(c.self), size_of(c.self.shape[c.dim]), c.p)
            + (OTHER + A + D) * size_of(c.self.shape[c.dim]) + M * numel(c.self)
        ),
        # v·(g/norm(v)), a norm for each slice
        "_weight_norm_interface": lambda out, c: (
            (2 * M + A) * numel(c.v) + (OTHER + D) * numel(out[1])
        ),
        # with s = sum(grad·v): s/norm, and g/norm·(grad - v·s/norm²)
        "_weight_norm_interface_backward": lambda _, c: (
            (3 * M + 2 * A) * numel(c.saved_v) + (M + 3 * D) * numel(c.saved_norms)
        ),
    }
)  # fmt: skip


# -- layers that normalise, as torch's CPU kernels compute them --------------------------
def _rows(call: Any) -> tuple[Size, Size]:
    """Return entries, and rows: entries over those of the normalised shape."""
    n = numel(call.input)
    return n, exact_div(n, product(call.normalized_shape))


def _groups(call: Any) -> tuple[Size, Size, Size]:
    """Return entries, groups and channels of all samples."""
    samples, groups, channels = map(size_of, (call.N, call.group, call.C))
    return numel(call.input), samples * groups, samples * channels


@rule("native_layer_norm")
def _layer_norm(_out: Any, call: Any) -> Counts:
    """Count (x - mean)·rstd·weight + bias."""
    n, rows = _rows(call)
    affine = M * (call.weight is not None) + A * (call.bias is not None)
    return moments(n, rows) + _ROOT * rows + (A + M + affine) * n


@rule("native_layer_norm_backward")
def _layer_norm_backward(_out: Any, call: Any) -> Counts:
    """Count dx = a·g·w + b·x + c, where b and c take the row's sums of g·w·x and g·w."""
    n, rows = _rows(call)
    to_input, to_weight, to_bias = call.output_mask
    each = (6 if call.weight is not None else 3) * M + 4 * A
    return (
        (each * n + (8 * M + 2 * A) * rows) * to_input
        + ((2 * M + 2 * A) * n + M * rows) * to_weight
        + A * n * to_bias
    )


@rule("_fused_rms_norm")
def _rms_norm(_out: Any, call: Any) -> Counts:
    """Count x·rstd·weight, with rstd of the mean square."""
    n, rows = _rows(call)
    return (2 * M + A + M * (call.weight is not None)) * n + (D + _ROOT) * rows


@rule("_fused_rms_norm_backward")
def _rms_norm_backward(_out: Any, call: Any) -> Counts:
    """Count dx = rstd·(g·w - x·c), c = rstd²/n·sum(g·w·x), and dw = sum(g·x·rstd)."""
    n, rows = _rows(call)
    to_input, to_weight = call.output_mask
    each = (4 if call.weight is not None else 3) * M + 2 * A
    return (each * n + (2 * M + D) * rows) * to_input + (2 * M + A) * n * to_weight


@rule("native_group_norm")
def _group_norm(_out: Any, call: Any) -> Counts:
    """Count (x - mean)·rstd, or with weights x·scale + shift of each channel."""
    n, rows, channels = _groups(call)
    scales = (2 * M + A) * channels * (call.weight is not None or call.bias is not None)
    return moments(n, rows) + _ROOT * rows + (M + A) * n + scales


@rule("native_group_norm_backward")
def _group_norm_backward(_out: Any, call: Any) -> Counts:
    """Count sums of g·x and g for each channel, and dx = c1·g + c2·x + c3."""
    n, rows, channels = _groups(call)
    to_input, to_weight, to_bias = call.output_mask
    of_channel = 3 * M * (call.weight is not None) + 2 * A
    return (
        (M + 2 * A) * n
        + ((2 * M + 2 * A) * n + of_channel * channels + (8 * M + 2 * A) * rows) * to_input
        + (2 * M + 2 * A) * channels * to_weight
        + A * channels * to_bias
    )


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
      "_native_batch_norm_legit_no_training _batch_norm_with_update "
      "_batch_norm_no_update")  # fmt: skip
def _batch_norm(_out: Any, call: Any) -> Counts:
    """Count x·scale + shift of each channel; in training also the batch's mean and variance."""
    n, channels = numel(call.input), size_of(call.input.shape[1])
    training = getattr(call, "training", False)
    kept = training and getattr(call, "running_mean", None) is not None
    affine = M * (call.weight is not None) + A * (call.bias is not None)
    of_channel = M + affine + (4 * M + 2 * A) * kept
    return moments(n, channels) * training + (M + A) * n + (_ROOT + of_channel) * channels


@rule("native_batch_norm_backward")
def _batch_norm_backward(_out: Any, call: Any) -> Counts:
    """Count in training dx = (g - mean(g) - (x - mean)·k)·rstd·w; else g·rstd·w."""
    n, channels = numel(call.input), size_of(call.input.shape[1])
    to_input, to_weight, to_bias = call.output_mask
    sums = 3 * A + M if call.train or to_weight else A * to_bias
    dx = (3 * M + 3 * A if call.train else 2 * M) * n
    of_channel = (2 * D + 2 * M) * to_input if call.train else _ROOT
    return sums * n + dx * to_input + (of_channel + M * to_weight) * channels


# -- samples between pixels (torch's GridSamplerKernel.cpp), sums of an embedding's rows -----
_CUBIC, _REFLECTED, _MEAN_OF_BAG, _MAX_OF_BAG = 2, 2, 1, 2


@rule("grid_sampler_2d grid_sampler_2d_backward")
def _samples(_out: Any, call: Any) -> Counts | None:
    """Count samples, or their gradients; None for cubic and reflected ones.

    A place is (x + 1)·size/2, from corner to corner or less a half, and clamped at a border. Each
    channel is the nearest pixel, or a sum of four by products of distances. Backward these pixels
    get gradients, and each place two weighted differences, even if it needs no gradient.
    """
    if call.interpolation_mode == _CUBIC or call.padding_mode == _REFLECTED:
        return None
    number, four = exact_div(numel(call.grid), 2), call.interpolation_mode == 0
    entries = number * size_of(call.input.shape[1])
    each = A + M + A * (not call.align_corners) + OTHER * (1 + 2 * call.padding_mode)
    places = (2 * each + (4 * A + 4 * M) * four) * number
    if not hasattr(call, "output_mask"):
        return places + (4 * M + 3 * A) * four * entries
    to_pixels = (4 * M + 4 * A if four else A) * call.output_mask[0]
    return places + to_pixels * entries + ((6 * M + 8 * A) * entries + 2 * M * number) * four


@rule("_embedding_bag _embedding_bag_forward_only _embedding_bag_backward "
      "_embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward")  # fmt: skip
def _bags(out: Any, call: Any) -> Counts | None:
    """Count an addition for each entry of a row, or a comparison; a mean divides its results.

    Backward a scaled gradient is added to each row; of a maximum one to each of its entries.
    """
    rows, gradient = numel(call.indices), getattr(call, "grad", None)
    if call.padding_idx >= 0 or (gradient is not None and getattr(call, "sparse", False)):
        return None  # values tell which rows are left out
    is_mean, is_most = call.mode == _MEAN_OF_BAG, call.mode == _MAX_OF_BAG
    if gradient is None:
        each = OTHER if is_most else A + M * (call.per_sample_weights is not None)
        return each * rows * size_of(call.weight.shape[1]) + D * numel(out[0]) * is_mean
    if is_most:
        return A * numel(gradient)
    divided = 0 if hasattr(call, "weight") else int(is_mean) + int(call.scale_grad_by_freq)
    return (M + A) * rows * size_of(gradient.shape[1]) + D * divided * rows
