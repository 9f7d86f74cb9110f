"""Normalisation layers as torch's CPU kernels compute them.

Mean and variance count by their definition (see ``reductions.moments``); the reciprocal root of
variance plus epsilon is an addition, a root and a division a row.
"""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.reductions import moments
from attnprof.trace.rules.table import OTHER, A, Counts, D, M, rule, rules
from attnprof.trace.sizes import numel, product, size_of

_ROOT = A + OTHER + D


def _rows(call: Any) -> tuple[Size, Size]:
    """Entries, and rows: entries over those of the normalised shape, exactly."""
    n, width = numel(call.input), product(call.normalized_shape)
    return n, n // width if isinstance(n, int) and isinstance(width, int) else n / width


def _groups(call: Any) -> tuple[Size, Size, Size]:
    """Entries, groups and channels of all samples."""
    samples, groups, channels = map(size_of, (call.N, call.group, call.C))
    return numel(call.input), samples * groups, samples * channels


def _has(parameter: Any) -> bool:
    return parameter is not None


@rule("native_layer_norm")
def _layer_norm(_out: Any, call: Any) -> Counts:
    """(x - mean)·rstd·weight + bias."""
    n, rows = _rows(call)
    affine = M * _has(call.weight) + A * _has(call.bias)
    return moments(n, rows) + _ROOT * rows + (A + M + affine) * n


@rule("native_layer_norm_backward")
def _layer_norm_backward(_out: Any, call: Any) -> Counts:
    """The input's is a·g·w + b·x + c, where b and c take the row's sums of g·w·x and g·w."""
    n, rows = _rows(call)
    to_input, to_weight, to_bias = call.output_mask
    each = (6 if _has(call.weight) else 3) * M + 4 * A
    return (
        (each * n + (8 * M + 2 * A) * rows) * to_input
        + ((2 * M + 2 * A) * n + M * rows) * to_weight
        + A * n * to_bias
    )


@rule("_fused_rms_norm")
def _rms_norm(_out: Any, call: Any) -> Counts:
    """x·rstd·weight; rstd of the mean square."""
    n, rows = _rows(call)
    return (2 * M + A + M * _has(call.weight)) * n + (D + _ROOT) * rows


@rule("_fused_rms_norm_backward")
def _rms_norm_backward(_out: Any, call: Any) -> Counts:
    """The input's is rstd·(g·w - x·c), c = rstd²/n·sum(g·w·x); the weight's sum(g·x·rstd)."""
    n, rows = _rows(call)
    to_input, to_weight = call.output_mask
    each = (4 if _has(call.weight) else 3) * M + 2 * A
    return (each * n + (2 * M + D) * rows) * to_input + (2 * M + A) * n * to_weight


@rule("native_group_norm")
def _group_norm(_out: Any, call: Any) -> Counts:
    """Without weights (x - mean)·rstd; with them x·scale + shift of each channel."""
    n, rows, channels = _groups(call)
    scales = (2 * M + A) * channels * (_has(call.weight) or _has(call.bias))
    return moments(n, rows) + _ROOT * rows + (M + A) * n + scales


@rule("native_group_norm_backward")
def _group_norm_backward(_out: Any, call: Any) -> Counts:
    """Sums of g·x and g a channel; dx = c1·g + c2·x + c3."""
    n, rows, channels = _groups(call)
    to_input, to_weight, to_bias = call.output_mask
    of_channel = 3 * M * _has(call.weight) + 2 * A
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
    """x·scale + shift of each channel; in training of the batch's moments, kept as a mean."""
    n, channels = numel(call.input), size_of(call.input.shape[1])
    training = getattr(call, "training", False)
    kept = training and _has(getattr(call, "running_mean", None))
    of_channel = M + M * _has(call.weight) + A * _has(call.bias) + (4 * M + 2 * A) * kept
    return moments(n, channels) * training + (M + A) * n + (_ROOT + of_channel) * channels


@rule("native_batch_norm_backward")
def _batch_norm_backward(_out: Any, call: Any) -> Counts:
    """In training dx = (g - mean(g) - (x - mean)·k)·rstd·w; else g·rstd·w."""
    n, channels = numel(call.input), size_of(call.input.shape[1])
    to_input, to_weight, to_bias = call.output_mask
    sums = 3 * A + M if call.train or to_weight else A * to_bias
    dx = (3 * M + 3 * A if call.train else 2 * M) * n
    of_channel = (2 * D + 2 * M) * to_input if call.train else _ROOT
    return sums * n + dx * to_input + (of_channel + M * to_weight) * channels


def _weight_norm_backward(_out: Any, call: Any) -> Counts:
    """With s = sum(grad·v): s/norm, and g/norm·(grad - v·s/norm²)."""
    return (3 * M + 2 * A) * numel(call.saved_v) + (M + 3 * D) * numel(call.saved_norms)


rules(
    {
        # v·(g/norm(v)), a norm for each slice
        "_weight_norm_interface": lambda out, c: (
            (2 * M + A) * numel(c.v) + (OTHER + D) * numel(out[1])
        ),
        "_weight_norm_interface_backward": _weight_norm_backward,
    }
)
