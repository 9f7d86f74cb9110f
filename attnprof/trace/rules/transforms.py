"""Fourier transforms and convolutions."""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.table import A, Counts, M, rule
from attnprof.trace.sizes import numel


@rule("_fft_r2c", "_fft_c2r")
def _real_fft(out: Any, a: Any, *_rest: Any) -> Counts:
    """Half of radix 2: points/2·log2(points) butterflies of 4 products and 6 sums a line."""
    real = a if out.is_complex() else out
    points = real.shape[-1]
    butterflies = numel(real) * (points.bit_length() - 1) // 2
    return {M: 4 * butterflies // 2, A: 6 * butterflies // 2}
