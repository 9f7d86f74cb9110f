"""Entry by entry: arithmetic, activations, comparisons, and their backward operations."""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.table import OTHER, A, Counts, D, M, per_entry, rule
from attnprof.trace.sizes import is_floating, numel


@rule("add", "sub", "_foreach_add")
def _plus(out: Any, _a: Any, _b: Any, *, alpha: float = 1) -> Counts:
    if not is_floating(out):
        return {}
    parts = 2 if out.is_complex() else 1
    return {A: parts * numel(out), M: numel(out) if alpha != 1 else 0}


@rule("rsub")
def _minus(out: Any, a: Any, b: Any, alpha: float = 1) -> Counts:
    return dict(_plus(out, a, b, alpha=alpha))


@rule("mul")
def _times(out: Any, *_factors: Any) -> Counts:
    if out.is_complex():
        return {M: 4 * numel(out), A: 2 * numel(out)}
    return {M: numel(out)} if out.is_floating_point() else {}


@rule("pow")
def _power(out: Any, _a: Any, exponent: Any) -> Counts:
    if not is_floating(out):
        return {}
    if isinstance(exponent, int | float) and exponent == int(exponent) and exponent > 0:
        return {M: numel(out) * (int(exponent) - 1)}
    return {D: numel(out)} if exponent == -1 else {OTHER: numel(out)}


@rule("ge", "gt", "le", "lt", "eq", "ne")
def _compared(out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    return {OTHER: numel(out)} if is_floating(a) else {}


per_entry("div reciprocal", divisions=1)
per_entry("exp exp2 expm1", exponentials=1)
per_entry("rsqrt", other=1, divisions=1)
per_entry("sigmoid", exponentials=1, additions=1, divisions=1)
per_entry("sigmoid_backward tanh_backward", additions=1, multiplications=2)
per_entry("addcmul", multiplications=1, additions=1)
per_entry(
    "neg abs sqrt log log2 log10 log1p tanh erf sin cos relu threshold_backward maximum minimum "
    "clamp clamp_min clamp_max sign sgn floor ceil round trunc",
    other=1,
)
