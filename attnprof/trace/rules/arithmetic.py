"""Entry by entry: arithmetic, comparisons and elementary functions, real and complex."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.products import is_factor, macs_sums, scaled
from attnprof.trace.rules.table import OTHER, A, Counts, D, E, M, entries, per_entry, rule, summed
from attnprof.trace.sizes import is_floating, numel


@rule("add", "sub", "_add_relu")
def _plus(out: Any, _a: Any, _b: Any, *, alpha: float = 1) -> Counts:
    return summed(macs_sums(out, numel(out)), scaled(out, numel(out)) if is_factor(alpha) else {})


@rule("rsub")
def _minus(out: Any, a: Any, b: Any, alpha: float = 1) -> Counts:
    return _plus(out, a, b, alpha=alpha)


@rule("mul")
def _times(out: Any, *_factors: Any) -> Counts:
    return scaled(out, numel(out))


@rule("div")
def _over(out: Any, _a: Any, b: Any, *, rounding_mode: str | None = None) -> Counts:
    if out.is_complex():
        return _complex_over(out, b)
    rounded = {OTHER: numel(out)} if rounding_mode else {}
    return summed({D: numel(out)}, rounded) if out.is_floating_point() else {}


def _complex_over(out: Any, divisor: Any) -> Counts:
    """By a real tensor two divisions; else times the conjugate, over the squared modulus."""
    n = numel(out)
    if hasattr(divisor, "is_complex") and not divisor.is_complex():
        return {D: 2 * n}
    return {M: 6 * n, A: 3 * n, D: 2 * n}


@rule("floor_divide")
def _floored(out: Any, *_args: Any) -> Counts:
    return {D: numel(out), OTHER: numel(out)} if out.is_floating_point() else {}


@rule("pow")
def _power(out: Any, _a: Any, exponent: Any) -> Counts | None:
    """Whole exponents as repeated products, halves as roots; else one operation."""
    if not is_floating(out):
        return {}
    n = numel(out)
    if not isinstance(exponent, int | float):  # a tensor, or symbolic
        return None if out.is_complex() else {OTHER: n}
    if exponent == int(exponent) and exponent > 0:
        return scaled(out, n * (int(exponent) - 1))
    if out.is_complex():
        return None
    return _known_power(n, exponent)


def _known_power(n: Size, exponent: float) -> Counts:
    known: dict[float, Counts] = {
        0: {},
        -1: {D: n},
        -2: {M: n, D: n},
        -0.5: {OTHER: n, D: n},
    }
    return known.get(exponent, {OTHER: n})


@rule("abs")
def _modulus(out: Any, a: Any) -> Counts:
    if a.is_complex():
        return {M: 2 * numel(out), A: numel(out), OTHER: numel(out)}
    return entries(numel(out), real=is_floating(out), other=1)


@rule("sgn")
def _direction(out: Any, _a: Any) -> Counts:
    """A complex one over its modulus."""
    n = numel(out)
    if out.is_complex():
        return {M: 2 * n, A: n, OTHER: n, D: 2 * n}
    return entries(n, real=is_floating(out), other=1)


@rule("neg")
def _negated(out: Any, _a: Any) -> Counts:
    return {OTHER: numel(out) * (2 if out.is_complex() else 1)} if is_floating(out) else {}


@rule("polar")
def _polar(out: Any, *_args: Any) -> Counts:
    return {M: 2 * numel(out), OTHER: 2 * numel(out)}


@rule("ge", "gt", "le", "lt", "eq", "ne")
def _compared(out: Any, a: Any, b: Any = None) -> Counts:
    return entries(numel(out), real=is_floating(a) or _is_real(b), other=1)


def _is_real(value: Any) -> bool:
    return hasattr(value, "shape") and is_floating(value)


@rule("isclose", "allclose")
def _close(_out: Any, a: Any, *_rest: Any, **_named: Any) -> Counts:
    """|a - b| <= atol + rtol·|b|."""
    n = numel(a)
    return entries(n, real=is_floating(a), additions=2, multiplications=1, other=3)


@rule("clamp")
def _clamped(out: Any, _a: Any, low: Any = None, high: Any = None) -> Counts:
    bounds = (low is not None) + (high is not None)
    return entries(numel(out), real=is_floating(out), other=bounds)


@rule("addcmul")
def _added_products(out: Any, *_args: Any, value: float = 1) -> Counts:
    factors = 1 + is_factor(value)
    return summed(scaled(out, factors * numel(out)), macs_sums(out, numel(out)))


@rule("addcdiv")
def _added_ratios(out: Any, *_args: Any, value: float = 1) -> Counts | None:
    if out.is_complex():
        return None
    return entries(numel(out), additions=1, divisions=1, multiplications=int(is_factor(value)))


@rule("lerp")
def _between(out: Any, *_args: Any) -> Counts:
    """A + w·(b - a)."""
    return summed(macs_sums(out, 2 * numel(out)), scaled(out, numel(out)))


@rule("searchsorted", "bucketize", "sort", "argsort", "msort", "topk", "unique_consecutive",
      "unique_dim", "_unique", "_unique2")  # fmt: skip
def _ordered(_out: Any, a: Any, *rest: Any, **_named: Any) -> Counts | None:
    """Comparisons of integers count nothing; those of reals depend on the method: unknown."""
    tensors = [x for x in (a, *rest) if hasattr(x, "shape")]
    return None if any(is_floating(x) for x in tensors) else {}


per_entry("reciprocal fmod remainder", divisions=1)
per_entry("maximum minimum fmax fmin clamp_min clamp_max", other=1)
per_entry("sign floor ceil round trunc", other=1)
per_entry("frac", other=1, additions=1)
per_entry("heaviside", other=2)
per_entry("hypot", multiplications=2, additions=1, other=1)


@rule("exp")
def _exponential(out: Any, _a: Any) -> Counts:
    """A complex one is a real one, a sine, a cosine and two products."""
    n = numel(out)
    if out.is_complex():
        return {E: n, OTHER: 2 * n, M: 2 * n}
    return {E: n} if is_floating(out) else {}


@rule("angle")
def _angle(out: Any, a: Any) -> Counts:
    return {OTHER: numel(out)} if a.is_complex() or is_floating(a) else {}


per_entry("exp2 expm1", exponentials=1)
per_entry("sqrt log log2 log10 log1p", other=1)
per_entry("sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh", other=1)
per_entry("erf erfc", other=1)
per_entry("rsqrt", other=1, divisions=1)
per_entry("sinc", multiplications=1, divisions=1, other=1)
per_entry("logit", additions=1, divisions=1, other=1)
per_entry("logit_backward", additions=1, multiplications=1, divisions=1, other=2)
per_entry("xlogy special_xlog1py", multiplications=1, other=1)
per_entry("special_entr", multiplications=1, other=1)
# maximum + log(1 + exp(-|difference|))
per_entry("logaddexp logaddexp2", additions=2, exponentials=1, other=3)
