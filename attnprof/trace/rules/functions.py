"""Entry by entry: elementary functions, one operation each."""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.table import OTHER, Counts, E, M, per_entry, rule
from attnprof.trace.sizes import is_floating, numel


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
