"""Softmax, and normalisation layers as torch's CPU kernels compute them.

Mean and variance count by their definition (see ``reductions.moments``); the reciprocal root of
variance plus epsilon is an addition, a root and a division a row.
"""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.reductions import moments
from attnprof.trace.rules.table import (
    OTHER,
    A,
    Counts,
    D,
    M,
    entries,
    per_entry,
    rule,
    rule_by_name,
    summed,
)
from attnprof.trace.sizes import numel, product, size_of


def _roots(rows: Size) -> Counts:
    return {A: rows, OTHER: rows, D: rows}


def _affine(n: Size, weight: Any, bias: Any) -> Counts:
    return {M: n if weight is not None else 0, A: n if bias is not None else 0}


@rule_by_name("native_layer_norm")
def _layer_norm(_out: Any, call: Any) -> Counts:
    """(x - mean)·rstd·weight + bias."""
    n = numel(call.input)
    rows = _over(n, call.normalized_shape)
    apart = {A: n, M: n}
    return summed(moments(n, rows), _roots(rows), apart, _affine(n, call.weight, call.bias))


def _over(n: Size, shape: Any) -> Size:
    """Rows: entries over those of the normalised shape, exactly."""
    width = product(shape)
    return n // width if isinstance(n, int) and isinstance(width, int) else n / width


@rule_by_name("native_layer_norm_backward")
def _layer_norm_backward(_out: Any, call: Any) -> Counts:
    """The input's is a·g·w + b·x + c, where b and c take the row's sums of g·w·x and g·w."""
    n = numel(call.input)
    rows = _over(n, call.normalized_shape)
    to_input, to_weight, to_bias = call.output_mask
    weighted = call.weight is not None
    return summed(
        {M: (6 if weighted else 3) * n + 8 * rows, A: 4 * n + 2 * rows} if to_input else {},
        {M: 2 * n + rows, A: 2 * n} if to_weight else {},
        {A: n} if to_bias else {},
    )


@rule_by_name("_fused_rms_norm")
def _rms_norm(_out: Any, call: Any) -> Counts:
    """x·rstd·weight; rstd of the mean square."""
    n = numel(call.input)
    rows = _over(n, call.normalized_shape)
    return summed({M: 2 * n, A: n, D: rows}, _roots(rows), _affine(n, call.weight, None))


@rule_by_name("_fused_rms_norm_backward")
def _rms_norm_backward(_out: Any, call: Any) -> Counts:
    """The input's is rstd·(g·w - x·c), c = rstd²/n·sum(g·w·x); the weight's sum(g·x·rstd)."""
    n = numel(call.input)
    rows = _over(n, call.normalized_shape)
    to_input, to_weight = call.output_mask
    weighted = 4 if call.weight is not None else 3
    return summed(
        {M: weighted * n + 2 * rows, A: 2 * n, D: rows} if to_input else {},
        {M: 2 * n, A: n} if to_weight else {},
    )


@rule_by_name("native_group_norm")
def _group_norm(_out: Any, call: Any) -> Counts:
    """Without weights (x - mean)·rstd; with them x·scale + shift of each channel."""
    n = numel(call.input)
    rows = size_of(call.N) * size_of(call.group)
    channels = size_of(call.N) * size_of(call.C)
    plain = call.weight is None and call.bias is None
    scales = {} if plain else {M: 2 * channels, A: channels}
    return summed(moments(n, rows), _roots(rows), {M: n, A: n}, scales)


@rule_by_name("native_group_norm_backward")
def _group_norm_backward(_out: Any, call: Any) -> Counts:
    """Sums of g·x and g a channel; dx = c1·g + c2·x + c3."""
    n = numel(call.input)
    rows = size_of(call.N) * size_of(call.group)
    channels = size_of(call.N) * size_of(call.C)
    to_input, to_weight, to_bias = call.output_mask
    weighted = 3 if call.weight is not None else 0
    by_group = {M: 2 * n + weighted * channels + 8 * rows, A: 2 * n + 2 * channels + 2 * rows}
    return summed(
        {M: n, A: 2 * n},
        by_group if to_input else {},
        {M: 2 * channels, A: 2 * channels} if to_weight else {},
        {A: channels} if to_bias else {},
    )


@rule_by_name("native_batch_norm", "_native_batch_norm_legit",
              "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
              "_batch_norm_with_update", "_batch_norm_no_update")  # fmt: skip
def _batch_norm(_out: Any, call: Any) -> Counts:
    """x·scale + shift of each channel; in training of the batch's moments, kept as a mean."""
    n, channels = numel(call.input), size_of(call.input.shape[1])
    training = getattr(call, "training", False)
    kept = training and getattr(call, "running_mean", None) is not None
    scale = 2 if call.weight is not None else 1
    shift = 1 if call.bias is not None else 0
    return summed(
        moments(n, channels) if training else {},
        _roots(channels),
        {M: scale * channels, A: shift * channels},
        {M: n, A: n},
        {M: 4 * channels, A: 2 * channels} if kept else {},
    )


@rule_by_name("native_batch_norm_backward")
def _batch_norm_backward(_out: Any, call: Any) -> Counts:
    """In training dx = (g - mean(g) - (x - mean)·k)·rstd·w; else g·rstd·w."""
    n, channels = numel(call.input), size_of(call.input.shape[1])
    to_input, to_weight, to_bias = call.output_mask
    sums = {A: 3 * n, M: n} if call.train or to_weight else {A: n} if to_bias else {}
    each = {M: 3 * n, A: 3 * n, D: 2 * channels} if call.train else {M: 2 * n}
    return summed(
        sums,
        each if to_input else {},
        {M: channels} if to_weight else {},
        {} if call.train else _roots(channels),
        {M: 2 * channels} if call.train and to_input else {},
    )


@rule_by_name("_weight_norm_interface")
def _weight_norm(out: Any, call: Any) -> Counts:
    """v·(g/norm(v)), a norm for each slice."""
    n, rows = numel(call.v), numel(out[1])
    return {M: 2 * n, A: n, OTHER: rows, D: rows}


@rule_by_name("_weight_norm_interface_backward")
def _weight_norm_backward(_out: Any, call: Any) -> Counts:
    """With s = sum(grad·v): s/norm, and g/norm·(grad - v·s/norm²)."""
    n, rows = numel(call.saved_v), numel(call.saved_norms)
    return {M: 3 * n + rows, A: 2 * n, D: 3 * rows}


def rows_of(tensor: Any, dim: int) -> Size:
    """Entries over those along one dimension."""
    total: Size = 1
    last = dim % max(tensor.dim(), 1)
    for place, size in enumerate(tensor.shape):
        total = total if place == last else total * size_of(size)
    return total


@rule("_log_softmax", "log_softmax")
def _log_softmax(out: Any, x: Any, dim: int, *_rest: Any) -> Counts:
    """As softmax, with the row's logarithm subtracted in place of a division."""
    counts = entries(numel(out), other=1, additions=3, exponentials=1)
    return summed(counts, {OTHER: rows_of(x, dim)})


per_entry("_softmax softmax", other=1, additions=2, exponentials=1, divisions=1)
per_entry("_softmax_backward_data", multiplications=2, additions=2)
# the row's sum of gradients, times the softmax, subtracted
per_entry("_log_softmax_backward_data", additions=2, exponentials=1, multiplications=1)
per_entry("_masked_softmax", other=1, additions=2, exponentials=1, divisions=1)
per_entry("_masked_softmax_backward", multiplications=2, additions=2)
